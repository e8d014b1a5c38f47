"""What a person reads before a reset, as markdown: the checkpoints to choose from, then the plan.

Of a plan the sums come first, then the worst partitions, so that the buttons stay on the screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import pendulum
from airflow.providers.common.compat.sdk import conf
from airflow.sdk import Param

from airflow_kcr.protocol.values import few

if TYPE_CHECKING:
    from datetime import datetime, tzinfo

    from airflow_kcr.api import Plan, WayBack
    from airflow_kcr.protocol.target_resolution import PlanLine

LABEL_RUNS: Final = 1
"""How many DAG runs an entry of the list names: a run id fills most of its line."""

TABLE_RUNS: Final = 3
"""How many of them a row of the table names."""

NOTHING_MOVES: Final = (
    "Nothing has been processed since any of these checkpoints: a reset to one of them moves no partition."
)

ROWS: Final = 20
"""How many partitions are shown at most: Airflow puts the buttons below the last row."""


def choices(found: Sequence[WayBack]) -> Param:
    """Return the field with the checkpoints to choose from; the newest that moves a partition is chosen."""
    return Param(
        int(next((one for one in found if one.moved), found[0]).checkpoint.sequence),
        type="integer",
        enum=[int(one.checkpoint.sequence) for one in found],
        values_display={str(one.checkpoint.sequence): _label(one) for one in found},
        title="Checkpoint",
    )


def _label(one: WayBack) -> str:
    row = one.checkpoint
    made = "" if row.finished_at is None else f"made {shown(row.finished_at)}"
    boundary = "" if row.boundary is None else f"boundary {shown(row.boundary)}"
    runs = few([run.run_id for run in one.runs], LABEL_RUNS)
    pinned = f"pinned as {row.pinned_as}" if row.pinned_as else ""
    return " · ".join(text for text in (str(row.sequence), boundary or made, runs, _again(one), pinned) if text)


def _again(one: WayBack) -> str:
    if not one.moved:
        return "moves nothing"
    records = "1 record" if one.replay == 1 else f"{one.replay:,} records"
    return f"{records} again"


def choice(found: Sequence[WayBack]) -> str:
    """Return the checkpoints to choose from as markdown."""
    rows = [
        (
            str(one.checkpoint.sequence),
            "" if one.checkpoint.boundary is None else shown(one.checkpoint.boundary),
            few([f"{run.dag_id} / {run.run_id}" for run in one.runs], TABLE_RUNS) or "none",
            f"{one.replay:,}" if one.moved else "moves nothing",
            "" if one.checkpoint.finished_at is None else shown(one.checkpoint.finished_at),
            one.checkpoint.pinned_as,
        )
        for one in found
    ]
    head = ("Checkpoint", "Boundary", "DAG runs answered", "Records again", "Made at", "Pinned as")
    parts = [table(head, rows, numbers=(0, 3))]
    if not any(one.moved for one in found):
        parts.insert(0, NOTHING_MOVES)
    return "\n\n".join(parts)


def markdown(plan: Plan) -> str:
    """Return a plan as markdown, with who chose its target and why."""
    request, who = plan.request, plan.requester
    facts = {
        **plan.heading(shown),
        "forced": "yes: without a drain, from the last done positions" if request.forced else "",
        "consent to upsert": "yes" if request.consent_upsert and plan.upserts else "",
        "chosen by": who.who,
        "reason": who.reason,
        "epoch": str(plan.epoch),
    }
    rows = [(name[0].upper() + name[1:], value) for name, value in facts.items() if value]
    parts = [table(("Reset of region", plan.region), rows)]
    worst = plan.worst[:ROWS]
    if worst:
        head = ("Group", "Topic", "Partition", "Now", "Target", "Replayed", "Skipped", "Note")
        parts.append(table(head, (_row(plan, line) for line in worst), numbers=range(2, 7)))
    if plan.totals.moved > len(worst):
        parts.append(f"Shown: the worst {len(worst)} of {plan.totals.moved:,} partitions that move.")
    return "\n\n".join(parts)


def _row(plan: Plan, line: PlanLine) -> tuple[str, ...]:
    return (
        line.partition.group,
        line.partition.topic,
        str(line.partition.partition),
        _number(line.current),
        _number(line.target),
        _number(line.replay),
        _number(line.skip),
        "; ".join(plan.notes(line)),
    )


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    """Return a table as markdown; the columns of these numbers are aligned to the right."""
    right = set(numbers)
    rule = ["---:" if place in right else "---" for place in range(len(head))]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in (head, rule, *rows))


def _cell(text: str) -> str:
    """Return a text that stays in its cell, whatever a group's name or a reason holds."""
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())


# Times, in Airflow's default zone: a task doesn't know which zone a browser shows.


def zone_name() -> str:
    """Return the name of the time zone of Airflow, `[core] default_timezone`."""
    name = conf.get("core", "default_timezone", fallback="utc") or "utc"
    if name == "system":
        return str(pendulum.now().timezone_name)
    return "UTC" if name.lower() == "utc" else name


def shown(moment: datetime) -> str:
    """Return an instant as a person reads it, with its zone."""
    # It brings croniter, which only a task that runs needs.
    from airflow_kcr.schedules import zone_named

    zone: tzinfo = zone_named(zone_name())
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"
