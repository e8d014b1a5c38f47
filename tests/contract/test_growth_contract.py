"""What the store does grows with what it is about and no faster, whatever the planner believes of the tables."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta

import psycopg
import pytest

from airflow_kcr import api
from airflow_kcr.api.checkpoints import CheckpointSummary, ways_back
from airflow_kcr.api.regions import look as read_for_people
from airflow_kcr.api.reset_views import of_page
from airflow_kcr.api.specs import _apart
from airflow_kcr.api.verdict import Verdict
from airflow_kcr.api.views import RegionSummary
from airflow_kcr.plugins.overview import Overview
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import retention, timelines
from airflow_kcr.protocol.region.commands import DeleteRegion, KillRegion, ReadRegion, RetireCheckpoints
from airflow_kcr.protocol.region.lag import LagPoint, LagSample
from airflow_kcr.protocol.region.liveness import NOTHING_SEEN
from airflow_kcr.protocol.region.rows import Outcome, ResetCause
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, GroupId, GroupPartition, Offset, TopicName
from airflow_kcr.spec import parse
from airflow_kcr.store.postgres import history
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.live_region import SPEC, FakeCluster, live_region
from tests.support.long_ledger import Statistics, fill, with_all_statistics
from tests.support.plans import keep_unknown, statements, touched
from tests.support.scripts import checkpoints_of_ten
from tests.support.stores import postgres_store

pytestmark = pytest.mark.postgres

FEW = 2_000
"""Rows that a statement may touch whatever it is about: below, a page of something hides how it grows."""


@contextmanager
def driver_over(url: str, partitions: int, members: int = 2) -> Iterator[Driver]:
    """A region that is up, in a database whose clock stands still: no lease ends however slow the machine is."""
    keep_unknown(url)
    rules = RegionRules(groups={GROUP: group_rules(members=members)})
    with postgres_store(url, lambda _: rules) as store:
        driver = Driver(partitions=partitions, rules=rules, transactions=store)
        for partition in driver.logs:
            driver.grow(partition, end=1_000_000)
        driver.up()
        yield driver


def failed(driver: Driver) -> None:
    driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED, "it failed")


def everything(driver: Driver) -> None:
    """Do what a region does in its life.

    Batches, checkpoints, resets by themselves and by a person, a clean-up, its end.
    """
    place = driver.partition(0)
    driver.process()
    failed(driver)
    driver.finish_reset()
    driver.process()
    first = driver.checkpoint("first")
    driver.process()
    driver.checkpoint("second")
    driver.reset(ToCheckpoint(sequence=first))
    driver.complete()
    driver.finish_reset()
    driver.handle(RetireCheckpoints())
    driver.store.history(driver.name)
    driver.store.batches_since(driver.name, CheckpointNumber(0))
    driver.store.batches_with(driver.name, place, Offset(15))
    Verdict.of(driver.name, driver.store.chronicle(driver.name))
    end(driver)


def analyse(url: str) -> None:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(b"ANALYZE")


def end(driver: Driver) -> None:
    """Let what is left of a region go, so that a larger one begins anew."""
    driver.handle(KillRegion())
    for member in driver.all_members():
        driver.leave(member)
    driver.handle(DeleteRegion())


def counted(url: str, partitions: int, batches: int, statistics: Statistics) -> Counter[str]:
    with driver_over(url, partitions) as driver:
        fill(url, driver, batches, statistics)
        with touched() as rows:
            everything(driver)
    return rows


@with_all_statistics
def test_twice_as_many_batches_touch_no_more_than_twice_the_rows(database_url: str, statistics: Statistics) -> None:
    few, many = (counted(database_url, 12, batches, statistics) for batches in (200, 400))
    faster = {s: (few[s], rows) for s, rows in many.items() if rows > FEW and rows > 2.5 * few[s]}
    assert not faster


@pytest.mark.long
def test_twenty_thousand_batches_are_undone_in_the_time_that_a_statement_has(database_url: str) -> None:
    with driver_over(database_url, 12) as driver:
        # As the planner is most wrong; that it reads no more with other statistics is shown above.
        fill(database_url, driver, 20_000, Statistics.FEW)
        failed(driver)
        driver.finish_reset()
        undone = [(b.outcome, dict(b.undone_from) == {p: r.from_ for p, r in b.ranges.items()}) for b in driver.batches]
        assert undone == [(Outcome.UNDONE, True)] * 20_000


def test_ten_times_as_many_batches_are_judged_in_the_same_memory(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "LEDGER_PAGE", 100)
    peaks = []
    for batches in (500, 5_000):
        with driver_over(database_url, 6, members=1) as driver:
            fill(database_url, driver, batches, Statistics.FRESH)
            tracemalloc.start()
            verdict = Verdict.of(driver.name, driver.store.chronicle(driver.name))
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            assert (verdict.checked_batches, verdict.violations) == (batches, ())
            end(driver)
    assert peaks[1] < 1.2 * peaks[0]


def begun(url: str, batches: int, statistics: Statistics) -> tuple[Counter[str], dict[str, int]]:
    """Begin a reset, and return which statements it took and how many rows each has touched."""
    with driver_over(url, 12) as driver:
        fill(url, driver, batches, statistics)
        with statements() as run:
            failed(driver)
        driver.finish_reset()
        with touched() as rows:
            failed(driver)
        end(driver)
    return Counter(run), dict(rows)


@with_all_statistics
def test_a_reset_begins_as_if_the_ledger_were_empty(database_url: str, statistics: Statistics) -> None:
    few, many = (begun(database_url, batches, statistics) for batches in (5, 2_000))
    assert many[0] == few[0]
    assert not {s: (few[1][s], rows) for s, rows in many[1].items() if rows > few[1][s]}
    assert not [statement for statement in many[0] if "kcr.batch" in statement and "outcome IS NULL" not in statement]


def test_a_batch_is_read_with_as_many_rows_however_many_resets_came_after_it(database_url: str) -> None:
    with driver_over(database_url, 4) as driver:
        driver.process()
        first, place = driver.batches[0].batch, driver.partition(0)
        driver.checkpoint("the restore point")

        def read() -> list[int]:
            with touched() as rows:
                driver.store.batch(driver.name, first)
                driver.store.batches_with(driver.name, place, Offset(5))
            # How an offset is looked up in the ranges is not what this is about.
            return [rows for statement, rows in rows.items() if "from_offset <=" not in statement]

        for _ in range(3):
            failed(driver)
            driver.finish_reset()
        few = read()
        for number in range(12):
            driver.process()
            driver.checkpoint(f"on-{number}") if number % 3 == 0 else failed(driver)
            driver.finish_reset()
        assert read() == few


def a_look(driver: Driver) -> Counter[str]:
    """Return the rows of what a member reads, and of where the logs of kept checkpoints began."""
    with touched() as rows:
        driver.handle(ReadRegion(member=driver.member(0)))
        driver.held.archive.checkpoint_page(before=None, last=1)
    return rows


@with_all_statistics
def test_a_look_at_many_partitions_touches_each_as_often(database_url: str, statistics: Statistics) -> None:
    found = []
    for partitions in (100, 800):
        with driver_over(database_url, partitions, members=1) as driver:
            if statistics is Statistics.FEW:
                analyse(database_url)
            driver.process()
            driver.checkpoint("first")
            driver.request_checkpoint("second")
            driver.complete()
            driver.publish()  # nothing of it is committed yet, so a member asks what Kafka should have
            if statistics is Statistics.FRESH:
                analyse(database_url)
            found.append(a_look(driver))
            end(driver)
    assert {s: (found[0][s], rows) for s, rows in found[1].items() if rows > 16 * found[0][s]} == {}


LOOKS: tuple[Callable[[Region, datetime], object], ...] = (
    lambda region, now: CheckpointSummary.of_page(region, region.archive.checkpoint_page(before=None, last=None)),
    lambda region, now: ways_back(region, 5),
    lambda region, now: of_page(region.name, region.archive.reset_page(before=None, last=None), None),
    lambda region, now: Overview.of(region, now, NOTHING_SEEN),
    lambda region, now: timelines.undone_by(region, OffsetMap()),
    lambda region, now: retention.protected(region),
)


def asked(driver: Driver) -> list[int]:
    """Return how many statements each look at the region takes, beside reading it."""
    counts = []
    for look in LOOKS:
        region, now = driver.store.read(driver.name)
        with statements() as run:
            look(region, now)
        counts.append(len(run))
    return counts


def test_what_people_look_at_takes_few_statements(database_url: str) -> None:
    with driver_over(database_url, 4) as driver:
        first = checkpoints_of_ten(driver, 3)[0]
        for _ in range(2):
            driver.reset(ToCheckpoint(sequence=first))
            driver.complete()
            driver.finish_reset()
            driver.process()
            failed(driver)
            driver.finish_reset()
        driver.start_batch(driver.member(0))
        region = api.Region(driver.name, driver.store)
        counts = []
        for look in (
            region.show,
            lambda: region.resets.list(last=3),
            lambda: region.checkpoints.list(last=20),
            lambda: region.checkpoints.ways_back(20),
            lambda: Overview.of(*driver.store.look(driver.name)),
        ):
            with statements() as run:
                look()
            counts.append(len(run))
    # One of each is the region itself, but for the resets: one of theirs is what they replayed. What is shown of a
    # region has the kept samples of its lag as well, and where its restore point is in the logs.
    assert counts == [3, 2, 2, 2, 2]


def test_however_many_checkpoints_are_kept_a_look_asks_as_often(database_url: str) -> None:
    with driver_over(database_url, 4) as driver:
        first = checkpoints_of_ten(driver, 3)[0]
        driver.reset(ToCheckpoint(sequence=first))
        driver.complete()
        driver.finish_reset()
        driver.process()
        driver.checkpoint("the restore point is a checkpoint again")
        few = asked(driver)
        for number in range(12):
            driver.process()
            driver.checkpoint(f"more-{number}")
        assert asked(driver) == few


def test_a_report_of_a_failed_start_does_not_write_the_spec(database_url: str) -> None:
    with live_region(database_url) as driver, statements() as run:
        driver.fail_to_start(driver.member(0), refusal="the pipeline does not import")
        written = [text for text in run if "UPDATE kcr.region" in text]
        assert driver.held.start_failures != ()
    assert ["start_failures = n." in text for text in written] == [True]
    assert not any(" spec_revision = n." in text or " spec = n." in text for text in written)


def test_declaring_a_region_reads_no_region_of_other_groups(database_url: str) -> None:
    spec = parse(SPEC.replace("flights", "tills").replace("group_id: g", "group_id: tills-g"))
    with live_region(database_url) as driver, statements() as run:
        assert (
            _apart(driver.store, spec, {GroupId(group.group_id) for group in spec.groups}, FakeCluster().clusters) == {}
        )
    assert len([text for text in run if "kcr.region" in text]) == 1


def test_three_and_thirty_regions_are_listed_by_as_many_statements(database_url: str) -> None:
    taken: list[int] = []
    listed: tuple[RegionSummary, ...] = ()
    with ExitStack() as stack:
        drivers: list[Driver] = []
        for count in (3, 30):
            for number in range(len(drivers), count):
                group = GroupId("g" if number == 0 else f"g{number}")
                spec = SPEC.replace("flights", f"r{number:02}").replace("group_id: g", f"group_id: {group}")
                drivers.append(stack.enter_context(live_region(database_url, spec)))
                if number % 2 == 0:
                    drivers[-1].store.add_lag(drivers[-1].name, standing_still(drivers[-1], group))
            if count > 3:  # its group is the driver's own
                drivers[0].up()
                checkpoints_of_ten(drivers[0], 2)
            store = drivers[0].store
            with statements() as run:
                listed = api.regions(store)
            taken.append(len(run))
            assert [seen(one) for one in listed] == [
                seen(RegionSummary.of(*read_for_people(store, driver.name))) for driver in drivers
            ]
    # The regions as of one moment, what was contributed to their restore points, the samples of their lag, and older
    # ones of those that stand still.
    assert taken == [4, 4]
    assert listed[0].lag == 93


def standing_still(driver: Driver, group: GroupId) -> list[LagSample]:
    """Return samples of a group that has read nothing of one partition for most of an hour."""
    point = LagPoint(end=Offset(100), position=Offset(7), committed=Offset(7))
    _, now = driver.store.read(driver.name)
    ago = (now - timedelta(minutes=minutes) for minutes in (40, 9, 0))
    points = {GroupPartition(group, TopicName("t"), 0): point}
    return [LagSample(group=group, at=at, epoch=Epoch(1), points=points) for at in ago]


def seen(one: RegionSummary) -> tuple[object, ...]:
    """Return what does not change with the clock."""
    return one.region, one.state, one.last_complete, one.alive, one.lag, one.finding.verdict, one.liveness.verdict
