"""`kcr run`: a region that rests between its runs, each up to an instant."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_kcr.cli import member, options
from airflow_kcr.cli.endings import reported
from airflow_kcr.cli.group import Groups
from airflow_kcr.cli.inputs import requester, store_of
from airflow_kcr.cli.lineage import send_checkpoint
from airflow_kcr.cli.region import checkpoint_request
from airflow_kcr.cli.results import show
from airflow_kcr.protocol.values import region_name

if TYPE_CHECKING:
    from airflow_kcr.protocol.region.state import Region as StoredRegion
    from airflow_kcr.protocol.values import MemberId

NOW = "now"


def _until(text: str) -> datetime | None:
    """Return the instant; None: now."""
    return None if text == NOW else options.instant(text)


def _indexes(text: str | None) -> str | None:
    return None if text is None else member.indexes(text)


def _hosted(region: StoredRegion, groups: list[str] | None, index: str | None) -> tuple[MemberId, ...]:
    """Return the members that this process has.

    Raises:
        UnknownMember: the region has no such group, or no such member in it.
    """
    from airflow_kcr.protocol.region.coverage import expected_members
    from airflow_kcr.protocol.region.membership import require_place
    from airflow_kcr.protocol.values import MemberId, group_id

    chosen = [group_id(one) for one in dict.fromkeys(groups or ())]
    if index is not None:
        members = tuple(MemberId(chosen[0], int(part)) for part in index.split(","))
    else:
        members = tuple(one for one in expected_members(region) if not chosen or one.group in chosen)
    for one in (*members, *(MemberId(group, 0) for group in chosen)):
        require_place(region, one)
    return members


@reported
def run(  # noqa: PLR0913 (options are named where they are used)
    region: options.Name,
    store: options.Url,
    until: Annotated[
        datetime | None,
        typer.Option(
            parser=_until,
            metavar="TIME",
            help="Process the records before this instant, such as 2026-01-01T10:00:00Z; `now`: those that the topics "
            "have now.",
            show_default=NOW,
        ),
    ] = None,
    request_id: Annotated[
        str | None,
        typer.Option(help="Name the run: a repeated call with the same id goes on with it, or finds its checkpoint."),
    ] = None,
    allow_inexact: Annotated[
        bool,
        typer.Option("--allow-inexact", help="Take the checkpoint even if a partition is already past the instant."),
    ] = False,
    group: Groups = None,
    index: Annotated[
        str | None,
        typer.Option(
            "--index",
            metavar="N[,N…]",
            help="Only these members of the group, numbered from 0.",
            callback=_indexes,
            show_default=False,
        ),
    ] = None,
    dag_run: options.DagRun = "",
    takeover: member.Takeover = False,
    start_within: member.StartWithin = options.TEN_MINUTES,
    master: member.Master = None,
    conf: options.Conf = None,
    read_option: member.Reading = None,
    jars: member.Jars = None,
    connector: member.Connector = None,
    output: options.Output = None,
) -> None:
    """Run a stopped region up to an instant: process, checkpoint, commit, and stop. Nothing is left running.

    All members of all groups share this process and its Spark application, which isn't started if there is nothing to
    read. A run that was interrupted goes on with the same request id. A region that runs by itself is refused.

    With --group, and --index, this process has those members only. Start one process for each part of the region, all
    with the same --until and --request-id: together they are one run.

    Example: kcr run flights --until 2026-01-01T10:00:00Z --master 'local[2]'

    Example: kcr run flights --request-id hour-10 --group flights-etl --index 0,1
    """
    from airflow_kcr.api import Region
    from airflow_kcr.driver.application import MemberRun
    from airflow_kcr.driver.process import run_region
    from airflow_kcr.sinks.group import show_at_rest
    from airflow_kcr.traces import record

    if group and request_id is None:
        raise typer.BadParameter("--group: the processes of one run share its --request-id; name it")
    if index is not None and len(group or ()) != 1:
        raise typer.BadParameter("--index: name the group that has these members, by one --group")
    name = region_name(region)
    with store_of(store) as found:
        handle = Region(name, found, requester=requester(dag_run))
        wanted = handle.prepared_run(until, request_id=request_id, allow_inexact=allow_inexact, show=show_at_rest)
        members = MemberRun(
            region=name,
            members=_hosted(found.read(name)[0], group, index),
            takeover=takeover,
            region_run=wanted,
            spark=member.settings(f"kcr run {region}", master, conf, jars, connector),
            reading=options.settings_of(read_option),
        )
        answer = run_region(found, members, start_within=start_within)
        if answer.request.sequence is not None and not dag_run:
            record(handle.checkpoints, answer.request.sequence)
        send_checkpoint(handle, answer.request.sequence, dag_run)
        show(checkpoint_request(answer), output)
