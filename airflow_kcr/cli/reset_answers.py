"""How what `kcr reset` finds out is laid out: a plan with its worst partitions first, resets, one reset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from airflow_kcr.cli.output import Answer
from airflow_kcr.protocol.instants import format_instant

if TYPE_CHECKING:
    from airflow_kcr.api import PlanView, ResetView
    from airflow_kcr.api.reset_plans import PlanLine

PLANNED: Final = ("group", "topic", "partition", "current", "target", "source", "replay", "skip", "note")
LISTED: Final = (
    "id",
    "state",
    "cause",
    "target",
    "scope",
    "forced",
    "consent_upsert",
    "who",
    "reason",
    "dag_id",
    "run_id",
    "asked_at",
    "begun_at",
    "ended_at",
    "timeline",
    "epoch",
    "attempts",
    "undone",
    "rewound",
    "replayed",
    "failure",
    "plan",
)
_TABLE: Final = ("id", "state", "cause", "target", "who", "reason", "asked_at", "attempts", "replayed")
ATTEMPT: Final = ("attempt", "epoch", "sequence", "cause", "state", "begun_at", "done_at", "detail")
SHOWN: Final = 20
"""How many partitions a table has; of more, the worst."""

_NUMBERS: Final = frozenset(
    {
        "partition",
        "current",
        "target",
        "replay",
        "skip",
        "attempt",
        "attempts",
        "epoch",
        "sequence",
        "rewound",
        "replayed",
    }
)


def planned(plan: PlanView) -> Answer:
    """Lay out a plan."""
    totals = plan.totals
    is_big = len(plan.lines) > SHOWN
    lines = plan.worst[:SHOWN] if is_big else plan.lines
    shown = f"the worst {len(lines)} of {totals.partitions}; -o json has all" if is_big and lines else ""
    facts = {
        "region": plan.region,
        "plan": plan.plan,
        "epoch": plan.epoch,
        "target": plan.target,
        "scope": plan.request.scope,
        "moves": plan.moves,
        "processed again": f"{totals.replay:,} record(s)",
        "skipped": f"{totals.skip:,} record(s)" if totals.skip else "",
        "skipped by name": ", ".join(f"{p} at {o}" for p, o in plan.request.skip.items()),
        "clamped": f"{totals.clamped} partition(s): the log does not have what was asked for" if totals.clamped else "",
        "unreachable": f"{totals.unreachable} partition(s): it would be refused" if totals.unreachable else "",
        "out of reach": f"from {format_instant(plan.overtaken_at)} on, by retention" if plan.overtaken_at else "",
        "undoes": _undone(plan),
        "not restored": ", ".join(map(str, plan.upserts)),
        "not in the region": ", ".join(map(str, plan.ignored)),
        "shown": shown,
    }
    return Answer(
        document=plan.to_json(),
        columns=PLANNED,
        rows=[_row(plan, line) for line in lines],
        facts=facts,
        numbers=_NUMBERS,
    )


def _undone(plan: PlanView) -> str:
    if not plan.undoes:
        return ""
    runs = ", ".join(f"{run.dag_id}/{run.run_id}" for run in plan.runs)
    return f"checkpoint(s) {', '.join(map(str, plan.undoes))}" + (f" of the runs {runs}" if runs else "")


def _row(plan: PlanView, line: PlanLine) -> dict[str, object]:
    notes = []
    if not line.in_scope:
        notes.append("out of scope")
    if plan.finds_nothing(line):
        notes.append("no record since then, the log's end")
    if line.asked is not None:
        notes.append(f"clamped, asked for {line.asked}")
    if line.is_recreated:
        notes.append(line.RECREATED)
    if line.is_unreachable:
        notes.append(f"unreachable, the log has {line.log_start} to {line.log_end}")
    return {
        "group": line.partition.group,
        "topic": line.partition.topic,
        "partition": line.partition.partition,
        "current": line.current,
        "target": line.target,
        "source": line.source,
        "replay": line.replay,
        "skip": line.skip,
        "note": "; ".join(notes),
    }


def listed(found: Sequence[ResetView], region: str, before: int | None) -> Answer:
    """Lay out the resets of a region."""
    documents = [view.to_json() for view in found]
    rows = [
        document | {"attempts": len(view.attempts), "undone": " ".join(map(str, view.undone))}
        for document, view in zip(documents, found, strict=True)
    ]
    return Answer(
        document=documents,
        columns=LISTED,
        rows=rows,
        table=_TABLE,
        numbers=_NUMBERS,
        empty=f"region {region} was never reset or started"
        if before is None
        else f"region {region} has no reset before {before}",
    )


def shown(view: ResetView) -> Answer:
    """Lay out one reset with its attempts."""
    document = view.to_json()
    facts = {name: value for name, value in document.items() if name not in {"attempts", "undone", "skip"}}
    return Answer(
        document=document,
        columns=ATTEMPT,
        rows=_attempts(document),
        facts=facts
        | {
            "skip": ", ".join(f"{p} at {o}" for p, o in view.asked.skip.items()) if view.asked is not None else "",
            "undone": ", ".join(map(str, view.undone)),
        },
        numbers=_NUMBERS,
    )


def _attempts(document: dict[str, object]) -> list[dict[str, object]]:
    rows = document["attempts"]
    return rows if isinstance(rows, list) else []
