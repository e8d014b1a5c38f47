from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kcr.errors import BatchRefused, LeaseExpired, NotClaimed, RegionInState, StaleEpoch, StaleIncarnation
from airflow_kcr.protocol.offsets import SeekEntry, SeekSource
from airflow_kcr.protocol.region import events, resets
from airflow_kcr.protocol.region.commands import Acknowledge, AnswerEntries, Found, KillRegion, RequestReset
from airflow_kcr.protocol.region.rows import Outcome, ResetCause
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.targets import ToDatetime
from airflow_kcr.protocol.values import Epoch, Incarnation, Offset
from tests.support.driver import BEGINNING, Driver
from tests.support.judging import causes, happened, positions
from tests.support.scripts import checkpoints_of_ten, running, started


def resetting(*, members: int = 2, delivery: Delivery = Delivery.AT_LEAST_ONCE, claimed: bool = True) -> Driver:
    """Return a region in a reset after everything was accepted up to 20 and checkpoint at 10.

    Its members have claimed.
    """
    driver = started(Driver(partitions=members, members=members, delivery=delivery))
    checkpoints_of_ten(driver, 1)
    driver.process()
    fail(driver)
    if claimed:
        for member in driver.all_members():
            driver.claim(member)
    return driver


def fail(driver: Driver, epoch: int | None = None, cause: ResetCause = ResetCause.BATCH_FAILED) -> None:
    caller = driver.caller(driver.member(0))
    caller = caller if epoch is None else replace(caller, epoch=Epoch(epoch))
    driver.handle(RequestReset(caller=caller, cause=cause, detail="it broke"))


# -- open entries -----------------------------------------------------------------------------------------------------


def test_a_member_answers_the_open_entries_of_what_it_holds() -> None:
    driver = resetting(delivery=Delivery.EXACTLY_ONCE)
    assert resets.open_targets(driver.region, driver.member(0)) == {
        driver.partition(0): SeekEntry(offset=None, source=SeekSource.SINK_PROGRESS, current=Offset(20))
    }
    assert resets.open_targets(resetting().region, driver.member(0)) == {}


def test_without_a_position_the_fallback_is_the_restore_point() -> None:
    driver = resetting(delivery=Delivery.EXACTLY_ONCE)
    fail(driver)
    driver.claim(driver.member(0))
    targets = resets.open_targets(driver.region, driver.member(0))
    assert targets[driver.partition(0)].current == 10


def test_a_sinks_progress_is_where_its_partition_resumes() -> None:
    driver = resetting(delivery=Delivery.EXACTLY_ONCE)
    found = {driver.partition(0): Found(offset=Offset(17))}
    driver.handle(AnswerEntries(caller=driver.caller(driver.member(0)), found=found))
    claim = driver.region.claims[driver.partition(0)]
    assert (claim.resume, claim.position, claim.started_to) == (17, 17, 17)
    assert happened(driver, events.SeekWritten)[-1].seek[driver.partition(0)].offset == 17


def test_the_first_answer_counts_and_one_to_no_question_changes_nothing() -> None:
    driver = resetting(delivery=Delivery.EXACTLY_ONCE)
    for offset in (17, 12):
        found = {driver.partition(0): Found(offset=Offset(offset))}
        driver.handle(AnswerEntries(caller=driver.caller(driver.member(0)), found=found))
    assert driver.region.claims[driver.partition(0)].resume == 17
    region = driver.region
    assert (
        resets.answer(region, driver.clock.now, AnswerEntries(caller=driver.caller(driver.member(0)), found={}))
        is region
    )
    without = replace(region, seek_maps={})
    found = {driver.partition(0): Found(offset=Offset(3))}
    assert (
        resets.answer(without, driver.clock.now, AnswerEntries(caller=driver.caller(driver.member(0)), found=found))
        is without
    )


def test_what_was_asked_for_is_kept_with_a_clamped_answer() -> None:
    driver = started(Driver(partitions=1, members=1))
    driver.process()
    driver.reset(ToDatetime(instant=BEGINNING))
    driver.complete()
    driver.claim(driver.member(0))
    found = {driver.partition(0): Found(offset=Offset(5), clamped_from=-3)}
    driver.handle(AnswerEntries(caller=driver.caller(driver.member(0)), found=found))
    entry = driver.region.seek[driver.partition(0)]
    assert (entry.offset, entry.clamped_from, entry.source) == (5, -3, SeekSource.EXPLICIT)


