from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.errors import GroupInOtherRegion, RegionExists, RegionInState, UnknownMember, UnknownRegion
from airflow_kcr.protocol.commands import Renew, RetireCheckpoints
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import lifecycle
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.region.state import (
    BatchClosed,
    BatchesProven,
    BatchQuiescedAfter,
    BatchStarted,
    LedgerChange,
    Region,
    Spec,
)
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    Epoch,
    EventNumber,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    Range,
    RegionName,
    Timeline,
    TopicName,
)
from airflow_kcr.store.memory import MemoryTransactions, proven
from tests.support.driver import BEGINNING, Clock, Driver, group_rules
from tests.support.scripts import checkpoints_of_ten, hourly, running

FLIGHTS = RegionName("flights")
OTHER = RegionName("other")
LEASE = timedelta(seconds=10)
MEMBER = MemberId(GroupId("g"), 0)


def p(number: int) -> GroupPartition:
    return GroupPartition(GroupId("g"), TopicName("t"), number)


def spec(*groups: str) -> Spec:
    return Spec(text="{}", rules=RegionRules(groups={GroupId(g): group_rules(g) for g in groups}))


def with_region(*groups: str) -> MemoryTransactions:
    store = MemoryTransactions(Clock())
    create(store, FLIGHTS, *groups)
    return store


def create(store: MemoryTransactions, name: RegionName, *groups: str) -> Region:
    return store.create(name, lambda now: lifecycle.declare(name, spec(*groups), now))


def transactions(driver: Driver) -> MemoryTransactions:
    """Return the store behind a driver that was given none."""
    store = driver.store
    assert isinstance(store, MemoryTransactions)
    return store


# -- regions ----------------------------------------------------------------------------------------------------------


def test_a_new_region_is_made_from_the_stores_clock_and_stored_as_returned() -> None:
    store = MemoryTransactions(Clock())
    region = create(store, FLIGHTS, "g")
    assert store.read(FLIGHTS) == (region, BEGINNING)
    assert store.events(FLIGHTS, EventNumber(0), 10)[0].at == BEGINNING
    assert (region.events, len(region.ledger)) == ((), 0)


def test_a_name_is_taken_once_and_a_group_by_one_region() -> None:
    store = with_region("g", "h")
    with pytest.raises(RegionExists, match="there is a region flights already"):
        create(store, FLIGHTS, "x")
    with pytest.raises(GroupInOtherRegion, match="group h belongs to region flights"):
        create(store, OTHER, "h", "z")
    assert store.names() == (FLIGHTS,)
    create(store, OTHER, "z")
    assert store.names() == (FLIGHTS, OTHER)


def test_a_changed_spec_takes_no_group_of_another_region() -> None:
    store = with_region("g")
    create(store, OTHER, "h")
    before = store.read(OTHER)
    with pytest.raises(GroupInOtherRegion):
        store.decide(OTHER, lambda region, now: replace(region, spec=spec("g")))
    assert store.read(OTHER) == before


def test_a_region_that_is_not_there_is_named_with_those_that_are() -> None:
    store = with_region("g")
    for ask in (
        lambda: store.read(OTHER),
        lambda: store.read_as(OTHER, MEMBER, lambda region, now: region),
        lambda: store.decide(OTHER, lambda region, now: region),
        lambda: store.admit(OTHER, MEMBER, BatchId("b"), None, lambda region, now: region),
        lambda: store.handle(OTHER, Renew(member=MEMBER, incarnation=Incarnation(1), lease=LEASE)),
        lambda: store.delete(OTHER, lambda region, now: None),
        lambda: store.events(OTHER, EventNumber(0), 1),
        lambda: store.batch(OTHER, BatchId("b")),
        lambda: list(store.batches(OTHER)),
        lambda: store.batches_with(OTHER, p(0), Offset(0)),
        lambda: store.readers(OTHER, p(0).topic_partition),
        lambda: store.registered(OTHER, MEMBER, Incarnation(1)),
        lambda: store.wait(OTHER, EventNumber(0), LEASE),
    ):
        with pytest.raises(UnknownRegion, match="no region 'other' in this store; it has: flights"):
            ask()
    with pytest.raises(UnknownRegion, match="it has: none"):
        MemoryTransactions(Clock()).read(FLIGHTS)


