"""`kcr ledger`: which batches processed a record, which offsets were started more than once, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from airflow_kcr.cli.options import Name, Output, Url, region_of
from airflow_kcr.cli.output import Answer, reported, show

if TYPE_CHECKING:
    from airflow_kcr.api import RecordView

app = typer.Typer(
    name="ledger",
    help="Show which batches processed a record, and which offsets were processed again.",
    no_args_is_help=True,
)

STARTED: Final = (
    *("group", "topic", "partition", "offset", "fate", "batch", "member_id", "incarnation", "process", "epoch"),
    *("timeline", "sequence", "started_at", "finished_at", "outcome", "cause", "checkpoint", "runs"),
)
_TABLE: Final = ("group", "fate", "started_at", "batch", "member_id", "epoch", "outcome", "cause", "checkpoint", "runs")
REPEATED: Final = (
    *("group", "topic", "partition", "from_offset", "to_offset", "offsets", "cause", "epoch", "detail", "batch"),
    "earlier",
)
_NUMBERS: Final = frozenset(
    {
        "partition",
        "offset",
        "incarnation",
        "epoch",
        "timeline",
        "sequence",
        "checkpoint",
        "from_offset",
        "to_offset",
        "offsets",
    }
)

Group = Annotated[
    str | None, typer.Option("--group", "-g", metavar="GROUP", help="Only this group.", show_default=False)
]


@app.command()
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
    rows = [row for one in found for row in _rows(one)]
    document = [one.to_json() for one in found]
    show(Answer(document=document, columns=STARTED, table=_TABLE, rows=rows, numbers=_NUMBERS), output)


def _rows(found: RecordView) -> list[dict[str, object]]:
    """Return a row for each time that a record was started; one without a batch where it never was."""
    head = dict.fromkeys(STARTED) | {key: value for key, value in found.to_json().items() if key != "starts"}
    runs = (" ".join(f"{run.dag_id}/{run.run_id}" for run in start.runs) for start in found.starts)
    return [head | start.to_json() | {"runs": text} for start, text in zip(found.starts, runs, strict=True)] or [head]


@app.command()
@reported
def repeated(name: Name, store: Url, group: Group = None, output: Output = None) -> None:
    """Show which offsets were started more than once, and because of which reset.

    Includes offsets of batches that died before their pipeline wrote anything.

    Example: kcr ledger repeated flights
    """
    from airflow_kcr.api.ledger import by_cause

    with region_of(name, store) as region:
        found = region.repeated(group=group)
    rows = [one.to_json() for one in found]
    answer = Answer(
        document=rows,
        columns=REPEATED,
        table=REPEATED[:-2],
        rows=[
            row | {"earlier": " ".join(map(str, one.redelivery.earlier))} for row, one in zip(rows, found, strict=True)
        ],
        facts={cause: f"{offsets:,} offsets started again" for cause, offsets in by_cause(found).items()},
        numbers=_NUMBERS,
        empty=f"region {name} has started nothing twice",
    )
    show(answer, output)
