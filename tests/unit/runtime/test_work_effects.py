from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import NoReturn, TypeVar, cast

import pytest

from airflow_kcr.errors import BatchFailed, BrokerUnavailable, SinkAhead, SinkError
from airflow_kcr.floods import FloodFilter
from airflow_kcr.ports import BatchReport, CommittedOffset
from airflow_kcr.protocol import values
from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap, SeekEntry, SeekSource
from airflow_kcr.protocol.region.commands import Caller, ClaimPartitions, Found, ReportOutOfRange, ReportPublished
from airflow_kcr.protocol.region.rows import Claim
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.targets import Target, ToLatest
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import (
    AssignmentId,
    BatchId,
    CheckpointNumber,
    Epoch,
    GroupId,
    Incarnation,
    Offset,
    Timeline,
)
from airflow_kcr.runtime import effects as runtime_effects
from airflow_kcr.runtime.effects import Grouping, Happening, Working
from airflow_kcr.runtime.leases import Identity, StoreClock
from airflow_kcr.runtime.metrics import Metrics
from airflow_kcr.runtime.planner import Limits, Planner
from airflow_kcr.runtime.positions import Places
from tests.support.driver import group_rules
from tests.support.lone_member import view_of
from tests.support.runtime_fakes import (
    CALL,
    FLIGHTS,
    MEMBER,
    NOON,
    REGION_ID,
    FakeEngine,
    FakeLogs,
    FakeMembership,
    FakeSinks,
    Hands,
    eventually,
    p,
    records,
)

E = TypeVar("E")
BATCH, OTHER = BatchId("b-1"), BatchId("b-2")
VIEW = view_of({p(0): Claim()})
PLAN = messages.PlanRanges(positions=OffsetMap({p(0): Offset(0)}), view=VIEW)
SHOWN = ReportPublished(sequence=CheckpointNumber(4), member=MEMBER)
CLAIM = messages.ClaimAssignment(
    claim=ClaimPartitions(member=MEMBER, incarnation=Incarnation(1), assignment=AssignmentId(3), partitions={}),
    partitions=frozenset({p(0)}),
)
PREPARE = messages.PrepareSinks(sequence=CheckpointNumber(4), partitions=frozenset({p(0)}))
MOVED = ReportOutOfRange(caller=Caller(member=MEMBER, incarnation=Incarnation(1), epoch=Epoch(1)), observed={})
AWAY = BrokerUnavailable("localhost:1 does not answer")


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again is tried again at once."""
    monkeypatch.setattr(runtime_effects, "TRY_AGAIN", 0.001)


ANY = Limits(target=timedelta(seconds=2), least=0, most=1_000_000)


class Desk:
    """The work of one member; its loop's queue is a list."""

    def __init__(self) -> None:
        self.queue: list[Happening] = []
        self.failed: list[BaseException] = []
        self.hands = Hands()
        self.logs = FakeLogs({p(0): records(10)})
        self.engine, self.sinks = FakeEngine(), FakeSinks()
        times = Timeouts(drain=timedelta(seconds=5), reset=timedelta(seconds=5))
        who = Identity(region=FLIGHTS, region_id=REGION_ID, member=MEMBER, group=group_rules(), timeouts=times)
        self.membership = cast(
            "FakeMembership", Grouping(who, FakeMembership, self.queue.append, lambda _: None, Metrics()).membership
        )
        store_clock = StoreClock(self.hands, NOON)
        self.planner = Planner(self.logs, self.hands, store_clock, timedelta(seconds=2), ANY)
        self.working = Working(
            who,
            self.engine,
            self.sinks,
            self.planner,
            Places(self.logs, self.membership, who.group, store_clock),
            happened=self.queue.append,
            failed=self.failed.append,
            clock=self.hands,
        )

    def hear(self, kind: type[E]) -> E:
        """Wait for an event of this kind; there is no other one before it."""
        eventually(lambda: bool(self.failed) or bool(self.events()), f"{kind.__name__}")
        assert self.failed == []
        event = self.events()[0]
        assert isinstance(event, kind)
        self.queue.remove(event)  # type: ignore[arg-type]
        return event

    def events(self) -> list[Happening]:
        return [h for h in tuple(self.queue) if not callable(h)]

    def run(self, batch: BatchId = BATCH) -> list[tuple[float, bool]]:
        """Run a batch; the answer fills with what `took` is told once `loop` is called."""
        took: list[tuple[float, bool]] = []
        call = replace(CALL, batch=batch)
        self.working.run(call, lambda seconds, ok: took.append((seconds, ok)))
        return took

    def loop(self) -> None:
        for happening in tuple(self.queue):
            if callable(happening):
                happening()


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.engine.gate.set()
    desk.working.end()