def test_a_rule_that_raises_has_changed_nothing() -> None:
    store = with_region("g")
    before = store.read(FLIGHTS)

    def refuse(region: Region, now: object) -> Region:
        raise RegionInState("no")

    with pytest.raises(RegionInState):
        store.decide(FLIGHTS, refuse)
    assert store.read(FLIGHTS) == before


def test_a_deleted_region_is_gone_unless_the_check_refuses() -> None:
    store = with_region("g")

    def refuse(region: Region, now: object) -> None:
        raise RegionInState("somebody works for it")

    with pytest.raises(RegionInState):
        store.delete(FLIGHTS, refuse)
    store.delete(FLIGHTS, lambda region, now: None)
    assert store.names() == ()
    create(store, FLIGHTS, "g")
    assert len(store.events(FLIGHTS, EventNumber(0), 10)) == 1


def test_events_come_in_commit_order_page_by_page() -> None:
    driver = running()
    store = transactions(driver)
    every = store.events(driver.name, EventNumber(0), 1_000)
    assert [e.number for e in every] == list(range(1, len(every) + 1))
    assert store.events(driver.name, EventNumber(2), 3) == every[2:5]
    assert store.events(driver.name, EventNumber(len(every)), 3) == ()
    store.wait(driver.name, EventNumber(0), LEASE)


# -- leases -----------------------------------------------------------------------------------------------------------


def test_a_renewal_extends_the_lease_from_the_stores_clock_and_says_where_the_region_stands() -> None:
    driver = running()
    driver.clock.advance(4)
    heartbeat = driver.handle(Renew(member=MEMBER, incarnation=Incarnation(1), lease=LEASE))
    assert (heartbeat.now, heartbeat.renewed, heartbeat.incarnation) == (driver.clock.now, True, 1)
    assert (heartbeat.counter, heartbeat.epoch, heartbeat.reconcile_at) == (
        driver.region.counter,
        1,
        driver.region.reconcile_at,
    )
    assert driver.region.leases[MEMBER].until == driver.clock.now + LEASE


def test_neither_an_expired_lease_nor_one_of_an_older_incarnation_is_renewed() -> None:
    driver = running()
    store = driver.store
    assert not store.handle(driver.name, Renew(member=MEMBER, incarnation=Incarnation(9), lease=LEASE)).renewed
    driver.clock.advance(10)
    before = driver.region.leases
    assert not store.handle(driver.name, Renew(member=MEMBER, incarnation=Incarnation(1), lease=LEASE)).renewed
    assert driver.region.leases == before
    with pytest.raises(UnknownMember, match="register it first"):
        store.handle(driver.name, Renew(member=MemberId(GroupId("g"), 9), incarnation=Incarnation(1), lease=LEASE))


# -- the ledger -------------------------------------------------------------------------------------------------------


def test_batches_are_found_by_id_in_the_order_of_their_begins_and_by_any_offset_in_them() -> None:
    driver = running(partitions=1, members=1)
    store = transactions(driver)
    for _ in range(2):
        driver.process()
    first, second = driver.batches
    assert store.batch(driver.name, first.batch) == first
    assert store.batch(driver.name, BatchId("unknown")) is None
    assert list(store.batches(driver.name)) == [first, second]
    found = [store.batches_with(driver.name, p(0), Offset(o)) for o in (0, 9, 10, 19, 20)]
    assert found == [(first,), (first,), (second,), (second,), ()]
    assert store.batches_with(driver.name, p(7), Offset(0)) == ()


