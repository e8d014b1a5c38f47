"""A member's host against the store in memory under the real verbs; Kafka, Spark and the sinks are played."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_kcr.driver.member_pool import Notifications
from airflow_kcr.errors import BatchFailed, SchemaTooNew, SinkError, UnknownMember
from airflow_kcr.ports import BatchCall, BatchReport, Heartbeats, Renewal, always, nothing
from airflow_kcr.protocol import values
from airflow_kcr.protocol.member.state import State, Why
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.region.events import ResetBegun
from airflow_kcr.protocol.region.rows import Checkpoint, CheckpointState, Committed, Outcome, RegionState, ResetCause
from airflow_kcr.protocol.region.state import Region, Spec
from airflow_kcr.protocol.rules import CheckpointRules, GroupRules, RegionRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import CheckpointNumber, EventNumber, GroupPartition, MemberId, Offset, RequestId
from airflow_kcr.runtime import host
from airflow_kcr.runtime.host import End, Ended, MemberHost, World
from airflow_kcr.runtime.leases import Identity, Renewals, StoreClock, boot_time, read_note
from airflow_kcr.runtime.metrics import Counts
from airflow_kcr.runtime.planner import Limits
from tests.support.driver import START, STOP, group_rules
from tests.support.faults import passed
from tests.support.runtime_fakes import (
    FLIGHTS,
    GROUP,
    NOON,
    REGION_ID,
    FakeEngine,
    FakeLogs,
    FakeMembership,
    FakeSinks,
    SharedTransactions,
    closed,
    eventually,
    p,
    records,
)
from tests.support.simulation.broker import Log
from tests.support.whole import everything

TIMES = Timeouts(
    lease=timedelta(seconds=6),
    renew=timedelta(seconds=0.05),
    reset=timedelta(seconds=20),
    drain=timedelta(seconds=20),
    commit=timedelta(seconds=5),
    close=timedelta(seconds=4),
)
CHECKPOINT = CheckpointRules(grace=timedelta(seconds=0.1))
LIMITS = Limits(target=timedelta(seconds=2), least=50, most=200)
SECOND = timedelta(seconds=1)


class ProcessEnds(BaseException):
    """What the fake of the process' end raises, as that does not return."""


@dataclass(slots=True)
class Played:
    """One member and everything it works with."""

    host: MemberHost
    membership: FakeMembership
    engine: FakeEngine
    sinks: FakeSinks
    ends: list[str] = field(default_factory=list)

    def ended(self) -> Ended:
        end = self.host.wait(20)
        assert end is not None, "the member has not ended"
        return end

    def counts(self) -> Counts:
        return self.host.snapshot.counts


