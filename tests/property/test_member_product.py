"""Every state of a member meets every event: legal, or refused without a trace; and long walks over both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kcr.errors import IllegalEvent, MemberInUse
from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.member.messages import Answered, Effect, Event, Refused
from airflow_kcr.protocol.member.state import ACTIVE, BatchPhase, MemberMachine, State, Why
from airflow_kcr.protocol.member.step import TABLE, Kind, step
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.region.commands import Found, PartitionAdvice
from airflow_kcr.protocol.region.rows import Batch, BoundaryOffset, CheckpointState, RegionState
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.values import (
    AssignmentId,
    BatchId,
    CheckpointNumber,
    DesiredState,
    Epoch,
    EventNumber,
    GroupPartition,
    Incarnation,
    Offset,
    Range,
)
from tests.support import answers
from tests.support.lone_member import MINE, LoneMember, checkpoint_view, claims_of, view_of
from tests.support.scripts import boundary

B1, OTHER = BatchId("b1"), BatchId("another")
LOG = LogBounds(start=Offset(0), end=Offset(1_000))

# -- members in every state ------------------------------------------------------------------------------------------


def in_reset(alone: LoneMember) -> LoneMember:
    resetting = replace(view_of(claims_of()), state=RegionState.RESETTING, acknowledged=False)
    return alone.join().assign().grant(resetting)


def seeing(alone: LoneMember, view: MemberRegion) -> LoneMember:
    return alone.see(replace(view, counter=EventNumber(alone.view.counter + 1)))


def cancelling() -> LoneMember:
    alone = LoneMember().in_batch()
    alone.feed(messages.Notice.REVOKED)
    alone.wait(alone.member.timeouts.batch.total_seconds())
    return alone


def finishing() -> LoneMember:
    alone = LoneMember().in_batch()
    alone.feed(messages.BatchEnded(batch=B1))
    return alone


def discarding() -> LoneMember:
    alone = cancelling()
    alone.feed(messages.BatchEnded(batch=B1))
    return alone


def store_away() -> LoneMember:
    alone = LoneMember().in_batch()
    alone.feed(messages.StoreLost())
    alone.wait(31, renewing=False)
    return alone


def fed(alone: LoneMember, event: Event) -> LoneMember:
    alone.feed(event)
    return alone


def fenced(*, with_batch: bool) -> LoneMember:
    alone = LoneMember().in_batch() if with_batch else LoneMember().processing()
    return alone.superseded()


def closed() -> LoneMember:
    alone = LoneMember().processing()
    alone.feed(messages.Notice.TERMINATED)
    alone.feed(messages.Notice.LEFT_GROUP)
    return alone


def at_boundary() -> LoneMember:
    at = dict.fromkeys(MINE, BoundaryOffset(offset=Offset(0)))
    return seeing(LoneMember().processing(), replace(view_of(claims_of()), limit=boundary(1), boundary_offsets=at))


def after_failure() -> LoneMember:
    alone = LoneMember().processing()
    alone.see(replace(view_of({}), counter=EventNumber(11), epoch=Epoch(2), failures=1, acknowledged=False))
    return alone.grant(replace(view_of(claims_of(epoch=2)), counter=EventNumber(12), epoch=Epoch(2), failures=1))


PLACES: dict[str, tuple[State, Why | None, Callable[[], LoneMember]]] = {
    "new": (State.JOINING, None, LoneMember),
    "registered": (State.JOINING, None, lambda: LoneMember().join()),
    "claiming": (State.JOINING, None, lambda: LoneMember().join().assign()),
    "ready": (State.READY, None, lambda: in_reset(LoneMember())),
    "fenced by Kafka": (State.JOINING, None, lambda: fed(LoneMember().processing(), messages.Notice.INSTANCE_FENCED)),
    "processing": (State.PROCESSING, None, lambda: LoneMember().processing()),
    "starting": (State.PROCESSING, None, lambda: LoneMember().processing().plan()),
    "in a batch": (State.PROCESSING, None, lambda: LoneMember().in_batch()),
    "cancelling": (State.JOINING, None, cancelling),
    "finishing": (State.PROCESSING, None, finishing),
    "discarding": (State.JOINING, None, discarding),
    "drained": (
        State.HOLDING,
        Why.DRAINED,
        lambda: seeing(
            LoneMember().processing(),
            replace(
                view_of(claims_of()), state=RegionState.DRAINING, checkpoint=checkpoint_view(CheckpointState.DRAINING)
            ),
        ),
    ),
    "reset": (
        State.HOLDING,
        Why.RESET,
        lambda: seeing(LoneMember().in_batch(), replace(view_of(), epoch=Epoch(2), state=RegionState.RESETTING)),
    ),
    "paused": (
        State.HOLDING,
        Why.PAUSED,
        lambda: seeing(LoneMember().processing(), replace(view_of(claims_of()), desired_state=DesiredState.PAUSED)),
    ),
    "at the boundary": (State.HOLDING, Why.BOUNDARY, at_boundary),
    "after a failed batch": (State.HOLDING, Why.RETRY, after_failure),
    "store away": (State.HOLDING, Why.STORE_AWAY, store_away),
    "fenced": (State.FENCED, None, lambda: fenced(with_batch=False)),
    "fenced in a batch": (State.FENCED, None, lambda: fenced(with_batch=True)),
    "closed": (State.CLOSED, None, closed),
}

# -- every event -----------------------------------------------------------------------------------------------------


def every_event(now: float) -> list[Event]:
    """One event of each class, and those that name a batch for this batch and another."""
    running, granted = view_of(claims_of()), AssignmentId(1)
    happened: list[Event] = [
        answers.registered(incarnation=Incarnation(7), sent_at=now),
        answers.registration_refused(why="no such index"),
        answers.registration_refused(error=MemberInUse("another process holds it")),
        answers.renewed(sent_at=now, counter=EventNumber(99), needs_reconciling=True),
        answers.read_refused(why="it has never heard of you"),
        answers.renewal_refused(),
        answers.not_renewed(incarnation=Incarnation(1)),
        answers.not_renewed(incarnation=Incarnation(9)),
        answers.view_read(view=running),
        answers.view_read(view=replace(running, counter=EventNumber(50), epoch=Epoch(3), state=RegionState.STARTING)),
        answers.claim_granted(assignment=granted, view=running),
        answers.claim_refused(assignment=granted, why="not now"),
        answers.claim_refused(assignment=granted, why="no such log", lacks_logs=True),
        answers.acknowledged(epoch=Epoch(1), view=running),
        answers.acknowledgement_refused(epoch=Epoch(1), why="not now"),
        answers.contributed(sequence=CheckpointNumber(2), view=running),
        answers.contribution_refused(sequence=CheckpointNumber(2), why="not now"),
        messages.StoreLost(),
        messages.Notice.STORE_BACK,
        messages.Changed(counter=EventNumber(9)),
        messages.Assigned(assignment=AssignmentId(5), partitions=frozenset(MINE[:1])),
        messages.Revoking(partitions=frozenset(MINE[:1])),
        messages.Notice.REVOKED,
        messages.Notice.LEFT_GROUP,
        messages.Notice.INSTANCE_FENCED,
        messages.EngineLacks(why="no executor"),
        messages.EngineLacks(why="a quota", excuses=False),
        messages.CommitAnswered(sequence=CheckpointNumber(2), offsets=OffsetMap(dict.fromkeys(MINE, Offset(0)))),
        messages.RangesPlanned(batch=BatchId("b2"), ranges={p: Range(Offset(0), Offset(5)) for p in MINE}),
        messages.SinksReset(epoch=Epoch(1), found={MINE[0]: Found(offset=Offset(3))}),
        messages.SinkFailed(epoch=Epoch(1), why="the disk is full"),
        messages.SinksPrepared(sequence=CheckpointNumber(2), bounds=dict.fromkeys(MINE, LOG), committed=EMPTY),
        answers.published(sequence=CheckpointNumber(2), view=running),
        answers.publication_failed(sequence=CheckpointNumber(2)),
        messages.PartitionsDiscovered(partitions=frozenset(MINE)),
        messages.PartitionsDiscovered(partitions=None),
        answers.partitions_reported(advice=PartitionAdvice(report_again=True, rejoin=True)),
        answers.report_refused(),
        answers.told(),
        answers.not_told(),
        answers.partitions_reported(advice=PartitionAdvice(report_again=True, gone=frozenset(MINE[1:]))),
        messages.Notice.TICK,
        messages.Notice.TERMINATED,
    ]
    for batch in (B1, OTHER):
        happened += [
            answers.batch_started(batch=batch),
            answers.start_refused(batch=batch, why="paused"),
            answers.batch_accepted(batch=batch),
            answers.finish_refused(batch=batch, why="another epoch"),
            answers.discarded(batch=batch),
            answers.discard_refused(batch=batch),
            messages.BatchEnded(batch=batch),
            messages.BatchEnded(batch=batch, failure="it raised"),
        ]
    return happened


def kind(event: Event) -> Kind:
    """What the table has a row for: a class of events, or what became of a class of commands."""
    if isinstance(event, Answered | Refused):
        return type(event), type(event.command)
    return event if isinstance(event, messages.Notice) else type(event)


ANSWERS_TO_REGISTER = {(Answered, commands.Register), (Refused, commands.Register)}
AFTER: dict[Kind, set[BatchPhase]] = {
    (Answered, commands.StartBatch): {BatchPhase.STARTING},
    (Refused, commands.StartBatch): {BatchPhase.STARTING},
    (Answered, commands.FinishBatch): {BatchPhase.FINISHING},
    (Refused, commands.FinishBatch): {BatchPhase.FINISHING},
    (Answered, commands.DiscardBatch): {BatchPhase.DISCARDING},
    (Refused, commands.DiscardBatch): {BatchPhase.DISCARDING},
    messages.BatchEnded: {BatchPhase.RUNNING, BatchPhase.CANCELLING},
}
"""In which phase of its batch an event about it can happen."""

NOT_AWAITED = ((Answered, commands.Reconcile), (Refused, commands.Reconcile))
"""What became of commands that the table has no row for: no member awaits it, so it is legal anywhere."""


def named(event: Event) -> BatchId | None:
    """The batch that an event is about."""
    found = getattr(event.command if isinstance(event, Answered | Refused) else event, "batch", None)
    return None if found is None else BatchId(str(found))


def is_legal(member: MemberMachine, event: Event) -> bool:
    """Whether an event can happen to this member, said without the handlers."""
    what = kind(event)
    if member.state is State.CLOSED:
        return True
    if what in ANSWERS_TO_REGISTER and member.state in ACTIVE:
        return member.incarnation is None
    if what not in AFTER:
        return True
    batch = member.batch
    return batch is not None and batch.batch == named(event) and batch.phase in AFTER[what]


def check(before: MemberMachine, event: Event, now: float) -> tuple[MemberMachine, tuple[Effect, ...]] | None:
    """Let an event happen and check what may be said of any step; None: it was refused."""
    copy = replace(before)
    try:
        after, effects = step(before, event, now)
    except IllegalEvent:
        assert before == copy
        assert not is_legal(before, event)
        return None
    assert before == copy
    assert is_legal(before, event)
    assert after.state is before.state or before.state in ACTIVE
    wanted = effects
    check_effects(before, after, wanted)
    return after, wanted


def check_effects(before: MemberMachine, after: MemberMachine, wanted: tuple[Effect, ...]) -> None:
    for effect in wanted:
        check_batch_effect(after, effect)
        check_duty(after, effect)
    if after.state is State.FENCED:
        ending = messages.Cancel | messages.ReleasePartitions | messages.EndProcess
        closing = messages.GroupRequest.CLOSE_KEEPING_SLOT
        assert all(isinstance(e, ending) or e is closing for e in wanted)
    if before.state is State.CLOSED:
        assert wanted == ()
    if before.state in {State.FENCED, State.CLOSED}:
        assert after.state is before.state


def check_batch_effect(after: MemberMachine, effect: Effect) -> None:
    """A batch is started only by a processing member, for its own claims, and ended only by who has started it."""
    match effect:
        case commands.StartBatch() as request:
            assert after.state is State.PROCESSING
            assert (request.incarnation, request.epoch) == (after.incarnation, after.memory.epoch)
            assert after.assignment is not None
            assert request.ranges.keys() <= after.assignment.partitions
        case messages.PlanRanges():
            assert (after.state, after.batch) == (State.PROCESSING, None)
        case messages.RunBatch(row=Batch(batch=batch)):
            assert after.batch is not None
            assert (after.batch.batch, after.batch.doomed) == (batch, False)
        case commands.FinishBatch(batch=batch):
            assert after.batch is not None
            assert (after.batch.batch, after.batch.doomed) == (batch, False)
            assert after.incarnation == after.batch.incarnation


def check_duty(after: MemberMachine, effect: Effect) -> None:
    """Nothing is claimed that is not assigned, and nothing is said of a moment while a batch runs."""
    match effect:
        case messages.ClaimAssignment(claim=claim, partitions=partitions):
            assert after.assignment is not None
            assert (after.assignment.assignment, after.assignment.partitions) == (claim.assignment, partitions)
        case commands.Acknowledge(caller=caller):
            assert after.state in {State.JOINING, State.READY}
            assert after.batch is None
            assert (caller.epoch, caller.incarnation) == (after.memory.epoch, after.incarnation)
        case commands.Contribute() | messages.PrepareSinks():
            assert after.batch is None


@pytest.mark.parametrize("place", PLACES)
def test_a_member_can_be_brought_into_every_state(place: str) -> None:
    desired_state, why, make = PLACES[place]
    member = make().member
    assert (member.state, member.why) == (desired_state, why)


def test_every_state_every_reason_and_every_event_is_in_the_product() -> None:
    assert {state for state, _, _ in PLACES.values()} == set(State)
    assert {why for _, why, _ in PLACES.values() if why} == set(Why)
    happened = {kind(e) for e in every_event(0.0)}
    assert happened - set(NOT_AWAITED) == set(TABLE)
    assert {type(e) for e in every_event(0.0)} == {get_origin(k) or k for k in get_args(Event)}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", [*TABLE, *NOT_AWAITED], ids=str)
def test_every_event_in_every_state_is_legal_or_refused_without_a_trace(place: str, what: Kind) -> None:
    alone = PLACES[place][2]()
    happened = [e for e in every_event(alone.now) if kind(e) == what]
    assert happened
    for event in happened:
        check(alone.member, event, alone.now)


HINTS = (
    messages.Notice.TICK,
    messages.Notice.REVOKED,
    messages.Assigned,
    messages.StoreLost,
    messages.Notice.STORE_BACK,
    messages.Changed,
    messages.Notice.TERMINATED,
)


@pytest.mark.parametrize("place", PLACES)
def test_a_hint_that_comes_twice_asks_for_nothing_twice(place: str) -> None:
    alone = PLACES[place][2]()
    for event in every_event(alone.now):
        if kind(event) in HINTS:
            once = check(alone.member, event, alone.now)
            assert once is not None
            twice = check(once[0], event, alone.now)
            assert twice is not None
            assert not [e for e in twice[1] if e in once[1]]


# -- walks -----------------------------------------------------------------------------------------------------------

small = st.integers(0, 3)
states = st.sampled_from(RegionState)
phases = st.sampled_from([None, CheckpointState.APPROACHING, CheckpointState.DRAINING])
subsets = st.frozensets(st.sampled_from(MINE))


@dataclass
class Seen:
    """What a walk has to remember: numbers that only grow."""

    assignments: int = 1
    incarnations: int = 0
    epoch: int = 1
    counter: int = 10
    begun: list[BatchId] = field(default_factory=list)
    ended: list[BatchId] = field(default_factory=list)


def a_view(draw: st.DataObject, seen: Seen, member: MemberMachine) -> MemberRegion:
    """A view such as a store may show: its numbers grow, with old ones in between."""
    seen.epoch += draw.draw(st.sampled_from([0, 0, 0, 1]))
    seen.counter += draw.draw(small)
    epoch = max(1, seen.epoch - draw.draw(st.sampled_from([0, 0, 0, 0, 1])))
    mine = member.incarnation or seen.incarnations or 1
    incarnation = mine + draw.draw(st.sampled_from([0] * 9 + [1]))
    held = draw.draw(subsets)
    if member.assignment is not None and draw.draw(st.booleans()):
        held = member.assignment.partitions
    place = draw.draw(st.sampled_from([0, 10, 20]))
    claims = claims_of(sorted(held), position=place, epoch=epoch, incarnation=incarnation)
    phase = draw.draw(phases)
    state = draw.draw(states)
    return replace(
        view_of(claims, incarnation=incarnation),
        epoch=Epoch(epoch),
        counter=EventNumber(max(1, seen.counter - draw.draw(small))),
        state=state,
        desired_state=draw.draw(st.sampled_from(DesiredState)),
        acknowledged=draw.draw(st.booleans()),
        checkpoint=None if phase is None else checkpoint_view(phase, 2 + epoch),
        commit=draw.draw(st.sampled_from([None, CheckpointNumber(2)])),
        publish=draw.draw(st.sampled_from([(), (CheckpointNumber(2),)])),
        left=draw.draw(st.sampled_from([False] * 9 + [True])),
    )


def an_event(draw: st.DataObject, seen: Seen, member: MemberMachine, now: float) -> Event:
    """An event, more often than not one that fits."""
    if draw.draw(st.integers(0, 9)) == 0:
        return draw.draw(st.sampled_from(every_event(now)))
    batch = member.batch.batch if member.batch is not None else OTHER
    assignment = member.assignment
    makers: list[Callable[[], Event]] = [
        lambda: registered(seen, now),
        lambda: answers.renewed(sent_at=now, counter=EventNumber(seen.counter)),
        lambda: answers.view_read(view=a_view(draw, seen, member)),
        lambda: answers.claim_granted(
            assignment=assignment.assignment if assignment else AssignmentId(1), view=a_view(draw, seen, member)
        ),
        lambda: assigned(draw, seen),
        lambda: planned(draw, seen, member),
        lambda: answers.batch_started(batch=batch, ranges=member.batch.ranges if member.batch else {}),
        lambda: messages.BatchEnded(batch=batch),
        lambda: messages.BatchEnded(batch=batch, failure="it raised"),
        lambda: answers.batch_accepted(batch=batch),
        lambda: answers.finish_refused(batch=batch, why="another epoch"),
        lambda: answers.discarded(batch=batch),
        lambda: messages.SinksReset(epoch=member.reset.epoch or Epoch(1), found={}),
        lambda: answers.acknowledged(epoch=Epoch(seen.epoch), view=a_view(draw, seen, member)),
        lambda: messages.PartitionsDiscovered(partitions=draw.draw(subsets)),
        lambda: answers.partitions_reported(advice=PartitionAdvice(report_again=draw.draw(st.booleans()), rejoin=True)),
        lambda: messages.Notice.TICK,
        lambda: messages.Notice.LEFT_GROUP,
        lambda: messages.Notice.STORE_BACK,
        lambda: messages.Changed(counter=EventNumber(draw.draw(st.integers(0, 40)))),
    ]
    return draw.draw(st.sampled_from(makers))()


def registered(seen: Seen, now: float) -> Event:
    seen.incarnations += 1
    return answers.registered(incarnation=Incarnation(seen.incarnations), sent_at=now)


def assigned(draw: st.DataObject, seen: Seen) -> Event:
    seen.assignments += 1
    return messages.Assigned(assignment=AssignmentId(seen.assignments), partitions=draw.draw(subsets))


def planned(draw: st.DataObject, seen: Seen, member: MemberMachine) -> Event:
    places: dict[GroupPartition, Offset] = dict(member.positions)
    if draw.draw(st.integers(0, 4)) == 0:
        places = dict.fromkeys(MINE, Offset(40))
    batch = BatchId(f"b{len(seen.begun)}-{draw.draw(small)}")
    return messages.RangesPlanned(batch=batch, ranges={p: Range(o, Offset(o + 5)) for p, o in places.items()})


@given(st.data(), st.sampled_from(sorted(PLACES)))
def test_whatever_happens_in_whatever_order_a_member_keeps_to_its_table(draw: st.DataObject, place: str) -> None:
    alone = PLACES[place][2]()
    member, now, seen = alone.member, alone.now, Seen(incarnations=alone.member.previous or 0)
    for _ in range(draw.draw(st.integers(1, 60))):
        now += draw.draw(st.sampled_from([0.0, 0.1, 1.0, 1.0, 5.0, 40.0]))
        taken = check(member, an_event(draw, seen, member, now), now)
        if taken is None:
            continue
        before, (member, wanted) = member, taken
        seen.begun += [e.batch for e in wanted if isinstance(e, commands.StartBatch)]
        seen.ended += [e.batch for e in wanted if isinstance(e, commands.FinishBatch)]
        assert member.memory.epoch >= before.memory.epoch
        assert member.memory.incarnation >= before.memory.incarnation
        if member.state not in ACTIVE:
            assert not [
                e for e in wanted if isinstance(e, commands.StartBatch | messages.RunBatch | commands.FinishBatch)
            ]
        # One batch at a time, ended at most once, and none that was doomed.
        assert len([e for e in wanted if isinstance(e, commands.StartBatch)]) <= 1
        if before.batch is not None and before.batch.doomed:
            assert before.batch.batch not in [e.batch for e in wanted if isinstance(e, commands.FinishBatch)]
    assert len(seen.ended) == len(set(seen.ended))
