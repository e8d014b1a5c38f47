from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

import pytest

from airflow_kcr.errors import MemberInUse, UnknownMember
from airflow_kcr.ports import CommittedOffset
from airflow_kcr.protocol.commands import Caller, Contribute, ReadRegion, RequestReset, StartBatch
from airflow_kcr.protocol.member import effects, events
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.rows import CheckpointState, Outcome, RegionState, ResetCause
from airflow_kcr.protocol.region.state import is_live
from airflow_kcr.protocol.region.view import MemberView
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    Epoch,
    EventNumber,
    GroupId,
    Incarnation,
    MemberId,
    Offset,
    Range,
    RegionName,
    Timeline,
)
from airflow_kcr.runtime.asking import Asking
from airflow_kcr.runtime.clocks import StoreClock
from airflow_kcr.runtime.identity import CommitNote, Identity
from airflow_kcr.runtime.renewals import Renewals
from airflow_kcr.runtime.store_calls import StoreCalls
from tests.support.driver import BEGINNING, Driver, group_rules
from tests.support.runtime_fakes import Hands, eventually

E = TypeVar("E")
TIMES = Timeouts()
BATCH = BatchId("b-1")


class Desk:
    """A member's questions to a real store; time is moved by hand in both, and `later` waits to be called."""

    def __init__(self, driver: Driver, *, takeover: bool = False, index: int = 0) -> None:
        self.driver, self.member = driver, MemberId(GroupId("g"), index)
        self.heard: list[events.Event] = []
        self.failed: list[BaseException] = []
        self.later: list[Callable[[], None]] = []
        self.hands = Hands()
        self.store_clock = StoreClock(self.hands, BEGINNING)
        self.who = Identity(
            region=driver.name, member=self.member, group=group_rules(), timeouts=TIMES, takeover=takeover
        )
        self.calls = StoreCalls("store", self.heard.append, self.failed.append, self.hands, timedelta(seconds=8))
        self.renewals = Renewals(driver.store, self.hands)
        self.asking = Asking(
            driver.store,
            self.who,
            self.calls,
            self.renewals.member(self.heard.append, self.failed.append, timedelta(seconds=8)),
            clock=self.hands,
            store_clock=self.store_clock,
            later=lambda _, action: self.later.append(action),
            sinks_fenced=False,
        )

    def view(self) -> MemberView:
        """Return what the member sees if it looks now."""
        return self.driver.handle(ReadRegion(member=self.member))

    def hear(self, kind: type[E]) -> E:
        """Wait until all that was asked is answered; return the last answer, which is of this kind."""
        answered = events.Changed(counter=EventNumber(0))
        self.calls.call(lambda: answered)
        eventually(lambda: bool(self.failed) or (bool(self.heard) and self.heard[-1] is answered), "the answers")
        assert self.failed == []
        self.heard.pop()
        assert self.heard, "nothing was answered"
        last = self.heard[-1]
        assert isinstance(last, kind)
        return last

    def renew(self, incarnation: Incarnation | None = None) -> events.Event:
        """Ask for a renewal, and return its answer."""
        before = len(self.heard)
        self.asking.renew(effects.Renew(incarnation=incarnation or self.incarnation))
        eventually(lambda: len(self.heard) > before, "the answer to a renewal")
        return self.heard[-1]

    def register(self, previous: int | None = None) -> None:
        self.asking.register(effects.Register(previous=None if previous is None else Incarnation(previous)))

    def wait(self, seconds: float) -> None:
        """Let time pass for both."""
        self.hands.now += seconds
        self.driver.clock.advance(seconds)

    def try_again(self) -> None:
        self.later.pop(0)()

    @property
    def caller(self) -> Caller:
        return self.driver.caller(self.member)

    @property
    def incarnation(self) -> Incarnation:
        return self.caller.incarnation


@pytest.fixture
def desks() -> Iterator[Callable[..., Desk]]:
    """Makes desks, whose threads end with the test."""
    made: list[Desk] = []

    def make(driver: Driver, *, takeover: bool = False, index: int = 0) -> Desk:
        made.append(Desk(driver, takeover=takeover, index=index))
        return made[-1]

    yield make
    for desk in made:
        desk.calls.end(0)
        desk.renewals.end()


@pytest.fixture
def desk(desks: Callable[..., Desk]) -> Desk:
    """The questions of a member whose region runs."""
    driver = Driver(members=1)
    driver.up()
    return desks(driver)


def started() -> Driver:
    driver = Driver(members=1)
    driver.store.start(driver.name)
    return driver