def test_what_is_retired_is_forgotten_and_nothing_else() -> None:
    driver = hourly(keep=2)
    checkpoints = checkpoints_of_ten(driver, 4)
    driver.handle(RetireCheckpoints())
    region = driver.region
    assert set(region.offsets) == set(region.read_backs) == {s for s, _ in region.contributions} == set(checkpoints[2:])
    assert set(checkpoints) <= set(region.checkpoints)


def test_ledger_changes_are_settled_with_the_region() -> None:
    store = with_region("g")
    begun = BatchStarted(batch=batch())
    region = store.decide(FLIGHTS, lambda region, now: replace(region, ledger=(begun,)))
    assert len(region.ledger) == 0
    assert store.batch(FLIGHTS, BatchId("b")) == batch()


def test_every_kind_of_ledger_change_reaches_its_rows() -> None:
    store = with_region("g")
    changes: tuple[LedgerChange, ...] = (
        BatchStarted(batch=batch(outcome=None)),
        BatchQuiescedAfter(batch=BatchId("b"), at=BEGINNING + LEASE),
        BatchClosed(batch=BatchId("b"), outcome=Outcome.UNKNOWN, at=BEGINNING, after=EventNumber(4)),
        BatchesProven(epoch=Epoch(1), proven_in=Epoch(3), progress=places(p0=10, p1=20)),
    )
    store.decide(FLIGHTS, lambda region, now: replace(region, ledger=changes))
    row = store.batch(FLIGHTS, BatchId("b"))
    assert row is not None
    assert (row.quiesced_after, row.finished_at, row.finished_after) == (BEGINNING + LEASE, BEGINNING, 4)
    assert (row.outcome, row.proven_in, row.accepted_in) == (Outcome.DONE, 3, 3)


# -- proven -----------------------------------------------------------------------------------------------------------


def batch(
    ranges: Mapping[int, tuple[int, int]] | None = None, *, outcome: Outcome | None = Outcome.DONE, epoch: int = 1
) -> Batch:
    """Return a batch of [0, 10) and [0, 20), or of other ranges."""
    wanted = ranges or {0: (0, 10), 1: (0, 20)}
    return Batch(
        batch=BatchId("b"),
        member=MEMBER,
        incarnation=Incarnation(1),
        epoch=Epoch(epoch),
        timeline=Timeline(1),
        sequence=CheckpointNumber(2),
        ranges={p(n): Range(Offset(a), Offset(b)) for n, (a, b) in wanted.items()},
        started_at=BEGINNING,
        started_after=EventNumber(1),
        outcome=outcome,
    )


def places(**offsets: int) -> OffsetMap:
    return OffsetMap({p(int(name[1:])): Offset(offset) for name, offset in offsets.items()})


def proof(epoch: int, **offsets: int) -> BatchesProven:
    return BatchesProven(epoch=Epoch(epoch), proven_in=Epoch(epoch + 1), progress=places(**offsets))


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.DISCARDED])
def test_a_sinks_progress_proves_a_batch_that_lies_wholly_at_or_below_it(outcome: Outcome) -> None:
    row = batch(outcome=outcome)
    assert proven(row, proof(1, p0=10, p1=20)).outcome is Outcome.DONE
    assert proven(row, proof(1, p0=50, p1=50)).outcome is Outcome.DONE
    assert proven(row, proof(1, p0=10, p1=19)) is row
    assert proven(row, proof(1, p0=10)).outcome is Outcome.DONE, "nobody can tell of the other one: it is gone"
    assert proven(row, proof(1, p0=10, p1=0)) is row, "the other one's sink has no progress"
    assert proven(row, proof(1, p2=99)) is row
    assert proven(row, proof(2, p0=10, p1=20)) is row


@pytest.mark.parametrize("outcome", [None, Outcome.DONE, Outcome.UNDONE])
def test_it_proves_nothing_about_what_runs_or_is_settled(outcome: Outcome | None) -> None:
    row = batch(outcome=outcome)
    assert proven(row, proof(1, p0=10, p1=20)) is row
