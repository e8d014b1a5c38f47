from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeVar

import pytest

from airflow_kcr.errors import BatchRefused, OutcomeUnknown
from airflow_kcr.protocol import values
from airflow_kcr.protocol.region import commands, decisions, events, retention
from airflow_kcr.protocol.region.commands import ChangeSpec, Command, DeclareRegion, FinishBatch
from airflow_kcr.protocol.region.events import CheckpointsRetired
from airflow_kcr.protocol.region.rows import BoundaryOffset, Outcome, ResetCause
from airflow_kcr.protocol.region.state import Region, Spec
from airflow_kcr.protocol.rules import Delivery, RegionRules, RetentionRules
from airflow_kcr.protocol.targets import ToOffset
from airflow_kcr.protocol.values import BatchId, CheckpointNumber, Epoch, EventNumber, Incarnation, Offset, RegionName
from airflow_kcr.store.regions import B, BatchRule, Rule
from tests.support.driver import PAUSE, START, STOP, Clock, Driver
from tests.support.judging import happened, judge, positions
from tests.support.memory import MemoryTransactions
from tests.support.scripts import boundary, checkpoints_of_ten, hourly, located, running

A = TypeVar("A")
Verb = Callable[[Driver], object]


class Forgetful(MemoryTransactions):
    """A store that loses the answer to the next COMMITs, or to every second one, after or before it did everything."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.losses = 0
        self.commits = False
        self.every_second = False
        self._asked = 0

    def create(self, name: RegionName, rule: Callable[[datetime], Region]) -> Region:
        return self._lossy(lambda: super(Forgetful, self).create(name, rule))

    def delete(self, name: RegionName, check: Callable[[Region, datetime], None]) -> None:
        self._lossy(lambda: super(Forgetful, self).delete(name, check))

    def decide(self, name: RegionName, rule: Rule[A]) -> tuple[Region, A]:
        return self._lossy(lambda: super(Forgetful, self).decide(name, rule))

    def admit(self, name: RegionName, command: B, rule: BatchRule[B, A]) -> A:
        return self._lossy(lambda: super(Forgetful, self).admit(name, command, rule))

    def _lossy(self, run: Callable[[], A]) -> A:
        self._asked += 1
        if self.every_second and self._asked % 2:
            self.losses = 1
        if not self.losses:
            return run()
        self.losses -= 1
        if self.commits:
            run()
        raise OutcomeUnknown


@dataclass
class Story:
    """A region on such a store, told twice: with a lost answer to the last verb, and without."""

    begin: Callable[[Driver], None]
    verb: Verb
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    tells_twice: bool = field(default=False, kw_only=True)
    """Whether a repetition adds an event that says the same again, and changes nothing else."""

    def told(self, *, commits: bool | None) -> Driver:
        """Tell it; `commits`: whether the transaction whose answer was lost was committed; None: none is lost."""
        clock = Clock()
        store = Forgetful(clock)
        driver = Driver(partitions=2, members=2, delivery=self.delivery, clock=clock, transactions=store)
        self.begin(driver)
        store.losses, store.commits = int(commits is not None), bool(commits)
        self.verb(driver)
        return driver


def nothing(driver: Driver) -> None:
    """Leave the region as it was declared."""


def up(driver: Driver) -> None:
    driver.up()


def processed(driver: Driver) -> None:
    driver.up()
    driver.process()


def in_batch(driver: Driver) -> None:
    driver.up()
    driver.start_batch(driver.member(0))


def draining(driver: Driver) -> None:
    processed(driver)
    driver.request_checkpoint("n")


def almost_complete(driver: Driver) -> None:
    draining(driver)
    driver.contribute(driver.member(0))


def complete(driver: Driver) -> None:
    draining(driver)
    driver.complete()


def resetting(driver: Driver) -> None:
    processed(driver)
    driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED, "it broke")
    for member in driver.all_members():
        driver.claim(member)


def almost_reset(driver: Driver) -> None:
    resetting(driver)
    driver.acknowledge(driver.member(0))


def first(driver: Driver) -> values.MemberId:
    return driver.member(0)


def apply(driver: Driver) -> object:
    return driver.reset(ToOffset(offset=Offset(3)), request_id="r")


def arrival(driver: Driver) -> object:
    return driver.handle(commands.Register(member=first(driver), token="mine", takeover=True))


STORIES = {
    "start": Story(nothing, lambda d: d.handle(START)),
    "pause": Story(processed, lambda d: d.handle(PAUSE)),
    "stop": Story(processed, lambda d: d.handle(STOP)),
    "register": Story(up, arrival),
    "leave": Story(up, lambda d: d.leave(first(d))),
    "claim": Story(up, lambda d: d.claim(first(d)), tells_twice=True),
    "acknowledge": Story(resetting, lambda d: d.acknowledge(first(d))),
    "last acknowledgement": Story(almost_reset, lambda d: d.acknowledge(d.member(1))),
    "answer": Story(resetting, lambda d: d.answer(first(d)), Delivery.EXACTLY_ONCE),
    "request reset": Story(
        processed,
        lambda d: d.request_reset(first(d), ResetCause.BATCH_FAILED, "it broke"),
        tells_twice=True,
    ),
    "begin": Story(up, lambda d: d.start_batch(first(d))),
    "end": Story(in_batch, lambda d: d.finish_batch(d.batches[0].batch)),
    "discard": Story(in_batch, lambda d: d.discard(d.batches[0].batch)),
    "request checkpoint": Story(processed, lambda d: d.request_checkpoint("n")),
    "contribute": Story(draining, lambda d: d.contribute(first(d))),
    "last contribution": Story(almost_complete, lambda d: d.contribute(d.member(1))),
    "publish": Story(complete, lambda d: d.publish()),
    "read_back": Story(complete, lambda d: d.read_back(first(d)), tells_twice=True),
    "pin": Story(
        complete,
        lambda d: d.handle(commands.PinCheckpoint(sequence=CheckpointNumber(2), label="golden", reason="audited")),
    ),
    "apply reset": Story(processed, apply),
    "change spec": Story(
        up,
        lambda d: d.handle(ChangeSpec(at_once=replace(d.region.spec, text="new", revision=2))),
    ),
}


def telling(region: Region) -> Region:
    """Return a region without what only says how often it was told something."""
    return replace(region, counter=EventNumber(0))


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "lost"])
@pytest.mark.parametrize("name", STORIES)
def test_a_verb_whose_answer_was_lost_is_asked_again_and_done_once(name: str, commits: bool) -> None:
    story = STORIES[name]
    driver, control = story.told(commits=commits), story.told(commits=None)
    for each in (driver, control):
        each.store.handle(each.name, commands.Reconcile())  # what a decision left for the next one is done in both
    if story.tells_twice and commits:
        assert telling(driver.region) == telling(control.region)
        assert driver.events[: len(control.events)] == control.events
    else:
        assert driver.region == control.region
        assert driver.events == control.events
    assert driver.batches == control.batches
    judge(driver)


@pytest.mark.parametrize("commits", [True, False])
def test_an_answer_that_is_lost_twice_is_the_callers_to_find_out(commits: bool) -> None:
    clock = Clock()
    store = Forgetful(clock)
    driver = Driver(clock=clock, transactions=store)
    store.losses, store.commits = 2, commits
    with pytest.raises(OutcomeUnknown):
        driver.handle(START)
    driver.handle(START)
    assert driver.region.epoch == 1


def retired(*, every_second: bool) -> Driver:
    """Retire in pieces of one checkpoint; `every_second`: where every second transaction loses its answer."""
    clock = Clock()
    store = Forgetful(clock)
    driver = Driver(clock=clock, transactions=store)
    driver.up()
    checkpoints_of_ten(driver, 6)
    kept = replace(driver.region.spec, rules=replace(driver.region.spec.rules, retention=RetentionRules(keep=1)))
    driver.handle(ChangeSpec(at_once=kept))
    store.every_second = store.commits = every_second
    driver.handle(commands.RetireCheckpoints())
    return driver


def test_every_transaction_of_a_retirement_may_lose_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "RETIRED_AT_ONCE", 1)
    lossy, control = retired(every_second=True), retired(every_second=False)
    assert lossy.events == control.events
    assert [len(body.sequences) for body in happened(control, CheckpointsRetired)] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    "command", [DeclareRegion(spec=Spec(text="{}", rules=RegionRules(groups={}))), commands.DeleteRegion()]
)
def test_what_the_store_can_not_recognise_is_not_done_again(command: Command[object]) -> None:
    store = Forgetful(Clock())
    driver = Driver(clock=Clock(), transactions=store)
    name = RegionName("other") if isinstance(command, DeclareRegion) else driver.name
    store.losses, store.commits = 1, True
    with pytest.raises(OutcomeUnknown):
        driver.store.handle(name, command)


# -- ends -------------------------------------------------------------------------------------------------------------


def test_an_end_that_was_accepted_before_is_no_error_and_one_that_was_refused_is() -> None:
    driver = running()
    batch = driver.start_batch(driver.member(0))
    driver.finish_batch(batch)
    driver.finish_batch(batch)
    assert positions(driver)[:2] == [10, 10]
    with pytest.raises(BatchRefused):
        driver.handle(FinishBatch(batch=batch, member=driver.member(0), incarnation=Incarnation(9)))
    with pytest.raises(BatchRefused):
        driver.handle(FinishBatch(batch=BatchId("unknown"), member=driver.member(0), incarnation=Incarnation(1)))
    other = driver.start_batch(driver.member(0))
    driver.discard(other)
    with pytest.raises(BatchRefused):
        driver.finish_batch(other)
    driver.discard(other)
    assert driver.row(other).outcome is Outcome.DISCARDED


# -- what members tell ------------------------------------------------------------------------------------------------


def test_boundaries_are_stored_by_who_may_act_in_this_epoch() -> None:
    driver = hourly(partitions=1, members=1)
    located(driver, boundary(1), 7)
    stale = replace(driver.caller(driver.member(0)), epoch=Epoch(0))
    with pytest.raises(Exception, match="epoch 0"):
        driver.handle(
            commands.StoreBoundaryOffsets(
                caller=stale, boundary=boundary(2), found={driver.partition(0): BoundaryOffset(offset=Offset(9))}
            )
        )


def test_a_commit_after_a_reset_is_noted_with_its_failure() -> None:
    driver = running()
    driver.handle(commands.ReportSeekCommit(caller=driver.caller(driver.member(0)), failure="the coordinator moved"))
    assert happened(driver, events.SeekCommitted) == [
        events.SeekCommitted(epoch=Epoch(1), member=driver.member(0), failure="the coordinator moved")
    ]


def test_every_command_has_its_row() -> None:
    kinds = {kind for kind in vars(commands).values() if isinstance(kind, type) and issubclass(kind, commands.Command)}
    own = {
        commands.StartBatch,
        commands.FinishBatch,
        commands.Renew,
        commands.ReadRegion,
        commands.RetireCheckpoints,
        commands.DeclareRegion,
        commands.DeleteRegion,
        commands.InEpoch,
        commands.FromProcess,
    }
    assert kinds - {commands.Command} == own | decisions.RULES.keys()
    assert decisions.ANSWERS.keys() <= decisions.RULES.keys()
