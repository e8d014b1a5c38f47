from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from airflow_kcr.errors import CutRefused, RegionInState
from airflow_kcr.protocol.region import events, path, requests
from airflow_kcr.protocol.region.rows import (
    CheckpointState,
    CutPhase,
    CutPurpose,
    CutRequest,
    PersonResetState,
    RegionState,
    Requester,
    RequestState,
    ResetCause,
    Wanted,
)
from airflow_kcr.protocol.region.state import Region, with_checkpoint, with_request
from airflow_kcr.protocol.rules import CutMode
from airflow_kcr.protocol.targets import ToCheckpoint, ToCurrent
from airflow_kcr.protocol.values import Nonce, Sequence
from tests.support.driver import Driver
from tests.support.judging import happened, judge, open_cut
from tests.support.scripts import bound, cuts_of_ten, hourly, located, rewind, running

MINUTE = timedelta(minutes=1)


def queued(
    driver: Driver,
    nonce: str,
    purpose: CutPurpose = CutPurpose.REQUEST,
    at: datetime | None = None,
    order: int = 0,
) -> CutRequest:
    return CutRequest(
        nonce=Nonce(nonce),
        purpose=purpose,
        state=RequestState.QUEUED,
        requested_at=driver.clock.now,
        order=order,
        bound=at,
    )


def with_queue(driver: Driver, *rows: CutRequest) -> Region:
    region = driver.region
    for row in rows:
        region = with_request(region, row)
    return region


def answer_of(driver: Driver, nonce: str) -> tuple[RequestState, Sequence | None]:
    row = driver.region.requests[Nonce(nonce)]
    return row.state, row.sequence


# -- asking -----------------------------------------------------------------------------------------------------------


def test_a_request_is_stored_with_who_asked_and_its_cut_opens_at_once_where_it_can() -> None:
    driver = running()
    who = Requester(dag_id="cut", run_id="r1")
    row = driver.request_cut("n", requester=who)
    assert (row.state, row.sequence, row.requester) == (RequestState.OPEN, driver.region.open_cut, who)
    assert happened(driver, events.CutRequested) == [
        events.CutRequested(nonce=Nonce("n"), purpose=CutPurpose.REQUEST, bound=None, requester=who)
    ]


def test_asking_again_with_the_same_nonce_finds_out_where_the_request_stands() -> None:
    driver = running()
    driver.request_cut("n")
    driver.request_cut("waits")
    assert driver.request_cut("n").state is RequestState.OPEN
    assert driver.request_cut("waits").state is RequestState.QUEUED
    sequence = driver.complete()
    row = driver.request_cut("n")
    assert (row.state, row.sequence) == (RequestState.ANSWERED, sequence)
    assert len(happened(driver, events.CutRequested)) == 2


def test_a_nonce_names_one_request_and_no_other() -> None:
    driver = hourly()
    driver.request_cut("n", bound=bound(1))
    with pytest.raises(CutRefused, match="nonce n names a request for another cut"):
        driver.request_cut("n", bound=bound(2))
    with pytest.raises(CutRefused, match="nonce n names"):
        driver.request_cut("n", bound=bound(1), purpose=CutPurpose.DRAIN)


@pytest.mark.parametrize("nonce", [f"bound:{bound(1).isoformat()}", "records:1.2", "stop:1:2"])
def test_nobody_else_may_ask_under_a_nonce_of_the_regions_own(nonce: str) -> None:
    driver = hourly(mode=CutMode.AUTO)
    with pytest.raises(CutRefused, match="are the region's own; take another"):
        driver.request_cut(nonce, bound=bound(1))
    driver.wait(3_600)
    assert open_cut(driver) is not None


@pytest.mark.parametrize("purpose", [CutPurpose.REQUEST, CutPurpose.DRAIN])
def test_a_store_in_which_somebody_did_goes_on(purpose: CutPurpose) -> None:
    driver = hourly(mode=CutMode.AUTO)
    nonce = f"bound:{bound(1).isoformat()}"
    older = with_queue(driver, replace(queued(driver, nonce, purpose, at=bound(1)), state=RequestState.ABORTED))
    driver.store._transactions.decide(driver.name, lambda *_: older)
    driver.wait(3_600)
    assert open_cut(driver) is not None
    assert driver.region.requests[Nonce(nonce)].purpose is CutPurpose.SCHEDULE


