"""Members that come, and leave in good order, while records come all the time: no reset, and no record read again.

Real broker, real store, members in processes of their own with an engine without Spark; both of Kafka's protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import RegionState
from tests.integration.members.conftest import Lend
from tests.support.faults import Note, finished, judged
from tests.support.load import steadily
from tests.support.members import BRISK, Live

pytestmark = pytest.mark.timeout(240)

OFTEN = f"checkpoint: {{every: 3s, grace: 500ms}}\n{BRISK}"
KINDS = {
    "classic-static": "",
    "classic-dynamic": ", static_membership: false",
    "consumer-static": ", protocol: consumer",
    "consumer-dynamic": ", protocol: consumer, static_membership: false",
}
of_every_kind = pytest.mark.parametrize("group", KINDS.values(), ids=KINDS.keys())
ALWAYS = ("classic-static", "consumer-dynamic")
"""Of the kinds, those of which an ordinary run tries one handover."""

PARTITIONS = 4


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


def nothing_again(region: Live, record_property: Note, counter: int) -> None:
    """Check that there was no reset after an event, that everything was processed, and nothing of it twice."""
    finished(region, 120)
    judged(region, record_property)
    assert [str(e.body) for e in region.events(counter) if isinstance(e.body, events.ResetBegun)] == []
    assert region.account().repeated == 0


@pytest.mark.parametrize(
    "group",
    [pytest.param(text, id=kind, marks=() if kind in ALWAYS else pytest.mark.long) for kind, text in KINDS.items()],
)
def test_a_member_that_joins_takes_over_what_another_processes(lend: Lend, record_property: Note, group: str) -> None:
    with lend(members=2, partitions=PARTITIONS, spec=OFTEN, group=group) as region:
        region.start(0)
        region.until(lambda: region.owners() == dict.fromkeys(range(PARTITIONS), 0), "alone", 60)
        counter = region.region().counter
        with under_load(region) as works_on:
            region.start(1)
            region.shared(0, 1)
            works_on()
        nothing_again(region, record_property, counter)


@pytest.mark.long
@of_every_kind
def test_what_a_member_that_ends_in_good_order_has_processed_goes_on_with_the_other(
    lend: Lend, record_property: Note, group: str
) -> None:
    with lend(members=2, partitions=PARTITIONS, spec=OFTEN, group=group) as region:
        leaver, _ = [region.start(index) for index in (0, 1)]
        region.shared(0, 1)
        counter = region.region().counter
        with under_load(region) as works_on:
            leaver.terminate()
            assert leaver.wait(60) == 0
            region.until(lambda: region.owners() == dict.fromkeys(range(PARTITIONS), 1), "handed over", 60)
            works_on()
        nothing_again(region, record_property, counter)


@pytest.mark.long
@of_every_kind
def test_members_that_are_restarted_one_after_the_other_go_on_where_they_were(
    lend: Lend, record_property: Note, group: str
) -> None:
    with lend(members=2, partitions=PARTITIONS, spec=OFTEN, group=group) as region:
        members = [region.start(index) for index in (0, 1)]
        region.shared(0, 1)
        counter = region.region().counter
        with under_load(region) as works_on:
            for index, member in enumerate(members):
                member.terminate()
                assert member.wait(60) == 0
                region.start(index)
                region.shared(0, 1)
                works_on()
        nothing_again(region, record_property, counter)
