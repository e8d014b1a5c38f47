"""Regions themselves: declared, changed, deleted, listed; their events and what a refused verb leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pytest

from airflow_kcr import errors
from airflow_kcr.ports import SinkPlace
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import batches, commands
from airflow_kcr.protocol.region.liveness import NEVER
from airflow_kcr.protocol.region.rows import RegionState, Requester, ResetCause
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    EventNumber,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    Range,
    RegionName,
    RequestId,
    TopicName,
)
from airflow_kcr.store.regions import Rule
from tests.contract.conftest import Drive
from tests.support.driver import PAUSE, START, Driver, group_rules
from tests.support.stores import Subject
from tests.support.twin import plain

FLIGHTS, SEATS = RegionName("flights"), RegionName("seats")


def rules_of(*groups: str, members: int = 2) -> RegionRules:
    return RegionRules(groups={GroupId(g): group_rules(g, members=members) for g in groups})


def test_a_declared_region_is_stopped_and_reads_back_as_it_was_returned(subject: Subject) -> None:
    store = subject.transactions
    made = store.handle(FLIGHTS, commands.DeclareRegion(spec=subject.specs.spec(rules_of("g"))))
    region, now = store.read(FLIGHTS)
    assert plain(region) == plain(made)
    assert (region.state, region.counter, region.events) == (RegionState.STOPPED, 1, ())
    assert store.events(FLIGHTS, EventNumber(0))[0].at <= now


def test_a_name_is_taken_once(subject: Subject) -> None:
    store = subject.transactions
    store.handle(FLIGHTS, commands.DeclareRegion(spec=subject.specs.spec(rules_of("g"))))
    with pytest.raises(errors.RegionExists, match="flights"):
        store.handle(FLIGHTS, commands.DeclareRegion(spec=subject.specs.spec(rules_of("h"))))
    assert store.names() == (FLIGHTS,)


def test_places_of_sinks_are_noted_once_and_forgotten_with_the_region(subject: Subject) -> None:
    store, declare = subject.transactions, commands.DeclareRegion(spec=subject.specs.spec(rules_of("g")))
    one, other = SinkPlace(GroupId("g"), "out", "/lake/out"), SinkPlace(GroupId("g"), "out", "/lake/other")
    store.handle(FLIGHTS, declare)
    for place in (one, other, one):
        store.take(FLIGHTS, place)
    assert store.taken(FLIGHTS) == {one, other}
    for _ in range(2):
        store.let_go(FLIGHTS, other)
    assert store.taken(FLIGHTS) == {one}
    store.handle(FLIGHTS, commands.DeleteRegion())
    with pytest.raises(errors.UnknownRegion):
        store.taken(FLIGHTS)
    with pytest.raises(errors.UnknownRegion):
        store.take(FLIGHTS, one)
    store.handle(FLIGHTS, declare)
    assert store.taken(FLIGHTS) == frozenset()


def test_a_group_is_in_one_region_which_the_refusal_names(subject: Subject) -> None:
    store = subject.transactions
    store.handle(FLIGHTS, commands.DeclareRegion(spec=subject.specs.spec(rules_of("a", "g"))))
    with pytest.raises(errors.GroupInOtherRegion, match="group g belongs to region flights"):
        store.handle(SEATS, commands.DeclareRegion(spec=subject.specs.spec(rules_of("g", "z"))))
    assert store.names() == (FLIGHTS,)
    store.handle(
        SEATS, commands.DeclareRegion(spec=subject.specs.spec(rules_of("z")))
    )  # nothing was left of the refused one


def test_a_changed_spec_takes_free_groups_and_gives_groups_free(subject: Subject) -> None:
    store = subject.transactions
    store.handle(FLIGHTS, commands.DeclareRegion(spec=subject.specs.spec(rules_of("g", "h"))))
    store.handle(SEATS, commands.DeclareRegion(spec=subject.specs.spec(rules_of("s"))))
    with pytest.raises(errors.GroupInOtherRegion, match="group h belongs to region flights"):
        store.handle(SEATS, commands.ChangeSpec(at_once=subject.specs.spec(rules_of("h", "s"), revision=2)))
    store.handle(FLIGHTS, commands.ChangeSpec(at_once=subject.specs.spec(rules_of("g"), revision=2)))
    store.handle(SEATS, commands.ChangeSpec(at_once=subject.specs.spec(rules_of("h", "s"), revision=2)))
    assert sorted(store.read(SEATS)[0].rules.groups) == ["h", "s"]


def test_a_spec_that_waits_is_kept(subject: Subject, drive: Drive) -> None:
    driver = drive()
    driver.up()
    later = subject.specs.spec(rules_of("g", members=3), revision=3)
    driver.handle(commands.ChangeSpec(at_once=driver.held.spec, later=later))
    assert driver.held.next_spec == later


def test_why_members_can_not_start_is_kept(subject: Subject, drive: Drive) -> None:
    driver = drive()
    driver.up()
    driver.leave(driver.member(1))
    driver.fail_to_start(driver.member(1), refusal="there is no module 'nowhere'")
    assert [(f.member, f.revision, f.refusal) for f in driver.held.start_failures] == [
        (driver.member(1), 1, "there is no module 'nowhere'")
    ]


def test_groups_of_a_spec_that_waits_are_no_other_regions(subject: Subject, drive: Drive) -> None:
    # Taken meanwhile, they would keep every later checkpoint from completing, which is when the spec comes into force.
    driver = drive()
    driver.up()
    before = driver.held.spec
    later = subject.specs.spec(rules_of("g", "h"), revision=3)
    driver.handle(commands.ChangeSpec(at_once=before, later=later))
    with pytest.raises(errors.GroupInOtherRegion, match=f"group h belongs to region {driver.name}"):
        driver.store.handle(SEATS, commands.DeclareRegion(spec=subject.specs.spec(rules_of("h"))))
    driver.handle(commands.ChangeSpec(at_once=before))
    driver.store.handle(SEATS, commands.DeclareRegion(spec=subject.specs.spec(rules_of("h"))))


def test_a_spec_whose_group_is_another_regions_is_refused_when_it_is_applied(subject: Subject, drive: Drive) -> None:
    driver = drive()
    driver.up()
    driver.store.handle(SEATS, commands.DeclareRegion(spec=subject.specs.spec(rules_of("h"))))
    later = subject.specs.spec(rules_of("g", "h"), revision=3)
    with pytest.raises(errors.GroupInOtherRegion, match="group h belongs to region seats"):
        driver.handle(commands.ChangeSpec(at_once=driver.held.spec, later=later))
    assert driver.held.next_spec is None


def test_names_are_in_order(subject: Subject) -> None:
    store = subject.transactions
    for name in ("b", "a-b", "a_b", "a", "0"):
        store.handle(RegionName(name), commands.DeclareRegion(spec=subject.specs.spec(rules_of(f"of {name}"))))
    assert store.names() == tuple(sorted(map(RegionName, ("b", "a-b", "a_b", "a", "0"))))


def test_a_stopped_region_is_deleted_with_its_history_and_its_groups_are_free(subject: Subject, drive: Drive) -> None:
    driver = drive()
    driver.up()
    driver.process()
    driver.checkpoint("n1")
    with pytest.raises(errors.RegionInState):
        driver.handle(commands.DeleteRegion())
    assert driver.held.state is RegionState.RUNNING
    driver.handle(commands.KillRegion())
    subject.clock.advance(60)
    driver.handle(commands.DeleteRegion())
    assert driver.store.names() == ()
    with pytest.raises(errors.UnknownRegion):
        driver.store.read(driver.name)
    driver.handle(commands.DeclareRegion(spec=subject.specs.spec(rules_of("g"))))
    assert list(driver.store.batches(driver.name)) == []
    assert len(driver.store.events(driver.name, EventNumber(0))) == 1


def test_an_unknown_region_is_refused_by_every_call_with_those_that_exist(subject: Subject) -> None:
    store, nobody, log = (
        subject.transactions,
        MemberId(GroupId("g"), 0),
        GroupPartition(GroupId("g"), TopicName("t"), 0),
    )
    with pytest.raises(errors.UnknownRegion, match="it has: none"):
        store.read(SEATS)
    store.handle(FLIGHTS, commands.DeclareRegion(spec=subject.specs.spec(rules_of("g"))))
    calls: list[Callable[[], object]] = [
        lambda: store.read(SEATS),
        lambda: store.handle(SEATS, commands.ReadRegion(member=nobody)),
        lambda: store.handle(SEATS, START),
        lambda: store.handle(SEATS, commands.DeleteRegion()),
        lambda: store.handle(
            SEATS, commands.Renew(member=nobody, incarnation=Incarnation(1), lease=timedelta(seconds=10))
        ),
        lambda: store.handle(
            SEATS, commands.FinishBatch(batch=BatchId("b"), member=nobody, incarnation=Incarnation(1))
        ),
        lambda: store.events(SEATS, EventNumber(0)),
        lambda: list(store.batches(SEATS)),
        lambda: store.batch(SEATS, BatchId("b")),
        lambda: store.batches_with(SEATS, log, Offset(0)),
        lambda: store.readers(SEATS, log.topic_partition),
        lambda: store.registered(SEATS, nobody, Incarnation(1)),
        lambda: store.read_as(SEATS, nobody, lambda region, now: region),
        lambda: store.admit(
            SEATS,
            commands.FinishBatch(batch=BatchId("b"), member=nobody, incarnation=Incarnation(1)),
            batches.finish,
        ),
        lambda: store.wait(SEATS, EventNumber(0), timedelta(seconds=0)),
    ]
    for call in calls:
        with pytest.raises(errors.UnknownRegion, match=r"seats.*it has: flights"):
            call()


def test_events_are_numbered_without_gaps_and_read_back_as_they_were_decided(subject: Subject, drive: Drive) -> None:
    driver = drive()
    decided: list[object] = []
    original = subject.transactions.decide

    def noting(name: RegionName, rule: Rule[object]) -> tuple[Region, object]:
        def noted(region: Region, now: datetime) -> tuple[Region, object]:
            after, answer = rule(region, now)
            decided.extend(after.events)
            return after, answer

        return original(name, noted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subject.transactions, "decide", noting)
        driver.up()
        driver.process()
        driver.checkpoint("n1")
    events = driver.events
    assert [e.number for e in events] == list(range(1, driver.held.counter + 1))
    assert list(events[1:]) == decided
    assert driver.store.events(driver.name, EventNumber(3), limit=2) == events[3:5]
    assert driver.store.events(driver.name, driver.held.counter) == ()


def test_texts_for_people_are_kept_whatever_is_in_them(drive: Drive) -> None:
    driver = drive()
    driver.up()
    caller = driver.caller(driver.member(0))
    driver.handle(
        commands.RequestReset(caller=caller, cause=ResetCause.BATCH_FAILED, detail="späť ☃ 'quoted' \n %s :x {}")
    )
    assert "☃ 'quoted' \n %s :x {}" in driver.region.resets[driver.held.epoch].detail


# -- a refused verb changes nothing ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refusal:
    """One thing that is refused, and how."""

    name: str
    error: type[errors.KcrError]
    ask: Callable[[Driver], object]


REFUSALS = [
    Refusal("unknown region", errors.UnknownRegion, lambda d: d.store.handle(RegionName("nowhere"), START)),
    Refusal(
        "index in use", errors.MemberInUse, lambda d: d.handle(commands.Register(member=d.member(0), token="another"))
    ),
    Refusal(
        "beyond 64 bits",
        errors.NumberOutOfRange,
        lambda d: d.start_ranges(d.member(0), {d.partition(0): Range(Offset(10), Offset(2**63))}),
    ),
    Refusal(
        "another's partition",
        errors.NotClaimed,
        lambda d: d.start_ranges(d.member(0), {d.partition(3): Range(Offset(10), Offset(20))}),
    ),
    Refusal(
        "a batch that never began",
        errors.BatchRefused,
        lambda d: d.handle(commands.FinishBatch(batch=BatchId("no"), member=d.member(0), incarnation=Incarnation(1))),
    ),
    Refusal(
        "to publish what isn't there",
        errors.UnknownCheckpoint,
        lambda d: d.handle(commands.PublishCheckpoint(sequence=CheckpointNumber(2**40))),
    ),
    Refusal(
        "to pin what isn't there",
        errors.UnknownCheckpoint,
        lambda d: d.handle(commands.PinCheckpoint(sequence=CheckpointNumber(99), label="x", reason="")),
    ),
    Refusal(
        "a checkpoint that isn't there",
        errors.UnknownCheckpoint,
        lambda d: d.reset(ToCheckpoint(sequence=CheckpointNumber(2**31 + 1))),
    ),
    Refusal("to delete what runs", errors.RegionInState, lambda d: d.handle(commands.DeleteRegion())),
]


def _everything(driver: Driver) -> object:
    region, _ = driver.store.read(driver.name)
    return plain(region), driver.events, driver.batches


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda r: r.name)
def test_a_refused_verb_leaves_every_row_unchanged(drive: Drive, refusal: Refusal) -> None:
    driver = drive()
    driver.up()
    driver.process()
    before = _everything(driver)
    with pytest.raises(refusal.error) as caught:
        refusal.ask(driver)
    assert type(caught.value) is refusal.error
    assert _everything(driver) == before


@pytest.mark.parametrize("subject", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
@pytest.mark.parametrize("request_id", ["a\0b", "a\ud800b"], ids=["NUL", "half a surrogate pair"])
def test_a_name_that_postgres_cant_hold_is_refused(drive: Drive, request_id: str) -> None:
    driver = drive()
    driver.up()
    before = _everything(driver)
    with pytest.raises(errors.InvalidIdentifier):
        driver.request_checkpoint(request_id)
    assert _everything(driver) == before


def test_a_refused_contribution_leaves_an_open_checkpoint_unchanged(drive: Drive) -> None:
    driver = drive(members=3)
    driver.up()
    late = driver.member(2)
    driver.leave(late)
    driver.spread()
    driver.finish_reset()
    driver.process()
    driver.request_checkpoint("n1")
    driver.join(late)  # after the participants were frozen
    driver.processes[late].assigned = ()
    before = _everything(driver)
    with pytest.raises(errors.StrangeContribution):
        driver.handle(replace(driver.part_of(late), offsets=OffsetMap(), bounds={}))
    assert _everything(driver) == before


def test_a_rule_that_fails_for_another_reason_changes_nothing_either(drive: Drive) -> None:
    driver = drive()
    driver.up()
    before = _everything(driver)

    def broken(region: Region, now: object) -> Region:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        driver.change(broken)
    assert _everything(driver) == before
    driver.process()


def test_ids_with_odd_characters_are_kept(subject: Subject) -> None:
    odd = "grüße ☃ 'x' \"y\" %s :z {0} [1] \\ 日本"
    rules = RegionRules(groups={GroupId(odd): group_rules(odd, members=1, topic="a.b_c-D")})
    driver = Driver(rules=subject.specs.note(rules), transactions=subject.transactions, clock=subject.clock)
    driver.up()
    driver.process()
    driver.request_checkpoint(odd, requester=Requester(who=odd, dag_id=odd, run_id=odd, reason=odd))
    driver.complete()
    request = driver.region.requests[RequestId(odd)]
    assert request.requester == Requester(who=odd, dag_id=odd, run_id=odd, reason=odd)
    assert {p.group for p in driver.region.offsets[driver.held.restore_sequence or CheckpointNumber(0)]} == {odd}
    assert subject.transactions.batch(driver.name, driver.batches[0].batch) == driver.batches[0]


def test_when_a_region_last_worked_is_told_by_the_batch_that_began_last(drive: Drive) -> None:
    driver = drive(partitions=2, members=2)
    assert driver.store.seen(driver.name).worked_at == NEVER
    driver.up()
    first = driver.start_batch(driver.member(0))
    assert driver.store.seen(driver.name).worked_at == driver.row(first).started_at
    second = driver.start_batch(driver.member(1))
    driver.finish_batch(first)
    assert driver.store.seen(driver.name).worked_at == driver.row(second).started_at
    driver.finish_batch(second)
    assert driver.store.seen(driver.name).worked_at == driver.row(second).finished_at


def test_a_members_row_has_when_it_registered_or_claimed_last(drive: Drive) -> None:
    driver = drive(partitions=2, members=1)
    member = driver.member(0)
    driver.up()
    driver.process()
    driver.wait(1)
    for act, kind in ((lambda: driver.join(member, takeover=True), "MemberRegistered"), (driver.spread, "Claimed")):
        act()
        assert driver.held.members[member].arrived_at == [e.at for e in driver.events if e.kind == kind][-1]
        driver.wait(1)


def test_the_sign_of_a_region_moves_when_the_last_batch_of_a_paused_one_ends(drive: Drive) -> None:
    driver = drive()
    driver.up()
    batch = driver.start_batch(driver.member(0))
    driver.handle(PAUSE)
    (before, _) = driver.store.signs([driver.name])[driver.name]
    assert driver.store.signs([driver.name])[driver.name][0] == before
    driver.finish_batch(batch)
    (after, _) = driver.store.signs([driver.name])[driver.name]
    assert (before.running, after.running) == (1, 0)
    driver.handle(START)
    driver.start_batch(driver.member(0))
    assert driver.store.signs([driver.name])[driver.name][0].running == 0