def test_a_cut_and_a_reset_never_share_a_nonce() -> None:
    driver = running()
    driver.cut("taken")
    with pytest.raises(CutRefused, match="nonce taken names a request for a cut; plan the reset under another"):
        driver.reset(ToCurrent(), nonce="taken")
    driver.store.request_reset(driver.name, driver.caller(driver.member(0)), ResetCause.BATCH_REFUSED, "")
    driver.reset(ToCurrent(), nonce="waits")
    with pytest.raises(CutRefused, match="nonce waits names a reset; take another for the cut"):
        driver.request_cut("waits")
    driver.settle_reset()
    driver.complete()
    driver.settle_reset()
    assert driver.region.person_resets[Nonce("waits")].state is PersonResetState.DONE
    judge(driver)


def test_a_store_in_which_they_do_fails_the_reset_and_goes_on() -> None:
    driver = running()
    driver.store.request_reset(driver.name, driver.caller(driver.member(0)), ResetCause.BATCH_REFUSED, "")
    driver.reset(ToCurrent(), nonce="shared")
    older = with_queue(driver, queued(driver, "shared"))
    driver.store._transactions.decide(driver.name, lambda *_: older)
    driver.settle_reset()
    row = driver.region.person_resets[Nonce("shared")]
    assert (row.state, row.failure) == (PersonResetState.FAILED, "its nonce shared names a request for a cut")
    assert open_cut(driver) is not None, "the request for the cut is served"


def test_after_an_abort_the_next_ask_opens_a_new_cut() -> None:
    driver = running()
    first = driver.request_cut("n").sequence
    driver.wait(200)
    assert answer_of(driver, "n") == (RequestState.ABORTED, first)
    second = driver.request_cut("n")
    assert second.state is RequestState.OPEN
    assert second.sequence is not None
    assert first is not None
    assert second.sequence > first
    judge(driver)


def test_an_old_run_still_gets_its_answer_when_its_checkpoint_is_retired() -> None:
    driver = hourly(keep=1)
    cuts = cuts_of_ten(driver, 3)
    driver.store.retire(driver.name)
    assert driver.region.checkpoints[cuts[0]].state is CheckpointState.RETIRED
    assert driver.request_cut("n0").sequence == cuts[0]
    assert open_cut(driver) is None


def test_a_run_whose_cut_a_later_lineage_has_undone_asks_anew() -> None:
    driver = running()
    cuts = cuts_of_ten(driver, 2)
    rewind(driver, ToCheckpoint(sequence=cuts[0]))
    assert requests.valid_answer(driver.region, driver.region.requests[Nonce("n0")]) == cuts[0]
    assert requests.valid_answer(driver.region, driver.region.requests[Nonce("n1")]) is None
    assert driver.request_cut("n1").state is RequestState.OPEN
    assert driver.request_cut("n0").sequence == cuts[0]


def test_a_request_without_an_answer_has_no_valid_one() -> None:
    driver = running()
    row = driver.request_cut("n")
    assert requests.valid_answer(driver.region, row) is None
    lost = replace(row, state=RequestState.ANSWERED, sequence=Sequence(99))
    assert requests.valid_answer(driver.region, lost) is None
    assert requests.valid_answer(driver.region, replace(lost, sequence=None)) is None


def test_a_stopped_or_halted_region_cuts_nothing_and_says_why() -> None:
    driver = running(partitions=1, members=1)
    driver.store.report_outsider(driver.name, "a stranger reads along")
    with pytest.raises(RegionInState, match="is halted: a stranger reads along; resume it"):
        driver.request_cut("n")
    with pytest.raises(RegionInState, match="is stopped; resume it"):
        Driver().request_cut("n")


def test_nobody_can_drain_a_region_without_a_live_member() -> None:
    driver = running()
    driver.clock.advance(60)
    with pytest.raises(CutRefused, match="nobody to drain"):
        driver.request_cut("n", purpose=CutPurpose.DRAIN)


def test_but_a_run_may_ask_and_wait_for_members_to_come_back() -> None:
    driver = running()
    driver.clock.advance(60)
    assert driver.request_cut("n").state is RequestState.QUEUED


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_a_bound_is_answered_at_once_by_the_first_cut_at_or_beyond_it() -> None:
    driver = hourly()
    for hours in (1, 2):
        located(driver, bound(hours), 10 * hours)
        driver.process()
        driver.request_cut(f"h{hours}", bound=bound(hours))
        driver.complete()
        driver.publish()
    assert driver.request_cut("same", bound=bound(1)).sequence == answer_of(driver, "h1")[1]
    assert driver.request_cut("between", bound=bound(1.5)).sequence == answer_of(driver, "h2")[1]
    assert path.covering(driver.region, bound(3)) is None


