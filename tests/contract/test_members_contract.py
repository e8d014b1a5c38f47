"""Members, leases and batches: who may act, how long, and that a repeated call finds out instead of doing it twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.errors import (
    BatchRefused,
    LeaseExpired,
    RefusedError,
    UnknownMember,
    UnknownRegion,
)
from airflow_kcr.ports import Renewal
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.region.rows import RegionState, ResetCause
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import BatchId, EventNumber, GroupId, Incarnation, MemberId, Offset, Range, RegionName
from tests.contract.conftest import Drive
from tests.support.driver import START, Driver
from tests.support.stores import Subject, expire

LEASE = timedelta(seconds=10)


def request(driver: Driver, batch: str, width: int = 5) -> commands.StartBatch:
    held = {p: c.position for p, c in driver.claims(driver.member(0)).items() if c.position is not None}
    return driver.batch_of(driver.member(0), {p: Range(o, Offset(o + width)) for p, o in held.items()}, batch)


def test_a_lease_is_renewed_from_the_stores_clock(subject: Subject, drive: Drive) -> None:
    driver = drive()
    driver.handle(START)
    driver.join(driver.member(0))
    subject.clock.advance(8)
    heartbeat = driver.handle(commands.Renew(member=driver.member(0), incarnation=Incarnation(1), lease=LEASE))
    assert (heartbeat.renewed, heartbeat.incarnation) == (True, 1)
    assert (heartbeat.counter, heartbeat.epoch, heartbeat.reconcile_at) == (
        driver.held.counter,
        driver.held.epoch,
        driver.held.reconcile_at,
    )
    subject.clock.advance(8)
    region, now = driver.store.read(driver.name)
    assert timedelta(0) < region.leases[driver.member(0)].until - now < timedelta(seconds=3)


def test_a_renewal_says_what_the_member_lacks_and_a_new_incarnation_lacks_nothing(drive: Drive) -> None:
    driver = drive()
    driver.handle(START)
    member = driver.member(0)
    driver.join(member)
    driver.handle(commands.Renew(member=member, incarnation=Incarnation(1), lease=LEASE, lacks="Spark has no executor"))
    assert driver.region.leases[member].lacks == "Spark has no executor"
    driver.handle(commands.Register(member=member, token="t-2", takeover=True))
    assert driver.region.leases[member].lacks == ""
    driver.handle(commands.Renew(member=member, incarnation=Incarnation(2), lease=LEASE, lacks="the same"))
    driver.handle(commands.Renew(member=member, incarnation=Incarnation(2), lease=LEASE))
    assert driver.region.leases[member].lacks == ""


def test_a_renewal_changes_nothing_but_the_lease(subject: Subject, drive: Drive) -> None:
    driver = drive()
    driver.up()
    before = driver.region
    subject.clock.advance(1)
    driver.handle(commands.Renew(member=driver.member(0), incarnation=Incarnation(1), lease=LEASE))
    after = driver.region
    assert after.leases != before.leases
    assert (after.counter, after.reconcile_at) == (before.counter, before.reconcile_at)
    assert dict(after.members) == dict(before.members)


def test_a_renewal_says_whether_the_store_has_the_newest_event_that_the_member_knows_of(drive: Drive) -> None:
    driver = drive()
    driver.up()
    region = driver.held
    assert region.recorded_at is not None
    mark = commands.EventMark(number=region.counter, at=region.recorded_at)
    another = replace(mark, at=mark.at + timedelta(microseconds=1))
    unknown = replace(another, number=EventNumber(mark.number + 1))
    said = [
        driver.handle(
            commands.Renew(member=driver.member(0), incarnation=Incarnation(1), lease=LEASE, newest=newest)
        ).is_other_history
        for newest in (None, mark, another, unknown)
    ]
    assert said == [False, False, True, False]


def test_an_expired_lease_is_never_revived(subject: Subject, drive: Drive) -> None:
    driver = drive()
    driver.up()
    expire(subject)
    until = driver.held.leases[driver.member(0)].until
    heartbeat = driver.handle(commands.Renew(member=driver.member(0), incarnation=Incarnation(1), lease=LEASE))
    assert not heartbeat.renewed
    assert heartbeat.now > until
    assert driver.held.leases[driver.member(0)].until == until
    with pytest.raises(LeaseExpired):
        driver.handle(commands.Leave(member=driver.member(0), incarnation=Incarnation(1)))
    assert driver.join(driver.member(0)) == 2


def test_only_a_registered_member_renews(drive: Drive) -> None:
    driver = drive()
    driver.handle(START)
    with pytest.raises(UnknownMember, match="register it first"):
        driver.handle(commands.Renew(member=MemberId(GroupId("g"), 1), incarnation=Incarnation(1), lease=LEASE))


def test_renewals_are_answered_each_by_itself(subject: Subject, drive: Drive) -> None:
    driver = drive()
    driver.up()
    subject.clock.advance(1)
    first, second = driver.member(0), driver.member(1)
    good = Renewal(region=driver.name, command=commands.Renew(member=second, incarnation=Incarnation(1), lease=LEASE))
    stale = replace(good, command=replace(good.command, member=first, incarnation=Incarnation(9)))
    nobody = replace(good, command=replace(good.command, member=MemberId(GroupId("g"), 7)))
    elsewhere = replace(good, region=RegionName("elsewhere"))
    before = driver.held.leases
    found = driver.store.renew([nobody, stale, good, elsewhere, good])
    heartbeats = {
        one: (heartbeat.renewed, heartbeat.incarnation)
        for one, heartbeat in found.items()
        if isinstance(heartbeat, commands.Heartbeat)
    }
    assert heartbeats == {stale: (False, 1), good: (True, 1)}
    errors = {one: type(error) for one, error in found.items() if isinstance(error, RefusedError)}
    assert errors == {nobody: UnknownMember, elsewhere: UnknownRegion}
    assert f"no region 'elsewhere' in this store; it has: {driver.name}" in str(found[elsewhere])
    after = driver.held.leases
    assert after[first] == before[first]
    assert after[second].until > before[second].until
    assert driver.store.renew([]) == {}


def test_renewals_of_one_lease_by_two_incarnations_are_told_apart(drive: Drive) -> None:
    driver = drive()
    driver.up()
    former = Renewal(
        region=driver.name, command=commands.Renew(member=driver.member(0), incarnation=Incarnation(1), lease=LEASE)
    )
    takeover = commands.Register(member=driver.member(0), token="t-2", takeover=True)
    newest = replace(former, command=replace(former.command, incarnation=driver.handle(takeover)))
    found = driver.store.renew([former, newest])
    assert {
        one.command.incarnation: isinstance(heartbeat, commands.Heartbeat) and heartbeat.renewed
        for one, heartbeat in found.items()
    } == {
        Incarnation(1): False,
        Incarnation(2): True,
    }


def test_who_left_does_not_renew(drive: Drive) -> None:
    driver = drive()
    driver.up()
    driver.leave(driver.member(0))
    assert not driver.handle(commands.Renew(member=driver.member(0), incarnation=Incarnation(1), lease=LEASE)).renewed
    assert {c.owner for c in driver.held.claims.values()} == {None, driver.member(1)}


def test_a_view_is_what_a_member_holds(drive: Drive) -> None:
    driver = drive()
    driver.up()
    driver.process()
    view = driver.handle(commands.ReadRegion(member=driver.member(1)))
    assert set(view.claims) == {driver.partition(2), driver.partition(3)}
    assert {c.position for c in view.claims.values()} == {10}
    assert (view.state, view.incarnation, view.acknowledged) == (RegionState.RUNNING, 1, True)


def test_a_view_is_there_while_others_have_open_entries(drive: Drive) -> None:
    driver = drive()
    driver.handle(START)
    driver.join(driver.member(0))
    driver.join(driver.member(1))
    driver.claim(driver.member(0), [driver.partition(0), driver.partition(1)])
    assert set(driver.handle(commands.ReadRegion(member=driver.member(0))).claims) == {
        driver.partition(0),
        driver.partition(1),
    }
    assert driver.handle(commands.ReadRegion(member=driver.member(1))).claims == {}


def test_a_batch_begins_once_and_its_row_is_the_answer_each_time(drive: Drive) -> None:
    driver = drive()
    driver.up()
    asked = request(driver, "b-1")
    rows = [driver.handle(asked) for _ in range(2)]
    assert rows[0] == rows[1] == driver.store.batch(driver.name, BatchId("b-1"))
    assert (rows[0].outcome, rows[0].ranges, rows[0].started_after) == (None, asked.ranges, driver.held.counter)
    assert len(driver.batches) == 1
    assert dict(driver.held.running) == {BatchId("b-1"): rows[0]}


def test_an_id_of_a_batch_is_used_once_for_ever(drive: Drive) -> None:
    driver = drive()
    driver.up()
    driver.handle(request(driver, "b-1"))
    driver.handle(commands.FinishBatch(batch=BatchId("b-1"), member=driver.member(0), incarnation=Incarnation(1)))
    first = driver.batches
    with pytest.raises(BatchRefused):
        driver.handle(request(driver, "b-1"))
    assert driver.batches == first


def test_a_batch_is_found_by_any_offset_in_it(subject: Subject, drive: Drive) -> None:
    driver = drive()
    driver.up()
    driver.process(width=10)
    driver.process(width=10)
    partition = driver.partition(0)

    def found(offset: int) -> list[Range]:
        rows = subject.transactions.batches_with(driver.name, partition, Offset(offset))
        return [b.ranges[partition] for b in rows]

    assert found(0) == found(9) == [(0, 10)]
    assert found(10) == [(10, 20)]
    assert found(20) == []
    assert subject.transactions.batches_with(driver.name, driver.partition(7), Offset(0)) == ()
    assert subject.transactions.batch(driver.name, BatchId("unknown")) is None
    driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED)
    driver.finish_reset()
    driver.process(width=10)
    assert found(5) == [(0, 10), (0, 10)]


def test_a_takeover_notes_when_the_old_batch_is_quiesced(subject: Subject, drive: Drive) -> None:
    driver = drive()
    driver.up()
    driver.start_batch(driver.member(0))
    lease = driver.held.leases[driver.member(0)]
    driver.join(driver.member(0), takeover=True)
    row = driver.batches[0]
    assert row.quiesced_after == lease.until + timedelta(seconds=30)
    assert driver.held.running[row.batch] == row


def test_a_rule_sees_what_was_committed_before(subject: Subject, drive: Drive) -> None:
    driver = drive()
    driver.up()
    seen: list[Region] = []

    def look(region: Region, now: object) -> Region:
        seen.append(region)
        return region

    counter = driver.held.counter
    driver.change(look)
    assert seen[0].counter == counter == driver.held.counter
    assert seen[0].events == ()
