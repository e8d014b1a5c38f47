from __future__ import annotations

from dataclasses import replace

from airflow_kcr.protocol.invariants import History
from airflow_kcr.protocol.region.commands import (
    KillRegion,
    ReportForeignConsumer,
    ReportLater,
    ReportNoted,
    RequestReset,
    StartRegion,
    StopRegion,
)
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
from tests.support.driver import Driver
from tests.unit.protocol.invariants.stories import (
    altered,
    altered_batch,
    appended,
    body,
    crash_between,
    dropped,
    found,
    numbers,
    recorded,
    replaced,
    reported,
    rewound,
    two_checkpoints,
)


def asked() -> Driver:
    """A failed batch's request, answered by a reset; a late one of the epoch before; and a batch after."""
    driver = two_checkpoints()
    old = driver.caller(driver.member(0))
    for _ in range(2):
        driver.handle(RequestReset(caller=old, cause=ResetCause.BATCH_FAILED, detail=""))
    driver.finish_reset()
    driver.process()
    return driver


def test_a_request_that_nothing_follows_is_found() -> None:
    history = recorded(asked())
    request = numbers(history, ResetRequested)[0]
    gone = dropped(history, *[n for n in numbers(history, ResetBegun) if n > request])
    assert "nothing followed" in found(gone, "R7")[0].detail
    last = body(history, request, ResetRequested)
    pending = appended(history, altered_request(last, Epoch(2)))
    assert found(pending, "R7")[0].events == (pending.events[-1].number,)


def altered_request(request: ResetRequested, epoch: Epoch) -> ResetRequested:
    return ResetRequested(member=request.member, epoch=epoch, cause=request.cause, detail=request.detail)


def test_a_request_followed_by_no_greater_epoch_is_found() -> None:
    history = recorded(asked())
    request = numbers(history, ResetRequested)[0]
    ahead = altered(history, request, epoch=Epoch(5))
    assert "followed by epoch 2" in found(ahead, "R7")[0].detail


def test_a_batch_between_a_request_and_its_reset_is_found() -> None:
    history = recorded(asked())
    request = numbers(history, ResetRequested)[0]
    assert "a batch began" in found(altered_batch(history, 3, started_after=request), "R7")[0].detail


def test_an_epoch_without_a_cause_is_found() -> None:
    history = recorded(crash_between())
    reset = numbers(history, ResetBegun)[1]
    (violation,) = [v for v in found(dropped(history, reset), "R7") if "has no cause" in v.detail]
    assert violation.events[-1] == reset + 1


def test_an_epoch_that_jumps_or_repeats_is_found() -> None:
    history = recorded(crash_between())
    reset = numbers(history, ResetBegun)[1]
    for epoch in (Epoch(1), Epoch(3)):
        assert found(altered(history, reset, epoch=epoch), "R7")[0].events[-1] == reset


def test_a_kill_is_a_cause_and_a_restored_store_may_jump() -> None:
    driver = two_checkpoints()
    driver.handle(KillRegion())
    driver.handle(StartRegion())
    driver.handle(
        ReportLater(
            member=driver.member(0),
            epoch=Epoch(40),
            incarnation=driver.processes[driver.member(0)].incarnation,
            sequence=CheckpointNumber(70),
        ),
    )
    driver.handle(StartRegion())
    driver.recover()
    history = recorded(driver)
    assert driver.region.epoch == 41
    assert found(dropped(history, *numbers(history, Killed)), "R7")
    assert found(dropped(history, *numbers(history, StoreRestoredSeen)), "R7")
    back = next(e for e in history.events if isinstance(e.body, StoreRestoredSeen))
    lower = replace(back, epoch=Epoch(1))
    events = [lower if e.number == back.number else e for e in history.events]
    assert found(History(events, history.batches), "R7")


def test_numbers_of_kafka_s_metadata_are_taken_over_with_a_cause() -> None:
    driver = two_checkpoints()
    region = driver.region
    driver.handle(
        ReportNoted(
            partition=driver.partition(0),
            noted=Noted(
                member=driver.member(0),
                epoch=Epoch(40),
                sequence=CheckpointNumber(70),
                timeline=region.timeline,
            ),
        )
    )
    driver.handle(StartRegion())
    driver.recover()
    history = recorded(driver)
    assert (driver.region.epoch, driver.region.restore_epoch is None) == (41, False)
    assert found(dropped(history, *numbers(history, StoreRestoredSeen)), "R7")