def test_an_unbounded_cut_covers_no_bound() -> None:
    driver = hourly()
    cuts_of_ten(driver, 1)
    assert path.covering(driver.region, bound(1)) is None


def test_a_completed_cut_answers_its_own_request_and_those_of_earlier_bounds() -> None:
    driver = hourly()
    driver.request_cut("two", bound=bound(2))
    driver.request_cut("one", bound=bound(1))
    driver.request_cut("three", bound=bound(3))
    driver.request_cut("now")
    located(driver, bound(2), 10)
    driver.process()
    driver.store.settle(driver.name)
    sequence = driver.complete()
    assert answer_of(driver, "two") == answer_of(driver, "one") == (RequestState.ANSWERED, sequence)
    assert answer_of(driver, "three")[0] is answer_of(driver, "now")[0] is RequestState.QUEUED
    assert {b.nonce for b in happened(driver, events.CutAnswered)} == {"one", "two"}


def test_all_that_ask_for_any_moment_while_a_cut_is_open_are_answered_by_the_next_one() -> None:
    driver = running()
    driver.request_cut("first")
    driver.wait(1)
    waiting = [f"run-{number}" for number in range(8)]
    for nonce in waiting:
        driver.request_cut(nonce)
    driver.complete()
    assert {answer_of(driver, nonce)[0] for nonce in waiting} == {RequestState.QUEUED}
    driver.wait(1)
    driver.publish()
    second = driver.complete()
    assert {answer_of(driver, nonce) for nonce in waiting} == {(RequestState.ANSWERED, second)}
    driver.publish()
    assert driver.region.state is RegionState.RUNNING  # members read on
    judge(driver)


@pytest.mark.parametrize("purpose", sorted(requests.BY_PERSON))
def test_what_a_person_waits_for_has_a_cut_of_its_own(purpose: CutPurpose) -> None:
    driver = running()
    region = with_queue(driver, queued(driver, "person", purpose))
    driver.wait(1)
    driver.request_cut("n")
    cut = driver.region.cut
    assert cut is not None
    region = replace(region, requests={**region.requests, **driver.region.requests})
    assert requests.release(region, driver.clock.now, cut).requests[Nonce("person")].state is RequestState.QUEUED


def test_a_completed_cut_whose_own_request_is_not_open_any_more_answers_only_others() -> None:
    driver = running()
    driver.request_cut("n")
    cut = driver.region.cut
    assert cut is not None
    ended = requests.ended(
        driver.region, driver.clock.now, driver.region.requests[cut.nonce], RequestState.SUPERSEDED, "gone"
    )
    released = requests.release(ended, driver.clock.now, cut)
    assert released.requests[cut.nonce].state is RequestState.SUPERSEDED


def test_what_a_request_wants_of_the_region_afterwards_holds_when_it_is_answered() -> None:
    driver = running()
    row = replace(queued(driver, "n", CutPurpose.DRAIN), then=Wanted.PAUSED)
    region = requests.answered(driver.region, driver.clock.now, row, Sequence(1))
    assert region.wanted is Wanted.PAUSED
    assert region.events[-1].body == events.WantedChanged(wanted=Wanted.PAUSED, requester=row.requester)
    again = requests.answered(region, driver.clock.now, row, Sequence(1))
    assert len(again.events) == len(region.events) + 1


# -- the queue --------------------------------------------------------------------------------------------------------


def test_a_person_comes_first_then_requests_without_a_bound_then_bounds_in_the_order_of_time() -> None:
    driver = running()
    region = with_queue(
        driver,
        queued(driver, "bound-2", at=bound(2), order=1),
        queued(driver, "bound-1", at=bound(1), order=2),
        queued(driver, "now", order=3),
        queued(driver, "schedule-1", CutPurpose.SCHEDULE, at=bound(1), order=4),
        queued(driver, "drain-at-1", CutPurpose.DRAIN, at=bound(1), order=5),
        queued(driver, "reset", CutPurpose.RESET, order=6),
        queued(driver, "stop", CutPurpose.STOP, order=7),
        replace(queued(driver, "answered"), state=RequestState.ANSWERED),
    )
    assert [r.nonce for r in requests.queue(region)] == [
        *("reset", "stop", "drain-at-1", "now", "bound-1", "schedule-1", "bound-2")
    ]


