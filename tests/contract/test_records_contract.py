"""What became of a record: as the whole history says it, and found by an index whatever else the ledger has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import psycopg
import pytest

from airflow_kcr.api import Region
from airflow_kcr.api.ledger import RecordStart
from airflow_kcr.protocol.invariants.accounting import redeliveries
from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.invariants.moment import Moment
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import Outcome, Requester, ResetCause
from airflow_kcr.protocol.rules import Delivery, RegionRules
from airflow_kcr.protocol.targets import ToOffset
from airflow_kcr.protocol.values import GroupPartition, Offset, Range
from tests.contract.conftest import Drive
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.long_ledger import Statistics, fill, with_all_statistics
from tests.support.plans import keep_unknown, touched
from tests.support.stores import postgres_store

pytestmark = pytest.mark.postgres

RUN = Requester(dag_id="flights", run_id="now")


def lived(driver: Driver, seed: int) -> None:
    """Batches of any width, checkpoints, crashes, resets back and on, in any order."""
    chance = Random(seed)
    driver.up()
    for turn in range(40):
        match chance.choice(["batch", "batch", "batch", "checkpoint", "discard", "lease", "person", "restart"]):
            case "checkpoint":
                driver.request_checkpoint(f"n{turn}", requester=RUN if turn % 2 else Requester())
                driver.complete()
                driver.publish()
            case "discard":
                driver.discard(driver.start_batch(driver.member(0), width=chance.randrange(1, 40)))
                driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED, "it failed")
                driver.finish_reset()
            case "lease":
                driver.request_reset(driver.member(0), ResetCause.LEASE_LOST, "it is gone")
                driver.finish_reset()
            case "person":
                driver.reset(ToOffset(offset=Offset(chance.randrange(150))))
                driver.complete()
                driver.finish_reset()
            case "restart":
                driver.start_batch(driver.member(1), width=chance.randrange(1, 40))
                driver.crash(driver.member(1))
                driver.recover()
            case _:
                driver.process(width=chance.randrange(1, 40))


def told(start: RecordStart) -> tuple[object, ...]:
    return start.batch.batch, start.outcome, start.cause, start.checkpoint, start.process


def expected(history: History) -> Callable[[GroupPartition, int], list[tuple[object, ...]]]:
    """Return what says of a record what the whole history says of it."""
    labels, completed, moment = {}, {}, Moment()
    for event in history.events:
        moment.take(event)
        match event.body:
            case events.MemberRegistered(member=member, incarnation=incarnation, label=label):
                labels[member, incarnation] = label
            case events.CheckpointCompleted(sequence=sequence, offsets=offsets):
                completed[sequence] = offsets
    current = {sequence: offsets for sequence, offsets in completed.items() if moment.is_current(sequence)}
    again, batches = tuple(redeliveries(history)), sorted(history.batches, key=lambda b: b.started_after)

    def of(partition: GroupPartition, offset: int) -> list[tuple[object, ...]]:
        causes = {
            r.batch: "unaccounted" if r.reset is None else str(r.reset.cause)
            for r in again
            if r.partition == partition and r.range.from_ <= offset < r.range.to
        }
        found: list[tuple[object, ...]] = []
        for batch in batches:
            range_ = batch.ranges.get(partition)
            if range_ is None or not range_.from_ <= offset < range_.to:
                continue
            is_undone = batch.outcome is Outcome.DONE and batch.undone_from.get(partition, offset + 1) <= offset
            outcome = Outcome.UNDONE if is_undone else batch.outcome
            checkpoints = [s for s, o in current.items() if s >= batch.sequence and o.get(partition, 0) > offset]
            checkpoint = min(checkpoints, default=None) if outcome is Outcome.DONE else None
            by = labels[batch.member, batch.incarnation]
            found.append((batch.batch, outcome, causes.get(batch.batch, ""), checkpoint, by))
        return found

    return of


@pytest.mark.parametrize(
    ("seed", "delivery"),
    [
        pytest.param(seed, delivery, marks=() if seed == number % 3 else pytest.mark.long)
        for seed in range(3)
        for number, delivery in enumerate(Delivery)
    ],
)
def test_a_record_is_told_as_the_whole_history_tells_it(drive: Drive, seed: int, delivery: Delivery) -> None:
    driver = drive(delivery=delivery)
    lived(driver, seed)
    of_history = expected(driver.store.history(driver.name))
    region = Region(driver.name, driver.store)
    repeated = 0
    for number in range(4):
        for offset in (*range(0, 120, 7), 5_000):
            (found,) = region.record(f"t:{number}:{offset}")
            assert [told(start) for start in found.starts] == of_history(driver.partition(number), offset)
            repeated += len(found.starts) > 1
    assert repeated > 3 or delivery is not Delivery.AT_LEAST_ONCE


def test_the_runs_of_the_checkpoint_are_told(drive: Drive) -> None:
    driver = drive()
    driver.up()
    driver.process()
    for request_id, requester in (("one", RUN), ("by hand", Requester(who="pat"))):
        driver.request_checkpoint(request_id, requester=requester)
    driver.complete()
    (found,) = Region(driver.name, driver.store).record("t:0:3")
    assert [start.runs for start in found.starts] == [(RUN,)]


WIDE = (1, 2, 3, 63, 64, 65, 1_000, 99_999, 5_000_000)


def test_ranges_of_any_length_are_found_at_their_ends(drive: Drive) -> None:
    driver = drive(partitions=1, members=1)
    driver.grow(driver.partition(0), end=2**62)
    driver.up()
    member, place, at = driver.member(0), driver.partition(0), 0
    for width in (*WIDE, 2**61):
        driver.finish_batch(driver.start_ranges(member, {place: Range(Offset(at), Offset(at + width))}))
        at += width
    at = 0
    for width, batch in zip((*WIDE, 2**61), driver.batches, strict=True):
        for offset in (at, at + width - 1):
            (found,) = Region(driver.name, driver.store).record(f"t:0:{offset}")
            assert [start.batch.batch for start in found.starts] == [batch.batch]
        at += width
    assert Region(driver.name, driver.store).record(f"t:0:{at}")[0].starts == ()


_LONG = b"""
    WITH begun AS (
        INSERT INTO kcr.batch (region_id, batch_id, group_id, member_index, incarnation, epoch, timeline, sequence,
                               started_at, started_after, outcome, finished_at, finished_after)
        SELECT r.id, 'wide-' || w, 'g', 0, 1, r.epoch, r.timeline, r.next_sequence, now(), r.counter, 'discarded',
               now(), r.counter
        FROM kcr.region r, unnest(CAST(%s AS bigint[])) w RETURNING number, region_id, batch_id
    )
    INSERT INTO kcr.batch_range (batch_number, region_id, group_id, topic, partition, from_offset, to_offset)
    SELECT b.number, b.region_id, 'g', 't', 0, 0, CAST(substr(b.batch_id, 6) AS bigint) FROM begun b
"""
"""Batches from the log's start that were discarded: some lie wholly before a record, others have it."""


def rows_of_a_record(url: str, batches: int, statistics: Statistics) -> tuple[int, Counter[str]]:
    keep_unknown(url)
    rules = RegionRules(groups={GROUP: group_rules(members=3)})
    with postgres_store(url, lambda _: rules) as store:
        driver = Driver(partitions=12, rules=rules, transactions=store)
        driver.up()
        fill(url, driver, batches, statistics)
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(_LONG, [list(WIDE)])
        with touched() as rows:
            (found,) = Region(driver.name, driver.store).record("t:0:5005")
        return len(found.starts), rows


@with_all_statistics
def test_a_record_touches_as_many_rows_however_many_batches_there_were(
    database_url: str, other_database_url: str, statistics: Statistics
) -> None:
    (starts, few), (again, many) = (
        rows_of_a_record(url, batches, statistics)
        for url, batches in ((database_url, 1_200), (other_database_url, 20_000))
    )
    assert starts == again == 3
    assert {s: (few[s], rows) for s, rows in many.items() if rows > few[s] + 10} == {}
    assert many.total() < 500, many.most_common(3)