# -- presence ------------------------------------------------------------------------------------------------------


def test_a_registration_counts_from_before_it_was_sent(desks: Callable[..., Desk]) -> None:
    desk = desks(started())
    desk.register()
    assert desk.hear(events.Registered) == events.Registered(incarnation=Incarnation(1), sent_at=desk.hands.now)


def test_a_repeated_registration_is_recognised_and_one_after_a_lost_lease_is_a_new_one(
    desks: Callable[..., Desk],
) -> None:
    desk = desks(started())
    desk.register()
    assert desk.hear(events.Registered).incarnation == 1
    desk.register()
    assert desk.hear(events.Registered).incarnation == 1
    desk.register(previous=1)
    assert desk.hear(events.Registered).incarnation == 2


def test_an_index_that_the_spec_does_not_have_is_refused(desks: Callable[..., Desk]) -> None:
    desk = desks(started(), index=5)
    desk.register()
    refused = desk.hear(events.RegistrationRefused)
    assert isinstance(desk.asking.refusal, UnknownMember)
    assert refused.why == desk.asking.refusal.message


def test_an_index_that_another_process_holds_is_asked_for_again_until_two_leases_are_over(desk: Desk) -> None:
    desk.register()
    patience = 2 * TIMES.lease + TIMES.renew / 2
    waited = timedelta(0)
    while waited <= patience:
        desk.hear(events.Tick)
        assert desk.asking.refusal is None
        desk.driver.heartbeat()
        desk.wait(5)
        waited += timedelta(seconds=5)
        desk.try_again()
    assert "stop that process" in desk.hear(events.RegistrationRefused).why
    assert isinstance(desk.asking.refusal, MemberInUse)
    assert desk.later == []


def test_a_holder_that_is_dead_makes_place_when_its_lease_is_over(desk: Desk) -> None:
    desk.register()
    desk.hear(events.Tick)
    desk.wait(TIMES.lease.total_seconds() + 1)
    desk.try_again()
    assert desk.hear(events.Registered).incarnation == 2


def test_how_long_an_index_is_waited_for_counts_anew_each_time(desk: Desk) -> None:
    desk.register()
    desk.hear(events.Tick)
    desk.wait(TIMES.lease.total_seconds() + 1)
    desk.try_again()
    mine = desk.hear(events.Registered).incarnation
    desk.wait(1_000)
    desk.driver.join(desk.member)
    desk.register(previous=mine)
    desk.hear(events.Tick)
    assert desk.asking.refusal is None


def test_a_takeover_does_not_wait_for_the_holders_lease(desks: Callable[..., Desk], desk: Desk) -> None:
    newcomer = desks(desk.driver, takeover=True)
    newcomer.register()
    assert newcomer.hear(events.Registered).incarnation == 2


def test_a_takeover_waits_for_a_running_drain_as_long_as_that_may_take(desks: Callable[..., Desk], desk: Desk) -> None:
    driver, newcomer = desk.driver, desks(desk.driver, takeover=True)
    driver.request_checkpoint("n1")
    newcomer.register()
    newcomer.hear(events.Tick)
    # Longer than whoever takes nothing over would wait.
    for _ in range(20):
        driver.heartbeat()
        newcomer.wait(5)
        newcomer.try_again()
        newcomer.hear(events.Tick)
    driver.heartbeat()
    driver.complete()
    newcomer.try_again()
    assert newcomer.hear(events.Registered).incarnation == 2


def test_a_renewal_tells_where_the_region_stands_and_what_the_stores_clock_says(desk: Desk) -> None:
    desk.driver.clock.advance(3)
    renewed, region = desk.renew(), desk.driver.region
    assert renewed == events.Renewed(sent_at=desk.hands.now, counter=region.counter, epoch=region.epoch)
    assert desk.store_clock.now() == BEGINNING + timedelta(seconds=3)


