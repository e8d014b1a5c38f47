"""Each start position on a real broker: resolved once, whichever member has the partitions, however often it starts.

Members die before the first checkpoint, each of them is then alone with all partitions for a while, the region is
stopped and started with another start position in its spec, and the topic grows. What the log holds before the region
has started is made so that to resolve a start a second time, later, gives another offset.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Consumer, TopicPartition

from airflow_kcr.api import Region
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.rules import (
    COMMITTED,
    EARLIEST,
    LATEST,
    StartPosition,
)
from tests.support import faults
from tests.support.driver import START, STOP
from tests.support.faults import Note, checkpoints, finished, start_offsets, stored, told
from tests.support.kafka import QUIESCED, Kafka, Record
from tests.support.members import BRISK, Lend, Live

pytestmark = pytest.mark.timeout(600)

PARTITIONS = 4
RECORDS = 60
"""Of each partition, before the region has started."""

SPACING = timedelta(seconds=10)
"""Between their timestamps, the one in the middle of which is of two hours ago."""

BACK = timedelta(hours=2)
OLD = 3
"""The partition whose records are all older than that."""

GONE = 10
"""What retention has taken of the partitions 0 and 1."""

WITHIN = 120.0


@dataclass(frozen=True, slots=True)
class Before:
    """What the logs hold before the region has started."""

    stamps: Mapping[int, list[datetime]]
    """The timestamps of each partition's records."""

    def since(self, instant: datetime) -> dict[int, int]:
        """Return the first offset of each partition at or after an instant; the log's end: there is none."""
        found = {n: bisect_left(stamps, instant) for n, stamps in self.stamps.items()}
        return {n: max(offset, LOG_STARTS[n]) for n, offset in found.items()}


LOG_STARTS = {0: GONE, 1: GONE, 2: 0, OLD: 0}
"""Where the logs begin."""

TAKEN_OVER = {0: 25, 1: GONE - 5, 2: RECORDS + 900}
"""What was committed for the group before: inside a log, before its start, behind its end, and nothing."""


def committed_before(kafka: Kafka, group: str, topic: str) -> None:
    """Commit as the application that the region takes over from."""
    settings = {"group.id": group, "enable.auto.commit": False}
    consumer = Consumer({**kafka.settings, **QUIESCED, **settings})
    consumer.commit(offsets=[TopicPartition(topic, n, o) for n, o in TAKEN_OVER.items()], asynchronous=False)
    consumer.close()


def written_before(one: Live, now: datetime) -> Before:
    """Fill the logs, each record older than the next by `SPACING`, and take the oldest ones away again."""
    first = now - BACK - RECORDS // 2 * SPACING
    stamps = {
        n: [first - (BACK if n == OLD else timedelta()) + number * SPACING for number in range(RECORDS)]
        for n in range(PARTITIONS)
    }
    records = (
        Record(value=f"{n}:{number}".encode(), partition=n, timestamp=at)
        for n, times in stamps.items()
        for number, at in enumerate(times)
    )
    one.kafka.produce(one.topic, records)
    one.kafka.delete_records(one.topic, {n: offset for n, offset in LOG_STARTS.items() if offset})
    return Before(stamps)


Expected = Callable[[Before, datetime, datetime], tuple[dict[int, int], dict[int, int]]]
"""The least and the greatest start of each partition, by the logs, when members joined, and when it was stored."""


def exactly(offsets: Mapping[int, int]) -> Expected:
    return lambda before, joined, stored_at: (dict(offsets), dict(offsets))


