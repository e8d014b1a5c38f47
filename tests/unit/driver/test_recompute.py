from __future__ import annotations

import pytest

from airflow_kcr.driver.recompute import Backlog, joined, ranges_of, require_there
from airflow_kcr.errors import CheckpointNotUsable
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    Epoch,
    GroupId,
    GroupPartition,
    Offset,
    Range,
    Timeline,
    TopicId,
    TopicName,
    TopicPartition,
)
from airflow_kcr.sinks.checkpoints import AcceptedBatch, CheckpointId, CompleteCheckpoint

GROUP, TOPIC = GroupId("g"), TopicName("t")
PLACE = GroupPartition(GROUP, TOPIC, 0)


def r(from_: int, to: int) -> Range:
    return Range(Offset(from_), Offset(to))


def batch(**ranges: tuple[int, int]) -> AcceptedBatch:
    return AcceptedBatch(
        batch_id=BatchId(str(ranges)),
        epoch=Epoch(1),
        checkpoint=CheckpointId(Timeline(1), CheckpointNumber(2)),
        ranges={TopicPartition(TOPIC, int(name[1:])): r(*held) for name, held in ranges.items()},
        is_whole=True,
    )


def test_what_a_checkpoint_has_is_joined_by_partition() -> None:
    batches = (batch(p1=(0, 5)), batch(p0=(3, 5), p1=(5, 7)), batch(p0=(6, 9)))
    checkpoint = CompleteCheckpoint(id=batches[0].checkpoint, previous=None, boundary=None, batches=batches)
    assert ranges_of(GROUP, checkpoint) == {
        PLACE: (r(3, 5), r(6, 9)),
        GroupPartition(GROUP, TOPIC, 1): (r(0, 7),),
    }
    assert list(joined([])) == []


def test_batches_take_a_share_of_each_partition_and_cross_no_gap() -> None:
    other = GroupPartition(GROUP, TOPIC, 1)
    backlog = Backlog({PLACE: (r(0, 4), r(6, 8)), other: (r(0, 4),)})
    assert backlog.take(4) == {PLACE: r(0, 2), other: r(0, 2)}
    assert backlog.take(100) == {PLACE: r(2, 4), other: r(2, 4)}
    assert backlog.take(1) == {PLACE: r(6, 7)}
    assert backlog.take(1) == {PLACE: r(7, 8)}
    assert backlog.take(1) == {}


@pytest.mark.parametrize(
    ("log", "topic_id", "why"),
    [
        (None, "a", "the brokers have no such partition"),
        (LogBounds(start=Offset(0), end=Offset(20), topic_id=TopicId("b")), "a", "was deleted and created again since"),
        (LogBounds(start=Offset(6), end=Offset(20)), "", "the log begins at 6, as retention"),
        (LogBounds(start=Offset(0), end=Offset(9)), "", "the log ends at 9; the brokers have lost records"),
    ],
)
def test_records_that_are_not_in_their_log_are_refused(log: LogBounds | None, topic_id: str, why: str) -> None:
    with pytest.raises(CheckpointNotUsable, match=why) as refused:
        require_there(PLACE, [r(5, 8), r(9, 10)], log, TopicId(topic_id))
    assert "records of g:t-0, from offset 5 to 10, can't be read" in str(refused.value)


def test_records_that_are_there_are_fine() -> None:
    require_there(PLACE, [r(5, 10)], LogBounds(start=Offset(5), end=Offset(10), topic_id=TopicId("a")), TopicId("a"))
    require_there(PLACE, [r(5, 10)], LogBounds(start=Offset(5), end=Offset(10), topic_id=TopicId("a")), TopicId(""))