# -- plans and claims ----------------------------------------------------------------------------------------------


def test_who_holds_finds_nothing_to_read(desk: Desk) -> None:
    desk.working.hold()
    desk.working.plan(PLAN, BATCH, 100)
    assert desk.hear(messages.RangesPlanned).ranges == {}


def test_a_plan_is_answered_under_the_name_of_its_batch(desk: Desk) -> None:
    desk.working.plan(PLAN, BATCH, 4)
    assert desk.hear(messages.RangesPlanned) == messages.RangesPlanned(
        batch=BATCH, ranges={p(0): values.Range(Offset(0), Offset(4))}
    )


def test_where_the_brokers_do_not_answer_there_is_nothing_to_read_for_now(desk: Desk) -> None:
    desk.logs.failures.append(AWAY)
    desk.working.plan(PLAN, BATCH, 4)
    assert desk.hear(messages.RangesPlanned) == messages.RangesPlanned(batch=BATCH, ranges={})
    desk.working.plan(PLAN, OTHER, 4)
    assert desk.hear(messages.RangesPlanned).ranges


def test_a_claim_is_made_from_logs_read_anew_and_what_kafka_holds(desk: Desk) -> None:
    desk.membership.held = {p(0): CommittedOffset(offset=Offset(3)), p(1): CommittedOffset(offset=Offset(4))}
    desk.working.plan(PLAN, BATCH, 1)
    desk.hear(messages.RangesPlanned)
    ready: list[tuple[ClaimPartitions, Mapping[values.GroupPartition, CommittedOffset]]] = []
    desk.working.claim(CLAIM, initialised=False, ready=lambda claim, held: ready.append((claim, held)))
    eventually(lambda: bool(ready), "the claim")
    claim, held = ready[0]
    assert (claim.assignment, set(claim.partitions)) == (CLAIM.claim.assignment, {p(0)})
    assert held == {p(0): CommittedOffset(offset=Offset(3))}
    desk.working.plan(PLAN, OTHER, 1)
    desk.hear(messages.RangesPlanned)
    assert desk.logs.asked == ["bounds"] * 3


@pytest.mark.parametrize("who", ["logs", "membership"])
def test_a_claim_whose_logs_can_not_be_read_is_refused_so_that_it_is_made_again(desk: Desk, who: str) -> None:
    (desk.logs.failures if who == "logs" else desk.membership.failures).append(AWAY)
    desk.working.claim(CLAIM, initialised=True, ready=lambda *_: pytest.fail("claimed"))
    refused = desk.hear(messages.Refused)
    assert isinstance(refused.command, ClaimPartitions)
    assert (refused.command.assignment, refused.error) == (AssignmentId(3), AWAY)


# -- batches -------------------------------------------------------------------------------------------------------


def test_a_batch_that_did_its_work_is_finished_and_timed(desk: Desk) -> None:
    desk.engine.report = BatchReport(scans=2, warnings=("scanned twice",))
    took = desk.run()
    assert desk.hear(messages.BatchEnded) == messages.BatchEnded(batch=BATCH)
    desk.loop()
    assert took == [(0.0, True)]