class Stage:
    """A region that is started, its store, its logs, and its members."""

    def __init__(self) -> None:
        self.store = SharedTransactions()
        self.renewals = Renewals(self.store, boot_time)
        self.logs: dict[GroupPartition, Log] = {}
        self.members: list[Played] = []
        self.rules = RegionRules(groups={})

    def declare(self, *logs: Log, times: Timeouts = TIMES, members: int = 1, static: bool = True) -> None:
        self.logs.update({p(n): log for n, log in enumerate(logs)})
        group = replace(group_rules(members=members), static_membership=static)
        self.rules = RegionRules(groups={GROUP: group}, timeouts=times, checkpoint=CHECKPOINT)
        self.store.handle(FLIGHTS, commands.DeclareRegion(spec=Spec(text="{}", rules=self.rules)))
        self.store.handle(FLIGHTS, START)

    @property
    def group(self) -> GroupRules:
        return self.rules.groups[GROUP]

    def member(
        self,
        index: int = 0,
        partitions: frozenset[GroupPartition] | None = None,
        *,
        takeover: bool = False,
        engine: FakeEngine | None = None,
        spec_digest: str | None = None,
        is_ready: Callable[[], bool] = always,
        lacks: Callable[[], str] = nothing,
        slowed: Callable[[], str] = nothing,
    ) -> Played:
        """Start a member that Kafka assigns these partitions, by default all."""
        assigned = frozenset(self.logs) if partitions is None else partitions
        engine, sinks, ends = engine or FakeEngine(), FakeSinks(), list[str]()
        memberships: list[FakeMembership] = []

        def membership(listener: object) -> FakeMembership:
            memberships.append(FakeMembership(listener, assigned))  # type: ignore[arg-type]
            return memberships[0]

        def end_process(why: str) -> None:
            ends.append(why)
            raise ProcessEnds(why)

        world = World(
            store=self.store,
            logs=FakeLogs(self.logs),
            engine=engine,
            sinks=sinks,
            membership=membership,
            end_process=end_process,
            clock=boot_time,
            store_clock=StoreClock(boot_time, datetime.now(UTC)),
            renewals=self.renewals,
            is_ready=is_ready,
            lacks=lacks,
            slowed=slowed,
        )
        who = Identity(
            region=FLIGHTS,
            region_id=REGION_ID,
            member=MemberId(GROUP, index),
            group=self.group,
            timeouts=self.rules.timeouts,
            takeover=takeover,
            spec_digest=spec_digest,
        )
        host = MemberHost(who, CHECKPOINT, LIMITS, world)
        self.members.append(Played(host, memberships[0], engine, sinks, ends))
        host.start()
        return self.members[-1]

    # -- what there is -------------------------------------------------------------------------------------------

    @property
    def region(self) -> Region:
        return everything(self.store.read(FLIGHTS)[0])

    def positions(self) -> dict[GroupPartition, int | None]:
        return {partition: claim.position for partition, claim in self.region.claims.items()}

    def everything_is_processed(self) -> bool:
        return self.positions() == {partition: log.stable_end for partition, log in self.logs.items()}

    def caught_up(self) -> None:
        eventually(self.everything_is_processed, "every record to be processed")

    def checkpoint(self, request_id: str, boundary: datetime | None = None) -> Checkpoint:
        """Ask for a checkpoint, and wait until it is published and committed."""
        self.store.handle(FLIGHTS, commands.RequestCheckpoint(request_id=RequestId(request_id), boundary=boundary))
        eventually(
            lambda: self.state_of(request_id) == (CheckpointState.PUBLISHED, Committed.YES), f"checkpoint {request_id}"
        )
        return self.region.checkpoints[self.sequence(request_id)]

    def offsets(self, checkpoint: Checkpoint) -> dict[GroupPartition, int]:
        return dict(self.region.offsets[checkpoint.sequence])

    def sequence(self, request_id: str) -> CheckpointNumber:
        return self.region.requests[RequestId(request_id)].sequence or CheckpointNumber(0)

    def state_of(self, request_id: str) -> tuple[CheckpointState, Committed] | None:
        checkpoint = self.region.checkpoints.get(self.sequence(request_id))
        return None if checkpoint is None else (checkpoint.state, checkpoint.committed)

    def outcomes(self) -> set[Outcome | None]:
        return {batch.outcome for batch in self.store.batches(FLIGHTS)}

    def causes(self) -> list[ResetCause]:
        bodies = (event.body for event in self.store.events(FLIGHTS, EventNumber(0)))
        return [body.cause for body in bodies if isinstance(body, ResetBegun)]


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.store.away = False
    for played in stage.members:
        played.engine.gate.set()
        played.host.terminate()
    for played in stage.members:
        assert played.host.wait(20) is not None, "a member did not end"
    stage.renewals.end()


def tiles(calls: list[BatchCall], partition: GroupPartition, end: int) -> bool:
    """Whether the batches hold every record of a partition once, in order."""
    at = 0
    for range_ in (call.ranges[partition] for call in calls if partition in call.ranges):
        if range_.from_ != at:
            return False
        at = range_.to
    return at == end


# -- leases --------------------------------------------------------------------------------------------------------