def test_of_two_requests_without_a_bound_the_one_that_was_asked_first_is_served_first() -> None:
    driver = running()
    later = replace(queued(driver, "later", order=1), requested_at=driver.clock.now + MINUTE)
    region = with_queue(driver, later, queued(driver, "sooner", order=3), queued(driver, "same-time", order=2))
    assert [r.nonce for r in requests.queue(region)] == ["same-time", "sooner", "later"]


def approaching(purpose: CutPurpose = CutPurpose.REQUEST) -> Driver:
    driver = hourly()
    driver.request_cut("open", bound=bound(1), purpose=purpose)
    return driver


@pytest.mark.parametrize("purpose", sorted(requests.BY_PERSON))
def test_a_person_does_not_wait_for_a_cut_that_only_approaches_its_bound(purpose: CutPurpose) -> None:
    driver = approaching()
    assert requests.preempts(driver.region, queued(driver, "n", purpose))
    assert requests.preempts(driver.region, queued(driver, "n", purpose, at=bound(2)))


def test_nobody_else_preempts_it() -> None:
    driver = approaching()
    assert not requests.preempts(driver.region, queued(driver, "n"))
    assert not requests.preempts(driver.region, queued(driver, "n", CutPurpose.SCHEDULE))


def test_two_persons_who_drain_to_a_bound_do_not_abort_each_other() -> None:
    driver = approaching(CutPurpose.DRAIN)
    assert not requests.preempts(driver.region, queued(driver, "n", CutPurpose.DRAIN, at=bound(2)))
    assert requests.preempts(driver.region, queued(driver, "n", CutPurpose.DRAIN))


def test_a_cut_that_drains_is_waited_for() -> None:
    driver = running()
    assert not requests.preempts(driver.region, queued(driver, "n", CutPurpose.STOP))
    driver.request_cut("open")
    cut = driver.region.cut
    assert cut is not None
    assert cut.phase is CutPhase.DRAINING
    assert not requests.preempts(driver.region, queued(driver, "n", CutPurpose.STOP))


# -- ends -------------------------------------------------------------------------------------------------------------


def test_queued_requests_of_a_purpose_are_cancelled_with_the_verb_behind_them() -> None:
    driver = running()
    region = with_queue(driver, queued(driver, "stop", CutPurpose.STOP), queued(driver, "run"))
    region = requests.cancel(region, driver.clock.now, "resumed", purposes=frozenset({CutPurpose.STOP}))
    assert region.requests[Nonce("stop")].state is RequestState.SUPERSEDED
    assert region.requests[Nonce("stop")].refusal == "resumed"
    assert region.requests[Nonce("run")].state is RequestState.QUEUED
    assert region.events[-1].body == events.CutRequestEnded(nonce=Nonce("stop"), why="resumed")


def test_a_request_that_is_no_longer_queued_is_not_cancelled() -> None:
    driver = running()
    row = driver.request_cut("n")
    region = driver.region
    assert requests.cancel_one(region, driver.clock.now, row, "why") is region
    waits = queued(driver, "waits")
    region = with_queue(driver, waits)
    assert requests.cancel_one(region, driver.clock.now, waits, "why").requests[waits.nonce].refusal == "why"


def test_a_request_goes_back_to_the_queue_with_its_place_when_its_cut_was_not_at_fault() -> None:
    driver = running()
    row = driver.request_cut("n")
    again = requests.requeued(driver.region, row.nonce).requests[row.nonce]
    assert again == replace(row, state=RequestState.QUEUED)


def test_a_request_that_has_ended_does_not_come_back() -> None:
    driver = running()
    driver.process()
    driver.cut("n")
    region = driver.region
    assert requests.requeued(region, Nonce("n")) is region


def test_an_undone_cut_no_longer_covers_a_bound() -> None:
    driver = hourly()
    located(driver, bound(1), 10)
    driver.process()
    driver.request_cut("n", bound=bound(1))
    sequence = driver.complete()
    region = driver.region
    covering = path.covering(region, bound(1))
    assert covering is not None
    assert covering.sequence == sequence
    undone = with_checkpoint(region, replace(region.checkpoints[sequence], undone_by=region.lineage))
    assert path.covering(undone, bound(1)) is None


def test_a_reset_puts_the_request_of_the_open_cut_back_into_the_queue() -> None:
    driver = running()
    driver.request_cut("n")
    driver.store.request_reset(driver.name, driver.caller(driver.member(0)), ResetCause.BATCH_FAILED, "")
    assert driver.region.requests[Nonce("n")].state is RequestState.QUEUED
    driver.settle_reset()
    assert driver.region.requests[Nonce("n")].state is RequestState.OPEN
