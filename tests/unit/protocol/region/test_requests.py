from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from airflow_kcr.errors import CheckpointRefused, RegionInState
from airflow_kcr.protocol.region import checkpoints, events, requests, timelines
from airflow_kcr.protocol.region.commands import Reconcile
from airflow_kcr.protocol.region.rows import (
    CheckpointPurpose,
    CheckpointRequest,
    CheckpointState,
    PersonResetState,
    RegionState,
    Requester,
    RequestState,
    ResetCause,
)
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import CheckpointMode
from airflow_kcr.protocol.targets import ToCurrent
from airflow_kcr.protocol.values import CheckpointNumber, DesiredState, RequestId, format_instant
from tests.support.driver import Driver
from tests.support.judging import checkpoint_of, happened, judge, open_checkpoint
from tests.support.scripts import boundary, hourly, located, running

MINUTE = timedelta(minutes=1)


def queued(
    driver: Driver,
    request_id: str,
    purpose: CheckpointPurpose = CheckpointPurpose.REQUEST,
    at: datetime | None = None,
    order: int = 0,
) -> CheckpointRequest:
    return CheckpointRequest(
        request_id=RequestId(request_id),
        purpose=purpose,
        state=RequestState.QUEUED,
        requested_at=driver.clock.now,
        order=order,
        boundary=at,
    )


def with_queue(driver: Driver, *rows: CheckpointRequest) -> Region:
    region = driver.region
    for row in rows:
        region = region.with_request(row)
    return region


def answer_of(driver: Driver, request_id: str) -> tuple[RequestState, CheckpointNumber | None]:
    row = driver.region.requests[RequestId(request_id)]
    return row.state, row.sequence


# -- asking -----------------------------------------------------------------------------------------------------------


def test_a_request_is_stored_with_who_asked_and_its_checkpoint_opens_at_once_where_it_can() -> None:
    driver = running()
    who = Requester(dag_id="checkpoint", run_id="r1")
    row = driver.request_checkpoint("n", requester=who)
    assert (row.state, row.sequence, row.requester) == (RequestState.OPEN, driver.region.open_checkpoint, who)
    assert happened(driver, events.CheckpointRequested) == [
        events.CheckpointRequested(
            request_id=RequestId("n"), purpose=CheckpointPurpose.REQUEST, boundary=None, requester=who
        )
    ]


def test_asking_again_with_the_same_request_id_finds_out_where_the_request_stands() -> None:
    driver = running()
    driver.request_checkpoint("n")
    driver.request_checkpoint("waits")
    assert driver.request_checkpoint("n").state is RequestState.OPEN
    assert driver.request_checkpoint("waits").state is RequestState.QUEUED
    sequence = driver.complete()
    row = driver.request_checkpoint("n")
    assert (row.state, row.sequence) == (RequestState.ANSWERED, sequence)
    assert len(happened(driver, events.CheckpointRequested)) == 2


def test_a_request_id_names_one_request_and_no_other() -> None:
    driver = hourly()
    driver.request_checkpoint("n", boundary=boundary(1))
    another = f"request id n names a request for another checkpoint (request, up to {format_instant(boundary(1))})"
    with pytest.raises(CheckpointRefused, match=re.escape(another)):
        driver.request_checkpoint("n", boundary=boundary(2))
    with pytest.raises(CheckpointRefused, match="request id n names"):
        driver.request_checkpoint("n", boundary=boundary(1), purpose=CheckpointPurpose.DRAIN)


@pytest.mark.parametrize("request_id", [f"boundary:{boundary(1).isoformat()}", "records:1.2", "stop:1:2"])
def test_nobody_else_may_ask_under_a_request_id_of_the_regions_own(request_id: str) -> None:
    driver = hourly(mode=CheckpointMode.AUTO)
    with pytest.raises(CheckpointRefused, match="are the region's own; take another"):
        driver.request_checkpoint(request_id, boundary=boundary(1))
    driver.wait(3_600)
    assert open_checkpoint(driver) is not None


@pytest.mark.parametrize("purpose", [CheckpointPurpose.REQUEST, CheckpointPurpose.DRAIN])
def test_a_store_in_which_somebody_did_goes_on(purpose: CheckpointPurpose) -> None:
    driver = hourly(mode=CheckpointMode.AUTO)
    request_id = f"boundary:{boundary(1).isoformat()}"
    older = with_queue(driver, replace(queued(driver, request_id, purpose, at=boundary(1)), state=RequestState.ABORTED))
    driver.change(lambda *_: older)
    driver.wait(3_600)
    assert open_checkpoint(driver) is not None
    assert driver.region.requests[RequestId(request_id)].purpose is CheckpointPurpose.SCHEDULE


