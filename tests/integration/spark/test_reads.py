"""What a batch reads on a real broker: exactly its ranges, in order, or an error."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pyspark.sql import DataFrame

from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import BatchFailed
from airflow_kcr.spark.context import BatchContext
from airflow_kcr.spark.engine import RangeUnreadable
from tests.integration.spark.batches import Bench, Collected, call, noop
from tests.support.kafka import Kafka

# How long a read waits for what is not there; twice, since a task is tried again.
SHORT = {"kafkaConsumer.pollTimeoutMs": "4000"}


def test_a_batch_has_exactly_the_records_of_its_ranges(bench: Bench, kafka: Kafka) -> None:
    topic = kafka.topic(3)
    kafka.fill(topic, {0: 50, 1: 50, 2: 50})
    found = bench.read(topic, {0: (0, 50), 1: (10, 20), 2: (49, 50)})
    assert found.offsets(0) == list(range(50))
    assert found.offsets(1) == list(range(10, 20))
    assert found.offsets(2) == [49]
    assert all(row[3].startswith(f"{row[1]}:{row[2]}:") for row in found.rows)


def test_empty_ranges_are_left_out_and_a_batch_of_none_is_refused(bench: Bench, kafka: Kafka) -> None:
    topic = kafka.topic(3)
    kafka.fill(topic, {0: 5, 1: 5, 2: 5})
    parts = []

    def process(batch: DataFrame, context: BatchContext) -> None:
        parts.append(batch.rdd.getNumPartitions())
        noop(batch, context)

    bench.engine(process).run(call(topic, {0: (5, 5), 1: (1, 3), 2: (0, 0)}))
    assert parts == [1]
    with pytest.raises(BatchFailed, match="holds no record"):
        bench.engine(noop).run(call(topic, {0: (5, 5)}))


def test_many_small_ranges_share_tasks_with_every_record_in_its_order(bench: Bench, kafka: Kafka) -> None:
    topic = kafka.topic(24)
    kafka.fill(topic, dict.fromkeys(range(24), 30))
    parts = []

    class Counted(Collected):
        def __call__(self, batch: DataFrame, context: BatchContext) -> None:
            parts.append(batch.rdd.getNumPartitions())
            super().__call__(batch, context)

    collected = Counted()
    engine = bench.engine(collected)
    for begin, end in ((0, 30), (7, 19)):
        engine.run(call(topic, dict.fromkeys(range(24), (begin, end))))
        assert {p: collected.offsets(p) for p in range(24)} == {p: list(range(begin, end)) for p in range(24)}
    assert parts == [4, 4]


def test_aborted_records_and_markers_are_no_records_and_open_transactions_wait(bench: Bench, kafka: Kafka) -> None:
    topic = kafka.topic(1)
    kafka.begin_transaction(topic, [b"a", b"b"]).commit()  # 0, 1, marker 2
    kafka.begin_transaction(topic, [b"c", b"d"]).abort()  # 3, 4, marker 5
    kafka.produce(topic, [b"e"])  # 6
    open_one = kafka.begin_transaction(topic, [b"f"])  # 7
    assert kafka.ends(topic) == {0: 7}

    def values(begin: int, end: int) -> str:
        return "".join(row[3] for row in bench.read(topic, {0: (begin, end)}).rows)

    assert values(0, 7) == "abe"
    assert values(1, 3) == "b"
    assert values(2, 6) == ""
    assert values(4, 7) == "e"
    with pytest.raises(RangeUnreadable):
        bench.engine(noop, options=SHORT).run(call(topic, {0: (6, 8)}))
    open_one.commit()
    assert happened(lambda: kafka.ends(topic) == {0: 9}, within=30)
    assert values(6, 9) == "ef"


@pytest.mark.long
@pytest.mark.parametrize(
    "ranges",
    [{0: (15, 25)}, {0: (30, 40)}, {0: (0, 12)}],
    ids=["to lies beyond the end", "all lies beyond it", "retention"],
)
def test_a_range_that_is_not_in_the_log_fails_the_batch_as_such(
    bench: Bench, kafka: Kafka, ranges: Mapping[int, tuple[int, int]]
) -> None:
    topic = kafka.topic(1)
    kafka.fill(topic, {0: 20})
    kafka.delete_records(topic, {0: 10})
    with pytest.raises(RangeUnreadable, match="can't read its range"):
        bench.engine(noop, options=SHORT).run(call(topic, ranges))
    assert bench.read(topic, {0: (10, 20)}).offsets() == list(range(10, 20))


def test_a_deleted_topic_fails_the_batch_as_unreadable(bench: Bench, kafka: Kafka) -> None:
    topic = kafka.topic(1)
    kafka.fill(topic, {0: 5})
    kafka.delete_topic(topic)
    with pytest.raises(RangeUnreadable, match="UnknownTopicOrPartition"):
        bench.engine(noop).run(call(topic, {0: (0, 5)}))


def test_a_recreated_topic_is_read_anew_in_a_new_timeline(bench: Bench, kafka: Kafka) -> None:
    """In the old one executors may have fetched records of the old topic; topic ids are compared by who plans."""
    topic = kafka.topic(1)
    kafka.fill(topic, {0: 5})
    engine = bench.engine(collected := Collected())
    engine.run(call(topic, {0: (0, 3)}))
    kafka.delete_topic(topic)
    kafka.topic(1, name=topic)
    kafka.produce(topic, [b"new"] * 5)
    engine.run(call(topic, {0: (3, 5)}, timeline=2))
    assert [row[3] for row in collected.rows] == ["new", "new"]


def test_two_members_and_two_settings_read_at_will(bench: Bench, kafka: Kafka) -> None:
    topic = kafka.topic(1)
    kafka.fill(topic, {0: 30})
    engines = [
        bench.engine(noop),
        bench.engine(noop, options={"kafka.max.poll.records": "7"}),
        bench.engine(noop, index=1),
    ]
    for begin in (0, 10, 20):
        for engine in engines:
            engine.run(call(topic, {0: (begin, begin + 10)}))


def test_a_read_again_has_the_same_records(bench: Bench, kafka: Kafka) -> None:
    topic = kafka.topic(2)
    kafka.fill(topic, {0: 40, 1: 40})
    engine = bench.engine(collected := Collected())
    for ranges in ({0: (0, 40), 1: (0, 40)}, {0: (20, 30)}, {0: (0, 40), 1: (0, 40)}):
        engine.run(call(topic, ranges))
        assert {p: collected.offsets(p) for p in ranges} == {p: list(range(*r)) for p, r in ranges.items()}


@pytest.mark.long
def test_a_compacted_log_is_read_with_its_holes(bench: Bench, kafka: Kafka) -> None:
    from tests.support.kafka import Record

    topic = kafka.topic(
        1,
        {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.001",
            "segment.ms": "50",
            "max.compaction.lag.ms": "100",
            "min.compaction.lag.ms": "0",
        },
    )
    for number in range(40):
        kafka.produce(topic, [Record(key=b"a" if number % 2 else b"b", value=str(number).encode(), partition=0)])

    def with_holes() -> bool:
        # A new segment begins with the next record only.
        kafka.produce(topic, [Record(key=b"c", value=b"c", partition=0)])
        return len(bench.read(topic, {0: (0, 40)}).rows) < 40

    assert happened(with_holes, within=90)
    found = bench.read(topic, {0: (0, 40)}).offsets()
    assert found == sorted(found)
    assert set(found) <= set(range(40))
