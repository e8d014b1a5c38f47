"""Waits for the end of a driver in a cluster, which tells of it long before the leases of its members are over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from airflow_kcr.driver.task import Sieve
from airflow_kcr.errors import KcrError
from airflow_kcr.hooks.pods import DriverPod, DriverPods, clean
from airflow_kcr.hooks.yarn import DriverApplication
from airflow_kcr.triggers.payloads import Status, TriggerAnswer

PERIOD: Final = 5.0
"""Seconds between two looks at a driver; all triggers of a process look at the same moments."""

SETTLED_WITHIN: Final = 4.0
"""Seconds after the end of a driver in which the region may still say that this was its own."""

_FINAL: Final = frozenset({2, 3})
"""Exit statuses that no further try changes: unusable configuration, and a refusal of the region."""

Warn = Callable[[str], object]
ClusterDriver: TypeAlias = DriverPod | DriverApplication


def driver_from_json(found: Mapping[str, str]) -> ClusterDriver:
    """Return the driver whose fields a trigger was given."""
    return DriverPod(**found) if "pod" in found else DriverApplication(**found)


async def driver_ended(driver: ClusterDriver, warn: Warn) -> TriggerAnswer:
    """Return how a driver has ended, or why it can't start.

    Args:
        driver: which.
        warn: called with what there is to say meanwhile.
    """
    said, now = "", asyncio.get_running_loop().time
    while True:
        try:
            answer, note = await asyncio.to_thread(_judged, driver, warn)
        except KcrError as error:
            answer = None
            note = f"{driver} can't be watched; only its members' leases tell whether it lives: {error.message}"
        if answer is not None:
            return answer
        if note and note != said:
            warn(note)
        said = note
        await asyncio.sleep(PERIOD - now() % PERIOD)


async def cleaned(driver: ClusterDriver, warn: Warn) -> None:
    """Delete the pods of lost drivers of an application that is over; YARN itself leaves nothing behind."""
    if isinstance(driver, DriverPod):
        await asyncio.to_thread(clean, driver, warn)


def _judged(driver: ClusterDriver, warn: Warn) -> tuple[TriggerAnswer | None, str]:
    """Return the answer, if there is one, and what to say else."""
    if isinstance(driver, DriverPod):
        return _judged_pod(driver, warn)
    end = driver.end()
    return (None if end is None else _end(driver, end.status, end.reason, end.diagnostics, warn)), ""


def _judged_pod(driver: DriverPod, warn: Warn) -> tuple[TriggerAnswer | None, str]:
    pods = DriverPods.of(driver)
    state = pods.state(driver.pod)
    if not state.is_there:
        return _again(f"{driver} is gone: it was deleted, or its node was"), ""
    if state.status is not None:
        return _end(driver, state.status, state.reason, _log(pods, driver, warn) if state.status else (), warn), ""
    if state.waiting is None:
        return None, ""
    if not state.waiting.has_node:
        return None, f"{driver} waits for room: {state.waiting}"
    # It would start whenever that is mended, and then beside another try's.
    pods.delete(driver.pod)
    return _again(f"{driver} can't start, and was deleted: {state.waiting}; correct the task's conf or the cluster"), ""


def _log(pods: DriverPods, driver: DriverPod, warn: Warn) -> Iterable[str]:
    try:
        return pods.log(driver.pod)
    except KcrError as error:
        warn(f"the driver's log can't be read: {error.message}")
        return ()


def _end(driver: ClusterDriver, status: int, reason: str, said: Iterable[str], warn: Warn) -> TriggerAnswer:
    """Return the answer for a driver that is over, and show what it has said at last, or the cluster of it."""
    if status == 0:
        return _again(f"{driver} has ended in good order while the region goes on")
    sieve = Sieve()
    for line in said:
        sieve.take(line)
        warn(f"driver: {line}")
    text = f"{driver} has ended with status {status} ({reason}): {sieve.verdict or 'its last words are above'}"
    if status in _FINAL:
        return TriggerAnswer(status=Status.REFUSED, detail=text)
    return _again(text)


def _again(text: str) -> TriggerAnswer:
    return TriggerAnswer(status=Status.TIMED_OUT, detail=f"{text}; another try takes its members over")
