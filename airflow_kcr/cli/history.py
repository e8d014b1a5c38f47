"""`kcr events`, `report`, `verify` and `ledger`: a region's history, and checking it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from airflow_kcr.cli.endings import reported
from airflow_kcr.cli.inputs import region_of
from airflow_kcr.cli.options import Name, Output, Url
from airflow_kcr.cli.results import OutputFormat, Result, chosen, csv_line, listed, note, show, show_line
from airflow_kcr.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_kcr.api import RecordView, Region
    from airflow_kcr.protocol.region.events import Event

EVENT: Final = ("number", "at", "epoch", "timeline", "kind", "what")
_BRIEF: Final = 160


@reported
def events(
    name: Name,
    store: Url,
    last: Annotated[
        int | None, typer.Option("--last", "-n", min=0, help="Show the last N events.", show_default="50")
    ] = None,
    after: Annotated[
        int | None, typer.Option(min=0, help="Show the events after number N; 0 shows all.", show_default=False)
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Follow new events until Ctrl-C; JSON output has one event per line.")
    ] = False,
    output: Output = None,
) -> None:
    """Show the events of a region, oldest first.

    Example: kcr events flights --follow
    """
    from airflow_kcr.api.ledger import event_to_json

    if last is not None and after is not None:
        raise typer.BadParameter("--last and --after exclude each other")
    with region_of(name, store) as region:
        if follow:
            _follow(region, _first(region, last, after), chosen(output))
            return
        found = _all_after(region, _first(region, last, after))
    rows = [_row(event) for event in found]
    answer = Result(
        document=[event_to_json(event) for event in found],
        columns=EVENT,
        rows=rows,
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


def _follow(region: Region, after: int, output: OutputFormat) -> None:
    """Write events as they happen; Ctrl-C is how this ends."""
    from airflow_kcr.api.ledger import event_to_json

    if output is OutputFormat.CSV:
        typer.echo(csv_line(EVENT))
    for event in region.follow(after):
        if output is OutputFormat.JSON:
            show_line(event_to_json(event))
        else:
            row = _row(event)
            typer.echo(csv_line([row[column] for column in EVENT]) if output is OutputFormat.CSV else _line(row))


def _line(row: Mapping[str, object]) -> str:
    return f"{row['number']:>6}  {row['at']}  epoch {row['epoch']}  {row['kind']}  {row['what']}".rstrip()


def _row(event: Event) -> dict[str, object]:
    from airflow_kcr.api.ledger import brief, event_to_json

    return {**event_to_json(event), "what": brief(event, _BRIEF)}


@reported
def report(
    name: Name,
    store: Url,
    html: Annotated[Path, typer.Option(help="Write the page to this file; - is standard output.", show_default=False)],
    last: Annotated[
        int, typer.Option("--last", "-n", min=1, help="Show the last N checkpoints, resets and events of each.")
    ] = 200,
) -> None:
    """Write a region's verdict and past as one self-contained page, for a post-mortem.

    It has the checkpoints over time, the resets with who asked and why, how long checkpoints took by phase, the lag and
    the events. It loads nothing from elsewhere. Kafka is not asked.

    Example: kcr report flights --html flights.html
    """
    from airflow_kcr.api.report import report as page

    with region_of(name, store) as region:
        text = page(region, last)
    if str(html) == "-":
        typer.echo(text, nl=False)
        return
    try:
        html.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--html: {html} can't be written: {error.strerror}") from None
    note(f"wrote {html}")


@reported
def verify(
    name: Name,
    store: Url,
    output: Output = None,
) -> None:
    """Verify a region's history against the invariants; exit with status 1 if it violates one.

    Reads all history that is kept: see `history.keep` of the spec. The region can keep running. `progress` says whether
    the region makes progress now; it doesn't affect the exit status.

    Example: kcr verify flights
    """
    from airflow_kcr.api.views import AnswerColumns

    with region_of(name, store) as region:
        verdict, progress = region.verify(), region.show().liveness
    found = verdict.violations
    answer = replace(
        listed(AnswerColumns("invariant", "detail", "events"), found),
        document=verdict.to_json() | {"progress": progress.text()},
        facts={
            "region": name,
            "after": f"event {verdict.after}" if verdict.after else "the beginning",
            "checked_events": verdict.checked_events,
            "checked_batches": verdict.checked_batches,
            "verdict": f"{len(found)} violation(s)" if found else "consistent",
            "progress": progress.text(),
        },
    )
    show(answer, output)
    if found:
        raise typer.Exit(1)


# `kcr ledger`: which batches processed a record, which offsets were started more than once, and why.


ledger_app = typer.Typer(
    name="ledger",
    help="Show which batches processed a record, and which offsets were processed again.",
    no_args_is_help=True,
)

STARTED: Final = (
    *("group", "topic", "partition", "offset", "fate", "batch", "member_id", "incarnation", "process", "epoch"),
    *("timeline", "sequence", "started_at", "finished_at", "outcome", "cause", "checkpoint", "revision", "runs"),
)
_STARTED_TABLE: Final = (
    *("group", "fate", "started_at", "batch", "member_id", "epoch"),
    *("outcome", "cause", "checkpoint", "revision", "runs"),
)

Group = Annotated[
    str | None, typer.Option("--group", "-g", metavar="GROUP", help="Only this group.", show_default=False)
]


@ledger_app.command()
@reported
def record(
    name: Name,
    place: Annotated[str, typer.Argument(metavar="TOPIC:PARTITION:OFFSET", help="The record.")],
    store: Url,
    group: Group = None,
    output: Output = None,
) -> None:
    """Show every batch that started a record, with its member, checkpoint and DAG runs.

    `fate` is `processed` (a batch with the record is done and not undone), `running`, `started` (batches with it were
    discarded or undone), `skipped` or `not_started`.

    Example: kcr ledger record flights departures:3:4711
    """
    with region_of(name, store) as region:
        found = region.record(place, group=group)
    rows = [row for one in found for row in _starts(one)]
    document = [one.to_json() for one in found]
    show(Result(document=document, columns=STARTED, table=_STARTED_TABLE, rows=rows), output)


def _starts(found: RecordView) -> list[dict[str, object]]:
    """Return a row for each time that a record was started; one without a batch where it never was."""
    head = dict.fromkeys(STARTED) | {key: value for key, value in found.to_json().items() if key != "starts"}
    runs = (" ".join(f"{run.dag_id}/{run.run_id}" for run in start.runs) for start in found.starts)
    return [head | start.to_json() | {"runs": text} for start, text in zip(found.starts, runs, strict=True)] or [head]


@ledger_app.command()
@reported
def repeated(name: Name, store: Url, group: Group = None, output: Output = None) -> None:
    """Show which offsets were started more than once, and because of which reset.

    Includes offsets of batches that died before their pipeline wrote anything.

    Example: kcr ledger repeated flights
    """
    from airflow_kcr.api.ledger import Repetition, by_cause

    with region_of(name, store) as region:
        found = region.repeated(group=group)
    facts = {cause: f"{offsets:,} offsets started again" for cause, offsets in by_cause(found).items()}
    show(replace(listed(Repetition.shown, found, f"region {name} has started nothing twice"), facts=facts), output)
