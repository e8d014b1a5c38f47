"""`kcr member`: members of a region in this process."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_kcr.cli import options
from airflow_kcr.cli.endings import reported
from airflow_kcr.cli.inputs import store_of

if TYPE_CHECKING:
    from airflow_kcr.spark.session import SparkSettings

app = typer.Typer(name="member", help="Run members, the consumers of a region's groups.", no_args_is_help=True)


def indexes(text: str) -> str:
    """Refuse what is no list of indexes, before anything is opened."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len({int(part) for part in parts}) < len(parts):
        raise typer.BadParameter("write one index, or several with commas, each once: 0 or 0,1,2")
    return text


def _reading_given(texts: list[str] | None) -> list[str] | None:
    return options.without_secrets(
        texts,
        "write it into the kafka settings of the spec as ${NAME}, or into the connection that kafka_conn_id names",
    )


Group = Annotated[str, typer.Option("--group", metavar="GROUP", help="The consumer group, by its group id.")]
Index = Annotated[
    str,
    typer.Option(
        "--index",
        metavar="N[,N…]",
        help="The members to run, numbered from 0; several share this process and its Spark application.",
        callback=indexes,
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
StartWithin = Annotated[
    timedelta,
    typer.Option(
        "--start-within",
        parser=options.duration,
        envvar="KCR_START_WITHIN",
        metavar="DURATION",
        help="How long to wait, at the start and when a changed spec has the members start again, while the store, a "
        "broker or a sink's database doesn't answer, such as 5m or PT5M; 0s: not at all. What answers and refuses "
        "ends the command at once.",
        show_default="10m",
        show_envvar=True,
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        envvar="KCR_METRICS_PORT",
        metavar="PORT",
        help="Serve the members' metrics to Prometheus at this port, 0: at any that is free, which the log names. If "
        "it is taken, a line says so and the members go on. Needs the extra metrics. Default: not at all.",
        show_envvar=True,
    ),
]
Master = Annotated[
    str | None,
    typer.Option(help="Spark's master: local[2] or spark://HOST:PORT. Default: spark-submit's, else local."),
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


def settings(
    name: str, master: str | None, conf: list[str] | None, jars: str | None, connector: str | None
) -> SparkSettings:
    """Return the application's settings that a command line gives."""
    from airflow_kcr.spark.session import CONNECTOR, SparkSettings

    return SparkSettings(
        app_name=name,
        master=master,
        conf=options.settings_of(conf),
        connector=connector or CONNECTOR,
        jars=tuple(part for part in (jars or "").split(",") if part),
    )


@app.command()
@reported
def run(  # noqa: PLR0913 (options are named where they are used)
    region: options.Name,
    group: Group,
    index: Index,
    store: options.Url,
    takeover: Takeover = False,
    until_request: UntilRequest = "",
    start_within: StartWithin = options.TEN_MINUTES,
    metrics_port: MetricsPort = None,
    master: Master = None,
    conf: options.Conf = None,
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
    from airflow_kcr.driver.application import MemberRun
    from airflow_kcr.driver.process import run_members
    from airflow_kcr.protocol.values import MemberId, group_id, region_name

    wanted = MemberRun(
        region=region_name(region),
        members=tuple(MemberId(group_id(group), int(part)) for part in index.split(",")),
        takeover=takeover,
        spark=settings(f"kcr {region} {group} {index}", master, conf, jars, connector),
        reading=options.settings_of(read_option),
        metrics_port=metrics_port,
    )
    with store_of(store) as opened_store:
        run_members(opened_store, wanted, until_request=until_request, start_within=start_within)
