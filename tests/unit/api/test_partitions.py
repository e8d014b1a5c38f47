"""Lag, comparison and preview: a region beside what a cluster says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from airflow_kcr.api import Cluster, Region, regions
from airflow_kcr.api.lag import take
from airflow_kcr.errors import BrokerUnavailable, CheckpointNotUsable, ConfigurationError, UnknownTopics
from airflow_kcr.ports import CommittedOffset
from airflow_kcr.protocol.observations import LogBounds, TimeAnswer
from airflow_kcr.protocol.region.lag import LagPoint, LagVerdict
from airflow_kcr.protocol.region.liveness import NEVER
from airflow_kcr.protocol.region.rows import ResetCause
from airflow_kcr.protocol.rules import Assignor
from airflow_kcr.protocol.values import GroupId, GroupPartition, Offset, TopicName
from airflow_kcr.spec import RegionSpec
from tests.support.driver import Driver
from tests.support.lag_samples import keep_lag
from tests.support.live_region import FakeCluster


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def region(driver: Driver, cluster: FakeCluster) -> Region:
    return Region(driver.name, driver.store, clusters=cluster.clusters)


def test_lag_is_what_is_left_from_the_position_to_the_end(driver: Driver, region: Region, cluster: FakeCluster) -> None:
    driver.up()
    driver.process()
    cluster.ends = {0: 700}
    cluster.held = {driver.partition(0): 4}
    rows = [row.to_json() for row in region.lag()]
    assert [(r["position"], r["committed"], r["log_end"], r["lag"], r["member_id"], r["trouble"]) for r in rows] == [
        (10, 4, 700, 690, "g[0]", ""),
        (10, None, 1_000, 990, "g[0]", ""),
        *[(10, None, 1_000, 990, "g[1]", "")] * 2,
    ]


def test_partitions_that_nobody_has_claimed_yet_are_in_it(driver: Driver, region: Region, cluster: FakeCluster) -> None:
    assert [(row.position, row.log_end, row.lag, row.member) for row in region.lag()] == [(None, 1_000, None, None)] * 4
    driver.up()
    cluster.counts = {TopicName("t"): 5, TopicName("other"): 3}
    found = region.lag()
    assert [row.partition.partition for row in found] == [0, 1, 2, 3, 4]
    # It has no position, and all of its log is left: a region that ran before reads it from the beginning.
    assert (found[4].position, found[4].lag, found[4].member) == (None, 1_000, None)


def test_a_partition_that_kafka_has_no_more_is_still_shown(
    driver: Driver, region: Region, cluster: FakeCluster
) -> None:
    driver.up()
    cluster.counts = {}
    assert [(row.position, row.log_end, row.lag) for row in region.lag()] == [(0, None, None)] * 4


def test_a_checkpoint_is_held_against_kafka(driver: Driver, region: Region, cluster: FakeCluster) -> None:
    driver.up()
    driver.process(width=100)
    driver.checkpoint("n")
    found = {}
    for held in ({0: 100, 1: 120, 2: 80}, {}):
        cluster.held = {driver.partition(n): o for n, o in held.items()}
        found[len(held)] = [row.to_json()["finding"] for row in region.checkpoints.compare(2)]
    assert found[3] == ["equal", "kafka_ahead", "kafka_behind", "not_committed"]
    cluster.starts, cluster.ends, cluster.counts = {0: 101}, {1: 99}, {TopicName("t"): 3}
    assert [str(row.finding) for row in region.checkpoints.compare(2)] == [
        "overtaken",
        "beyond_end",
        "not_committed",
        "no_log",
    ]
    first = region.checkpoints.compare(2)[0].to_json()
    assert (first["offset"], first["committed"], first["log_start"], first["log_end"]) == (100, None, 101, 1_000)


def test_an_open_checkpoint_can_not_be_compared(driver: Driver, region: Region) -> None:
    driver.up()
    driver.request_checkpoint("n")
    with pytest.raises(CheckpointNotUsable, match="is draining"):
        region.checkpoints.compare(2)


def test_an_assignment_is_previewed_for_another_number_of_members(region: Region) -> None:
    def dealt(**changed: object) -> dict[str, list[int]]:
        found = region.assignment(**changed)  # type: ignore[arg-type]
        return {str(member): [p.partition for p in owned] for member, owned in found.items()}

    assert dealt() == {"g[0]": [0, 1], "g[1]": [2, 3]}
    assert dealt(members=3) == {"g[0]": [0, 1], "g[1]": [2], "g[2]": [3]}
    assert dealt(assignor=Assignor.ROUNDROBIN) == {"g[0]": [0, 2], "g[1]": [1, 3]}
    assert list(dealt(members=12)) == [f"g[{n}]" for n in range(12)]
    with pytest.raises(ConfigurationError, match="at least one"):
        region.assignment(members=0)


def test_a_sticky_preview_moves_as_little_as_it_can_of_what_members_own(driver: Driver, region: Region) -> None:
    driver.up()
    found = region.assignment(assignor=Assignor.STICKY, members=3)
    owned = {str(member): [p.partition for p in partitions] for member, partitions in found.items()}
    assert owned == {"g[0]": [0, 1], "g[1]": [2], "g[2]": [3]}


def test_a_listed_topic_has_to_exist(region: Region, cluster: FakeCluster) -> None:
    assert region.require_topics() == {}
    cluster.counts = {}
    with pytest.raises(UnknownTopics, match=r"t \(group g\)"):
        region.require_topics()
    cluster.is_away = True
    with pytest.raises(BrokerUnavailable):
        region.require_topics()


@dataclass
class BusyCluster(FakeCluster):
    """A cluster whose logs end where the region is, in front of one that goes on while an answer is under way."""

    driver: Driver = field(default_factory=Driver)
    retention: bool = False

    def bounds(self, partitions: object) -> dict[GroupPartition, LogBounds]:
        self.driver.process()
        ends = {p: claim.position for p, claim in self.driver.region.claims.items() if claim.position is not None}
        starts = ends if self.retention else dict.fromkeys(ends, Offset(0))
        self.driver.process()
        return {p: LogBounds(start=starts[p], end=ends[p]) for p in self._partitions(partitions)}

    def committed(self, group: GroupId, partitions: object) -> Mapping[GroupPartition, CommittedOffset]:
        self.driver.process()
        self.driver.checkpoint("meanwhile")
        return {p: CommittedOffset(offset=offset) for p, offset in self.driver.region.restore_point_offsets().items()}


@pytest.mark.parametrize("retention", [False, True])
def test_lag_names_no_trouble_while_records_stream_in(driver: Driver, retention: bool) -> None:
    driver.up()
    driver.process()
    driver.checkpoint("before")
    cluster = BusyCluster(driver=driver, retention=retention)
    rows = Region(driver.name, driver.store, clusters=cluster.clusters).lag()
    assert [row.trouble for row in rows] == [""] * 4
    assert all(row.lag is not None and row.lag > 0 for row in rows)


def test_trouble_that_stays_is_named(driver: Driver, region: Region, cluster: FakeCluster) -> None:
    driver.up()
    driver.process()
    cluster.ends, cluster.starts = {0: 5}, {1: 15}
    assert [row.trouble for row in region.lag()] == [
        "the log's end moved back to 5",
        "retention overtook it: the log now starts at 15",
        "",
        "",
    ]


# -- lag in time, and what it means ------------------------------------------------------------------------------------


def test_the_first_record_beyond_the_position_says_how_old_the_lag_is(
    driver: Driver, region: Region, cluster: FakeCluster
) -> None:
    driver.up()
    driver.process()
    now = driver.store.read(driver.name)[1]
    cluster.firsts = {
        0: TimeAnswer(offset=Offset(10), found=now - timedelta(seconds=90)),
        1: TimeAnswer(offset=None),
        2: TimeAnswer(offset=Offset(12), found=now + timedelta(hours=1)),
    }
    rows = region.lag()
    assert [row.lag for row in rows] == [990, 0, 990, 990]
    ages = [row.behind for row in rows]
    assert ages[1:] == [timedelta(0), timedelta(0), None]
    assert ages[0] is not None
    assert timedelta(seconds=90) <= ages[0] < timedelta(seconds=120)
    assert rows[0].to_json()["lag_seconds"] == int(ages[0].total_seconds())


def test_without_it_the_history_of_ends_says_how_old_it_is_at_least(
    driver: Driver, region: Region, cluster: FakeCluster
) -> None:
    driver.up()
    driver.process()
    cluster.ends = dict.fromkeys(range(4), 10)
    for minutes, end in ((3, 10), (2, 25), (1, 40)):
        cluster.ends[0] = end
        keep_lag(driver, cluster, minutes=minutes)
    rows = region.lag()
    assert [row.lag for row in rows] == [30, 0, 0, 0]
    assert rows[0].behind is not None
    assert timedelta(minutes=2) <= rows[0].behind < timedelta(minutes=3)
    assert [row.behind for row in rows[1:]] == [timedelta(0)] * 3


def test_a_group_is_as_far_behind_as_its_partitions_and_unknown_where_one_is(
    driver: Driver, region: Region, cluster: FakeCluster
) -> None:
    driver.up()
    driver.process()
    cluster.ends = {0: 110, 1: 60, 2: 10, 3: 10}
    to_come = driver.store.read(driver.name)[1] + timedelta(hours=1)
    cluster.firsts = {n: TimeAnswer(offset=Offset(10), found=to_come) for n in range(4)}
    (group,) = region.measure_lag().groups
    assert (group.records, group.largest, group.behind) == (150, 100, timedelta(0))
    cluster.counts = {TopicName("t"): 3}
    (group,) = region.measure_lag().groups
    assert (group.records, group.largest, group.behind) == (None, 100, None)
    assert group.finding.verdict is LagVerdict.UNKNOWN


def test_a_measurement_is_judged_with_the_kept_samples_and_keeps_none(
    driver: Driver, region: Region, cluster: FakeCluster
) -> None:
    driver.up()
    driver.process()
    for number in range(9):
        cluster.ends = dict.fromkeys(range(4), 100 + 50 * number)
        keep_lag(driver, cluster, minutes=9 - number)
        driver.process(width=5)
    cluster.ends = dict.fromkeys(range(4), 1_000)
    found = region.measure_lag()
    assert found.finding.verdict is LagVerdict.WARN
    assert len(driver.store.lag_since(driver.name, NEVER)) == 9
    assert {row.to_json()["verdict"] for row in found.partitions} == {"warn"}
    (summary,) = regions(driver.store)
    assert (summary.finding.verdict, summary.lag) == (LagVerdict.WARN, sum(p.lag or 0 for p in _newest(driver)))


def _newest(driver: Driver) -> list[LagPoint]:
    return [*driver.store.lag_since(driver.name, NEVER)[-1].points.values()]


def test_of_a_region_that_is_reset_meanwhile_no_sample_is_kept(driver: Driver, cluster: FakeCluster) -> None:
    driver.up()
    driver.process()

    @contextmanager
    def meanwhile(spec: RegionSpec, group: GroupId) -> Iterator[Cluster]:
        driver.request_reset(driver.member(0), ResetCause.CLAIM, "for once")
        with cluster.clusters(spec, group) as found:
            yield found

    take(driver.store, driver.name, meanwhile, [GroupId("g")])
    assert driver.store.lag_since(driver.name, NEVER) == ()