def test_a_renewal_tells_what_is_due(desk: Desk) -> None:
    # A checkpoint whose only member never contributes is due to be aborted.
    desk.driver.request_checkpoint("n1")
    drain = desk.driver.region.rules.timeouts.drain.total_seconds()
    for _ in range(int(drain // 5) + 1):
        desk.driver.clock.advance(5)
        desk.driver.heartbeat()
    renewed = desk.renew()
    assert isinstance(renewed, events.Renewed)
    assert renewed.needs_reconciling


def test_a_lease_that_is_over_is_not_renewed(desk: Desk) -> None:
    desk.driver.clock.advance(TIMES.lease.total_seconds() + 1)
    region = desk.driver.region
    assert desk.renew() == events.RenewalRefused(incarnation=Incarnation(1), epoch=region.epoch, counter=region.counter)


def test_a_store_that_has_never_heard_of_the_member_refuses_the_renewal(desks: Callable[..., Desk]) -> None:
    desk = desks(started())
    assert desk.renew(Incarnation(4)) == events.RenewalRefused(incarnation=Incarnation(0))


def test_the_region_is_read_for_the_member(desk: Desk) -> None:
    desk.asking.read()
    assert desk.hear(events.ViewRead).view == desk.driver.handle(ReadRegion(member=desk.member))


def test_a_store_that_has_never_heard_of_the_member_has_no_view_of_it(desks: Callable[..., Desk]) -> None:
    desk = desks(started())
    desk.asking.read()
    assert "not registered" in desk.hear(events.ReadRefused).why


def test_keeping_the_slot_gives_up_the_lease_and_not_the_claims(desk: Desk) -> None:
    desk.asking.keep_slot(effects.KeepSlot(incarnation=desk.incarnation))
    desk.hear(events.Tick)
    region = desk.driver.region
    assert {c.owner for c in region.claims.values()} == {desk.member}
    assert not is_live(region, desk.member, desk.driver.clock.now)


def test_leaving_gives_up_lease_and_claims(desk: Desk) -> None:
    desk.asking.leave(effects.LeaveStore(incarnation=desk.incarnation))
    desk.hear(events.Tick)
    region = desk.driver.region
    assert region.members[desk.member].left
    assert {c.owner for c in region.claims.values()} == {None}


# -- batches -------------------------------------------------------------------------------------------------------


def begin(desk: Desk, *, from_: int = 0, epoch: Epoch | None = None) -> None:
    partition = desk.driver.partition(0)
    request = StartBatch(
        batch=BATCH,
        member=desk.member,
        incarnation=desk.incarnation,
        epoch=desk.caller.epoch if epoch is None else epoch,
        ranges={partition: Range(Offset(from_), Offset(10))},
    )
    desk.asking.begin(effects.Begin(request=request))


def test_a_batch_that_the_store_lets_begin_is_remembered_as_its_row(desk: Desk) -> None:
    begin(desk)
    assert desk.hear(events.Begun) == events.Begun(batch=BATCH)
    assert desk.asking.row == desk.driver.row(BATCH)


def test_a_batch_that_may_not_begin_has_no_row(desk: Desk) -> None:
    begin(desk, from_=3)
    refused = desk.hear(events.BeginRefused)
    assert refused.batch == BATCH
    assert refused.why
    assert desk.asking.row is None


def test_the_end_of_a_batch_is_accepted_once_and_its_repetition_is_no_refusal(desk: Desk) -> None:
    begin(desk)
    for _ in range(2):
        desk.asking.end(effects.End(batch=BATCH, incarnation=desk.incarnation))
        assert desk.hear(events.Ended) == events.Ended(batch=BATCH)
    assert desk.driver.row(BATCH).outcome is Outcome.DONE


def test_the_end_of_a_batch_of_an_older_epoch_is_refused(desk: Desk) -> None:
    begin(desk)
    desk.hear(events.Begun)
    desk.driver.handle(RequestReset(caller=desk.caller, cause=ResetCause.BATCH_FAILED, detail="poison"))
    desk.asking.end(effects.End(batch=BATCH, incarnation=desk.incarnation))
    assert desk.hear(events.EndRefused).batch == BATCH


def test_a_discard_is_always_answered_whatever_the_store_says_of_it(desk: Desk) -> None:
    begin(desk)
    discard = effects.Discard(batch=BATCH, incarnation=desk.incarnation)
    for _ in range(2):
        desk.asking.discard(discard)
        assert desk.hear(events.Discarded) == events.Discarded(batch=BATCH)
    assert desk.driver.row(BATCH).outcome is Outcome.DISCARDED
    # Not even a region that is gone keeps a member from going on without the batch.
    object.__setattr__(desk.asking._who, "region", RegionName("gone"))
    desk.asking.discard(discard)
    assert desk.hear(events.Discarded) == events.Discarded(batch=BATCH)


# -- resets and checkpoints
# -----------------------------------------------------------------------------------------------


def test_an_acknowledgement_of_an_older_epoch_is_refused(desk: Desk) -> None:
    caller = replace(desk.caller, epoch=Epoch(desk.caller.epoch - 1))
    desk.asking.acknowledge(effects.Acknowledge(caller=caller, found={}))
    assert desk.hear(events.AcknowledgementRefused).epoch == caller.epoch


def test_a_reset_is_asked_for_and_acknowledged(desk: Desk) -> None:
    before = desk.caller
    desk.asking.request_reset(effects.RequestReset(caller=before, cause=ResetCause.BATCH_FAILED, detail="poison"))
    desk.hear(events.Tick)
    assert desk.driver.region.epoch == before.epoch + 1
    desk.driver.claim(desk.member)
    desk.asking.acknowledge(effects.Acknowledge(caller=desk.caller, found={}))
    assert desk.hear(events.Acknowledged).epoch == before.epoch + 1
    assert desk.driver.region.state is RegionState.RUNNING


def part(desk: Desk, offset: int) -> Contribute:
    offsets = OffsetMap({desk.driver.partition(n): Offset(offset if n == 0 else 0) for n in range(4)})
    return Contribute(
        sequence=desk.driver.region.open_checkpoint or CheckpointNumber(0),
        member=desk.member,
        incarnation=desk.incarnation,
        epoch=desk.caller.epoch,
        offsets=offsets,
        bounds=desk.driver.logs,
    )


def test_a_contribution_is_stored_and_the_checkpoint_published_and_read_back(desk: Desk) -> None:
    desk.driver.request_checkpoint("n1")
    mine = part(desk, 0)
    desk.asking.contribute(effects.Contribute(part=mine))
    contributed = desk.hear(events.Contributed)
    assert contributed.sequence == mine.sequence
    assert contributed.view == desk.view()
    desk.asking.published(mine.sequence)
    published = desk.hear(events.Published)
    assert (published.sequence, published.view) == (mine.sequence, desk.view())
    desk.asking.read_back(
        effects.ReportReadBack(sequence=mine.sequence, incarnation=desk.incarnation, offsets=mine.offsets)
    )
    desk.hear(events.Tick)
    checkpoint = desk.driver.region.checkpoints[mine.sequence]
    assert (checkpoint.state, checkpoint.committed.value) == (CheckpointState.PUBLISHED, "yes")


def test_a_contribution_that_disagrees_with_the_store_is_refused(desk: Desk) -> None:
    desk.driver.request_checkpoint("n1")
    mine = part(desk, 5)
    desk.asking.contribute(effects.Contribute(part=mine))
    assert desk.hear(events.ContributionRefused).sequence == mine.sequence


def test_a_publication_is_always_answered(desk: Desk) -> None:
    desk.asking.published(CheckpointNumber(77))
    assert desk.hear(events.Published).sequence == 77


# -- a restored store ----------------------------------------------------------------------------------------------


def held(desk: Desk, sequence: int, region: str = "flights") -> dict[object, CommittedOffset]:
    note = CommitNote(
        region=RegionName(region), timeline=Timeline(1), sequence=CheckpointNumber(sequence), epoch=Epoch(9)
    )
    return {desk.driver.partition(0): CommittedOffset(offset=Offset(5), metadata=note.text())}


def test_kafka_remembering_a_later_checkpoint_of_the_region_than_the_store_halts_it(desk: Desk) -> None:
    before = desk.driver.region
    desk.asking.compare(held(desk, 3), CheckpointNumber(2))  # type: ignore[arg-type]
    desk.hear(events.Tick)
    region = desk.driver.region
    assert region.state is RegionState.HALTED
    assert (region.next_sequence, region.epoch) == (before.next_sequence, before.epoch)
    assert region.halt is not None
    assert region.halt.noted is not None
    assert (region.halt.noted.sequence, region.halt.noted.epoch) == (3, 9)


@pytest.mark.parametrize(("sequence", "region"), [(2, "flights"), (1, "flights"), (99, "another")])
def test_what_kafka_remembers_of_older_checkpoints_or_of_other_regions_is_not_told(
    desk: Desk, sequence: int, region: str
) -> None:
    desk.asking.compare(held(desk, sequence, region), CheckpointNumber(2))  # type: ignore[arg-type]
    assert desk.driver.region.state is RegionState.RUNNING
    desk.calls.end(10)
    assert desk.heard == []


def test_offsets_that_somebody_else_committed_are_not_told(desk: Desk) -> None:
    offsets = {desk.driver.partition(0): CommittedOffset(offset=Offset(5), metadata="by hand")}
    desk.asking.compare(offsets, CheckpointNumber(2))
    desk.calls.end(10)
    assert desk.heard == []
