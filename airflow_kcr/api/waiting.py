"""Waiting for a goal, with a deadline and with what is missing meanwhile.

A notification only shortens a wait: the row is read again, at least once a second, because the end of a batch moves
no counter. A waiter also makes the transitions that are due in the region, because no member may be alive to make them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic, sleep
from typing import Final, TypeAlias

from airflow_kcr.errors import OutcomeUnknown, StoreBusy, StoreError, StoreUnavailable, TimedOut
from airflow_kcr.goals import Goal
from airflow_kcr.protocol.region.commands import Reconcile
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.region.waits import Wait
from airflow_kcr.protocol.values import RegionName, few
from airflow_kcr.store.regions import RegionStore

Predicate: TypeAlias = Callable[[StoredRegion, datetime], bool]
"""Asked of the region and the store's clock then; raises where it can't become true any more."""


@dataclass(frozen=True, slots=True)
class CallersGoal(Goal):
    """A goal of the caller's own, of which nothing is known but whether it is reached."""

    kind = "callers"
    what = "to reach the caller's goal"

    predicate: Predicate

    def is_reached(self, region: StoredRegion, now: datetime) -> bool:
        """Return what the predicate says."""
        return self.predicate(region, now)

    def missing(self, region: StoredRegion, now: datetime) -> Iterator[Wait]:
        """Yield nothing."""
        return iter(())


DEFAULT_TIMEOUT: Final = timedelta(minutes=10)
"""How long to wait by default: longer than a drain and an attempt of a reset together, at their defaults."""

POLL_PERIOD: Final = timedelta(seconds=1)
"""How often the region is read while nothing is heard of it."""

STORE_AWAY: Final = timedelta(seconds=30)
"""How long a wait tolerates an unreachable store before it fails."""

AWAY: Final = (StoreUnavailable, StoreBusy, OutcomeUnknown)
"""What a store raises that may heal by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a wait has come."""

    what: str
    waited: timedelta
    state: str
    """The region's; empty while the store is away."""

    missing: tuple[str, ...]
    """Who or what is missing, by name."""

    def __str__(self) -> str:
        named = few(self.missing, separator="; ")
        state = f" ({self.state})" if self.state else ""
        return f"waiting for {self.what}{state}{': ' if named else ''}{named}"


OnProgress: TypeAlias = Callable[[Progress], None]
"""Hears of every read of the region; may raise, which ends the wait and nothing else."""


def silent(progress: Progress) -> None:
    """Say nothing."""


def wait_for(
    store: RegionStore, name: RegionName, goal: Goal, *, timeout: timedelta, on_progress: OnProgress = silent
) -> tuple[StoredRegion, datetime]:
    """Return the region as it was when the goal was reached, and the store's clock then.

    Args:
        store: the region's store.
        name: the region.
        goal: what to wait for.
        timeout: how long; 0 reads once.
        on_progress: hears of every poll.

    Raises:
        TimedOut: it was not reached in time; the message names who is missing.
        StoreError: the store was away for too long.
        RefusedError: the goal can't be reached any more.
    """
    began = monotonic()
    last_answer = began
    while True:
        try:
            region, now = reconciled(store, name)
            last_answer = monotonic()
        except AWAY as error:
            _go_on_without(error, began, last_answer, timeout)
            waited = timedelta(seconds=monotonic() - began)
            on_progress(Progress(what="the store", waited=waited, state="", missing=(error.message,)))
            sleep(POLL_PERIOD.total_seconds())
            continue
        if goal.is_reached(region, now):
            return region, now
        progress = missing(region, now, goal, waited=timedelta(seconds=monotonic() - began))
        left = timeout - progress.waited
        if left <= timedelta(0):
            raise TimedOut(
                f"gave up after {timeout.total_seconds():g} s {progress}; nothing was undone, wait again if you like"
            )
        on_progress(progress)
        # What was done between the read and now is noticed at once; whatever goes wrong is met by the next read.
        store.wait(name, region.counter, min(left, POLL_PERIOD))


def poll(
    store: RegionStore, name: RegionName, goal: Goal, patience: timedelta = timedelta(0)
) -> tuple[Progress | None, datetime]:
    """Return how far a region is from a goal (None: it is reached), and the store's clock then.

    Args:
        store: the region's store.
        name: the region.
        goal: what is looked for.
        patience: how long to wait for it before that is the answer.

    Raises:
        StoreError, RefusedError, TimedOut: as for `wait_for`; that the patience is over is none.
    """
    until = monotonic() + patience.total_seconds()
    while True:
        region, now = reconciled(store, name)
        if goal.is_reached(region, now):
            return None, now
        left = timedelta(seconds=until - monotonic())
        if left <= timedelta(0):
            return missing(region, now, goal), now
        # Read again only when something happened, and at the end: what moves no counter is waited for longer anyway.
        store.wait(name, region.counter, left)


def missing(region: StoredRegion, now: datetime, goal: Goal, *, waited: timedelta = timedelta(0)) -> Progress:
    """Return how far a region is from a goal that is not reached."""
    return Progress(
        what=f"{region.name} {goal.what}",
        waited=waited,
        state=str(region.state),
        missing=tuple(wait.what for wait in goal.missing(region, now)),
    )


def reconciled(store: RegionStore, name: RegionName) -> tuple[StoredRegion, datetime]:
    """Return a region after whatever is due in it, and the store's clock then."""
    region, now = store.read(name)
    if region.reconcile_at is None or region.reconcile_at > now:
        return region, now
    store.handle(name, Reconcile())
    return store.read(name)


def _go_on_without(error: StoreError, began: float, last_answer: float, timeout: timedelta) -> None:
    """Raise the store's error where there never was an answer, or none for too long."""
    now = monotonic()
    away = timedelta(seconds=now - last_answer)
    if last_answer == began or away > STORE_AWAY or timedelta(seconds=now - began) >= timeout:
        raise error
