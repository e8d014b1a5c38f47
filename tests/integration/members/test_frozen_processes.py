"""A process is frozen beyond its session and its lease, and goes on later as if nothing had been.

Meanwhile others have its partitions, in a newer epoch. Whatever it was about to say then comes too late: the store
refuses the end of its batch and its contribution, and Kafka's committed offsets never go back for its commit.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

import pytest

from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.commands import RequestCheckpoint
from airflow_kcr.protocol.region.rows import Outcome, RegionState
from airflow_kcr.protocol.values import Incarnation, RequestId
from tests.integration.members.conftest import in_both_protocols
from tests.support.faults import Note, finished, judged
from tests.support.members import Live

pytestmark = pytest.mark.timeout(240)

Lend: TypeAlias = Callable[..., AbstractContextManager[Live]]

DYNAMIC = ", static_membership: false"
SOAK = (pytest.mark.soak, pytest.mark.timeout(300))


def late_words(region: Live, after: int, incarnation: Incarnation) -> list[str]:
    """What the store took from an incarnation of member 0 after an event: events, and batches that counted."""
    kinds = (events.Claimed, events.Acknowledged, events.Contributed, events.CommitReadBack)
    member = region.member(0)
    said = [e.body for e in region.events(after) if isinstance(e.body, kinds)]
    heard = [type(body).__name__ for body in said if (body.member, body.incarnation) == (member, incarnation)]
    ended = [
        f"batch {row.batch}"
        for row in region.store.batches(region.name)
        if (row.member, row.incarnation) == (member, incarnation)
        and row.outcome in {Outcome.DONE, Outcome.UNDONE}
        and row.finished_after is not None
        and row.finished_after >= after
    ]
    return heard + ended


@in_both_protocols
@pytest.mark.parametrize(
    ("gate", "group"),
    [
        pytest.param("processing", "", id="the end of a batch, static", marks=pytest.mark.long),
        pytest.param("processing", DYNAMIC, id="the end of a batch, dynamic", marks=SOAK),
        pytest.param("contributing", "", id="a contribution, static", marks=SOAK),
        pytest.param("contributing", DYNAMIC, id="a contribution, dynamic", marks=pytest.mark.long),
        pytest.param("committing", "", id="a commit, static"),
        pytest.param("committing", DYNAMIC, id="a commit, dynamic", marks=SOAK),
    ],
)
def test_what_a_thawed_process_says_is_refused_and_it_comes_back_as_a_new_incarnation(
    lend: Lend, record_property: Note, gate: str, group: str
) -> None:
    with lend(group=group) as region:
        frozen, _ = region.start(0), region.start(1, 2)
        region.shared(0, 1, 2)
        region.fill(60)
        finished(region)

        frozen.gate(gate)
        region.fill(60)
        if gate != "processing":
            region.until(region.consumed, "consumed")
            region.handle(RequestCheckpoint(request_id=RequestId("the checkpoint in which it freezes")))
        region.until(lambda: frozen.reached(gate), f"at {gate}")
        incarnation = region.region().members[region.member(0)].incarnation
        frozen.freeze()
        region.fill(60)
        region.until(
            lambda: set(region.owners().values()) == {1, 2} and region.region().state is RegionState.RUNNING,
            "taken over by the others",
        )
        finished(region)
        committed = region.kafka.committed(region.group)
        last = region.region().counter

        frozen.open(gate)
        frozen.thaw()

        def is_back() -> bool:
            assert region.kafka.committed(region.group) == committed, "a late commit moved Kafka back"
            return set(region.owners().values()) == {0, 1, 2}

        region.until(is_back, "member 0 is back")
        assert late_words(region, last, incarnation) == []
        assert region.region().members[region.member(0)].incarnation > incarnation

        region.fill(60)
        finished(region)
        how = "dynamic" if group else "static"
        record_property("fault", f"SIGSTOP beyond session and lease before {gate}, SIGCONT, {how}")
        judged(region, record_property)
