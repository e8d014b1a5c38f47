"""`kcr group` and `kcr member`: the consumer groups of a region, and their members in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from airflow_kcr.cli import options
from airflow_kcr.cli.endings import reported
from airflow_kcr.cli.inputs import region_of, store_of, text_in
from airflow_kcr.cli.region import compact
from airflow_kcr.cli.results import Result, show
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.assignors import assignment_from_json
from airflow_kcr.protocol.rules import Assignor
from airflow_kcr.protocol.values import TopicName, TopicPartition

if TYPE_CHECKING:
    from airflow_kcr.api.described import DescribedGroup
    from airflow_kcr.protocol.validation import Check


# `kcr group`

app = typer.Typer(name="group", help="Validate and preview the consumer groups of a region.", no_args_is_help=True)


CHECKED: Final = ("group", "check", "verdict", "detail")


Groups = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="GROUP", help="Only this group; may be repeated.", show_default=False),
]


@app.command()
@reported
def validate(region: options.Name, store: options.Url, group: Groups = None, output: options.Output = None) -> None:
    """Validate a region's consumer groups against Kafka; change nothing.

    Exits with status 0 if every check passes or only warns, and with 1 if a check fails or can't be made.

    Example: kcr group validate flights

    Example: kcr group validate flights --group flights-etl -o json
    """
    from airflow_kcr.api.group_readers import real_reader
    from airflow_kcr.api.validation import validate as checked
    from airflow_kcr.protocol.values import GroupId, region_name

    with store_of(store) as opened:
        groups = [GroupId(g) for g in group] if group else None
        found = checked(opened, region_name(region), real_reader, groups)
    show(answer_of(found.checks), output)
    if not found.is_all_right:
        raise typer.Exit(1)


def answer_of(checks: tuple[Check, ...]) -> Result:
    """Return the checks as they are shown, one line each."""
    rows = [
        {"group": str(c.group), "check": str(c.question), "verdict": str(c.verdict), "detail": c.detail} for c in checks
    ]
    return Result(document=rows, columns=CHECKED, rows=rows)


DESCRIBED: Final = (
    "group",
    "type",
    "state",
    "assignor",
    "member",
    "client_id",
    "host",
    "instance_id",
    "partitions",
    "target",
)


@app.command()
@reported
def describe(region: options.Name, store: options.Url, group: Groups = None, output: options.Output = None) -> None:
    """Describe a region's consumer groups as Kafka does: type, state, assignor and members.

    Each member of the group is shown beside the region's member that it is, or as "foreign". Changes nothing.

    Example: kcr group describe flights

    Example: kcr group describe flights --group flights-etl -o json
    """
    from airflow_kcr.api.described import described
    from airflow_kcr.api.group_readers import real_reader
    from airflow_kcr.protocol.values import GroupId, region_name

    with store_of(store) as opened:
        groups = [GroupId(g) for g in group] if group else None
        found = described(opened, region_name(region), real_reader, groups)
    show(_described(found), output)


def _described(found: tuple[DescribedGroup, ...]) -> Result:
    return Result(
        document=[one.to_json() for one in found],
        columns=DESCRIBED,
        rows=[row for one in found for row in _members(one)],
    )


def _members(one: DescribedGroup) -> Iterator[dict[str, str | None]]:
    """Yield a line for each member, and one for a group without any."""
    group: dict[str, str | None] = {"group": one.group, "type": one.type, "state": one.state, "assignor": one.assignor}
    for member in one.members:
        yield group | {
            "member": "foreign" if member.member is None else str(member.member),
            "client_id": member.client_id,
            "host": member.host,
            "instance_id": member.instance_id,
            "partitions": compact(member.partitions),
            "target": None if member.target is None else compact(member.target),
        }
    if not one.members:
        yield group | dict.fromkeys(DESCRIBED[len(group) :])


@app.command()
@reported
def assignment(
    region: Annotated[
        str | None,
        typer.Argument(
            metavar="[REGION]",
            help="A region; its partitions are read from Kafka.",
            show_default=False,
            autocompletion=options.complete_regions,
        ),
    ] = None,
    input_: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help='Members and topics as JSON, instead of a region: {"members": {"C0": ["t0"]}, "topics": {"t0": 3}}; '
            "- reads standard input.",
            show_default=False,
        ),
    ] = None,
    assignor: Annotated[
        Assignor | None,
        typer.Option(help="Use this assignor instead of the spec's; required with --input.", show_default=False),
    ] = None,
    members: Annotated[
        int | None,
        typer.Option(min=1, help="Assume N members in every group, instead of the spec's number.", show_default=False),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            envvar="KCR_STORE_URL",
            metavar="URL",
            help="The region store; needed with REGION.",
            show_default=False,
        ),
    ] = None,
    output: options.Output = None,
) -> None:
    """Preview the assignment of partitions before scaling; change nothing.

    Example: kcr group assignment flights --members 5

    Example: kcr group assignment --input members.json --assignor roundrobin
    """
    if (region is None) == (input_ is None):
        raise typer.BadParameter("name either a REGION or --input FILE", param_hint="REGION")
    if region is not None:
        show(_of_region(region, store or "", members, assignor), output)
        return
    if assignor is None or members is not None:
        raise typer.BadParameter("--input needs --assignor and excludes --members: the file lists the members")
    show(_answer(assignment_from_json(_document(str(input_)), assignor)), output)


def _of_region(name: str, store: str, members: int | None, assignor: Assignor | None) -> Result:
    """Return the preview, and to a person which protocol and assignor each group has in it."""
    with region_of(name, store) as region:
        found = region.assignment(members=members, assignor=assignor)
        groups = [group for group in region.show().groups if group.protocol is not None]
    answer = _answer({str(member): [[p.topic, p.partition] for p in owned] for member, owned in found.items()})
    facts = {str(g.group_id): f"protocol {g.protocol}, assignor {assignor or g.assignor}" for g in groups}
    return replace(answer, facts=facts)


def _document(file: str) -> object:
    try:
        return json.loads(text_in(file))
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{file}, line {error.lineno}, is not JSON: {error.msg}") from None


def _answer(document: dict[str, list[list[str | int]]]) -> Result:
    owned = {
        member: [TopicPartition(TopicName(str(topic)), int(number)) for topic, number in listed]
        for member, listed in document.items()
    }
    return Result(
        document=document,
        columns=("member", "topic", "partition"),
        rows=[
            {"member": member, "topic": p.topic, "partition": p.partition}
            for member, listed in owned.items()
            for p in listed
        ],
        table=("member", "count", "partitions"),
        table_rows=[
            {"member": member, "count": len(listed), "partitions": compact(listed)} for member, listed in owned.items()
        ],
    )


# `kcr member`

member_app = typer.Typer(name="member", help="Run members, the consumers of a region's groups.", no_args_is_help=True)


def _indexes(text: str) -> str:
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


@member_app.command()
@reported
def run(  # noqa: PLR0913 (options are named where they are used)
    region: options.Name,
    group: Group,
    index: Index,
    store: options.Url,
    takeover: Takeover = False,
    until_request: UntilRequest = "",
    start_within: StartWithin = options.TEN_MINUTES,
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
    from airflow_kcr.api.regions import opened
    from airflow_kcr.driver.application import MemberRun
    from airflow_kcr.driver.process import run_members
    from airflow_kcr.protocol.values import group_id, region_name
    from airflow_kcr.spark.session import CONNECTOR, SparkSettings

    settings = SparkSettings(
        app_name=f"kcr {region} {group} {index}",
        master=master,
        conf=options.settings_of(conf),
        connector=connector or CONNECTOR,
        jars=tuple(part for part in (jars or "").split(",") if part),
    )
    wanted = MemberRun(
        region=region_name(region),
        group=group_id(group),
        indexes=tuple(int(part) for part in index.split(",")),
        takeover=takeover,
        spark=settings,
        reading=options.settings_of(read_option),
    )
    with opened(store) as opened_store:
        run_members(opened_store, wanted, until_request=until_request, start_within=start_within)