STARTS: dict[str, tuple[Callable[[datetime], StartPosition], Expected]] = {
    "earliest": (lambda now: EARLIEST, exactly(LOG_STARTS)),
    "latest": (lambda now: LATEST, exactly(dict.fromkeys(range(PARTITIONS), RECORDS))),
    "committed": (lambda now: COMMITTED, exactly({0: 25, 1: GONE, 2: RECORDS, OLD: 0})),
    "timestamp": (
        lambda now: StartPosition(kind="timestamp", instant=now - BACK - SPACING / 2),
        exactly({0: RECORDS // 2, 1: RECORDS // 2, 2: RECORDS // 2, OLD: RECORDS}),
    ),
    "duration": (
        lambda now: StartPosition(kind="duration", back=BACK),
        lambda before, joined, stored_at: (before.since(joined - BACK), before.since(stored_at - BACK)),
    ),
}


def initial(one: Live) -> dict[int, int]:
    """Where each partition began, by the region's history; each is told once."""
    found = [p.partition for body in told(one, events.InitialOffsetsStored) for p in body.offsets]
    assert len(found) == len(set(found)), f"a start was resolved again: {found}"
    return {partition: offset for (_, partition), offset in start_offsets(one).items()}


def alone(one: Live, index: int) -> None:
    """Have one member have everything for itself, until it has processed it, and kill it."""
    process = one.start(index)
    everything = dict.fromkeys(range(PARTITIONS), index)
    one.until(lambda: one.owners() == everything and one.consumed(), f"all with member {index}, and processed", WITHIN)
    process.kill()


def set_start(one: Live, start: StartPosition) -> None:
    """Change the spec of a stopped region."""
    with Region(one.name, one.store) as region:
        spec = region.spec()
        region.apply(replace(spec, groups=tuple(replace(group, start=start) for group in spec.groups)))


def owners_of(one: Live) -> dict[int, set[int]]:
    """Which members ever had which partition, by the history."""
    found: dict[int, set[int]] = {}
    for body in told(one, events.Claimed):
        for partition in body.partitions:
            found.setdefault(partition.partition, set()).add(body.member.index)
    return found


@pytest.mark.long
@pytest.mark.parametrize("kind", STARTS)
def test_a_start_is_resolved_once_whichever_member_has_the_partitions_and_however_often_it_starts(
    lend: Lend, record_property: Note, kind: str
) -> None:
    position, expected = STARTS[kind]
    now = datetime.now(UTC).replace(microsecond=0)
    start = f", start: '{position(now).text}'"
    with lend(members=2, partitions=PARTITIONS, spec=BRISK, group=start) as one:
        before = written_before(one, now)
        committed_before(one.kafka, one.group, one.topic)

        # The first life: killed in the middle of its first batches.
        joined = one.store.read(one.name)[1]
        first = {0: one.start(0, gates=("ended",)), 1: one.start(1, gates=("processing",))}
        one.until(lambda: set(initial(one)) == set(range(PARTITIONS)), "all starts resolved", WITHIN)
        starts = initial(one)
        least, most = expected(before, joined, one.store.read(one.name)[1])
        assert all(least[n] <= starts[n] <= most[n] for n in range(PARTITIONS)), (least, starts, most)
        one.fill(20)
        one.until(
            lambda: first[0].reached("ended") and first[1].reached("processing"),
            "a batch kept, and one started",
            WITHIN,
        )
        for process in first.values():
            process.kill()

        # Nothing was kept of it. Who has the partitions now has resolved the starts of half of them at most.
        one.fill(20)
        for index in (1, 0):
            alone(one, index)
        assert not checkpoints(one)
        second = [one.start(0), one.start(1)]
        one.shared(0, 1, within=WITHIN)
        finished(one, WITHIN)
        assert initial(one) == starts
        assert [owners_of(one)[n] for n in range(PARTITIONS)] == [{0, 1}] * PARTITIONS

        # A second start; the spec says something else by now.
        one.handle(STOP)
        for process in second:
            assert process.wait(WITHIN) == 0
        set_start(one, LATEST if kind == "earliest" else EARLIEST)
        one.fill(20)
        one.handle(START)
        one.start(0)
        one.start(1)
        finished(one, WITHIN)

        # Partitions that are found later are read from the start of their log.
        one.kafka.add_partitions(one.topic, PARTITIONS + 2)
        one.fill(20)
        finished(one, WITHIN)
        assert initial(one) == starts | {PARTITIONS: 0, PARTITIONS + 1: 0}
        wanted = {r.place for r in stored(one.kafka, one.topic) if r.offset >= initial(one)[r.partition]}
        assert {(row.topic, row.partition, row.offset) for row in one.written()} == wanted
        account = faults.judged(one, record_property, wanted)
        record_property("read", len(wanted))
        assert account.repeated > 0
