"""How what `kcr region` finds out is laid out: facts, columns, rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from airflow_kcr.cli.output import Answer

if TYPE_CHECKING:
    from airflow_kcr.api import Applied, CheckpointRequestView, RegionSummary, RegionView
    from airflow_kcr.protocol.values import TopicPartition

SUMMARY: Final = (
    "region",
    "state",
    "desired_state",
    "epoch",
    "timeline",
    "last_complete",
    "next_boundary",
    "overdue_seconds",
    "progress",
    "members",
    "alive",
)
MEMBER: Final = ("group_id", "member_id", "incarnation", "version", "state", "alive", "partitions")


def listed(found: Sequence[RegionSummary]) -> Answer:
    """Lay out the regions of a store."""
    rows = [summary.to_json() for summary in found]
    return Answer(
        document=rows,
        columns=SUMMARY,
        rows=rows,
        numbers=frozenset({"epoch", "timeline", "last_complete", "overdue_seconds", "members", "alive"}),
        empty="there is no region in this store yet; `kcr region apply -f FILE` makes one",
    )


def shown(view: RegionView) -> Answer:
    """Lay out one region and its members."""
    from airflow_kcr.api.views import span

    document = view.to_json()
    apart = {"groups", "unowned", "absent", "waits", "overdue_seconds"}
    facts = {name: value for name, value in document.items() if name not in apart}
    facts |= {
        "overdue": ""
        if view.overdue is None
        else f"the next boundary passed {span(view.overdue)} ago, not checkpointed yet"
    }
    rows = [
        member.to_json() | {"group_id": group, "partitions": compact(member.partitions)}
        for group, members in view.groups
        for member in members
    ]
    return Answer(
        document=document,
        columns=MEMBER,
        rows=rows,
        facts=facts | {"progress": view.liveness.text(), "halted": view.halted, "note": view.note},
        numbers=frozenset({"incarnation"}),
    )


def applied(found: Applied) -> Answer:
    """Lay out what became of a spec."""
    rows = [{"field": d.path, "takes_effect": str(d.takes_effect)} for d in found.differences]
    return Answer(
        document=found.to_json(),
        columns=("field", "takes_effect"),
        rows=rows,
        facts={"region": found.region, "change": str(found.change)},
    )


def checkpoint_request(view: CheckpointRequestView) -> Answer:
    """Lay out where a request for a checkpoint stands."""
    document = view.to_json()
    return Answer(document=document, columns=tuple(document), rows=[document])


def compact(partitions: Iterable[TopicPartition]) -> str:
    """Return partitions as people write them, `flights 0-3,7`; several topics one after the other."""
    texts = []
    for topic, owned in groupby(sorted(partitions), key=lambda p: p.topic):
        texts.append(f"{topic} {','.join(_runs([p.partition for p in owned]))}")
    return " ".join(texts)


def _runs(numbers: Sequence[int]) -> Iterable[str]:
    """Yield ascending numbers, neighbours as one run."""
    for _, neighbours in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in neighbours]
        yield str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"
