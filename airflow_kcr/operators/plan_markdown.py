"""A plan for the person who approves it: sums first, then the worst partitions; the buttons stay on the screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from airflow_kcr.protocol.instants import format_instant

if TYPE_CHECKING:
    from airflow_kcr.api import PlanView
    from airflow_kcr.api.reset_plans import PlanLine

ROWS = 20
"""How many partitions are shown at most: Airflow puts the buttons below the last row."""


def markdown(plan: PlanView, reason: str = "", by: str = "") -> str:
    """Return a plan as markdown.

    Args:
        plan: the plan.
        reason: why its target was chosen; may be empty.
        by: who chose it; may be empty.
    """
    totals = plan.totals
    runs = ", ".join(f"{run.dag_id} / {run.run_id}" for run in plan.runs)
    facts = {
        "Target": plan.target,
        "Scope": str(plan.request.scope),
        "Moves": plan.moves,
        "Records processed again": f"{totals.replay:,}",
        "Records skipped": f"{totals.skip:,}" if totals.skip else "",
        "Records skipped by name": ", ".join(f"{p} at {o}" for p, o in plan.request.skip.items()),
        "Clamped into the log": f"{totals.clamped:,} partition(s)" if totals.clamped else "",
        "Not in the log any more": f"{totals.unreachable:,} partition(s)" if totals.unreachable else "",
        "Out of reach": f"from {format_instant(plan.overtaken_at)} on, by retention" if plan.overtaken_at else "",
        "Checkpoints undone": ", ".join(map(str, plan.undoes)),
        "DAG runs undone": runs,
        "Not restored, as mode upsert keeps no history": ", ".join(map(str, plan.upserts)),
        "Chosen by": by,
        "Reason": reason,
        "Epoch": str(plan.epoch),
    }
    parts = [table(("Reset of region", plan.region), [(name, value) for name, value in facts.items() if value])]
    worst = plan.worst[:ROWS]
    if worst:
        head = ("Group", "Topic", "Partition", "Now", "Target", "Replayed", "Skipped", "Note")
        parts.append(table(head, (_row(plan, line) for line in worst), numbers=range(2, 7)))
    if totals.moved > len(worst):
        parts.append(f"Shown: the worst {len(worst)} of {totals.moved:,} partitions that move.")
    return "\n\n".join(parts)


def _row(plan: PlanView, line: PlanLine) -> tuple[str, ...]:
    notes = []
    if plan.finds_nothing(line):
        notes.append("no record since then, the log's end")
    if line.asked is not None:
        notes.append(f"clamped, asked for {line.asked}")
    if line.is_recreated:
        notes.append(line.RECREATED)
    if line.is_unreachable:
        notes.append(f"the log has {line.log_start} to {line.log_end}")
    return (
        line.partition.group,
        line.partition.topic,
        str(line.partition.partition),
        _number(line.current),
        _number(line.target),
        _number(line.replay),
        _number(line.skip),
        "; ".join(notes),
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
