"""What the rules do for each partition of a wide region: counted in calls, so that it is the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType

import pytest

from airflow_kcr.protocol.observations import LogView
from airflow_kcr.protocol.region import completion, plans, resets
from airflow_kcr.protocol.region.rows import ResetCause, ResetRequest
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import CheckpointNumber, RequestId
from tests.support.driver import Driver

NARROW, WIDE = 250, 1_000


def calls(work: Callable[[], object]) -> int:
    """Return how many functions are called, built-in ones with them."""
    count = 0

    def seen(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def driven(partitions: int) -> Driver:
    driver = Driver(partitions=partitions, members=1)
    driver.up()
    driver.process(driver.member(0), width=10)
    return driver


def completed(partitions: int) -> Callable[[], object]:
    driver = driven(partitions)
    driver.request_checkpoint("n1")
    return partial(completion.contribute, driver.held, driver.clock.now, driver.part_of(driver.member(0)))


def begun(partitions: int) -> Callable[[], object]:
    driver = driven(partitions)
    driver.checkpoint("n1")
    return partial(resets.begin, driver.held, driver.clock.now, ResetCause.LEASE_LOST)


def planned(partitions: int) -> Callable[[], object]:
    driver = driven(partitions)
    driver.checkpoint("n1")
    region = driver.held
    request = ResetRequest(target=ToCheckpoint(sequence=region.restore_sequence or CheckpointNumber(0)))
    log = LogView(bounds=driver.logs, read_at=driver.clock.now)
    return partial(plans.plan, region, driver.clock.now, RequestId("plan"), request, log)


def unanswered(partitions: int) -> Callable[[], object]:
    """What a member of sinks that hold their progress has to answer, where no partition has had a position yet."""
    driver = Driver(partitions=partitions, members=1, delivery=Delivery.EXACTLY_ONCE)
    driver.up()
    region = driver.held
    seek = region.seek
    nowhere = {p: replace(entry, offset=None, current=None) for p, entry in seek.items()}
    region = replace(region, seek_maps={**region.seek_maps, region.epoch: type(seek)(nowhere)})
    return partial(resets.open_targets, region, driver.member(0))


@pytest.mark.parametrize(
    ("prepared", "each"),
    [(completed, 12), (begun, 24), (planned, 45), (unanswered, 14)],
    ids=["a completion", "a reset's begin", "a plan", "open entries"],
)
def test_calls_grow_with_the_partitions_and_are_few_for_each(
    prepared: Callable[[int], Callable[[], object]], each: int
) -> None:
    narrow, wide = calls(prepared(NARROW)), calls(prepared(WIDE))
    more = (wide - narrow) / (WIDE - NARROW)
    assert more <= each, f"{more:.1f} calls for each further partition"
    assert narrow <= each * NARROW + 2_000, f"{narrow} calls for {NARROW} partitions, {wide} for {WIDE}"
