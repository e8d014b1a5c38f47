"""What the rules do for each partition of a wide region: counted in calls, so that it is the same on every machine.

With `counted_comparisons` a function compares partitions, so that the interpreter's own search through a tuple of them
counts, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType

import pytest

from airflow_kcr.api.verdict import Verdict
from airflow_kcr.api.views import RegionView
from airflow_kcr.protocol.observations import LogView, TimeAnswer
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import completion, plans, resets
from airflow_kcr.protocol.region.liveness import judge
from airflow_kcr.protocol.region.rows import ResetCause, ResetRequest
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.targets import (
    FromFile,
    ShiftBy,
    Target,
    ToCheckpoint,
    ToCurrent,
    ToDatetime,
    ToEarliest,
    ToInitial,
    ToLatest,
    ToOffset,
)
from airflow_kcr.protocol.values import CheckpointNumber, GroupPartition, Offset, RequestId
from tests.support.driver import BEGINNING, Driver

NARROW, WIDE = 250, 1_000
FEW, MANY = 25, 200

MOST = 1.2
"""What sorting adds."""


def compared(one: tuple[object, ...], other: object) -> bool:
    """Compare two partitions as tuples are compared."""
    return tuple.__eq__(one, other)


@pytest.fixture
def counted_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison of two partitions is a call."""
    monkeypatch.setattr(GroupPartition, "__eq__", compared)


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


def of_decisions(partitions: int) -> dict[str, int]:
    """Return what each decision on a region of so many partitions takes, and what is asked of it between them."""
    driver = Driver(partitions=partitions)
    found: dict[str, int] = {}

    def take(what: str, call: Callable[[], object]) -> None:
        found[what] = calls(call)

    take("to come up", driver.up)
    take("a batch", driver.process)
    driver.request_checkpoint("n1")
    take("to complete a checkpoint", driver.complete)
    take("to publish it", driver.publish)
    take("to read the commit back", lambda: driver.read_back(driver.member(0)))
    driver.process()
    take("a view", lambda: RegionView.of(driver.region, driver.clock.now))
    take("liveness", lambda: judge(driver.region, driver.clock.now))
    take("to report partitions", lambda: driver.report_partitions(driver.member(0)))
    take("a reset's start", lambda: driver.request_reset(driver.member(0), ResetCause.LEASE_LOST))
    take("a reset", driver.finish_reset)
    driver.process()
    newest = ToCheckpoint(sequence=driver.region.restore_sequence or CheckpointNumber(0))
    take("a person's reset by force", lambda: driver.reset(newest, forced=True))
    driver.finish_reset()
    driver.process()
    take("a person's reset that drains", lambda: driver.reset(newest))
    take("its drain", driver.complete)
    take("its end", driver.finish_reset)
    driver.crash(driver.member(1))
    take("to recover from a crash", driver.recover)
    take("a proof", lambda: Verdict.of(driver.name, driver.store.chronicle(driver.name)))
    return found


def of_plans(partitions: int) -> dict[str, int]:
    """Return what the plan of a reset to each target takes in a region of so many partitions."""
    driver = Driver(partitions=partitions)
    driver.up()
    driver.process()
    sequence = driver.checkpoint("n1")
    driver.process()
    region, now = driver.store.read(driver.name)
    half = OffsetMap({p: Offset(5) for p in driver.logs})
    log = LogView(
        bounds=driver.logs,
        answers={p: TimeAnswer(offset=o) for p, o in half.items()},
        committed=half,
        read_at=now,
    )
    targets: tuple[Target, ...] = (
        ToCheckpoint(sequence=sequence),
        ToInitial(),
        ToCurrent(),
        ToEarliest(),
        ToLatest(),
        ToDatetime(instant=BEGINNING),
        ShiftBy(by=-3),
        ToOffset(offset=Offset(3)),
        FromFile(entries=half),
    )
    found = {}
    for target in targets:
        for forced in (False, True):
            request = ResetRequest(target=target, forced=forced)
            made = partial(plans.plan, region, now, RequestId("r"), request, log)
            found[f"{target.option}, forced: {forced}"] = calls(made)
            found[f"{target.option}, its summary"] = calls(made().summary)
    return found


@pytest.mark.usefixtures("counted_comparisons")
@pytest.mark.parametrize("of", [of_decisions, of_plans])
def test_calls_grow_at_most_as_the_partitions_do(of: Callable[[int], dict[str, int]]) -> None:
    few, many = of(FEW), of(MANY)
    grown = {what: many[what] / few[what] for what in few}
    assert {what: by for what, by in grown.items() if by > MOST * MANY / FEW} == {}
