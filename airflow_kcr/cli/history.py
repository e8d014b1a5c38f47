"""`kcr lag`, `kcr events` and `kcr verify`: how far a region is, what happened to it, whether all of that was right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final

import typer

from airflow_kcr.cli.options import Format, Name, Output, Url
from airflow_kcr.cli.output import Answer, chosen, csv_line, note, show, show_line
from airflow_kcr.cli.reporting import reported
from airflow_kcr.cli.session import region_of

if TYPE_CHECKING:
    from airflow_kcr.api import Region
    from airflow_kcr.protocol.region.events import Event

LAG: Final = (
    "group",
    "topic",
    "partition",
    "position",
    "committed",
    "log_start",
    "log_end",
    "lag",
    "member_id",
    "trouble",
)
EVENT: Final = ("number", "at", "epoch", "timeline", "kind", "what")
_BRIEF: Final = 160


@reported
def lag(name: Name, store: Url, output: Output = None) -> None:
    """Show the lag of each partition: position, Kafka's committed offset, start and end of the log.

    The lag counts offsets from the position, the next offset to process: at most so many records are left, fewer where
    transactions were aborted or leave their markers, or where the topic is compacted. Committed moves only at
    checkpoints. Where the position is not in the log, `trouble` says why.

    Example: kcr lag flights
    """
    with region_of(name, store) as region:
        rows = [row.to_json() for row in region.lag()]
    answer = Answer(
        document=rows,
        columns=LAG,
        rows=rows,
        numbers=frozenset({"partition", "position", "committed", "log_start", "log_end", "lag"}),
        empty=f"region {name} has no partition yet: none of its topics exists",
    )
    show(answer, output)


@reported
def events(
    name: Name,
    store: Url,
    last: Annotated[
        int | None, typer.Option("--last", "-n", min=0, help="Show the last N events.", show_default="50")
    ] = None,
    after: Annotated[
        int | None, typer.Option(min=0, help="Show the events after number N instead; 0: all.", show_default=False)
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Follow new events until Ctrl-C; JSON is then one event a line.")
    ] = False,
    output: Output = None,
) -> None:
    """Show the events of a region, in the order of their decisions.

    Example: kcr events flights --follow
    """
    if last is not None and after is not None:
        raise typer.BadParameter("--last and --after exclude each other")
    with region_of(name, store) as region:
        if follow:
            _follow(region, _first(region, last, after), chosen(output))
            return
        found = _all_after(region, _first(region, last, after))
    rows = [_row(event) for event in found]
    answer = Answer(
        document=[_json(event) for event in found],
        columns=EVENT,
        rows=rows,
        numbers=frozenset({"number", "epoch", "timeline"}),
        empty="nothing happened",
    )
    show(answer, output)


def _first(region: Region, last: int | None, after: int | None) -> int:
    if after is not None:
        return after
    newest = region.newest_events(50 if last is None else last)
    return newest[0].number - 1 if newest else region.counter()


def _all_after(region: Region, after: int) -> list[Event]:
    found: list[Event] = []
    while page := region.events(after):
        found += page
        after = page[-1].number
    return found


def _follow(region: Region, after: int, output: Format) -> None:
    """Write events as they happen; Ctrl-C is how this ends."""
    if output is Format.CSV:
        typer.echo(csv_line(EVENT))
    for event in region.follow(after):
        if output is Format.JSON:
            show_line(_json(event))
        else:
            row = _row(event)
            typer.echo(csv_line([row[column] for column in EVENT]) if output is Format.CSV else _line(row))


def _line(row: Mapping[str, object]) -> str:
    return f"{row['number']:>6}  {row['at']}  epoch {row['epoch']}  {row['kind']}  {row['what']}".rstrip()


def _json(event: Event) -> dict[str, object]:
    from airflow_kcr.api.history import event_to_json

    return event_to_json(event)


def _row(event: Event) -> dict[str, object]:
    from airflow_kcr.api.history import brief

    document = _json(event)
    return {**document, "what": brief(event, _BRIEF)}


@reported
def verify(
    name: Name,
    store: Url,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Verify what is certified again, and compare it with the certificates.")
    ] = False,
    archive: Annotated[
        str | None,
        typer.Option(
            "--archive",
            metavar="PATH",
            help="The folder of the archive, where it is not that of the spec; judges from the start.",
            show_default=False,
        ),
    ] = None,
    output: Output = None,
) -> None:
    """Verify a region's history against the invariants; exit with status 1 if it violates one.

    It goes on from the newest certificate, and certifies what it finds consistent. Events and ledger are read once,
    page by page, up to one moment, so the region may go on meanwhile. Whether it makes progress now is told
    as well, and contradicts nothing. From the start, closed history is read from its archive files; one that is missing
    or was changed ends this with status 1, and its name.

    Example: kcr verify flights
    """
    with region_of(name, store) as region:
        verdict, progress = region.verify(from_start=from_start, archive=archive), region.show().liveness
    rows = [
        {"invariant": v.invariant, "detail": v.detail, "events": " ".join(map(str, v.events))}
        for v in verdict.violations
    ]
    newest = verdict.certificate
    answer = Answer(
        document=verdict.to_json() | {"progress": progress.text()},
        columns=("invariant", "detail", "events"),
        rows=rows,
        facts={
            "region": name,
            "checked_events": verdict.checked_events,
            "checked_batches": verdict.checked_batches,
            "certified": "nothing"
            if newest is None
            else f"up to event {newest.horizon.counter} (number {newest.number})",
            "verdict": f"{len(rows)} violation(s)" if rows else "consistent",
            "progress": progress.text(),
        },
    )
    show(answer, output)
    if verdict.not_certified:
        note(f"no certificate was written: {verdict.not_certified}; the next kcr verify judges the same events again")
    if rows:
        raise typer.Exit(1)
