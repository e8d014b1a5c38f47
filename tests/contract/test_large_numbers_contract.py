"""A region that has run for long: sequences with many digits, below, at and beyond what 32 bits hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_kcr.errors import CheckpointNotUsable, NumberOutOfRange
from airflow_kcr.protocol.region.commands import DeleteRegion, KillRegion, PinCheckpoint
from airflow_kcr.protocol.region.rows import PersonResetState, ResetCause
from airflow_kcr.protocol.targets import ShiftBy, ToCheckpoint, ToInitial
from airflow_kcr.protocol.values import MAX_NUMBER, CheckpointNumber, Epoch, RequestId, Timeline
from tests.contract.conftest import Drive
from tests.support.driver import Driver
from tests.support.verifying import verify

LONG = (998, 2**31 - 3, 2**62)
"""Each is followed by more than one sequence: of one digit more, of one bit more, and of those that a float rounds."""


@pytest.fixture(params=LONG)
def first(request: pytest.FixtureRequest) -> int:
    """The sequence that a region's start burns."""
    number: int = request.param
    return number


@pytest.fixture
def driver(drive: Drive, first: int) -> Driver:
    """A region that numbers from there, with two checkpoints, at 10 and 20, and positions at 30."""
    driver = drive()
    driver.number_from(first)
    driver.up()
    for request_id in ("one", "two"):
        driver.process()
        driver.checkpoint(request_id)
    driver.process()
    return driver


def test_checkpoints_and_resets_go_on_from_any_sequence(driver: Driver, first: int) -> None:
    assert [c for c, row in driver.region.checkpoints.items() if row.is_complete] == [first + 1, first + 2]
    reset = driver.reset(ToCheckpoint(sequence=CheckpointNumber(first + 2)), request_id="back")
    assert reset.state is PersonResetState.DRAINING
    drained = driver.complete()
    driver.publish()
    driver.finish_reset()
    region = driver.region
    assert (drained, region.restore_sequence, region.next_sequence) == (first + 3, first + 4, first + 5)
    assert region.person_resets[RequestId("back")].state is PersonResetState.DONE
    assert {c.position for c in region.claims.values()} == {20}
    driver.process()
    assert driver.checkpoint("three") == first + 5
    assert verify(driver.store.history(driver.name)) == ()


def test_a_checkpoint_of_any_sequence_is_undone_pinned_and_retired(driver: Driver, first: int) -> None:
    oldest, newest = sorted(driver.region.checkpoints)
    assert (oldest, newest) == (first + 1, first + 2)
    driver.handle(PinCheckpoint(sequence=oldest, label="kept", reason="a test"))
    driver.reset(ShiftBy(by=-15), request_id="between")
    driver.complete()
    driver.publish()
    driver.finish_reset()
    region = driver.region
    assert region.archive.undone({region.timeline}) == {region.timeline: (newest, first + 3)}
    assert region.checkpoints[oldest].pinned_as == "kept"
    with pytest.raises(CheckpointNotUsable, match=str(newest)):
        driver.reset(ToCheckpoint(sequence=newest))
    assert verify(driver.store.history(driver.name)) == ()


# -- numbers beyond which there are none -------------------------------------------------------------------------------


@pytest.mark.parametrize("held", ["epoch", "timeline", "next_sequence"])
def test_a_region_that_has_used_up_its_numbers_says_so_and_is_begun_anew(drive: Drive, held: str) -> None:
    driver = drive()
    driver.up()
    driver.process()
    driver.change(
        lambda region, now: replace(
            region,
            epoch=Epoch(MAX_NUMBER) if held == "epoch" else region.epoch,
            timeline=Timeline(MAX_NUMBER) if held == "timeline" else region.timeline,
            next_sequence=CheckpointNumber(MAX_NUMBER) if held == "next_sequence" else region.next_sequence,
        ),
    )
    member = driver.member(0)
    verbs: list[Callable[[], object]] = [
        lambda: driver.reset(ToInitial(), forced=True),
        lambda: driver.request_reset(member, ResetCause.BATCH_FAILED),
    ]
    if held != "epoch":  # nothing is claimed in this one
        verbs.append(lambda: driver.request_checkpoint("n"))
    for verb in verbs:
        with pytest.raises(NumberOutOfRange, match=f"none comes after it.*kcr region kill {driver.name}"):
            verb()

    # What that says helps.
    for one in driver.all_members():
        driver.leave(one)
    driver.handle(KillRegion())
    driver.handle(DeleteRegion())
    anew = drive()
    anew.up()
    anew.process()
    assert anew.checkpoint("n") == 2
    assert verify(anew.store.history(anew.name)) == ()