def test_a_checkpoint_and_a_reset_never_share_a_request_id() -> None:
    driver = running()
    driver.checkpoint("taken")
    with pytest.raises(
        CheckpointRefused, match="request id taken names a request for a checkpoint; plan the reset under another"
    ):
        driver.reset(ToCurrent(), request_id="taken")
    driver.request_reset(driver.member(0), ResetCause.BATCH_REFUSED)
    driver.reset(ToCurrent(), request_id="waits")
    with pytest.raises(CheckpointRefused, match="request id waits names a reset; take another for the checkpoint"):
        driver.request_checkpoint("waits")
    driver.finish_reset()
    driver.complete()
    driver.finish_reset()
    assert driver.region.person_resets[RequestId("waits")].state is PersonResetState.DONE
    judge(driver)


def test_a_request_without_an_answer_has_no_valid_one() -> None:
    driver = running()
    row = driver.request_checkpoint("n")
    assert requests.valid_answer(driver.region, row) is None
    lost = replace(row, state=RequestState.ANSWERED, sequence=CheckpointNumber(99))
    assert requests.valid_answer(driver.region, lost) is None
    assert requests.valid_answer(driver.region, replace(lost, sequence=None)) is None


def test_a_stopped_or_halted_region_checkpoints_nothing_and_says_why() -> None:
    driver = running(partitions=1, members=1)
    driver.find_stranger()
    with pytest.raises(RegionInState, match="is halted: consumer stranger on host host in group g; resume it"):
        driver.request_checkpoint("n")
    with pytest.raises(RegionInState, match="is stopped; resume it"):
        Driver().request_checkpoint("n")


def test_but_a_run_may_ask_and_wait_for_members_to_come_back() -> None:
    driver = running()
    driver.clock.advance(60)
    assert driver.request_checkpoint("n").state is RequestState.QUEUED


# -- boundaries
# -----------------------------------------------------------------------------------------------------------


def test_a_completed_checkpoint_answers_its_own_request_and_those_of_earlier_boundaries() -> None:
    driver = hourly()
    driver.request_checkpoint("two", boundary=boundary(2))
    driver.request_checkpoint("one", boundary=boundary(1))
    driver.request_checkpoint("three", boundary=boundary(3))
    driver.request_checkpoint("now")
    located(driver, boundary(2), 10)
    driver.process()
    driver.handle(Reconcile())
    sequence = driver.complete()
    assert answer_of(driver, "two") == answer_of(driver, "one") == (RequestState.ANSWERED, sequence)
    assert answer_of(driver, "three")[0] is answer_of(driver, "now")[0] is RequestState.QUEUED
    assert {b.request_id for b in happened(driver, events.CheckpointRequestAnswered)} == {"one", "two"}


def test_all_that_ask_for_any_moment_while_a_checkpoint_is_open_are_answered_by_the_next_one() -> None:
    driver = running()
    driver.request_checkpoint("first")
    driver.wait(1)
    waiting = [f"run-{number}" for number in range(8)]
    for request_id in waiting:
        driver.request_checkpoint(request_id)
    driver.complete()
    assert {answer_of(driver, request_id)[0] for request_id in waiting} == {RequestState.QUEUED}
    driver.wait(1)
    driver.publish()
    second = driver.complete()
    assert {answer_of(driver, request_id) for request_id in waiting} == {(RequestState.ANSWERED, second)}
    driver.publish()
    assert driver.region.state is RegionState.RUNNING  # members read on
    judge(driver)


@pytest.mark.parametrize("purpose", sorted(requests.BY_PERSON))
def test_what_a_person_waits_for_has_a_checkpoint_of_its_own(purpose: CheckpointPurpose) -> None:
    driver = running()
    region = with_queue(driver, queued(driver, "person", purpose))
    driver.wait(1)
    driver.request_checkpoint("n")
    checkpoint = checkpoint_of(driver)
    region = replace(region, requests={**region.requests, **driver.region.requests})
    assert (
        requests.release(region, driver.clock.now, checkpoint).requests[RequestId("person")].state
        is RequestState.QUEUED
    )


def test_a_completed_checkpoint_whose_own_request_is_not_open_any_more_answers_only_others() -> None:
    driver = running()
    driver.request_checkpoint("n")
    checkpoint = checkpoint_of(driver)
    ended = requests.end_request(
        driver.region, driver.clock.now, driver.region.requests[checkpoint.request_id], RequestState.SUPERSEDED, "gone"
    )
    released = requests.release(ended, driver.clock.now, checkpoint)
    assert released.requests[checkpoint.request_id].state is RequestState.SUPERSEDED


def test_what_a_request_wants_of_the_region_afterwards_holds_when_it_is_answered() -> None:
    driver = running()
    row = replace(queued(driver, "n", CheckpointPurpose.DRAIN), then=DesiredState.PAUSED)
    region = requests.answered(driver.region, driver.clock.now, row, CheckpointNumber(1))
    assert region.desired_state is DesiredState.PAUSED
    assert region.events[-1].body == events.DesiredStateChanged(
        desired_state=DesiredState.PAUSED, requester=row.requester
    )
    again = requests.answered(region, driver.clock.now, row, CheckpointNumber(1))
    assert len(again.events) == len(region.events) + 1


# -- the queue --------------------------------------------------------------------------------------------------------


