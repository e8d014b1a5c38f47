"""Members that come, leave and die, while records come all the time.

Real broker, real store, members in processes of their own with an engine without Spark; both of Kafka's protocols. In
good order a hand-over costs no reset, and no record is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import pytest

from airflow_kcr.protocol.region.rows import RegionState
from tests.integration.members.conftest import DYNAMIC, in_both_protocols
from tests.support.faults import Note, finished, held_at, judged, resets
from tests.support.load import steadily
from tests.support.members import BRISK, Lend, Live

pytestmark = pytest.mark.timeout(240)

OFTEN = f"checkpoint: {{every: 3s, grace: 500ms}}\n{BRISK}"
KINDS = {
    "classic-static": "",
    "classic-dynamic": DYNAMIC,
    "consumer-static": ", protocol: consumer",
    "consumer-dynamic": f", protocol: consumer{DYNAMIC}",
}
ALWAYS = "classic-static"
"""The kind of which an ordinary run tries one handover."""

PARTITIONS = 4
KILLS_ONE_OF = 3
"""Of as many members that go, the last one is killed in a batch; the others end in good order."""


@contextmanager
def under_load(region: Live) -> Iterator[Callable[[], None]]:
    """Produce all the time; gives what waits until every partition was processed beyond where it is now."""

    def works_on() -> None:
        ends = region.kafka.ends(region.topic)
        region.until(lambda: _is_beyond(region, ends), "processed beyond where it was", 60)

    with steadily(region.kafka, region.topic, PARTITIONS, 0.01):
        works_on()
        yield works_on


def _is_beyond(region: Live, ends: dict[int, int]) -> bool:
    claims = region.region().claims
    places = {p.partition: c.position or 0 for p, c in claims.items()}
    return region.region().state is RegionState.RUNNING and all(places.get(n, 0) > end for n, end in ends.items())


Handover = Callable[[Live, Callable[[], None]], None]


def one_joins(region: Live, works_on: Callable[[], None]) -> None:
    """A second member takes over what the first one processes."""
    region.start(1)
    region.shared(0, 1)


def one_ends(region: Live, works_on: Callable[[], None]) -> None:
    """What a member has processed goes on with the other."""
    region.processes[0].terminate()
    assert region.processes[0].wait(60) == 0
    region.shared(1)


def each_is_restarted(region: Live, works_on: Callable[[], None]) -> None:
    """One after the other, they go on where they were."""
    for index in (0, 1):
        region.processes[index].terminate()
        assert region.processes[index].wait(60) == 0
        region.start(index)
        region.shared(0, 1)
        works_on()


def handovers() -> Iterator[object]:
    for handover in (one_joins, one_ends, each_is_restarted):
        for kind, group in KINDS.items():
            marks = () if handover is one_joins and kind == ALWAYS else pytest.mark.long
            yield pytest.param(handover, group, id=f"{handover.__name__}, {kind}", marks=marks)


@pytest.mark.parametrize(("handover", "group"), [*handovers()])
def test_members_that_come_leave_or_are_restarted_in_good_order_cost_no_reset_and_no_record_again(
    lend: Lend, record_property: Note, handover: Handover, group: str
) -> None:
    with lend(members=2, partitions=PARTITIONS, spec=OFTEN, group=group) as region:
        there = (0,) if handover is one_joins else (0, 1)
        for index in there:
            region.start(index)
        region.shared(*there)
        counter = region.region().counter
        with under_load(region) as works_on:
            handover(region, works_on)
            works_on()
        finished(region, 120)
        judged(region, record_property)
        assert resets(region, counter) == []
        assert region.account().repeated == 0


@in_both_protocols
@pytest.mark.parametrize(
    "rebalances",
    [
        pytest.param(10, marks=(pytest.mark.long, pytest.mark.timeout(600))),
        pytest.param(100, marks=(pytest.mark.soak, pytest.mark.timeout(7200))),
    ],
)
def test_many_rebalances_under_load_lose_nothing_and_the_ledger_knows_of_each_record_written_again(
    lend: Lend, record_property: Note, rebalances: int
) -> None:
    random, gone = Random(rebalances), 0
    with lend(spec=OFTEN, group=DYNAMIC) as region:
        there = {0: region.start(0)}
        region.shared(*there)
        before = len(resets(region))
        with steadily(region.kafka, region.topic, 6, 0.02):
            for _ in range(rebalances):
                index = random.choice((1, 2))
                if index not in there:
                    there[index] = region.start(index)
                else:
                    gone += 1
                    leaver = there.pop(index)
                    if gone % KILLS_ONE_OF:
                        leaver.terminate()
                        assert leaver.wait(60) == 0
                    else:
                        held_at(region, "processing", leaver)
                        leaver.kill()
                # Each is over before the next one: all partitions are claimed, by those who are there.
                region.until(
                    lambda: set(region.owners().values()) == there.keys() and len(region.owners()) == 6,
                    f"shared by {sorted(there)}",
                    120,
                )
        finished(region, 120)
        record_property("kills", gone // KILLS_ONE_OF)
        record_property("resets", len(resets(region)) - before)
        judged(region, record_property)
