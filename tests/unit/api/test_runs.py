"""What a run asks of Kafka before a process is started for it: a real store, a cluster that a test speaks for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from airflow_kcr.api import Region
from airflow_kcr.errors import (
    CheckpointRefused,
    ConfigurationError,
    GroupNotEmpty,
    KcrError,
    OtherCluster,
    RegionInState,
    SinkError,
)
from airflow_kcr.protocol.observations import TimeAnswer
from airflow_kcr.protocol.region.commands import KillRegion, Reconcile, Renew, ReportClusters, Run
from airflow_kcr.protocol.region.rows import Checkpoint, Committed, RegionState
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    ClusterId,
    Epoch,
    GroupId,
    GroupPartition,
    RegionId,
    RequestId,
    Timeline,
    TopicName,
)
from airflow_kcr.runtime.leases import CommitNote
from airflow_kcr.spec import RegionSpec
from airflow_kcr.store.regions import RegionStore
from tests.support.driver import Driver
from tests.support.live_region import SPEC, FakeCluster, live_region
from tests.support.scripts import carried_out, located, not_told

FILES = SPEC.replace("pipeline:", "sinks: {out: {kind: files, path: /lake/out}}, pipeline:", 1)
TABLE = SPEC.replace("pipeline:", "sinks: {out: {kind: delta, table: /lake/t}}, pipeline:", 1)


@pytest.fixture
def cluster() -> FakeCluster:
    """Four partitions that end at 10, and no record after any instant."""
    return FakeCluster(ends=dict.fromkeys(range(4), 10))


def rested(driver: Driver) -> Driver:
    """Carry a run out that ends at the ends of the logs."""
    until = driver.store.read(driver.name)[1]
    carried_out(driver, Run(request_id=RequestId("first"), boundary=until), 10)
    assert driver.region.state is RegionState.STOPPED
    return driver


@pytest.fixture
def driver(database_url: str) -> Iterator[Driver]:
    with live_region(database_url) as driver:
        yield rested(driver)


def newest(driver: Driver) -> Checkpoint:
    row = driver.region.restore_checkpoint
    assert row is not None
    return row


def of(driver: Driver, cluster: FakeCluster) -> Region:
    return Region(driver.name, driver.store, clusters=cluster.clusters)


def test_what_the_logs_have_now_may_be_nothing_and_is_told_to_kafka_again(driver: Driver, cluster: FakeCluster) -> None:
    assert of(driver, cluster).prepared_run(request_id="r").is_done_at_rest()
    row = newest(driver)
    assert (row.request_id, row.committed, row.published_at is not None) == ("r", Committed.YES, True)
    assert sorted(cluster.held.values()) == [10] * 4
    assert cluster.asked == []
    assert driver.region.state is RegionState.STOPPED


def test_an_interval_that_ends_now_is_waited_for_as_long_as_its_records_may_come(
    driver: Driver, cluster: FakeCluster
) -> None:
    _, now = driver.store.read(driver.name)
    grace = driver.region.rules.checkpoint.grace
    assert of(driver, cluster).prepared_run(now, request_id="r").is_done_at_rest()
    assert newest(driver).finished_at >= now + grace  # type: ignore[operator]
    assert set(cluster.asked) == {now}


def test_records_need_members_and_nothing_has_changed(driver: Driver, cluster: FakeCluster) -> None:
    counter = driver.region.counter
    cluster.ends[2] = 11
    assert not of(driver, cluster).prepared_run(request_id="r").is_done_at_rest()
    _, now = driver.store.read(driver.name)
    assert not of(driver, cluster).prepared_run(now, request_id="r").is_done_at_rest()
    assert driver.region.counter == counter
    asked = of(driver, cluster).run(request_id="r")
    assert (asked.request.state, driver.region.state) == ("queued", RegionState.STARTING)


def test_records_after_the_interval_are_none_of_it(driver: Driver, cluster: FakeCluster) -> None:
    cluster.ends = dict.fromkeys(range(4), 20)
    cluster.found = dict.fromkeys(range(4), 10)
    _, now = driver.store.read(driver.name)
    assert of(driver, cluster).prepared_run(now, request_id="r").is_done_at_rest()
    assert list(driver.region.offsets[newest(driver).sequence].values()) == [10] * 4


def test_a_foreign_consumer_keeps_kafka_from_being_told_and_another_try_does(
    driver: Driver, cluster: FakeCluster
) -> None:
    cluster.inside = "a stranger"
    with pytest.raises(GroupNotEmpty, match="a stranger"):
        of(driver, cluster).prepared_run(request_id="r").is_done_at_rest()
    assert newest(driver).committed is Committed.PENDING
    cluster.inside = ""
    assert of(driver, cluster).prepared_run(request_id="r").is_done_at_rest()
    assert newest(driver).committed is Committed.YES


class Leaving(FakeCluster):
    """A cluster in which members that were killed are in a group until they have been asked for a few times."""

    sessions = 3

    def require_empty(self, group: GroupId) -> None:
        """Refuse while a session lasts."""
        self.sessions -= 1
        self.inside = "a member" if self.sessions > 0 else ""
        super().require_empty(group)


def test_kafka_is_told_of_a_killed_run_once_the_sessions_of_its_members_are_over(driver: Driver) -> None:
    killed = Run(request_id=RequestId("r"), boundary=driver.store.read(driver.name)[1])
    sequence = not_told(driver, killed, 20)
    driver.handle(KillRegion())
    row = driver.region.checkpoints[sequence]
    assert (driver.region.state, row.committed) == (RegionState.STOPPED, Committed.NO)
    cluster = Leaving(ends=dict.fromkeys(range(4), 20))
    assert of(driver, cluster).prepared_run(killed.boundary, request_id="r").is_done_at_rest()
    assert newest(driver).committed is Committed.YES
    assert sorted(cluster.held.values()) == [20] * 4


@dataclass
class Shown:
    """What shows checkpoints in the sinks of a region without members."""

    tables: tuple[TableVersion, ...] = (
        TableVersion(group=GroupId("g"), sink="out", table="t", files=0, rows=0, version="7"),
    )
    sequences: list[int] = field(default_factory=list)
    error: KcrError | None = None

    def __call__(
        self, store: RegionStore, spec: RegionSpec, region_id: RegionId, sequence: CheckpointNumber
    ) -> tuple[TableVersion, ...]:
        if self.error is not None:
            raise self.error
        self.sequences.append(sequence)
        return self.tables


@pytest.fixture
def tabled(database_url: str) -> Iterator[Driver]:
    """A region with a table of a person, which its members have taken."""
    with live_region(database_url, TABLE) as driver:
        yield rested(driver)


@pytest.mark.parametrize(("spec", "show"), [(FILES, Shown()), (TABLE, None)])
def test_what_only_members_show_is_theirs_and_nothing_is_asked_of_kafka(
    database_url: str, cluster: FakeCluster, spec: str, show: Shown | None
) -> None:
    with live_region(database_url, spec) as driver:
        rested(driver)
        cluster.is_away = True
        assert not of(driver, cluster).prepared_run(request_id="r", show=show).is_done_at_rest()


def test_an_empty_checkpoint_is_shown_in_a_table_by_the_process_of_the_run(
    tabled: Driver, cluster: FakeCluster
) -> None:
    show = Shown()
    for _ in range(2):
        assert of(tabled, cluster).prepared_run(request_id="r", show=show).is_done_at_rest()
        row = newest(tabled)
        assert (row.request_id, row.committed, row.tables) == ("r", Committed.YES, show.tables)
        assert row.published_at is not None
        assert show.sequences == [row.sequence]


@pytest.mark.parametrize("error", [SinkError("the table is away"), ConfigurationError("delta-rs is not installed")])
def test_what_could_not_be_shown_is_shown_by_members_or_the_next_try(
    tabled: Driver, cluster: FakeCluster, error: KcrError
) -> None:
    show = Shown(error=error)
    run = of(tabled, cluster).prepared_run(request_id="r", show=show)
    assert not run.is_done_at_rest()
    row = newest(tabled)
    assert (row.request_id, row.published_at) == ("r", None)
    # Members would come for it now.
    assert not of(tabled, cluster).prepared_run(request_id="r").is_done_at_rest()
    show.error = None
    assert run.is_done_at_rest()
    assert show.sequences == [row.sequence]


def test_what_members_have_made_is_theirs_to_show(tabled: Driver, cluster: FakeCluster) -> None:
    another_run(tabled)
    (run,) = tabled.region.runs
    assert run.boundary is not None
    tabled.spread()
    tabled.finish_reset()
    located(tabled, run.boundary, 20)
    tabled.process()
    tabled.handle(Reconcile())
    tabled.complete()
    tabled.handle(KillRegion())
    assert tabled.region.state is RegionState.STOPPED
    show = Shown()
    assert not of(tabled, cluster).prepared_run(request_id="another", show=show).is_done_at_rest()
    assert show.sequences == []


def test_the_first_run_has_its_members_take_the_table(database_url: str, cluster: FakeCluster) -> None:
    cluster.starts = dict.fromkeys(range(4), 10)
    with live_region(database_url, TABLE) as driver:
        before = driver.region
        assert not of(driver, cluster).prepared_run(request_id="r", show=Shown()).is_done_at_rest()
        assert driver.region == before


def note_later(driver: Driver, cluster: FakeCluster) -> None:
    """Have Kafka hold what the region committed before its store was restored."""
    region, place = driver.region, driver.partition(0)
    note = CommitNote(
        region=region.name,
        region_id=region.region_id,
        timeline=Timeline(1),
        sequence=region.next_sequence,
        epoch=Epoch(1),
    )
    cluster.held, cluster.notes = {place: 10}, {place: note.text()}


def test_a_store_that_was_restored_is_its_members_to_find(driver: Driver, cluster: FakeCluster) -> None:
    note_later(driver, cluster)
    counter, (_, now) = driver.region.counter, driver.store.read(driver.name)
    assert not of(driver, cluster).prepared_run(now, request_id="r").is_done_at_rest()
    assert driver.region.counter == counter
    assert driver.store.read(driver.name)[1] < now + driver.region.rules.checkpoint.grace, "it did not wait"


@pytest.fixture
def fresh(database_url: str) -> Iterator[Driver]:
    """A region that has never run."""
    with live_region(database_url) as driver:
        yield driver


def test_the_first_run_rests_where_the_region_begins(fresh: Driver, cluster: FakeCluster) -> None:
    cluster.starts = dict.fromkeys(range(4), 10)
    _, now = fresh.store.read(fresh.name)
    assert of(fresh, cluster).prepared_run(now, request_id="r").is_done_at_rest()
    row = newest(fresh)
    assert (row.boundary, row.committed, row.published_at is not None) == (now, Committed.YES, True)
    assert sorted(cluster.held.values()) == list(fresh.region.offsets[row.sequence].values()) == [10] * 4
    assert fresh.region.state is RegionState.STOPPED
    assert of(fresh, cluster).prepared_run(request_id="r2").is_done_at_rest()
    assert newest(fresh).previous == row.sequence


def test_the_first_run_of_a_region_that_begins_at_the_end_has_nothing_to_read(
    database_url: str, cluster: FakeCluster
) -> None:
    with live_region(database_url, SPEC.replace("pipeline:", "start: latest, pipeline:", 1)) as driver:
        cluster.cluster = ClusterId("one")
        assert of(driver, cluster).prepared_run(request_id="r").is_done_at_rest()
        assert list(driver.region.initial_offsets().values()) == [10] * 4
        assert driver.region.clusters == {GroupId("g"): ClusterId("one")}


def test_a_killed_first_run_is_finished_by_its_next_try(fresh: Driver, cluster: FakeCluster) -> None:
    cluster.starts = dict.fromkeys(range(4), 10)
    killed = of(fresh, cluster).prepared_run(request_id="r")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(killed, "_settled", lambda *_, **__: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            killed.is_done_at_rest()
    assert newest(fresh).published_at is None
    assert of(fresh, cluster).prepared_run(request_id="r").is_done_at_rest()
    assert (newest(fresh).published_at is not None, newest(fresh).committed) == (True, Committed.YES)


class Filling(FakeCluster):
    """A cluster to which a record comes in each partition after the first look at it."""

    def first_at_or_after(self, instants: Mapping[GroupPartition, datetime]) -> dict[GroupPartition, TimeAnswer]:
        answers = super().first_at_or_after(instants)
        self.ends = dict.fromkeys(range(4), 11)
        return answers


def test_what_comes_while_a_first_run_waits_is_not_stepped_over(database_url: str) -> None:
    filling = Filling(ends=dict.fromkeys(range(4), 10))
    with live_region(database_url, SPEC.replace("pipeline:", "start: latest, pipeline:", 1)) as driver:
        _, now = driver.store.read(driver.name)
        assert not of(driver, filling).prepared_run(now, request_id="r").is_done_at_rest()


MISSING = {
    "a topic is missing": SPEC.replace("topics: [t]", "topics: [t, u]"),
    "a group has no topic": SPEC.replace(
        "timeouts:", "  - {group_id: h, topics: [u], pipeline: 'jobs.flights:count'}\ntimeouts:"
    ),
}
IN_THE_WAY = ("records", "a stranger", "no topic", *MISSING, "a note of a later run")


@pytest.mark.parametrize("reason", IN_THE_WAY)
def test_what_is_in_the_way_of_a_first_run_is_its_members_to_find(
    database_url: str, cluster: FakeCluster, reason: str
) -> None:
    with live_region(database_url, MISSING.get(reason, SPEC)) as driver:
        cluster.starts = dict.fromkeys(range(4), 9 if reason == "records" else 10)
        if reason == "a stranger":
            cluster.inside = "a stranger"
        elif reason == "no topic":
            cluster.counts = {TopicName("other"): 1}
        elif reason == "a note of a later run":
            note_later(driver, cluster)
        before = driver.region
        assert not of(driver, cluster).prepared_run(request_id="r").is_done_at_rest()
        assert driver.region == before


def test_where_members_have_to_look_a_first_run_waits_for_no_record(database_url: str) -> None:
    ends = dict.fromkeys(range(4), 10)
    cluster = FakeCluster(starts=ends, ends={**ends, 0: 11}, found={0: 10}, inside="a stranger")
    with live_region(database_url, SPEC) as driver:
        _, now = driver.store.read(driver.name)
        assert not of(driver, cluster).prepared_run(now, request_id="r").is_done_at_rest()
    assert len(cluster.asked) == 4, "each partition once"


def test_a_first_run_on_another_cluster_is_refused(fresh: Driver, cluster: FakeCluster) -> None:
    cluster.starts, cluster.cluster = dict.fromkeys(range(4), 10), ClusterId("one")
    fresh.handle(ReportClusters(found={GroupId("g"): ClusterId("another")}))
    before = fresh.region
    with pytest.raises(OtherCluster):
        of(fresh, cluster).prepared_run(request_id="r").is_done_at_rest()
    assert fresh.region == before
    cluster.cluster = ClusterId("another")
    assert of(fresh, cluster).prepared_run(request_id="r").is_done_at_rest()


def test_what_is_yet_to_come_asks_nothing_of_kafka(driver: Driver, cluster: FakeCluster) -> None:
    cluster.is_away = True
    _, now = driver.store.read(driver.name)
    with pytest.raises(CheckpointRefused, match="is yet to come"):
        of(driver, cluster).prepared_run(now + timedelta(hours=1), request_id="r").is_done_at_rest()


def test_an_instant_without_a_zone_is_refused_by_its_name(driver: Driver, cluster: FakeCluster) -> None:
    region, naive = of(driver, cluster), datetime(2026, 1, 1)  # noqa: DTZ001
    with pytest.raises(ConfigurationError, match="until: 2026-01-01T00:00:00 has no zone"):
        region.run(naive)
    with pytest.raises(ConfigurationError, match="up_to: 2026-01-01T00:00:00 has no zone"):
        region.checkpoints.between(datetime(2026, 1, 1, tzinfo=UTC), naive)


def another_run(driver: Driver) -> datetime:
    """Have the members of a run come, and return an instant after its boundary; a process may not live on."""
    until = driver.store.read(driver.name)[1]
    driver.handle(Run(request_id=RequestId("another"), boundary=until))
    for member in driver.all_members():
        driver.join(member)
    return until + timedelta(seconds=1)


@pytest.fixture
def brief(database_url: str) -> Iterator[Driver]:
    """The region, with leases that a test can wait for."""
    with live_region(database_url, SPEC.replace("lease: 60s", "lease: 3s, renew: 1s")) as driver:
        yield rested(driver)


def test_a_run_that_comes_right_after_a_dead_one_goes_on_when_its_leases_are_over(
    brief: Driver, cluster: FakeCluster
) -> None:
    until = another_run(brief)
    of(brief, cluster).prepared_run(until, request_id="r").start()
    assert [str(one.request_id) for one in brief.region.runs] == ["another", "r"]


def test_a_run_beside_a_live_one_is_refused_as_soon_as_that_says_that_it_lives(
    brief: Driver, cluster: FakeCluster
) -> None:
    until, over = another_run(brief), threading.Event()

    def renew() -> None:
        while not over.wait(0.1):
            for one, lease in brief.region.leases.items():
                brief.handle(Renew(member=one, incarnation=lease.incarnation, lease=timedelta(seconds=3)))

    alive = threading.Thread(target=renew)
    alive.start()
    try:
        with pytest.raises(RegionInState, match=r"is under way, by g\[0\], g\[1\]"):
            of(brief, cluster).prepared_run(until, request_id="r").is_done_at_rest()
    finally:
        over.set()
        alive.join()