def test_nobody_answers_for_what_it_does_not_hold_now() -> None:
    driver = resetting(delivery=Delivery.EXACTLY_ONCE)
    found = {driver.partition(1): Found(offset=Offset(17))}
    for number in (1, 9):
        strange = {driver.partition(number): Found(offset=Offset(17))}
        with pytest.raises(NotClaimed, match=f"g\\[0\\] does not hold g:t-{number} now"):
            driver.handle(AnswerEntries(caller=driver.caller(driver.member(0)), found=strange))
    stale = resetting(delivery=Delivery.EXACTLY_ONCE, claimed=False)
    with pytest.raises(NotClaimed):
        stale.handle(AnswerEntries(caller=stale.caller(stale.member(1)), found=found))


def test_an_answer_is_fenced() -> None:
    driver = resetting(delivery=Delivery.EXACTLY_ONCE)
    caller, found = driver.caller(driver.member(0)), {driver.partition(0): Found(offset=Offset(17))}
    with pytest.raises(StaleEpoch):
        driver.handle(AnswerEntries(caller=replace(caller, epoch=Epoch(1)), found=found))
    with pytest.raises(StaleIncarnation):
        driver.handle(AnswerEntries(caller=replace(caller, incarnation=Incarnation(9)), found=found))
    driver.clock.advance(10)
    with pytest.raises(LeaseExpired):
        driver.handle(AnswerEntries(caller=caller, found=found))


# -- the acknowledgement ----------------------------------------------------------------------------------------------


def test_a_second_acknowledgement_changes_nothing() -> None:
    driver = resetting()
    for member in driver.all_members():
        driver.acknowledge(member)
        counter = driver.region.counter
        driver.acknowledge(member)
        assert driver.region.counter == counter


def test_what_the_member_left_running_is_discarded_with_it() -> None:
    driver = running()
    mine, theirs = driver.start_batch(driver.member(0)), driver.start_batch(driver.member(1))
    fail(driver)
    driver.claim(driver.member(0))
    driver.acknowledge(driver.member(0))
    assert driver.row(mine).outcome is Outcome.DISCARDED
    assert driver.row(theirs).outcome is None


def test_a_member_claims_before_it_acknowledges() -> None:
    driver = resetting(claimed=False)
    with pytest.raises(NotClaimed, match=r"g\[0\] has not claimed in epoch 2; claim first, then acknowledge"):
        driver.handle(Acknowledge(caller=driver.caller(driver.member(0))))


def test_and_answers_what_is_open() -> None:
    driver = resetting(delivery=Delivery.EXACTLY_ONCE)
    with pytest.raises(BatchRefused, match=r"g\[0\] has open seek entries: g:t-0"):
        driver.handle(Acknowledge(caller=driver.caller(driver.member(0))))
    driver.acknowledge(driver.member(0))


def test_there_is_something_to_acknowledge_only_in_a_reset() -> None:
    driver = running()
    driver.join(driver.member(0), takeover=True)
    with pytest.raises(RegionInState, match="is running; an acknowledgement needs it resetting or starting"):
        driver.handle(Acknowledge(caller=driver.caller(driver.member(0))))


# -- automatic requests -----------------------------------------------------------------------------------------------


def test_a_request_of_the_present_epoch_begins_a_reset_and_names_who_asked() -> None:
    driver = running()
    fail(driver)
    assert causes(driver) == ["start", "batch_failed"]
    assert happened(driver, events.ResetBegun)[-1].detail == "g[0]: it broke"
    assert happened(driver, events.ResetRequested)[0].epoch == 1


def test_one_of_an_older_epoch_is_answered_already() -> None:
    driver = running()
    fail(driver)
    fail(driver, epoch=1)
    assert causes(driver) == ["start", "batch_failed"]
    assert len(happened(driver, events.ResetRequested)) == 2


def test_one_of_an_epoch_that_the_store_has_not_reached_is_refused() -> None:
    driver = running()
    with pytest.raises(StaleEpoch):
        fail(driver, epoch=7)


def test_a_halted_or_stopped_region_resets_nothing_by_itself() -> None:
    driver = running()
    driver.find_stranger()
    fail(driver)
    assert causes(driver) == ["start"]
    driver.handle(KillRegion())
    fail(driver)
    assert causes(driver) == ["start"]


def test_a_request_without_a_word_is_named_by_who_made_it() -> None:
    driver = running()
    driver.request_reset(driver.member(1), ResetCause.BATCH_TIMEOUT)
    assert happened(driver, events.ResetBegun)[-1].detail == "g[1]"


def test_who_lost_its_lease_asks_for_nothing() -> None:
    driver = running()
    driver.clock.advance(10)
    with pytest.raises(LeaseExpired):
        fail(driver)
    assert positions(driver) == [0, 0, 0, 0]
