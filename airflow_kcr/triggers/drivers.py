"""Waits for the end of a driver in a pod, which Kubernetes tells long before the leases of its members are over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from airflow_kcr.driver.task import Sieve
from airflow_kcr.errors import KcrError
from airflow_kcr.hooks.pods import DriverPod, DriverPods, clean
from airflow_kcr.triggers.payloads import Status, TriggerAnswer

PERIOD: Final = 5.0
"""Seconds between two looks at a pod."""

SETTLED_WITHIN: Final = 4.0
"""Seconds after the end of a driver in which the region may still say that this was its own."""

_FINAL: Final = frozenset({2, 3})
"""Exit statuses that no further try changes: unusable configuration, and a refusal of the region."""

Warn = Callable[[str], object]


async def driver_ended(driver: DriverPod, warn: Warn) -> TriggerAnswer:
    """Return how a driver's pod has ended, or why it can't start.

    Args:
        driver: whose.
        warn: called with what there is to say meanwhile.
    """
    pods, said = DriverPods(driver), ""
    while True:
        try:
            answer, note = await asyncio.to_thread(_judged, pods, driver, warn)
        except KcrError as error:
            answer = None
            note = f"{driver} can't be watched; only its members' leases tell whether it lives: {error.message}"
        if answer is not None:
            return answer
        if note and note != said:
            warn(note)
        said = note
        await asyncio.sleep(PERIOD)


async def cleaned(driver: DriverPod, warn: Warn) -> None:
    """Delete the pods of lost drivers of an application that is over."""
    await asyncio.to_thread(clean, driver, warn)


def _judged(pods: DriverPods, driver: DriverPod, warn: Warn) -> tuple[TriggerAnswer | None, str]:
    """Return the answer, if there is one, and what to say else."""
    state = pods.state()
    if not state.is_there:
        return _again(f"{driver} is gone: it was deleted, or its node was"), ""
    if state.status is not None:
        return _end(pods, driver, state.status, state.reason, warn), ""
    if state.waiting is None:
        return None, ""
    if not state.waiting.has_node:
        return None, f"{driver} waits for room: {state.waiting}"
    # It would start whenever that is mended, and then beside another try's.
    pods.delete()
    return _again(f"{driver} can't start, and was deleted: {state.waiting}; correct the task's conf or the cluster"), ""


def _end(pods: DriverPods, driver: DriverPod, status: int, reason: str, warn: Warn) -> TriggerAnswer:
    if status == 0:
        return _again(f"{driver} has ended in good order while the region goes on")
    sieve = Sieve()
    try:
        for line in pods.log():
            sieve.take(line)
            warn(f"driver: {line}")
    except KcrError as error:
        warn(f"the driver's log can't be read: {error.message}")
    text = f"{driver} has ended with status {status} ({reason}): {sieve.verdict or 'its last words are above'}"
    if status in _FINAL:
        return TriggerAnswer(status=Status.REFUSED, detail=text)
    return _again(text)


def _again(text: str) -> TriggerAnswer:
    return TriggerAnswer(status=Status.TIMED_OUT, detail=f"{text}; another try takes its members over")
