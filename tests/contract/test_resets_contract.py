"""Lists of resets: pages, and what each made to be processed again, from rows that don't grow with the ledger."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from airflow_kcr.api import Region, ResetView
from airflow_kcr.errors import UnknownReset
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap, SeekSource, from_offsets
from airflow_kcr.protocol.region.commands import KillRegion, ReportOutOfRange
from airflow_kcr.protocol.region.rows import ResetCause
from airflow_kcr.protocol.rules import Delivery, OutOfRangePolicy, RegionRules
from airflow_kcr.protocol.targets import FromFile, ToEarliest, ToOffset
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import Epoch, Offset, TopicId
from airflow_kcr.store.answers import Replayed, Span
from tests.contract.conftest import Drive
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.long_history import live_through, number_beyond
from tests.support.long_ledger import Statistics, fill
from tests.support.plans import keep_unknown, statements, touched
from tests.support.stores import postgres_store

pytestmark = pytest.mark.postgres


DRAIN = Timeouts().drain


def fail(driver: Driver) -> None:
    driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED, "it failed")


def counts(driver: Driver) -> list[tuple[str, int, int]]:
    found = Region(driver.name, driver.store).resets.list()
    return [(v.cause, v.counted.rewound, v.counted.replayed) for v in found if v.counted and v.counted != Replayed()]


def started_again(driver: Driver) -> list[tuple[int, int]]:
    region = Region(driver.name, driver.store)
    assert not region.verify().violations
    return [(r.redelivery.range.from_, r.redelivery.range.to) for r in region.repeated()]


def test_a_crash_counts_what_was_begun_since_the_restore_point(drive: Drive) -> None:
    driver = drive()
    driver.up()
    driver.process()
    driver.checkpoint("the restore point")
    driver.process()
    driver.start_batch(driver.member(1))
    driver.crash(driver.member(1))
    driver.recover()
    # Both members had processed [10, 20) of two partitions each; the one that crashed had started [20, 30) as well.
    assert counts(driver)[-1][1:] == (4 * 10 + 2 * 10, 0)
    driver.process()
    assert counts(driver)[-1][1:] == (4 * 10 + 2 * 10, 4 * 10)


def test_what_a_later_reset_rewound_again_counts_for_the_later_one(drive: Drive) -> None:
    driver = drive(partitions=1, members=1)
    driver.up()
    driver.process(width=30)
    for width in (10, 30):
        fail(driver)
        driver.finish_reset()
        driver.process(width=width)
    assert counts(driver) == [("batch_failed", 30, 30), ("batch_failed", 10, 10)]
    assert Region(driver.name, driver.store).resets.show("flights/2").counted == Replayed(rewound=30, replayed=30)


def test_the_log_of_a_topic_made_anew_is_not_counted_against_the_one_of_before(drive: Drive) -> None:
    driver = drive(partitions=1, members=1)
    driver.up()
    driver.process(width=30)
    fail(driver)
    driver.finish_reset()
    driver.process(width=20)
    before = counts(driver)
    assert before == [("batch_failed", 30, 20)]
    driver.grow(driver.partition(0), end=1000, topic_id="id-2")
    driver.handle(ReportOutOfRange(caller=driver.caller(driver.member(0)), observed=driver.logs))
    driver.reset(ToEarliest(), forced=True)
    driver.finish_reset()
    assert counts(driver) == before, "it goes back over nothing"
    driver.process(width=500)
    assert counts(driver) == before, "what was begun is of the new log"
    assert started_again(driver) == [(0, 20)]
    fail(driver)
    driver.finish_reset()
    driver.process(width=100)
    assert counts(driver) == [*before, ("batch_failed", 500, 100)]
    assert started_again(driver) == [(0, 20), (0, 100)]
    # An older page of resets alone, too: what came after the newest of it was of another log.
    spans = [Span(Epoch(1), Epoch(2), Epoch(2))]
    assert driver.store.replays(driver.name, spans) == {Epoch(2): Replayed(rewound=30, replayed=0)}


@pytest.mark.parametrize("policy", [OutOfRangePolicy.EARLIEST, OutOfRangePolicy.LATEST])
def test_a_policy_that_follows_a_topic_made_anew_counts_nothing(drive: Drive, policy: OutOfRangePolicy) -> None:
    driver = drive(partitions=1, rules=RegionRules(groups={GROUP: group_rules(members=1)}, beyond_end=policy))
    driver.up()
    driver.process(width=30)
    driver.grow(driver.partition(0), end=10, topic_id="id-2")
    driver.handle(ReportOutOfRange(caller=driver.caller(driver.member(0)), observed=driver.logs))
    driver.finish_reset()
    driver.grow(driver.partition(0), end=100, topic_id="id-2")
    driver.process(width=50)
    assert counts(driver) == []
    assert started_again(driver) == []


def test_further_attempts_count_once(drive: Drive) -> None:
    driver = drive(partitions=1, members=1)
    driver.up()
    driver.process(width=30)
    fail(driver)
    fail(driver)
    driver.finish_reset()
    driver.process(width=20)
    assert counts(driver) == [("batch_failed", 30, 20)]


def test_at_most_once_replays_nothing(drive: Drive) -> None:
    driver = drive(delivery=Delivery.AT_MOST_ONCE)
    driver.up()
    driver.process()
    fail(driver)
    driver.finish_reset()
    driver.process()
    assert counts(driver) == []


def test_a_persons_way_on_replays_nothing_and_its_way_back_does(drive: Drive) -> None:
    driver = drive()
    driver.up()
    driver.process()
    for place in (60, 20):
        driver.reset(ToOffset(offset=Offset(place)))
        driver.complete()
        driver.finish_reset()
        driver.process()
    assert counts(driver) == [("person", 4 * 50, 4 * 10)], "from 70 to 20, and on to 30"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_both_stores_count_the_same(drive_twins: Drive, seed: int) -> None:
    chance, driver = Random(seed), drive_twins()
    driver.up()
    for _ in range(25):
        match chance.choice(["batch", "batch", "checkpoint", "fail", "twice", "person", "crash"]):
            case "checkpoint":
                driver.checkpoint(f"n{chance.random()}")
            case "fail":
                driver.discard(driver.start_batch(driver.member(0), width=chance.randrange(1, 30)))
                fail(driver)
            case "twice":
                fail(driver)
                fail(driver)
            case "person":
                driver.reset(ToOffset(offset=Offset(chance.randrange(100))))
                driver.complete()
            case "crash":
                driver.start_batch(driver.member(1))
                driver.crash(driver.member(1))
                driver.recover()
            case _:
                driver.process(width=chance.randrange(1, 30))
        driver.finish_reset()
        Region(driver.name, driver.store).resets.list(last=chance.randrange(1, 6))


# -- pages ---------------------------------------------------------------------------------------------------------


def ids(views: tuple[ResetView, ...]) -> list[str]:
    return [view.reset_id for view in views]


def test_pages_add_up_to_the_list_whatever_became_of_each(drive: Drive) -> None:
    driver = drive()
    driver.up()
    region = Region(driver.name, driver.store)
    for number in range(12):
        driver.process()
        driver.checkpoint(f"checkpoint-{number}")
        driver.process()
        if number % 4 == 0:
            driver.reset(ToOffset(offset=Offset(5)))
            if number % 8 == 0:
                driver.wait(DRAIN.total_seconds() + 1)  # it fails, and never begins
            else:
                driver.complete()
        else:
            fail(driver)
            if number % 3 == 0:
                fail(driver)
        driver.finish_reset()
    whole = region.resets.list()
    assert len({*ids(whole)}) == len(whole) >= 12
    assert {len(view.attempts) for view in whole} == {0, 1, 2}
    for size in (1, 2, 3, 5):
        found: list[ResetView] = []
        before: int | None = None
        while page := region.resets.list(before=before, last=size):
            begun = [view.attempts[0].sequence for view in page if view.attempts]
            assert 1 <= len(begun) <= size
            assert len(page) <= 2 * size
            found[:0] = page
            before = begun[0]
        assert ids(tuple(found)) == ids(whole)
        assert [view.counted for view in found] == [view.counted for view in whole]


def test_each_is_found_by_each_of_its_names(drive: Drive) -> None:
    driver = drive()
    driver.up()
    driver.process()
    fail(driver)
    fail(driver)
    driver.finish_reset()
    region = Region(driver.name, driver.store)
    for view in region.resets.list():
        for attempt in view.attempts:
            for name in (str(attempt.sequence), f"flights/{attempt.sequence}"):
                assert region.resets.show(name) == view
    for name in ("flights/77", "77", "flights/", "", "9" * 30, "-1"):
        with pytest.raises(UnknownReset, match="has no reset"):
            region.resets.show(name)


# -- what they cost ------------------------------------------------------------------------------------------------


def rows_of_lists(url: str, size: int, statistics: Statistics) -> tuple[int, Counter[str]]:
    """Return the statements of all lists of resets, and the rows they touch, after N checkpoints and batches."""
    keep_unknown(url)
    rules = RegionRules(groups={GROUP: group_rules(members=3)})
    with postgres_store(url, lambda _: rules) as store:
        driver = Driver(partitions=12, rules=rules, transactions=store)
        for partition in driver.logs:
            driver.grow(partition, end=1_000_000)
        number_beyond(url, size)
        driver.up()
        fill(url, driver, size, statistics)
        live_through(url, size, statistics=statistics)
        fail(driver)
        driver.finish_reset()
        region = Region(driver.name, driver.store)
        with statements() as run, touched() as rows:
            newest = region.resets.list(last=20)
            region.resets.list(before=newest[3].attempts[0].sequence, last=20)
            region.resets.list(before=500, last=20)
            region.resets.show(newest[3].reset_id)
            region.resets.show("100")
        return len(run), rows


@pytest.mark.parametrize("statistics", [Statistics.NONE, pytest.param(Statistics.FRESH, marks=pytest.mark.long)])
def test_lists_cost_the_same_however_many_resets_and_batches_there_were(
    database_url: str, other_database_url: str, statistics: Statistics
) -> None:
    few, many = (
        rows_of_lists(url, size, statistics) for url, size in ((database_url, 1_200), (other_database_url, 20_000))
    )
    assert few[0] == many[0] <= 5 * 13, "two read the region, five ask, each after a ping"
    assert {s: (few[1][s], rows) for s, rows in many[1].items() if rows > few[1][s] + 200} == {}


def test_a_region_that_has_never_run_takes_in_the_partitions_that_a_reset_names(drive: Drive) -> None:
    driver = drive()
    logs = {driver.partition(n): driver.logs[driver.partition(n)] for n in range(3)}
    strange = {driver.partition(0, topic="u"): LogBounds(start=Offset(0), end=Offset(9), topic_id=TopicId("id-u"))}
    places = OffsetMap({p: Offset(5 + p.partition) for p in logs})
    reset = driver.reset(
        FromFile(entries=places),
        resolved=from_offsets({**places, **dict.fromkeys(strange, Offset(1))}, SeekSource.EXPLICIT),
        logs=logs | strange,
    )
    assert reset.state == "done"
    assert driver.region.initial_offsets() == places, "what its groups do not read has no place in it"

    # It starts there; one that the reset did not know begins at its start.
    driver.up()
    assert {p.partition: c.position for p, c in driver.region.claims.items()} == {0: 5, 1: 6, 2: 7, 3: 0}
    assert not Region(driver.name, driver.store).verify().violations


def test_a_region_that_has_run_takes_in_no_partition_by_a_reset(drive: Drive) -> None:
    driver = drive(partitions=2)
    driver.up()
    driver.handle(KillRegion())
    known = driver.region.initial_offsets()
    places, late = OffsetMap(dict.fromkeys(known, Offset(5))), driver.partition(7)
    driver.reset(
        FromFile(entries=places),
        resolved=from_offsets({**places, late: Offset(5)}, SeekSource.EXPLICIT),
        logs={late: LogBounds(start=Offset(0), end=Offset(9), topic_id=TopicId("id-1"))},
    )
    assert driver.region.initial_offsets() == known
