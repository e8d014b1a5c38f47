"""What can be waited for about a region, its checkpoints and members, and waiting for it, with a deadline.

A goal reads only the region as stored. What it calls missing has names: members,
partitions with their last owner, how far a partition still is from its boundary.

A notification only shortens a wait: the row is read again, at least once a second, because the end of a batch moves
no counter. A waiter also makes the transitions that are due in the region, because no member may be alive to make them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from time import monotonic, sleep
from typing import Final, TypeAlias

from airflow_kcr.api.checkpoints import require_checkpoint, require_current
from airflow_kcr.errors import (
    CheckpointRefused,
    OutcomeUnknown,
    RegionInState,
    ResetFailed,
    SpecRefused,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    TimedOut,
)
from airflow_kcr.protocol.region import specs, timelines, waits
from airflow_kcr.protocol.region.commands import Reconcile
from airflow_kcr.protocol.region.rows import (
    RESET_STATES,
    CheckpointRequest,
    Committed,
    DesiredState,
    PersonResetState,
    RegionState,
    RequestState,
)
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.region.waits import Rule, Wait, Waits
from airflow_kcr.protocol.values import CheckpointNumber, MemberId, RegionName, RequestId, few, format_instant
from airflow_kcr.store.regions import RegionStore
from airflow_kcr.verbs import Reaching

Predicate: TypeAlias = Callable[[StoredRegion, datetime], bool]
"""Asked of the region and the store's clock then; raises where it can't become true any more."""

Missing: TypeAlias = Callable[[StoredRegion, datetime], Iterable[Wait]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Something to wait for."""

    what: str
    """As in "waiting for flights …"."""

    is_reached: Predicate
    missing: Missing = lambda region, now: ()
    """Returns what is still waited for, the most telling first."""


def _is_running(region: StoredRegion, now: datetime) -> bool:
    _refuse_halt(region)
    if region.state is RegionState.STOPPED or region.desired_state is not DesiredState.RUNNING:
        raise RegionInState(
            f"region {region.name} is {region.state}: it was {region.desired_state} by another request meanwhile"
        )
    return region.state in {RegionState.RUNNING, RegionState.DRAINING}


RUNNING: Final = Goal(what="to run", is_reached=_is_running, missing=waits.to_run)


def _is_paused(region: StoredRegion, now: datetime) -> bool:
    if region.desired_state is not DesiredState.PAUSED:
        raise RegionInState(
            f"region {region.name} has the desired state {region.desired_state}: another request set it meanwhile"
        )
    return not region.running


PAUSED: Final = Goal(what="to finish its batches", is_reached=_is_paused, missing=waits.to_pause)


def _is_stopped(region: StoredRegion, now: datetime) -> bool:
    if region.desired_state is not DesiredState.STOPPED:
        raise RegionInState(
            f"region {region.name} has the desired state {region.desired_state}: it was resumed meanwhile"
        )
    return region.state is RegionState.STOPPED and not region.live_members(now)


STOPPED: Final = Goal(what="to stop and its members to leave", is_reached=_is_stopped, missing=waits.to_stop)


STATES: Final[Mapping[Reaching, Goal]] = {
    Reaching.RUNNING: RUNNING,
    Reaching.PAUSED: PAUSED,
    Reaching.STOPPED: STOPPED,
}
"""What the verbs of a region wait for."""


def _is_spec_in_force(region: StoredRegion, now: datetime) -> bool:
    if region.next_spec is None and specs.start_failures(region, now):
        raise SpecRefused(f"region {region.name}: {'; '.join(specs.notes(region, now))}")
    return region.next_spec is None and region.state not in RESET_STATES


SPEC_IN_FORCE: Final = Goal(
    what="to go on under its changed spec", is_reached=_is_spec_in_force, missing=waits.to_change
)


def published(request_id: RequestId) -> Goal:
    """Return the goal that the request of a request id is answered by a checkpoint that is published."""

    def is_reached(region: StoredRegion, now: datetime) -> bool:
        request = region.request_of(request_id)
        if request is None:
            raise CheckpointRefused(
                f"region {region.name} has no checkpoint request with the id {request_id!r}; ask again"
            )
        _refuse_ended(request)
        if request.state is not RequestState.ANSWERED or request.sequence is None:
            _refuse_halt(region)
            return False
        row = region.checkpoint_of(request.sequence)
        return row is not None and row.published_at is not None

    def missing(region: StoredRegion, now: datetime) -> Waits:
        request = region.request_of(request_id)
        if request is not None:
            yield from waits.to_publish(region, now, request)

    return Goal(what="to publish its checkpoint", is_reached=is_reached, missing=missing)


def _refuse_ended(request: CheckpointRequest) -> None:
    if request.state is RequestState.ABORTED:
        raise TimedOut(
            f"the checkpoint was aborted: {request.refusal}; ask again with the same request id ({request.request_id})"
        )
    if request.state in {RequestState.REFUSED, RequestState.SUPERSEDED}:
        raise CheckpointRefused(
            f"there will be no checkpoint for request id {request.request_id} ({request.state}): {request.refusal}"
        )


def _refuse_halt(region: StoredRegion) -> None:
    if region.halt is not None:
        choices = "; ".join(region.halt.choices)
        raise RegionInState(f"region {region.name} is halted: {region.halt.text}; choices: {choices}")


