"""No decision, plan or proof takes more than in proportion to the partitions of its region.

Counted are the interpreter's instructions, so neither the machine nor its load matters. Two partitions are compared in
Python here, so that the interpreter's own search through a tuple counts, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from airflow_kcr.api.verdict import Verdict
from airflow_kcr.api.views import RegionView
from airflow_kcr.protocol.observations import LogView, TimeAnswer
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.liveness import judge
from airflow_kcr.protocol.region.plans import plan
from airflow_kcr.protocol.region.rows import ResetCause, ResetRequest
from airflow_kcr.protocol.scopes import EVERYTHING
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

FEW, MANY = 25, 200

MOST = 1.2
"""What sorting adds."""


def instructions(call: Callable[[], object]) -> int:
    """Return how many instructions a call takes."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 (as `sys.settrace` has it)
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def compared(one: tuple[object, ...], other: object) -> bool:
    """Compare two partitions as tuples are compared."""
    return tuple.__eq__(one, other)


def of_decisions(partitions: int) -> dict[str, int]:
    """Return what each decision on a region of so many partitions takes, and what is asked of it between them."""
    driver = Driver(partitions=partitions)
    found: dict[str, int] = {}

    def take(what: str, call: Callable[[], object]) -> None:
        found[what] = instructions(call)

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
            request = ResetRequest(target=target, scope=EVERYTHING, forced=forced)
            made = partial(plan, region, now, RequestId("r"), request, log)
            found[f"{target.option}, forced: {forced}"] = instructions(made)
            found[f"{target.option}, its summary"] = instructions(made().summary)
    return found


@pytest.mark.parametrize("of", [of_decisions, of_plans])
def test_instructions_grow_at_most_as_the_partitions_do(
    monkeypatch: pytest.MonkeyPatch, of: Callable[[int], dict[str, int]]
) -> None:
    monkeypatch.setattr(GroupPartition, "__eq__", compared)
    instructions(lambda: None)  # from Python 3.12 on, what is counted first is not counted whole
    few, many = of(FEW), of(MANY)
    grown = {what: many[what] / few[what] for what in few}
    assert {what: by for what, by in grown.items() if by > MOST * MANY / FEW} == {}
