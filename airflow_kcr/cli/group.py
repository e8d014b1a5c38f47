"""`kcr group`: the consumer groups of a region."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from airflow_kcr.cli import options
from airflow_kcr.cli.endings import reported
from airflow_kcr.cli.inputs import region_of, store_of, text_in
from airflow_kcr.cli.region import compact
from airflow_kcr.cli.results import Result, Row, listed, show
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.assignors import assignment_from_json
from airflow_kcr.protocol.rules import Assignor
from airflow_kcr.protocol.values import TopicName, TopicPartition

if TYPE_CHECKING:
    from airflow_kcr.api.described import DescribedGroup


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
    from airflow_kcr.api.clusters import real_reader
    from airflow_kcr.api.validation import CHECK
    from airflow_kcr.api.validation import validate as checked
    from airflow_kcr.protocol.values import GroupId, region_name

    with store_of(store) as opened:
        groups = [GroupId(g) for g in group] if group else None
        found = checked(opened, region_name(region), real_reader, groups)
    show(listed(CHECK, found.checks), output)
    if not found.is_all_right:
        raise typer.Exit(1)


DESCRIBED: Final = (
    *("group", "type", "state", "assignor"),
    *("member", "client_id", "host", "instance_id", "partitions", "target"),
)


@app.command()
@reported
def describe(region: options.Name, store: options.Url, group: Groups = None, output: options.Output = None) -> None:
    """Describe a region's consumer groups as Kafka does: type, state, assignor and members.

    Each member of the group is shown beside the region's member that it is, or as "foreign". Changes nothing.

    Example: kcr group describe flights

    Example: kcr group describe flights --group flights-etl -o json
    """
    from airflow_kcr.api.clusters import real_reader
    from airflow_kcr.api.described import described
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


def _members(one: DescribedGroup) -> Iterator[Row]:
    """Yield a line for each member, and one for a group without any."""
    group = {**dict.fromkeys(DESCRIBED), **one.to_json()}
    for member in one.members:
        yield {
            **group,
            **member.to_json(),
            "member": member.member or "foreign",
            "partitions": compact(member.seen.partitions),
            "target": None if member.seen.target is None else compact(member.seen.target),
        }
    if not one.members:
        yield group


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
    store: options.OptionalUrl = None,
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