def test_what_each_batch_is_warned_of_is_told_once_then_now_and_then(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.engine.report = BatchReport(scans=2, warnings=("scanned twice, as no other test says",))
    for _ in range(3):
        desk.run()
        desk.hear(messages.BatchEnded)
    assert [record.getMessage() for record in caplog.records if "as no other" in record.getMessage()] == [
        f"{MEMBER}: batch {BATCH}: scanned twice, as no other test says"
    ]


def test_how_long_a_batch_took_is_told_before_its_end(desk: Desk) -> None:
    desk.run()
    eventually(lambda: len(desk.queue) == 2, "both")
    assert [callable(h) for h in desk.queue] == [True, False]


def test_a_failed_batch_says_why_and_did_not_do_its_work(desk: Desk) -> None:
    desk.engine.failures.append(BatchFailed("record 7 is poison"))
    took = desk.run()
    assert desk.hear(messages.BatchEnded) == messages.BatchEnded(batch=BATCH, failure="record 7 is poison")
    desk.loop()
    assert took == [(0.0, False)]


def test_a_batch_that_the_member_cancelled_quiesces_when_its_tasks_have_ended(desk: Desk) -> None:
    desk.engine.gate.clear()
    desk.run()
    eventually(lambda: bool(desk.engine.started), "the batch")
    desk.working.cancel(messages.Cancel(batch=BATCH))
    assert desk.hear(messages.BatchEnded) == messages.BatchEnded(batch=BATCH)


def test_a_batch_that_somebody_else_cancelled_has_failed(desk: Desk) -> None:
    desk.engine.gate.clear()
    desk.run()
    eventually(lambda: bool(desk.engine.started), "the batch")
    desk.engine.cancel(BATCH)
    assert desk.hear(messages.BatchEnded).failure is not None


def test_a_cancelled_batch_that_fails_for_another_reason_is_quiesced_too(desk: Desk) -> None:
    desk.engine.gate.clear()
    desk.engine.stubborn = True
    desk.engine.failures.append(BatchFailed("a task failed"))
    desk.run()
    eventually(lambda: bool(desk.engine.started), "the batch")
    desk.working.cancel(messages.Cancel(batch=BATCH))
    desk.engine.gate.set()
    assert desk.hear(messages.BatchEnded) == messages.BatchEnded(batch=BATCH)


def test_a_batch_that_ended_before_its_cancellation_reached_it_is_finished(desk: Desk) -> None:
    desk.engine.gate.clear()
    desk.engine.stubborn = True
    desk.run()
    desk.working.cancel(messages.Cancel(batch=BATCH))
    desk.engine.gate.set()
    assert desk.hear(messages.BatchEnded) == messages.BatchEnded(batch=BATCH)


def test_the_cancellation_of_an_older_batch_is_not_that_of_the_next(desk: Desk) -> None:
    desk.working.cancel(messages.Cancel(batch=OTHER))
    desk.engine.failures.append(BatchFailed("a task failed"))
    desk.run()
    assert desk.hear(messages.BatchEnded).failure is not None


def test_a_bug_in_the_engine_is_not_a_failed_batch(desk: Desk) -> None:
    desk.engine.failures.append(ZeroDivisionError("a bug"))
    desk.run()
    eventually(lambda: bool(desk.failed), "the fault")
    assert [str(e) for e in desk.failed] == ["a bug"]
    assert desk.queue == []


# -- checkpoints
# ----------------------------------------------------------------------------------------------------------


def test_a_contribution_is_prepared_with_what_logs_and_kafka_say(desk: Desk) -> None:
    desk.membership.held = {p(0): CommittedOffset(offset=Offset(3))}
    desk.working.prepare(PREPARE)
    assert desk.hear(messages.SinksPrepared) == messages.SinksPrepared(
        sequence=CheckpointNumber(4),
        bounds={p(0): desk.logs.logs[p(0)].bounds()},
        committed=OffsetMap({p(0): Offset(3)}),
        took=timedelta(0),
    )
    assert desk.sinks.asked == ["prepare 4"]


def test_preparing_is_tried_again_whoever_did_not_answer(desk: Desk) -> None:
    desk.working.open_checkpoint = CheckpointNumber(4)
    desk.sinks.failures.append(SinkError("the disk is full"))
    desk.logs.failures.append(AWAY)
    desk.membership.failures.append(AWAY)
    desk.working.prepare(PREPARE)
    assert desk.hear(messages.SinksPrepared).bounds
    assert desk.sinks.asked == ["prepare 4"] * 4


def is_over(desk: Desk) -> None:
    desk.hands.now += 5


def is_gone(desk: Desk) -> None:
    desk.working.open_checkpoint = None


def is_ended(desk: Desk) -> None:
    desk.working.end()


@pytest.mark.parametrize("given_up", [is_over, is_gone, is_ended])
def test_preparing_is_given_up_when_the_drain_is_over_the_checkpoint_gone_or_the_member_at_its_end(
    desk: Desk, given_up: Callable[[Desk], None]
) -> None:
    desk.working.open_checkpoint = CheckpointNumber(4)
    desk.sinks.failures.extend([SinkError("the disk is full")] * 1_000_000)
    desk.working.prepare(PREPARE)
    eventually(lambda: len(desk.sinks.asked) > 2, "some attempts")
    assert desk.queue == []
    given_up(desk)
    assert desk.hear(messages.SinksPrepared) == messages.SinksPrepared(
        sequence=CheckpointNumber(4), bounds={}, committed=EMPTY
    )


def test_a_publication_is_told_to_the_store_once_the_sinks_have_done_it(desk: Desk) -> None:
    told: list[tuple[ReportPublished, list[str]]] = []
    delays = TableVersion(group=GroupId("g"), sink="out", table="db.delays", files=1, rows=2, version="3")
    desk.sinks.tables = (delays,)
    desk.working.publish(SHOWN, lambda report: told.append((report, list(desk.sinks.asked))))
    eventually(lambda: bool(told), "the publication")
    assert told == [(replace(SHOWN, tables=(delays,)), ["publish 4"])]
    assert desk.queue == []


def test_a_publication_that_failed_is_answered_and_not_told_to_the_store(desk: Desk) -> None:
    desk.sinks.failures.append(SinkError("no space"))
    desk.working.publish(SHOWN, lambda _: pytest.fail("told"))
    assert desk.hear(messages.Refused).command == SHOWN


def test_a_publication_that_takes_its_time_holds_up_no_reset(desk: Desk) -> None:
    published = threading.Event()

    class SlowSinks(FakeSinks):
        def publish(self, sequence: CheckpointNumber) -> tuple[TableVersion, ...]:
            published.wait(30)
            return ()

    desk.working._sinks = SlowSinks()
    told: list[ReportPublished] = []
    desk.working.publish(SHOWN, told.append)
    desk.working.reset_sinks(order({}))
    desk.hear(messages.SinksReset)
    assert told == []
    published.set()
    eventually(lambda: told == [SHOWN], "the publication")


# -- resets --------------------------------------------------------------------------------------------------------


def order(open_: Mapping[values.GroupPartition, SeekEntry], target: Target | None = None) -> messages.ResetSinks:
    return messages.ResetSinks(epoch=Epoch(6), timeline=Timeline(2), resume=EMPTY, open=open_, target=target, skips={})


def test_a_reset_answers_open_entries_from_the_sinks_progress_and_from_the_logs(desk: Desk) -> None:
    desk.sinks.progress = {p(1): Offset(42)}
    desk.working.reset_sinks(
        order(
            {
                p(0): SeekEntry(offset=None, source=SeekSource.EXPLICIT, current=None),
                p(1): SeekEntry(offset=None, source=SeekSource.SINK_PROGRESS, current=None),
                p(2): SeekEntry(offset=None, source=SeekSource.SINK_PROGRESS, current=None),
            },
            ToLatest(),
        )
    )
    log = desk.logs.bounds([p(0)])[p(0)]
    found = {p(0): Found(offset=Offset(10), log=log), p(1): Found(offset=Offset(42)), p(2): Found(offset=None)}
    assert desk.hear(messages.SinksReset) == messages.SinksReset(epoch=Epoch(6), found=found)


def test_a_reset_tells_the_sinks_what_only_the_logs_could_tell(desk: Desk) -> None:
    open_ = {
        p(0): SeekEntry(offset=None, source=SeekSource.EXPLICIT, current=None),
        p(1): SeekEntry(offset=None, source=SeekSource.SINK_PROGRESS, current=Offset(3)),
    }
    asked = order(open_, ToLatest())
    desk.working.reset_sinks(asked)
    desk.hear(messages.SinksReset)
    assert desk.sinks.orders == [asked, replace(asked, resume=OffsetMap({p(0): Offset(10)}), open={})]


def test_a_reset_is_tried_again_whoever_did_not_answer(desk: Desk) -> None:
    desk.sinks.failures.append(SinkError("a lock"))
    desk.logs.failures.append(AWAY)
    desk.working.reset_sinks(order({p(0): SeekEntry(offset=None, source=SeekSource.START_POSITION, current=None)}))
    assert desk.hear(messages.SinksReset).found[p(0)].offset == 0
    assert desk.sinks.asked == ["reset 6"] * 4


def test_a_reset_that_sinks_can_not_do_in_its_time_has_failed(desk: Desk) -> None:
    desk.sinks.failures.extend([SinkError("a lock")] * 1_000_000)
    desk.working.reset_sinks(order({}))
    eventually(lambda: len(desk.sinks.asked) > 2, "some attempts")
    desk.hands.now += 5
    failed = desk.hear(messages.SinkFailed)
    assert (failed.epoch, failed.fence, failed.timeline) == (6, 0, 0)
    assert "0:00:05" in failed.why


def test_a_sink_that_has_seen_a_later_epoch_is_not_asked_again_and_says_where_it_stands(desk: Desk) -> None:
    desk.sinks.failures.append(SinkAhead("the fence stands at 9", fence=9, timeline=3))
    desk.working.reset_sinks(order({}))
    failed = desk.hear(messages.SinkFailed)
    assert failed == messages.SinkFailed(
        epoch=Epoch(6), why="the fence stands at 9", fence=Epoch(9), timeline=Timeline(3)
    )
    assert desk.sinks.asked == ["reset 6"]


def test_after_a_reset_the_logs_are_read_again(desk: Desk) -> None:
    desk.working.plan(PLAN, BATCH, 1)
    desk.hear(messages.RangesPlanned)
    desk.working.reset_sinks(order({}))
    desk.hear(messages.SinksReset)
    desk.working.plan(replace(PLAN, positions=OffsetMap({p(0): Offset(1)})), OTHER, 1)
    desk.hear(messages.RangesPlanned)
    assert desk.logs.asked == ["bounds", "bounds"]


# -- the log of an outage ------------------------------------------------------------------------------------------


@pytest.fixture
def flood(monkeypatch: pytest.MonkeyPatch) -> FloodFilter:
    """What the log leaves out, in a moment that lasts."""
    flood = FloodFilter(clock=lambda: 0.0)
    monkeypatch.setattr(runtime_effects._AGAIN, "filters", [flood])
    return flood


TRIES = 50
ASKED: dict[str, Callable[[Working], None]] = {
    "nothing can be planned": lambda working: working.plan(PLAN, BATCH, 4),
    "can't claim yet": lambda working: working.claim(CLAIM, initialised=False, ready=lambda claim, held: None),
    "can't tell whose logs are out of range": lambda working: working.locate(MOVED, lambda report: None),
    "can't tell which partitions there are": lambda working: working.discover(),
    "checkpoint 4 is not published": lambda working: working.publish(SHOWN, lambda report: None),
    "can't prepare checkpoint 4 yet": lambda working: working.prepare(PREPARE),
}


@pytest.mark.parametrize("what", ASKED)
def test_what_is_tried_again_and_again_is_told_once_and_counted(
    desk: Desk, flood: FloodFilter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def away(places: Places) -> NoReturn:
        raise AWAY

    for question in ("cluster", "subscribed"):
        monkeypatch.setattr(Places, question, away)
    desk.working.open_checkpoint = CheckpointNumber(4)
    for failures in (desk.logs.failures, desk.sinks.failures, desk.membership.failures):
        failures.extend([SinkError("nothing listens")] * 1_000_000)
    for _ in range(TRIES):
        ASKED[what](desk.working)
    eventually(lambda: sum(one.left_out for one in flood._reasons.values()) >= TRIES - 1, "all were tried")
    assert [(what in line, line.count("left out")) for line in caplog.messages] == [(True, 0)]
