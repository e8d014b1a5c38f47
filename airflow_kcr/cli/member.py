"""`kcr member`: hosts members of a group in this process's Spark application."""

from __future__ import annotations

from typing import Annotated

import typer

from airflow_kcr.cli.options import Name, Url
from airflow_kcr.cli.output import reported

app = typer.Typer(name="member", help="Run members, the consumers of a region's groups.", no_args_is_help=True)


def _indexes(text: str) -> str:
    """Refuse what is no list of indexes, before anything is opened."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len({int(part) for part in parts}) < len(parts):
        raise typer.BadParameter("write one index, or several with commas, each once: 0 or 0,1,2")
    return text


def _setting(text: str) -> str:
    name, equals, _ = text.partition("=")
    if not equals or not name.strip():
        # Never as it stands: it may be a value whose name was forgotten.
        raise typer.BadParameter("a setting has no name, or no value; write NAME=VALUE")
    return text


def _settings_given(texts: list[str] | None) -> list[str] | None:
    return texts and [_setting(text) for text in texts]


def _conf_given(texts: list[str] | None) -> list[str] | None:
    return _without_secrets(
        texts, "write it into spark-defaults.conf (SPARK_CONF_DIR), or hand it over in the environment"
    )


def _reading_given(texts: list[str] | None) -> list[str] | None:
    return _without_secrets(
        texts,
        "write it into the kafka settings of the spec as ${NAME}, or into the connection that kafka_conn_id names",
    )


def _without_secrets(texts: list[str] | None, instead: str) -> list[str] | None:
    """Refuse settings that hold a secret, by their names."""
    from airflow_kcr.confidential import secrets_in

    given = _settings_given(texts)
    if seen := secrets_in(settings_of(given)):
        raise typer.BadParameter(
            f"{', '.join(seen)}: others on this machine can read a secret in the command line; {instead}"
        )
    return given


def settings_of(texts: list[str] | None) -> dict[str, str]:
    """Return settings by name, of texts NAME=VALUE."""
    return {name.strip(): value for name, _, value in (text.partition("=") for text in texts or [])}


Group = Annotated[str, typer.Option("--group", metavar="GROUP", help="The consumer group, by its group id.")]
Index = Annotated[
    str,
    typer.Option(
        "--index",
        metavar="N[,N…]",
        help="The members to run, numbered from 0; several share this process and its Spark application.",
        callback=_indexes,
    ),
]
Takeover = Annotated[
    bool,
    typer.Option("--takeover", help="Replace a process that runs one of these members, once it is not draining."),
]
UntilRequest = Annotated[
    str,
    typer.Option(
        "--until-request",
        metavar="ID",
        help="Drain and end as soon as a checkpoint with this request id is requested, as in "
        "kcr region drain --request-id ID. Airflow's tasks set it where the driver runs in a cluster.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(help="Spark's master: local[2] or spark://HOST:PORT. Default: spark-submit's, else local."),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="NAME=VALUE",
        help="A Spark setting; may be repeated. Settings that hold a secret are refused.",
        callback=_conf_given,
    ),
]
Reading = Annotated[
    list[str] | None,
    typer.Option(
        "--read-option",
        metavar="NAME=VALUE",
        help="An option of Spark's Kafka connector, such as kafka.max.poll.records=2000; may be repeated. Options that "
        "hold a secret are refused.",
        callback=_reading_given,
    ),
]
Jars = Annotated[
    str | None,
    typer.Option(help="Jars of Spark's Kafka connector, separated by commas. Default: downloaded from Maven."),
]
Connector = Annotated[str | None, typer.Option(help="The Maven coordinate of the connector to download.")]


@app.command()
@reported
def run(  # noqa: PLR0913 (options are named where they are used)
    region: Name,
    group: Group,
    index: Index,
    store: Url,
    takeover: Takeover = False,
    until_request: UntilRequest = "",
    master: Master = None,
    conf: Conf = None,
    read_option: Reading = None,
    jars: Jars = None,
    connector: Connector = None,
) -> None:
    """Run members until the region stops, or until Ctrl-C or SIGTERM; start the region if it is stopped.

    Checks the store, the index, the pipeline, Kafka and the group before it consumes anything. Ctrl-C and SIGTERM end
    the process within `timeouts.close` (10 s): the batch finishes or is cancelled. A static member keeps its partitions
    until its session expires, so that a quick restart moves nothing.

    To submit it to a cluster: spark-submit … airflow_kcr/__main__.py member run …

    Example: kcr member run flights --group flights-etl --index 0,1,2 --master 'local[2]'
    """
    from airflow_kcr.api.regions import opened
    from airflow_kcr.driver.application import MemberRun
    from airflow_kcr.driver.process import run_members
    from airflow_kcr.protocol.values import group_id, region_name
    from airflow_kcr.spark.session import CONNECTOR, SparkSettings

    settings = SparkSettings(
        app_name=f"kcr {region} {group} {index}",
        master=master,
        conf=settings_of(conf),
        connector=connector or CONNECTOR,
        jars=tuple(part for part in (jars or "").split(",") if part),
    )
    wanted = MemberRun(
        region=region_name(region),
        group=group_id(group),
        indexes=tuple(int(part) for part in index.split(",")),
        takeover=takeover,
        spark=settings,
        reading=settings_of(read_option),
    )
    with opened(store) as opened_store:
        run_members(opened_store, wanted, until_request=until_request)
