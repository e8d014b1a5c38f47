from __future__ import annotations

from dataclasses import replace

from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.region.events import (
    CheckpointCompleted,
    CheckpointRequestEnded,
    Halted,
    Killed,
    PersonResetAccepted,
    PersonResetFailed,
    ResetBegun,
    ResetDone,
    ResetRequested,
    StateChanged,
    StoreRestoredSeen,
)
from airflow_kcr.protocol.region.rows import Noted, RegionState, ResetCause
from airflow_kcr.protocol.targets import ToCheckpoint, ToCurrent
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, RequestId
from tests.support.driver import START, STOP, Driver
from tests.unit.protocol.invariants import stories


def asked() -> Driver:
    """A failed batch's request, answered by a reset; a late one of the epoch before; and a batch after."""
    driver = stories.two_checkpoints()
    old = driver.caller(driver.member(0))
    for _ in range(2):
        driver.handle(commands.RequestReset(caller=old, cause=ResetCause.BATCH_FAILED, detail=""))
    driver.finish_reset()
    driver.process()
    return driver


def test_a_request_that_nothing_follows_is_found() -> None:
    history = stories.recorded(asked())
    request = stories.numbers(history, ResetRequested)[0]
    gone = stories.dropped(history, *[n for n in stories.numbers(history, ResetBegun) if n > request])
    assert "nothing followed" in stories.found(gone, "R7")[0].detail
    last = stories.body(history, request, ResetRequested)
    pending = stories.appended(history, altered_request(last, Epoch(2)))
    assert stories.found(pending, "R7")[0].events == (pending.events[-1].number,)


def altered_request(request: ResetRequested, epoch: Epoch) -> ResetRequested:
    return ResetRequested(member=request.member, epoch=epoch, cause=request.cause, detail=request.detail)


def test_a_request_followed_by_no_greater_epoch_is_found() -> None:
    history = stories.recorded(asked())
    request = stories.numbers(history, ResetRequested)[0]
    ahead = stories.altered(history, request, epoch=Epoch(5))
    assert "followed by epoch 2" in stories.found(ahead, "R7")[0].detail


def test_a_batch_between_a_request_and_its_reset_is_found() -> None:
    history = stories.recorded(asked())
    request = stories.numbers(history, ResetRequested)[0]
    assert "a batch began" in stories.found(stories.altered_batch(history, 3, started_after=request), "R7")[0].detail


def test_an_epoch_without_a_cause_is_found() -> None:
    history = stories.recorded(stories.crash_between())
    reset = stories.numbers(history, ResetBegun)[1]
    (violation,) = [v for v in stories.found(stories.dropped(history, reset), "R7") if "has no cause" in v.detail]
    assert violation.events[-1] == reset + 1


def test_an_epoch_that_jumps_or_repeats_is_found() -> None:
    history = stories.recorded(stories.crash_between())
    reset = stories.numbers(history, ResetBegun)[1]
    for epoch in (Epoch(1), Epoch(3)):
        assert stories.found(stories.altered(history, reset, epoch=epoch), "R7")[0].events[-1] == reset


def test_a_kill_is_a_cause_and_a_restored_store_may_jump() -> None:
    driver = stories.two_checkpoints()
    driver.handle(commands.KillRegion())
    driver.handle(START)
    driver.handle(
        commands.ReportLater(
            member=driver.member(0),
            epoch=Epoch(40),
            incarnation=driver.processes[driver.member(0)].incarnation,
            sequence=CheckpointNumber(70),
        ),
    )
    driver.handle(START)
    driver.recover()
    history = stories.recorded(driver)
    assert driver.region.epoch == 41
    assert stories.found(stories.dropped(history, *stories.numbers(history, Killed)), "R7")
    assert stories.found(stories.dropped(history, *stories.numbers(history, StoreRestoredSeen)), "R7")
    back = next(e for e in history.events if isinstance(e.body, StoreRestoredSeen))
    lower = replace(back, epoch=Epoch(1))
    events = [lower if e.number == back.number else e for e in history.events]
    assert stories.found(History(events, history.batches), "R7")


def test_numbers_of_kafka_s_metadata_are_taken_over_with_a_cause() -> None:
    driver = stories.two_checkpoints()
    region = driver.region
    driver.handle(
        commands.ReportNoted(
            partition=driver.partition(0),
            noted=Noted(
                member=driver.member(0),
                epoch=Epoch(40),
                sequence=CheckpointNumber(70),
                timeline=region.timeline,
            ),
        )
    )
    driver.handle(START)
    driver.recover()
    history = stories.recorded(driver)
    assert (driver.region.epoch, driver.region.restore_epoch is None) == (41, False)
    assert stories.found(stories.dropped(history, *stories.numbers(history, StoreRestoredSeen)), "R7")


