"""Reading under a broker's quota: slower, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from airflow_kcr.spark import reads
from airflow_kcr.spark.engine import SparkEngine
from airflow_kcr.spark.throttling import ThrottlingWatch
from tests.integration.spark.batches import Bench, call, noop
from tests.support.kafka_tool import slowed

pytestmark = pytest.mark.long

PARTITIONS = 8
SIZE = 1_000


class Slowed:
    """A topic, and a member's engine whose client has a quota.

    Args:
        bench: where.
        client: the client's id.
        each: records of a partition.
    """

    def __init__(self, bench: Bench, client: str, each: int) -> None:
        self.bench = bench
        self.topic = bench.kafka.topic(PARTITIONS)
        bench.kafka.fill(self.topic, dict.fromkeys(range(PARTITIONS), each), size=SIZE)
        self.engine: SparkEngine = bench.engine(noop, options={"kafka.client.id": client})

    def run(self, first: int, last: int) -> int:
        """Run a batch of these offsets of each partition; return how many of its tasks failed, and were tried again."""
        batch = call(self.topic, dict.fromkeys(range(PARTITIONS), (first, last)))
        self.engine.run(batch)
        tracker = self.bench.spark.sparkContext.statusTracker()
        jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(f"{batch.region}/{batch.member}/{batch.batch}"))
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        assert stages
        return sum(stage.numFailedTasks for stage in stages if stage is not None)


@pytest.fixture
def client(bench: Bench) -> str:
    """The id of a client that no other test has."""
    return bench.kafka.group_id("slow")


@pytest.fixture
def quota(bench: Bench, client: str) -> Iterator[Callable[[int], None]]:
    """Sets how many bytes the client may read in a second."""
    with slowed(bench.kafka.bootstrap_servers, "clients", client) as quota:
        yield quota


def test_under_a_quota_batches_get_their_records_and_no_task_fails(
    bench: Bench, client: str, quota: Callable[[int], None]
) -> None:
    slow = Slowed(bench, client, 500)
    quota(250_000)  # one fetch of `reads.LARGEST_FETCH` is more than the broker lets through in ten seconds
    assert [slow.run(first, first + 125) for first in range(0, 500, 125)] == [0, 0, 0, 0]


def test_a_first_batch_that_a_quota_slows_to_thirteen_minutes_loses_no_task(
    bench: Bench, client: str, quota: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both cores get a fetch each in ten seconds, as of a batch of eighty: of four it takes forty seconds to see.
    monkeypatch.setattr(reads, "_FIRST_FETCHES", 4)
    each = 1_875
    slow = Slowed(bench, client, each)
    quota(PARTITIONS * each * SIZE // 40)
    assert slow.run(0, each) == 0


def test_a_batch_that_a_quota_makes_slow_is_said_to_be_throttled(
    bench: Bench, client: str, quota: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    slow = Slowed(bench, client, 125)
    slow.engine._throttling = ThrottlingWatch(asked_after=0.5)
    quota(50_000)
    with caplog.at_level(logging.WARNING):
        slow.run(0, 125)
    (said,) = [record.getMessage() for record in caplog.records if "throttles" in record.getMessage()]
    assert said.startswith("region group[0] batch batch-")
    assert slow.engine.slowed().startswith("Kafka throttles what it reads: a quota")


def test_a_client_without_a_quota_is_not_throttled(bench: Bench, client: str) -> None:
    free = Slowed(bench, client, 10)
    batch = call(free.topic, dict.fromkeys(range(PARTITIONS), (0, 10)))
    assert free.engine._reader.throttled(batch.ranges, batch.timeline) == 0.0
