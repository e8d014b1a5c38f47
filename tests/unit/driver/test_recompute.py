from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from airflow_kcr.api import Region
from airflow_kcr.driver.recompute import Backlog, losses, ranges_in, require_uncompacted
from airflow_kcr.driver.starting import StartPatience
from airflow_kcr.errors import CheckpointNotUsable, RecomputationRefused
from airflow_kcr.protocol.observations import TimeAnswer
from airflow_kcr.protocol.region.commands import StartRecomputation
from airflow_kcr.protocol.region.rows import RecomputationState
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    Epoch,
    GroupId,
    GroupPartition,
    Offset,
    Range,
    RequestId,
    Timeline,
    TopicId,
    TopicName,
    TopicPartition,
)
from airflow_kcr.sinks.checkpoints import AcceptedBatch, CheckpointId, CompleteCheckpoint
from tests.support.driver import Driver
from tests.support.live_region import SPEC, FakeCluster, live_region

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
    checkpoint = CompleteCheckpoint(
        id=batches[0].checkpoint, epoch=Epoch(1), previous=None, boundary=None, batches=batches
    )
    assert ranges_in(GROUP, checkpoint) == {
        PLACE: (r(3, 5), r(6, 9)),
        GroupPartition(GROUP, TOPIC, 1): (r(0, 7),),
    }


def test_batches_take_a_share_of_each_partition_and_cross_no_gap() -> None:
    other = GroupPartition(GROUP, TOPIC, 1)
    backlog = Backlog({PLACE: (r(0, 4), r(6, 8)), other: (r(0, 4),)})
    assert backlog.take(4) == {PLACE: r(0, 2), other: r(0, 2)}
    assert backlog.take(100) == {PLACE: r(2, 4), other: r(2, 4)}
    assert backlog.take(1) == {PLACE: r(6, 7)}
    assert backlog.take(1) == {PLACE: r(7, 8)}
    assert backlog.take(1) == {}


def lost(cluster: FakeCluster, topic_id: str = "") -> list[str]:
    """What of a checkpoint's records a cluster lacks; partition 1 has them all."""
    ranges = {PLACE: [r(5, 8), r(9, 10)], GroupPartition(GROUP, TOPIC, 1): [r(0, 10)]}
    return losses(cluster, ranges, {PLACE: TopicId(topic_id)})


@pytest.mark.parametrize(
    ("cluster", "why"),
    [
        (FakeCluster(counts={TOPIC: 0}), "the brokers have no such partition"),
        (FakeCluster(topic_id=TopicId("b")), "the topic was deleted and created again since"),
        (FakeCluster(starts={0: 6}), "the log begins at 6, as retention or a deletion took what was before"),
        (FakeCluster(ends={0: 9}), "the log ends at 9; the brokers have lost records"),
    ],
)
def test_records_that_are_not_in_their_log_are_named_by_partition_and_why(cluster: FakeCluster, why: str) -> None:
    assert lost(cluster, "a")[0] == f"g:t-0, offsets 5 to 10: {why}"
    assert len(lost(cluster, "a")) == (1 if cluster.counts[TOPIC] else 2)


def test_of_each_log_that_begins_later_it_is_said_since_when() -> None:
    first = TimeAnswer(offset=Offset(6), found=datetime(2026, 3, 1, tzinfo=UTC))
    cluster = FakeCluster(starts={0: 6, 1: 3}, firsts={0: first})
    assert [one.partition("what was before")[2] for one in lost(cluster)] == [
        "; its first record is of 2026-03-01T00:00:00Z",
        "",
    ]


def test_records_that_are_there_are_fine() -> None:
    assert lost(FakeCluster(starts={0: 5}, ends={0: 10, 1: 10}, topic_id=TopicId("a")), "a") == []
    assert lost(FakeCluster(starts={0: 5}, ends={0: 10, 1: 10}, topic_id=TopicId("a"))) == []


def test_what_compaction_may_have_taken_is_not_replaced() -> None:
    require_uncompacted(CheckpointNumber(2), ())
    with pytest.raises(CheckpointNotUsable, match=r"topic a, b is compacted .*--compare.*--consent-compacted"):
        require_uncompacted(CheckpointNumber(2), {TopicName("b"), TopicName("a")})


@pytest.fixture
def driver(database_url: str) -> Iterator[Driver]:
    """A region with a checkpoint."""
    sinks = "sinks: {out: {kind: custom, factory: 'jobs.lake:make'}}"
    with live_region(database_url, SPEC.replace("process'}", f"process', {sinks}}}")) as driver:
        driver.up()
        driver.process()
        driver.checkpoint("first")
        yield driver


def at_work(driver: Driver, lease: timedelta) -> None:
    """Another recomputation of the checkpoint begins, and says nothing more."""
    driver.handle(
        StartRecomputation(
            sequence=newest(driver), request_id=RequestId("other"), token="", groups=(), ranges={}, lease=lease
        )
    )


def newest(driver: Driver) -> CheckpointNumber:
    found = driver.region.restore_sequence
    assert found is not None
    return found


def test_another_recomputation_is_waited_for_until_it_is_lost(driver: Driver) -> None:
    at_work(driver, timedelta(seconds=2))
    wanted = Region(driver.name, driver.store).recompute(newest(driver))
    patience = StartPatience(driver.name, timedelta(minutes=5))
    begun = patience.answered(partial(wanted.begin, wanted.groups(), {}), (RecomputationRefused,))
    row = driver.region.checkpoint_of(newest(driver))
    assert row is not None
    states = [one.state for one in row.recomputations]
    assert states == [RecomputationState.FAILED, RecomputationState.RUNNING]
    assert row.recomputations[-1] == begun


def test_another_recomputation_that_lives_on_is_not_waited_for_any_longer(driver: Driver) -> None:
    at_work(driver, timedelta(hours=1))
    wanted = Region(driver.name, driver.store).recompute(newest(driver))
    with pytest.raises(RecomputationRefused, match="being recomputed already"):
        StartPatience(driver.name, timedelta(0)).answered(
            partial(wanted.begin, wanted.groups(), {}), (RecomputationRefused,)
        )