def test_a_persons_reset_that_was_never_accepted_is_found() -> None:
    history = recorded(rewound())
    accepted = numbers(history, PersonResetAccepted)[0]
    assert "never accepted" in found(dropped(history, accepted), "R7")[0].detail


def test_a_persons_reset_that_moves_what_it_was_not_accepted_for_is_found() -> None:
    history = recorded(rewound())
    accepted, reset = numbers(history, PersonResetAccepted)[0], numbers(history, ResetBegun)[-1]
    assert "R7" not in reported(history)
    told = body(history, accepted, PersonResetAccepted)
    narrower = replace(told, scope=replace(told.scope, planned=frozenset()))
    violations = found(replaced(history, accepted, narrower), "R7")
    assert {v.events for v in violations} == {(accepted, reset)}
    assert "was not accepted for it and moves it to" in violations[0].detail


def test_a_persons_reset_that_neither_begins_nor_fails_after_its_checkpoint_is_found() -> None:
    history = recorded(rewound())
    reset = numbers(history, ResetBegun)[-1]
    completed = numbers(history, CheckpointCompleted)[2]
    assert (completed,) in {v.events for v in found(dropped(history, reset), "R7")}


def test_a_persons_reset_that_the_region_went_on_without_is_found() -> None:
    history = recorded(rewound())
    accepted = numbers(history, PersonResetAccepted)[0]
    done = numbers(history, ResetDone)[-1]
    unfinished = dropped(history, done)
    assert "R7" not in reported(unfinished)
    stopped = StateChanged(before=RegionState.RUNNING, after=RegionState.STOPPED, why="")
    assert found(appended(unfinished, stopped), "R7")[0].events == (accepted,)


def test_a_reset_that_is_overtaken_by_another_timeline_fails() -> None:
    driver = two_checkpoints()
    first = min(driver.region.offsets)
    driver.reset(ToCheckpoint(sequence=first), request_id="one", forced=True)
    driver.reset(ToCurrent(), request_id="two", forced=True)
    driver.finish_reset()
    history = recorded(driver)
    failed = numbers(history, PersonResetFailed)[0]
    assert body(history, failed, PersonResetFailed).request_id == "one"
    unnoticed = replaced(history, failed, CheckpointRequestEnded(request_id=RequestId("other"), why=""))
    assert "goes on without it" in found(unnoticed, "R7")[0].detail


def test_a_halt_fails_the_persons_reset_that_was_running() -> None:
    driver = two_checkpoints()
    driver.reset(ToCurrent(), request_id="now", forced=True)
    driver.handle(ReportForeignConsumer(text="somebody else is in the group"))
    history = recorded(driver)
    assert numbers(history, Halted)
    failed = numbers(history, PersonResetFailed)[0]
    assert "does not run any more" in found(dropped(history, failed), "R7")[0].detail
    driver.handle(StartRegion())
    driver.finish_reset()
    driver.process()
    recorded(driver)


def test_a_waiting_reset_whose_checkpoint_is_gone_is_found() -> None:
    driver = two_checkpoints()
    driver.start_batch(driver.member(0))
    driver.reset(ToCurrent(), request_id="now")
    history = recorded(driver)
    request_id = RequestId("now")
    assert (
        "has ended" in found(appended(history, CheckpointRequestEnded(request_id=request_id, why="")), "R7")[0].detail
    )
    stopped = StateChanged(before=RegionState.DRAINING, after=RegionState.HALTED, why="")
    assert "the region is halted" in found(appended(history, stopped), "R7")[0].detail
    accepted = body(history, numbers(history, PersonResetAccepted)[0], PersonResetAccepted)
    forgotten = appended(recorded(two_checkpoints()), accepted)
    assert "was not asked for" in found(forgotten, "R7")[0].detail


def test_a_region_resumed_before_it_had_stopped_runs() -> None:
    driver = two_checkpoints()
    driver.handle(StopRegion())
    driver.complete()
    driver.handle(StartRegion())
    assert driver.region.state is RegionState.RUNNING
    driver.publish()
    driver.process()
    driver.checkpoint("third")
    recorded(driver)