def reset_done(request_id: RequestId) -> Goal:
    """Return the goal that a person's reset, accepted under this request id, is done.

    Every partition is where it goes.
    """

    def is_reached(region: StoredRegion, now: datetime) -> bool:
        reset = region.person_reset_of(request_id)
        if reset is None:
            raise RegionInState(f"region {region.name} knows no reset {request_id!r}: apply its plan first")
        if reset.state is PersonResetState.FAILED:
            raise ResetFailed(
                f"the reset of region {region.name} ({request_id}) failed: {reset.failure}; plan again to try again"
            )
        if reset.state is not PersonResetState.DONE:
            _refuse_halt(region)
        return reset.state is PersonResetState.DONE

    return Goal(
        what="to finish its reset", is_reached=is_reached, missing=partial(waits.to_reset, request_id=request_id)
    )


def committed(sequence: CheckpointNumber) -> Goal:
    """Return the goal that a checkpoint is published, and that it is known whether Kafka holds its offsets."""

    def is_reached(region: StoredRegion, now: datetime) -> bool:
        row = require_current(region, sequence)
        return row.published_at is not None and row.committed is not Committed.PENDING

    def missing(region: StoredRegion, now: datetime) -> Waits:
        return waits.to_settle(region, require_checkpoint(region, sequence))

    return Goal(what=f"to publish and commit checkpoint {sequence}", is_reached=is_reached, missing=missing)


def exists(*, boundary: datetime | None = None, sequence: CheckpointNumber | None = None) -> Goal:
    """Return the goal that there is a current published checkpoint at or beyond a boundary, and of at least a number.

    Args:
        boundary: an instant with a zone; None: any, or none.
        sequence: None: any.
    """

    def is_reached(region: StoredRegion, now: datetime) -> bool:
        return _may_exist(region, boundary, sequence) and region.archive.published_from(boundary, sequence) is not None

    wanted = f"sequence {sequence}" if boundary is None else f"the boundary {format_instant(boundary)}"
    return Goal(what=f"a published checkpoint at or beyond {wanted}", is_reached=is_reached, missing=waits.to_exist)


def _may_exist(region: StoredRegion, boundary: datetime | None, sequence: CheckpointNumber | None) -> bool:
    """Whether it is worth asking for one: mostly what has not come yet is waited for, which the region itself shows."""
    newest = timelines.newest_aligned(region)
    is_beyond = boundary is not None and (newest is None or newest.boundary is None or newest.boundary < boundary)
    return not is_beyond and (sequence is None or sequence < region.next_sequence)


GONE_FOR: Final = timedelta(seconds=60)
"""How long a member may be without a lease before its application counts as ended: longer than it takes to return by
itself, after the store was away or its process was suspended."""


def ended(before: Mapping[MemberId, int], *, come_by: datetime | None = None) -> Goal:
    """Return the goal that an application has ended with its region: the region has stopped, or it has no place for it.

    Members that lived and do so no more, while the region continues, make it `TimedOut`: another application has to be
    started. Members that have not come yet are waited for: a cluster may have no room for them yet. If none has come by
    an instant, that is `TimedOut` too: the cluster may have lost the application before the region knew it.

    Args:
        before: the members, each with its incarnation before the application was started.
        come_by: by the store's clock; None: they may come at any time.
    """

    def is_reached(region: StoredRegion, now: datetime) -> bool:
        mine = [member for member in sorted(before) if _has_place(region, member)]
        if not mine or (region.state is RegionState.STOPPED and any(has_come(region, member) for member in mine)):
            return True  # a stopped region is started by the first member that comes
        lost = [member for member in mine if has_come(region, member) and _is_gone(region, member, now)]
        if lost:
            raise TimedOut(
                f"{', '.join(map(str, lost))} of region {region.name}, which is {region.state}, had no lease for "
                f"{GONE_FOR.total_seconds():.0f} s: the application has ended; another try takes its members over"
            )
        if come_by is not None and now > come_by and not any(has_come(region, member) for member in mine):
            raise TimedOut(
                f"{', '.join(map(str, mine))} of region {region.name} did not come by {come_by.isoformat()}: the "
                "application waits for room in the cluster, or has ended there before it reached the store; see its "
                "log in the cluster, and end it there if it still waits"
            )
        return False

    def has_come(region: StoredRegion, member: MemberId) -> bool:
        row = region.members.get(member)
        return row is not None and row.incarnation > before[member]

    def missing(region: StoredRegion, now: datetime) -> Waits:
        coming = (f"{member} has not come yet" for member in sorted(before) if not has_come(region, member))
        consuming = (f"{member} consumes" for member in sorted(before) if region.is_live(member, now))
        return (Wait(rule=Rule.MEMBERS, what=what) for what in (*coming, *consuming))

    return Goal(what="to end its application", is_reached=is_reached, missing=missing)


def _has_place(region: StoredRegion, member: MemberId) -> bool:
    group = region.rules.groups.get(member.group)
    return group is not None and member.index < group.members


def _is_gone(region: StoredRegion, member: MemberId, now: datetime) -> bool:
    lease = region.leases.get(member)
    return not region.is_live(member, now) and (lease is None or lease.until + GONE_FOR < now)


# Waiting for a goal.

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
            raise TimedOut(f"gave up after {_seconds(timeout)} {progress}; nothing was undone, wait again if you like")
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


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():g} s"