def test_members_of_one_process_renew_in_one_call(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.declare(records(10), records(10), records(10), members=3)
    for index in range(3):
        stage.member(index, frozenset({p(index)}))
    stage.caught_up()
    together: list[int] = []
    renew = stage.store.renew

    def counted(renewals: Collection[Renewal]) -> Heartbeats:
        together.append(len(renewals))
        return renew(renewals)

    monkeypatch.setattr(stage.store, "renew", counted)
    eventually(lambda: together[-3:] == [3, 3, 3], "three renewals of all three")


# -- work ----------------------------------------------------------------------------------------------------------


def test_a_member_comes_up_and_processes_everything_once_in_order(stage: Stage) -> None:
    stage.declare(records(1_000), records(300))
    member = stage.member()
    stage.caught_up()
    assert tiles(member.engine.done, p(0), 1_000)
    assert tiles(member.engine.done, p(1), 300)
    assert stage.outcomes() == {Outcome.DONE}
    assert len({call.batch for call in member.engine.done}) == len(member.engine.done)
    stage.logs[p(1)].stamps.extend([NOON] * 7)
    stage.caught_up()
    assert tiles(member.engine.done, p(1), 307)


def test_the_pipeline_is_told_what_the_store_let_begin(stage: Stage) -> None:
    stage.declare(records(120))
    member = stage.member()
    stage.caught_up()
    rows = {row.batch: row for row in stage.store.batches(FLIGHTS)}
    for call in member.engine.done:
        row = rows[call.batch]
        assert (call.region, call.member, call.boundary) == (FLIGHTS, MemberId(GROUP, 0), None)
        assert (call.epoch, call.timeline, call.sequence) == (row.epoch, row.timeline, row.sequence)
        assert call.ranges == row.ranges
        assert dict(call.progress) == {partition: r.to for partition, r in row.ranges.items()}


def test_a_member_joins_before_its_engine_is_ready_and_begins_no_batch_before(stage: Stage) -> None:
    stage.declare(records(120))
    asked, ready = threading.Event(), threading.Event()

    def is_ready() -> bool:
        asked.set()
        return ready.is_set()

    member = stage.member(is_ready=is_ready)
    assert asked.wait(20)
    eventually(lambda: member.host.snapshot.machine.state is State.PROCESSING, "the member to have joined")
    assert member.engine.started == []
    ready.set()
    stage.caught_up()
    assert tiles(member.engine.done, p(0), 120)


class Lacking:
    """What an engine lacks, until it is given."""

    def __init__(self) -> None:
        self.why = "Spark has no executor"

    def __call__(self) -> str:
        return self.why


def test_no_batch_starts_while_its_engine_could_not_run_it_and_the_region_knows_why(stage: Stage) -> None:
    stage.declare(records(120))
    lacking = Lacking()
    member = stage.member(lacks=lacking)
    eventually(lambda: {lease.lacks for lease in stage.region.leases.values()} == {lacking.why}, "the reason")
    assert member.host.snapshot.machine.lacks == lacking.why
    assert member.engine.started == []
    lacking.why = ""
    stage.caught_up()
    assert tiles(member.engine.done, p(0), 120)
    eventually(lambda: {lease.lacks for lease in stage.region.leases.values()} == {""}, "no reason any more")


def test_what_slows_an_engine_down_is_known_to_the_region_and_keeps_no_batch(stage: Stage) -> None:
    stage.declare(records(120))
    slowed = Lacking()
    slowed.why = "Kafka throttles what it reads"
    member = stage.member(slowed=slowed)
    stage.caught_up()
    assert tiles(member.engine.done, p(0), 120)
    eventually(lambda: {lease.lacks for lease in stage.region.leases.values()} == {slowed.why}, "the reason")
    slowed.why = ""
    eventually(lambda: {lease.lacks for lease in stage.region.leases.values()} == {""}, "no reason any more")


def test_what_an_engine_lacks_is_no_news_while_there_is_nothing_to_read(stage: Stage) -> None:
    stage.declare(records(10))
    lacking = Lacking()
    lacking.why = ""
    member = stage.member(lacks=lacking)
    stage.caught_up()
    lacking.why = "Spark has no executor"
    turns = member.host.turns
    eventually(lambda: member.host.turns > turns + 10, "some turns")
    assert member.host.snapshot.machine.lacks == ""


def test_a_batch_that_waits_for_its_engine_neither_times_out_nor_teaches_to_make_the_next_smaller(stage: Stage) -> None:
    stage.declare(records(100), times=replace(TIMES, batch=SECOND))
    lacking, engine = Lacking(), closed()
    lacking.why = ""
    member = stage.member(lacks=lacking, engine=engine)
    eventually(lambda: len(engine.started) == 1, "a batch")
    lacking.why = "Spark has no executor"
    eventually(lambda: member.host.snapshot.machine.lacks == lacking.why, "the reason")
    eventually(passed(1.5), "the timeout to be over")
    lacking.why = ""
    eventually(lambda: not member.host.snapshot.machine.lacks, "an executor")
    engine.gate.set()
    stage.caught_up()
    assert stage.causes() == [ResetCause.START]
    assert stage.outcomes() == {Outcome.DONE}
    assert [call.ranges[p(0)].width for call in engine.done] == [50, 50]


@pytest.mark.parametrize(("most", "outcomes"), [(10, {Outcome.DONE}), (1, {Outcome.DONE, Outcome.DISCARDED})])
def test_a_batch_that_a_quota_slows_down_has_several_times_its_timeout(
    stage: Stage, most: int, outcomes: set[Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "SLOWED_MOST", most)
    stage.declare(records(100), times=replace(TIMES, batch=SECOND))
    engine = closed()
    stage.member(slowed=lambda: "Kafka throttles what it reads", engine=engine)
    eventually(lambda: len(engine.started) == 1, "a batch")
    eventually(passed(3.0), "the timeout to be over")
    engine.gate.set()
    stage.caught_up()
    assert stage.outcomes() == outcomes


def test_a_failed_batch_is_followed_by_a_reset_and_its_records_by_another_batch(stage: Stage) -> None:
    stage.declare(records(120))
    member = stage.member()
    member.engine.failures.append(BatchFailed("a flaky task"))
    stage.caught_up()
    assert tiles(member.engine.done, p(0), 120)
    assert stage.outcomes() == {Outcome.DONE, Outcome.DISCARDED}
    assert stage.causes()[-1] is ResetCause.BATCH_FAILED
    eventually(lambda: member.counts().discarded_batches == 1, "the discarded batch to be counted")
    assert member.counts().failed_batches == 1
    assert member.counts().resets >= 1


def test_what_a_member_does_is_counted_and_shown(stage: Stage) -> None:
    stage.declare(records(130), records(20))
    member = stage.member()
    stage.caught_up()
    eventually(lambda: member.counts().records == 150, "the records to be counted")
    assert member.counts().resets == 0, "to start is no incident"
    shown = member.host.snapshot
    assert shown.counts.batches == len(member.engine.done)
    assert shown.counts.rebalances == 1
    assert shown.machine.state is State.PROCESSING
    assert shown.machine.view is not None
    assert shown.machine.view.state is RegionState.RUNNING
    assert dict(shown.machine.positions) == {p(0): 130, p(1): 20}
    eventually(lambda: set(member.host.snapshot.lag.values()) == {0}, "the lag to be gone")
    assert sum(member.host.snapshot.lag.values()) == 0


# -- checkpoints
# ----------------------------------------------------------------------------------------------------------


def test_a_member_takes_part_in_a_checkpoint_from_the_request_to_kafkas_commit_read_back(stage: Stage) -> None:
    stage.declare(records(100), records(40))
    member = stage.member()
    stage.caught_up()
    checkpoint = stage.checkpoint("n1")
    assert stage.offsets(checkpoint) == {p(0): 100, p(1): 40}
    assert {partition: row.offset for partition, row in member.membership.held.items()} == {p(0): 100, p(1): 40}
    notes = [note for text in member.membership.notes if (note := read_note(text)) is not None]
    assert notes[-1].sequence == checkpoint.sequence
    asked = [what for what in member.sinks.asked if not what.startswith("reset")]
    assert asked == [f"prepare {checkpoint.sequence}", f"publish {checkpoint.sequence}"]
    eventually(lambda: member.counts().checkpoints == 1, "the checkpoint to be counted")
    assert member.counts().longest_drain is not None
    stage.logs[p(0)].stamps.extend([NOON] * 10)
    stage.caught_up()


def test_a_bounded_checkpoint_holds_exactly_the_records_before_its_boundary(stage: Stage) -> None:
    stage.declare(Log(stamps=[NOON - SECOND] * 120 + [NOON + SECOND] * 80), records(30, at=NOON - SECOND))
    member = stage.member(engine=closed())
    eventually(lambda: bool(member.engine.started), "the first batch")
    stage.store.handle(FLIGHTS, commands.RequestCheckpoint(request_id=RequestId("n1"), boundary=NOON))
    eventually(
        lambda: (view := member.host.snapshot.machine.view) is not None and view.checkpoint is not None,
        "the member to know of the boundary",
    )
    member.engine.gate.set()
    checkpoint = stage.checkpoint("n1", boundary=NOON)
    assert stage.offsets(checkpoint) == {p(0): 120, p(1): 30}
    stage.caught_up()


def test_a_publication_that_fails_is_tried_again(stage: Stage) -> None:
    stage.declare(records(10))
    member = stage.member()
    stage.caught_up()
    member.sinks.failing = "publish"
    member.sinks.failures.extend([SinkError("not visible yet")] * 2)
    checkpoint = stage.checkpoint("n1")
    assert member.sinks.asked[-4:] == [f"prepare {checkpoint.sequence}", *[f"publish {checkpoint.sequence}"] * 3]


def test_a_commit_may_be_sent_only_under_the_lease_under_which_it_was_asked_for(stage: Stage) -> None:
    stage.declare(records(10))
    member = stage.member()
    stage.checkpoint("n1")
    asked = member.membership.may_write
    assert asked()
    member.host.terminate()
    assert member.ended().how is End.CLOSED
    # The loop is gone: what follows is what another thread finds in a process whose loop has not noticed yet.
    lease = TIMES.lease.total_seconds()
    for incarnation, sent_at, may_write in [(1, 0.0, True), (1, -lease, False), (2, 0.0, False)]:
        member.host._machine = replace(
            member.host._machine, incarnation=values.Incarnation(incarnation), lease_sent_at=boot_time() + sent_at
        )
        assert asked() is may_write


# -- ends ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_static", "comes_back", "keeps"),
    [(True, True, True), (False, True, False), (True, False, False)],
    ids=["static", "dynamic", "static, for good"],
)
def test_an_ended_process_keeps_its_static_slot_unless_it_does_not_come_back(
    stage: Stage, is_static: bool, comes_back: bool, keeps: bool
) -> None:
    stage.declare(records(100), static=is_static)
    member = stage.member()
    stage.caught_up()
    (member.host.terminate if comes_back else member.host.leave)()
    assert member.ended() == Ended(how=End.CLOSED)
    assert member.membership.calls[-2:] == ["close_keeping_slot" if keeps else "leave", "end"]
    region, now = stage.store.read(FLIGHTS)
    assert {claim.owner for claim in region.claims.values()} == {MemberId(GROUP, 0) if keeps else None}
    assert not region.is_live(MemberId(GROUP, 0), now)


def test_an_ending_process_lets_its_batch_finish(stage: Stage) -> None:
    stage.declare(records(200))
    member = stage.member(engine=closed())
    eventually(lambda: bool(member.engine.started), "a batch")
    member.host.terminate()
    member.engine.gate.set()
    assert member.ended() == Ended(how=End.CLOSED)
    assert stage.outcomes() == {Outcome.DONE}
    assert member.engine.cancels == []


def test_an_ending_process_cancels_a_batch_that_takes_too_long(stage: Stage) -> None:
    stage.declare(records(200), times=replace(TIMES, close=SECOND))
    member = stage.member(engine=closed())
    eventually(lambda: bool(member.engine.started), "a batch")
    member.host.terminate()
    assert member.ended() == Ended(how=End.CLOSED)
    assert stage.outcomes() == {Outcome.DISCARDED}
    assert member.membership.calls[-2:] == ["close_keeping_slot", "end"]


def test_an_ending_process_does_not_wait_for_a_batch_that_can_not_be_cancelled(stage: Stage) -> None:
    stage.declare(records(200), times=replace(TIMES, close=SECOND / 2))
    member = stage.member(engine=closed())
    member.engine.stubborn = True
    eventually(lambda: bool(member.engine.started), "a batch")
    member.host.terminate()
    assert member.ended().how is End.FAILED
    assert member.ends == ["the batch did not end within the close time"]


def test_a_process_ends_though_the_store_is_away(stage: Stage) -> None:
    stage.declare(records(10), times=replace(TIMES, close=SECOND / 2))
    member = stage.member()
    stage.caught_up()
    stage.store.away = True
    member.host.terminate()
    assert member.ended() == Ended(how=End.CLOSED)
    assert member.membership.calls[-2:] == ["close_keeping_slot", "end"]


def test_a_stopped_region_lets_its_members_go(stage: Stage) -> None:
    stage.declare(records(100))
    member = stage.member()
    stage.caught_up()
    stage.store.handle(FLIGHTS, STOP)
    assert member.ended() == Ended(how=End.CLOSED)
    assert stage.region.state is RegionState.STOPPED
    assert member.membership.calls[-2:] == ["leave", "end"]


def test_a_member_without_a_place_in_the_spec_is_refused_and_consumes_nothing(stage: Stage) -> None:
    stage.declare(records(100))
    member = stage.member(index=3)
    end = member.ended()
    assert end.how is End.REFUSED
    assert isinstance(end.error, UnknownMember)
    assert member.membership.calls == ["end"]
    assert member.engine.started == []


def test_a_member_that_was_built_from_another_spec_is_refused_and_consumes_nothing(stage: Stage) -> None:
    stage.declare(records(100))
    member = stage.member(spec_digest=replace(stage.region.spec, text="another").digest)
    end = member.ended()
    assert end.how is End.REFUSED
    assert end.is_outdated
    assert member.engine.started == []


def test_a_changed_spec_ends_its_members_at_the_next_checkpoint(stage: Stage) -> None:
    stage.declare(records(100))
    member = stage.member(spec_digest=stage.region.spec.digest)
    stage.caught_up()
    spec = stage.region.spec
    later = replace(spec, text="later", revision=spec.revision + 1)
    stage.store.handle(FLIGHTS, commands.ChangeSpec(at_once=spec, later=later))
    stage.store.handle(FLIGHTS, commands.RequestCheckpoint(request_id=RequestId("n")))
    end = member.ended()
    assert (end.how, end.is_outdated) == (End.REFUSED, True)
    assert stage.causes() == [ResetCause.START, ResetCause.SPEC_CHANGED]


def test_a_member_follows_what_changes_at_once_and_its_next_incarnation_is_not_refused_for_it(stage: Stage) -> None:
    stage.declare(records(1_000))
    member = stage.member(spec_digest=stage.region.spec.digest)
    stage.caught_up()
    spec = stage.region.spec
    changed = replace(spec, text="now", revision=spec.revision + 1)
    stage.store.handle(FLIGHTS, commands.ChangeSpec(at_once=changed))
    eventually(lambda: member.host.spec_digest == changed.digest, "the member to see it")
    member.host.adopt(CHECKPOINT, replace(LIMITS, least=3, most=3), changed.digest)
    before = len(member.engine.done)
    stage.logs[p(0)].stamps.extend([NOON] * 30)
    stage.caught_up()
    assert {call.ranges[p(0)].width for call in member.engine.done[before + 1 :]} == {3}
    assert member.host._machine.process.spec_digest == changed.digest


def test_a_member_that_another_process_took_over_is_fenced_and_writes_nothing_more(stage: Stage) -> None:
    stage.declare(records(200))
    member = stage.member(engine=closed())
    eventually(lambda: bool(member.engine.started), "a batch")
    stage.store.handle(FLIGHTS, commands.Register(member=MemberId(GROUP, 0), token="another", takeover=True))
    assert member.ended() == Ended(how=End.FENCED)
    assert member.engine.cancels == [member.engine.started[0].batch]
    assert member.membership.calls[-2:] == ["close_keeping_slot", "end"]
    assert Outcome.DONE not in stage.outcomes()


def test_a_takeover_goes_on_where_the_last_checkpoint_stood(stage: Stage) -> None:
    stage.declare(records(200))
    first = stage.member()
    stage.caught_up()
    stage.checkpoint("n1")
    second = stage.member(takeover=True)
    assert first.ended() == Ended(how=End.FENCED)
    stage.logs[p(0)].stamps.extend([NOON] * 50)
    stage.caught_up()
    assert [call.ranges[p(0)] for call in second.engine.done] == [values.Range(Offset(200), Offset(250))]


# -- faults --------------------------------------------------------------------------------------------------------

SOON = replace(TIMES, reset=SECOND * 2)
"""A store may be away, and a cancelled batch go on, for half a second."""


def test_a_member_leaves_its_group_while_the_store_is_away_and_returns_with_it(stage: Stage) -> None:
    stage.declare(records(100), times=SOON)
    member = stage.member()
    stage.caught_up()
    stage.store.away = True
    eventually(lambda: "leave" in member.membership.calls, "the member to leave")
    eventually(lambda: member.host.snapshot.machine.why is Why.STORE_AWAY, "the member to say why")
    assert member.host.snapshot.machine.state is State.HOLDING
    assert member.counts().store_losses == 1
    stage.store.away = False
    stage.logs[p(0)].stamps.extend([NOON] * 10)
    stage.caught_up()
    assert member.membership.calls.count("join") == 2
    assert tiles(member.engine.done, p(0), 110)


def test_a_store_that_says_nothing_at_all_counts_as_away(stage: Stage) -> None:
    stage.declare(records(100), times=replace(SOON, lease=SECOND))
    member = stage.member()
    stage.caught_up()
    with stage.store.frozen():
        eventually(lambda: "leave" in member.membership.calls, "the member to leave")
    stage.logs[p(0)].stamps.extend([NOON] * 10)
    stage.caught_up()


def test_a_batch_that_takes_longer_than_allowed_is_cancelled_and_its_records_come_again(stage: Stage) -> None:
    stage.declare(records(40), times=replace(TIMES, batch=SECOND / 2))
    member = stage.member(engine=closed())
    eventually(lambda: bool(member.engine.cancels), "the cancellation")
    member.engine.gate.set()
    stage.caught_up()
    assert ResetCause.BATCH_TIMEOUT in stage.causes()
    assert tiles(member.engine.done, p(0), 40)


class SlowEngine(FakeEngine):
    """Can do no batch of more than N records: such a one hangs until it is cancelled."""

    most = 3

    def run(self, call: BatchCall) -> BatchReport:
        """See `ports.Engine`."""
        if sum(r.width for r in call.ranges.values()) <= self.most:
            self.gate.set()
        else:
            self.gate.clear()
        return super().run(call)


class OverloadedEngine(SlowEngine):
    """Fails on its own where a batch is too large, as Spark does where memory runs out."""

    def run(self, call: BatchCall) -> BatchReport:
        """See `ports.Engine`."""
        if sum(r.width for r in call.ranges.values()) > self.most:
            self.failures.append(BatchFailed("java.lang.OutOfMemoryError: Java heap space"))
        return FakeEngine.run(self, call)


QUICK = replace(TIMES, batch=SECOND / 5, retry=SECOND / 50)


@pytest.mark.parametrize("engine", [SlowEngine, OverloadedEngine])
def test_a_region_whose_pipeline_can_only_do_small_batches_goes_on_by_itself(
    stage: Stage, engine: type[SlowEngine]
) -> None:
    stage.declare(records(60), times=QUICK)
    stage.member(engine=engine())
    stage.caught_up()
    assert stage.region.state is RegionState.RUNNING


def test_a_pipeline_that_has_become_slow_is_given_smaller_batches(stage: Stage) -> None:
    stage.declare(records(600), times=QUICK)
    slow = SlowEngine()
    slow.most = 1_000
    member = stage.member(engine=slow)
    stage.caught_up()
    stage.checkpoint("n1")
    assert max(sum(r.width for r in call.ranges.values()) for call in member.engine.done) == LIMITS.most
    slow.most = 3
    stage.logs[p(0)].stamps.extend([NOON] * 300)
    stage.caught_up()
    assert stage.region.state is RegionState.RUNNING


@pytest.mark.long
def test_members_whose_process_ends_with_each_batch_that_is_too_large_come_to_one_that_they_can_do(
    stage: Stage,
) -> None:
    stage.declare(records(20), times=replace(QUICK, lease=SECOND, reset=6 * SECOND))
    ended = 0
    # A process that ends takes with it what it has learnt.
    while stage.region.state is not RegionState.HALTED and not stage.everything_is_processed():
        engine = SlowEngine()
        engine.stubborn = True
        member = stage.member(engine=engine, takeover=True)
        eventually(lambda: stage.everything_is_processed() or bool(member.ends), "progress or an end")  # noqa: B023
        ended += len(member.ends)
    assert stage.region.state is RegionState.RUNNING
    assert ended > 0


def test_a_cancelled_batch_that_does_not_quiesce_ends_the_process(stage: Stage) -> None:
    stage.declare(records(40), times=replace(SOON, batch=SECOND / 2))
    member = stage.member(engine=closed())
    member.engine.stubborn = True
    end = member.ended()
    assert end.how is End.FAILED
    assert isinstance(end.error, ProcessEnds)
    assert len(member.ends) == 1
    assert "did not quiesce" in member.ends[0]


@pytest.mark.parametrize("where", ["engine", "sinks", "listener"])
def test_a_bug_ends_the_member_with_its_error(stage: Stage, where: str) -> None:
    stage.declare(records(40))
    member = stage.member()
    stage.caught_up()
    error = ZeroDivisionError("a bug")
    if where == "engine":
        member.engine.failures.append(error)
        stage.logs[p(0)].stamps.append(NOON)
    elif where == "sinks":
        member.sinks.failures.append(error)  # type: ignore[arg-type]
        stage.store.handle(FLIGHTS, commands.RequestCheckpoint(request_id=RequestId("n1")))
    else:
        member.host.fail(error)
        member.host.fail(ValueError("what followed from it"))
    assert member.ended() == Ended(how=End.FAILED, error=error)
    assert member.membership.calls[-1] == "end"


def test_a_store_of_another_version_ends_the_member_at_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.declare(records(40))
    error = SchemaTooNew("upgrade this program")

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(stage.store, "handle", refuse)
    assert stage.member().ended() == Ended(how=End.FAILED, error=error)


# -- notifications --------------------------------------------------------------------------------------------------


@pytest.fixture
def notified(stage: Stage) -> Iterator[Callable[[Played], Notifications]]:
    """Starts what hears that the region changed; it ends with the test."""
    started: list[Notifications] = []

    def start(member: Played) -> Notifications:
        started.append(Notifications(stage.store, FLIGHTS, [member.host]))
        started[-1].start()
        return started[-1]

    yield start
    for notifications in started:
        notifications.end()


def test_members_look_at_once_when_they_are_told_that_the_region_changed(
    stage: Stage, notified: Callable[[Played], Notifications]
) -> None:
    # By themselves they would look with the next renewal, long after this test gave up.
    minutes = replace(TIMES, lease=timedelta(minutes=3), renew=timedelta(minutes=1))
    stage.declare(records(40), times=minutes)
    member = stage.member()
    notified(member)
    stage.caught_up()
    for request_id in ("n1", "n2", "n3"):
        stage.checkpoint(request_id)


def test_hints_outlive_a_store_that_is_away(stage: Stage, notified: Callable[[Played], Notifications]) -> None:
    minutes = replace(TIMES, lease=timedelta(minutes=3), renew=timedelta(minutes=1))
    stage.declare(records(40), times=minutes)
    member = stage.member()
    notified(member)
    stage.caught_up()
    # Waiters meet the outage; the requests of this thread and of the member come after it.
    stage.store.away = True
    waiting = stage.store.refused
    eventually(lambda: stage.store.refused > waiting, "a wait to be refused")
    stage.store.away = False
    stage.checkpoint("n1")