def test_a_person_comes_first_then_requests_without_a_boundary_then_boundaries_in_the_order_of_time() -> None:
    driver = running()
    region = with_queue(
        driver,
        queued(driver, "boundary-2", at=boundary(2), order=1),
        queued(driver, "boundary-1", at=boundary(1), order=2),
        queued(driver, "now", order=3),
        queued(driver, "schedule-1", CheckpointPurpose.SCHEDULE, at=boundary(1), order=4),
        queued(driver, "drain-at-1", CheckpointPurpose.DRAIN, at=boundary(1), order=5),
        queued(driver, "reset", CheckpointPurpose.RESET, order=6),
        queued(driver, "stop", CheckpointPurpose.STOP, order=7),
        replace(queued(driver, "answered"), state=RequestState.ANSWERED),
    )
    assert [r.request_id for r in requests.queue(region)] == [
        *("reset", "stop", "drain-at-1", "now", "boundary-1", "schedule-1", "boundary-2")
    ]


def test_of_two_requests_without_a_boundary_the_one_that_was_asked_first_is_served_first() -> None:
    driver = running()
    later = replace(queued(driver, "later", order=1), requested_at=driver.clock.now + MINUTE)
    region = with_queue(driver, later, queued(driver, "sooner", order=3), queued(driver, "same-time", order=2))
    assert [r.request_id for r in requests.queue(region)] == ["same-time", "sooner", "later"]


def approaching(purpose: CheckpointPurpose = CheckpointPurpose.REQUEST) -> Driver:
    driver = hourly()
    driver.request_checkpoint("open", boundary=boundary(1), purpose=purpose)
    return driver


@pytest.mark.parametrize("purpose", sorted(requests.BY_PERSON))
def test_a_person_does_not_wait_for_a_checkpoint_that_only_approaches_its_boundary(purpose: CheckpointPurpose) -> None:
    driver = approaching()
    assert checkpoints.preempts(driver.region, queued(driver, "n", purpose))
    assert checkpoints.preempts(driver.region, queued(driver, "n", purpose, at=boundary(2)))


def test_nobody_else_preempts_it() -> None:
    driver = approaching()
    assert not checkpoints.preempts(driver.region, queued(driver, "n"))
    assert not checkpoints.preempts(driver.region, queued(driver, "n", CheckpointPurpose.SCHEDULE))


def test_two_persons_who_drain_to_a_boundary_do_not_abort_each_other() -> None:
    driver = approaching(CheckpointPurpose.DRAIN)
    assert not checkpoints.preempts(driver.region, queued(driver, "n", CheckpointPurpose.DRAIN, at=boundary(2)))
    assert checkpoints.preempts(driver.region, queued(driver, "n", CheckpointPurpose.DRAIN))


def test_a_checkpoint_that_drains_is_waited_for() -> None:
    driver = running()
    assert not checkpoints.preempts(driver.region, queued(driver, "n", CheckpointPurpose.STOP))
    driver.request_checkpoint("open")
    assert checkpoint_of(driver).state is CheckpointState.DRAINING
    assert not checkpoints.preempts(driver.region, queued(driver, "n", CheckpointPurpose.STOP))


# -- ends -------------------------------------------------------------------------------------------------------------


def test_queued_requests_are_cancelled_with_the_verb_behind_them() -> None:
    driver = running()
    region = with_queue(driver, queued(driver, "stop", CheckpointPurpose.STOP), queued(driver, "run"))
    region = requests.cancel(region, driver.clock.now, "resumed", [region.requests[RequestId("stop")]])
    assert region.requests[RequestId("stop")].state is RequestState.SUPERSEDED
    assert region.requests[RequestId("stop")].refusal == "resumed"
    assert region.requests[RequestId("run")].state is RequestState.QUEUED
    assert region.events[-1].body == events.CheckpointRequestEnded(request_id=RequestId("stop"), why="resumed")


def test_a_request_that_is_no_longer_queued_is_not_cancelled() -> None:
    driver = running()
    row = driver.request_checkpoint("n")
    region = driver.region
    assert requests.cancel(region, driver.clock.now, "why", [row]) is region
    waits = queued(driver, "waits")
    region = with_queue(driver, waits)
    assert requests.cancel(region, driver.clock.now, "why", [waits]).requests[waits.request_id].refusal == "why"


def test_a_request_that_has_ended_does_not_come_back() -> None:
    driver = running()
    driver.process()
    driver.checkpoint("n")
    region = driver.region
    assert requests.requeued(region, RequestId("n")) is region


def test_an_undone_checkpoint_no_longer_covers_a_boundary() -> None:
    driver = hourly()
    located(driver, boundary(1), 10)
    driver.process()
    driver.request_checkpoint("n", boundary=boundary(1))
    sequence = driver.complete()
    region = driver.region
    covering = timelines.covering(region, boundary(1))
    assert covering is not None
    assert covering.sequence == sequence
    undone = region.with_checkpoint(replace(region.checkpoints[sequence], undone_by=region.timeline))
    assert timelines.covering(undone, boundary(1)) is None