def test_a_persons_reset_that_was_never_accepted_is_found() -> None:
    history = stories.recorded(stories.rewound())
    accepted = stories.numbers(history, PersonResetAccepted)[0]
    assert "never accepted" in stories.found(stories.dropped(history, accepted), "R7")[0].detail


def test_a_persons_reset_that_moves_what_it_was_not_accepted_for_is_found() -> None:
    history = stories.recorded(stories.rewound())
    accepted, reset = stories.numbers(history, PersonResetAccepted)[0], stories.numbers(history, ResetBegun)[-1]
    assert "R7" not in stories.reported(history)
    told = stories.body(history, accepted, PersonResetAccepted)
    narrower = replace(told, scope=replace(told.scope, planned=frozenset()))
    violations = stories.found(stories.replaced(history, accepted, narrower), "R7")
    assert {v.events for v in violations} == {(accepted, reset)}
    assert "was not accepted for it and moves it to" in violations[0].detail


def test_a_persons_reset_that_neither_begins_nor_fails_after_its_checkpoint_is_found() -> None:
    history = stories.recorded(stories.rewound())
    reset = stories.numbers(history, ResetBegun)[-1]
    completed = stories.numbers(history, CheckpointCompleted)[2]
    assert (completed,) in {v.events for v in stories.found(stories.dropped(history, reset), "R7")}


def test_a_persons_reset_that_the_region_went_on_without_is_found() -> None:
    history = stories.recorded(stories.rewound())
    accepted = stories.numbers(history, PersonResetAccepted)[0]
    done = stories.numbers(history, ResetDone)[-1]
    unfinished = stories.dropped(history, done)
    assert "R7" not in stories.reported(unfinished)
    stopped = StateChanged(before=RegionState.RUNNING, after=RegionState.STOPPED, why="")
    assert stories.found(stories.appended(unfinished, stopped), "R7")[0].events == (accepted,)


def test_a_reset_that_is_overtaken_by_another_timeline_fails() -> None:
    driver = stories.two_checkpoints()
    first = min(driver.region.offsets)
    driver.reset(ToCheckpoint(sequence=first), request_id="one", forced=True)
    driver.reset(ToCurrent(), request_id="two", forced=True)
    driver.finish_reset()
    history = stories.recorded(driver)
    failed = stories.numbers(history, PersonResetFailed)[0]
    assert stories.body(history, failed, PersonResetFailed).request_id == "one"
    unnoticed = stories.replaced(history, failed, CheckpointRequestEnded(request_id=RequestId("other"), why=""))
    assert "goes on without it" in stories.found(unnoticed, "R7")[0].detail


def test_a_halt_fails_the_persons_reset_that_was_running() -> None:
    driver = stories.two_checkpoints()
    driver.reset(ToCurrent(), request_id="now", forced=True)
    driver.find_stranger()
    history = stories.recorded(driver)
    assert stories.numbers(history, Halted)
    failed = stories.numbers(history, PersonResetFailed)[0]
    assert "does not run any more" in stories.found(stories.dropped(history, failed), "R7")[0].detail
    driver.handle(START)
    driver.finish_reset()
    driver.process()
    stories.recorded(driver)


def test_a_waiting_reset_whose_checkpoint_is_gone_is_found() -> None:
    driver = stories.two_checkpoints()
    driver.start_batch(driver.member(0))
    driver.reset(ToCurrent(), request_id="now")
    history = stories.recorded(driver)
    request_id = RequestId("now")
    assert (
        "has ended"
        in stories.found(stories.appended(history, CheckpointRequestEnded(request_id=request_id, why="")), "R7")[
            0
        ].detail
    )
    stopped = StateChanged(before=RegionState.DRAINING, after=RegionState.HALTED, why="")
    assert "the region is halted" in stories.found(stories.appended(history, stopped), "R7")[0].detail
    accepted = stories.body(history, stories.numbers(history, PersonResetAccepted)[0], PersonResetAccepted)
    forgotten = stories.appended(stories.recorded(stories.two_checkpoints()), accepted)
    assert "was not asked for" in stories.found(forgotten, "R7")[0].detail


def test_a_region_resumed_before_it_had_stopped_runs() -> None:
    driver = stories.two_checkpoints()
    driver.handle(STOP)
    driver.complete()
    driver.handle(START)
    assert driver.region.state is RegionState.RUNNING
    driver.publish()
    driver.process()
    driver.checkpoint("third")
    stories.recorded(driver)
