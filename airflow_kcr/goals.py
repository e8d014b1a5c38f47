"""What can be waited for about a region, its checkpoints and members, as values that travel as JSON.

A goal reads only the region as stored. What it calls missing has names: members, partitions with their last owner, how
far a partition still is from its boundary.

Airflow stores what a deferred task waits for and recreates it wherever it goes on, so nothing of it is a secret, and
nothing of it changes while one waits. Each call of `kcr` and each file of DAGs that is parsed reads this module, so it
imports the rules of regions only when a region is there to be judged by them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from airflow_kcr.errors import CheckpointRefused, ConfigurationError, RegionInState, ResetFailed, SpecRefused, TimedOut
from airflow_kcr.protocol import documents
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    DesiredState,
    EventNumber,
    GroupId,
    MemberId,
    RequestId,
    format_instant,
)

if TYPE_CHECKING:
    from airflow_kcr.protocol.region.state import Region
    from airflow_kcr.protocol.region.waits import Wait


class WaitingFor:
    """Something to wait for."""

    __slots__ = ()

    kind: ClassVar[str]
    """Names the class in JSON."""

    asks_kafka: ClassVar[bool] = False
    """Whether the store alone can't tell."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, its kind among them."""
        return {"kind": self.kind, **cast("dict[str, Any]", documents.write(self, type(self)))}


class Goal(WaitingFor):
    """Something to wait for that the store can tell."""

    __slots__ = ()

    @property
    @abstractmethod
    def what(self) -> str:
        """What is waited for, as in "waiting for flights …"."""

    @abstractmethod
    def is_reached(self, region: Region, now: datetime) -> bool:
        """Return whether a region has reached it by the store's clock; raise where it never will."""

    @abstractmethod
    def missing(self, region: Region, now: datetime) -> Iterator[Wait]:
        """Yield what is still waited for, the most telling first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionReaches(Goal):
    """The region is what a verb has asked for."""

    kind = "region_reaches"

    state: DesiredState

    @property
    def what(self) -> str:
        """What is waited for."""
        return {
            DesiredState.RUNNING: "to run",
            DesiredState.PAUSED: "to finish its batches",
            DesiredState.STOPPED: "to stop and its members to leave",
        }[self.state]

    def is_reached(self, region: Region, now: datetime) -> bool:
        """Return whether the region is there; raise where another request or a halt keeps it from there."""
        from airflow_kcr.protocol.region.rows import WORKING, RegionState

        wanted = region.desired_state
        match self.state:
            case DesiredState.RUNNING:
                _refuse_halt(region)
                if region.state is RegionState.STOPPED or wanted is not DesiredState.RUNNING:
                    raise RegionInState(
                        f"region {region.name} is {region.state}: it was {wanted} by another request meanwhile"
                    )
                return region.state in WORKING
            case DesiredState.PAUSED:
                if wanted is not DesiredState.PAUSED:
                    raise RegionInState(
                        f"region {region.name} has the desired state {wanted}: another request set it meanwhile"
                    )
                return not region.running
            case DesiredState.STOPPED:
                if wanted is not DesiredState.STOPPED:
                    raise RegionInState(
                        f"region {region.name} has the desired state {wanted}: it was resumed meanwhile"
                    )
                return region.state is RegionState.STOPPED and not region.live_members(now)

    def missing(self, region: Region, now: datetime) -> Iterator[Wait]:
        """Yield members, batches and what a checkpoint or a reset needs."""
        from airflow_kcr.protocol.region import waits

        match self.state:
            case DesiredState.RUNNING:
                return waits.to_run(region, now)
            case DesiredState.PAUSED:
                return waits.to_pause(region, now)
            case DesiredState.STOPPED:
                return waits.to_stop(region, now)


RUNNING: Final = RegionReaches(state=DesiredState.RUNNING)
PAUSED: Final = RegionReaches(state=DesiredState.PAUSED)
STOPPED: Final = RegionReaches(state=DesiredState.STOPPED)


@dataclass(frozen=True, slots=True)
class SpecInForce(Goal):
    """The region has gone on under its changed spec."""

    kind = "spec_in_force"
    what = "to go on under its changed spec"

    def is_reached(self, region: Region, now: datetime) -> bool:
        """Return whether no spec waits and no reset runs; raise where members can't start with it."""
        from airflow_kcr.protocol.region import rows, specs

        if region.next_spec is None and specs.start_failures(region, now):
            raise SpecRefused(f"region {region.name}: {'; '.join(specs.notes(region, now))}")
        return region.next_spec is None and region.state not in rows.RESET_STATES

    def missing(self, region: Region, now: datetime) -> Iterator[Wait]:
        """Yield what the changed spec waits for."""
        from airflow_kcr.protocol.region import waits

        return waits.to_change(region, now)


SPEC_IN_FORCE: Final = SpecInForce()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPublished(Goal):
    """The request of a request id is answered by a checkpoint that is published."""

    kind = "checkpoint_published"
    what = "to publish its checkpoint"

    request_id: RequestId

    def is_reached(self, region: Region, now: datetime) -> bool:
        """Return whether it is published; raise where there will be no checkpoint."""
        from airflow_kcr.protocol.region.rows import RequestState

        request = region.request_of(self.request_id)
        if request is None:
            raise CheckpointRefused(
                f"region {region.name} has no checkpoint request with the id {self.request_id!r}; ask again"
            )
        if request.state is RequestState.ABORTED:
            raise TimedOut(
                f"the checkpoint was aborted: {request.refusal}; ask again with the same request id "
                f"({request.request_id})"
            )
        if request.state in {RequestState.REFUSED, RequestState.SUPERSEDED}:
            raise CheckpointRefused(
                f"there will be no checkpoint for request id {request.request_id} ({request.state}): {request.refusal}"
            )
        if request.state is not RequestState.ANSWERED or request.sequence is None:
            _refuse_halt(region)
            return False
        row = region.checkpoint_of(request.sequence)
        return row is not None and row.published_at is not None

    def missing(self, region: Region, now: datetime) -> Iterator[Wait]:
        """Yield what the request waits for."""
        from airflow_kcr.protocol.region import waits

        request = region.request_of(self.request_id)
        return iter(()) if request is None else waits.to_publish(region, now, request)


def _refuse_halt(region: Region) -> None:
    if region.halt is not None:
        choices = "; ".join(region.halt.choices)
        raise RegionInState(f"region {region.name} is halted: {region.halt.text}; choices: {choices}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetFinished(Goal):
    """A person's accepted reset, by its request id, is done: every partition is where it goes."""

    kind = "reset_done"
    what = "to finish its reset"

    request_id: RequestId

    def is_reached(self, region: Region, now: datetime) -> bool:
        """Return whether it is done; raise where it failed."""
        from airflow_kcr.protocol.region.rows import PersonResetState

        reset = region.person_reset_of(self.request_id)
        if reset is None:
            raise RegionInState(f"region {region.name} knows no reset {self.request_id!r}: apply its plan first")
        if reset.state is PersonResetState.FAILED:
            raise ResetFailed(
                f"the reset of region {region.name} ({self.request_id}) failed: {reset.failure}; "
                "plan again to try again"
            )
        if reset.state is not PersonResetState.DONE:
            _refuse_halt(region)
        return reset.state is PersonResetState.DONE

    def missing(self, region: Region, now: datetime) -> Iterator[Wait]:
        """Yield what the reset waits for."""
        from airflow_kcr.protocol.region import waits

        return waits.to_reset(region, now, self.request_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCommitted(Goal):
    """A checkpoint is published, and it is known whether Kafka holds its offsets: yes, no or superseded."""

    kind = "checkpoint_committed"

    sequence: CheckpointNumber

    @property
    def what(self) -> str:
        """What is waited for."""
        return f"to publish and commit checkpoint {self.sequence}"

    def is_reached(self, region: Region, now: datetime) -> bool:
        """Return whether it is settled; raise where it was aborted or undone."""
        from airflow_kcr.protocol.region import lookup, rows

        row = lookup.require_current(region, self.sequence)
        return row.published_at is not None and row.committed is not rows.Committed.PENDING

    def missing(self, region: Region, now: datetime) -> Iterator[Wait]:
        """Yield what it waits for."""
        from airflow_kcr.protocol.region import lookup, waits

        return waits.to_settle(region, lookup.require_checkpoint(region, self.sequence))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointExists(Goal):
    """The current timeline has a published checkpoint at or beyond a boundary, or of at least a sequence.

    One of the two is given.
    """

    kind = "checkpoint_exists"

    boundary: datetime | None = None
    """An instant with a zone."""

    sequence: CheckpointNumber | None = None

    def __post_init__(self) -> None:
        if (self.boundary is None) == (self.sequence is None):
            raise ConfigurationError(
                "a checkpoint is waited for by its boundary or by its sequence; give one of the two"
            )

    @property
    def what(self) -> str:
        """What is waited for."""
        wanted = f"the boundary {format_instant(self.boundary)}" if self.boundary else f"sequence {self.sequence}"
        return f"a published checkpoint at or beyond {wanted}"

    def is_reached(self, region: Region, now: datetime) -> bool:
        """Return whether there is one."""
        return self._may_exist(region) and region.archive.published_from(self.boundary, self.sequence) is not None

    def missing(self, region: Region, now: datetime) -> Iterator[Wait]:
        """Yield what the next checkpoint waits for."""
        from airflow_kcr.protocol.region import waits

        return waits.to_exist(region, now)

    def _may_exist(self, region: Region) -> bool:
        """Whether to ask for one: mostly what has not come yet is waited for, which the region itself shows."""
        from airflow_kcr.protocol.region import timelines

        if self.sequence is not None:
            return self.sequence < region.next_sequence
        newest = timelines.newest_aligned(region)
        reached = None if newest is None else newest.boundary
        return reached is not None and self.boundary is not None and reached >= self.boundary


GONE_FOR: Final = timedelta(seconds=60)
"""How long a member may be without a lease before its application counts as ended: longer than it takes to return by
itself, after the store was away or its process was suspended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersEnded(Goal):
    """The application that hosts members has ended with its region, which has stopped, or has no place for them.

    Members that lived and do so no more, while the region continues, make it `TimedOut`: another application has to be
    started. Members that have not come yet are waited for: a cluster may have no room for them yet. If none has come by
    an instant, that is `TimedOut` too: the cluster may have lost the application before the region knew it.
    """

    kind = "members_ended"
    what = "to end its application"

    group: GroupId
    indexes: tuple[int, ...]
    before: tuple[int, ...]
    """The incarnation that each of them had before the application was started."""

    come_by: datetime | None = None
    """When the first of them has to have come at the latest, by the store's clock; None: whenever."""

    last_request: str = ""
    """The request id that the application ends by, for the case that its task is killed; empty: it does not."""

    @property
    def members(self) -> Mapping[MemberId, int]:
        """The members, with their incarnations before."""
        return {MemberId(self.group, index): before for index, before in zip(self.indexes, self.before, strict=True)}

    def is_reached(self, region: Region, now: datetime) -> bool:
        """Return whether the application has ended, as the region is; raise where another try is needed."""
        from airflow_kcr.protocol.region.rows import RegionState

        mine = [member for member in sorted(self.members) if _has_place(region, member)]
        come = [member for member in mine if self._has_come(region, member)]
        if not mine or (region.state is RegionState.STOPPED and come):
            return True  # a stopped region is started by the first member that comes
        _require_application(region, now, mine, come, self.come_by)
        return False

    def missing(self, region: Region, now: datetime) -> Iterator[Wait]:
        """Yield the members that have not come, and those that consume."""
        from airflow_kcr.protocol.region.waits import Rule, Wait

        members = sorted(self.members)
        coming = (f"{member} has not come yet" for member in members if not self._has_come(region, member))
        consuming = (f"{member} consumes" for member in members if region.is_live(member, now))
        return (Wait(rule=Rule.MEMBERS, what=what) for what in (*coming, *consuming))

    def _has_come(self, region: Region, member: MemberId) -> bool:
        row = region.members.get(member)
        return row is not None and row.incarnation > self.members[member]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Goal):
    """A run has its checkpoint, published, and it is known whether Kafka holds it; its members have left.

    Members that lived and do so no more, while the run has none, make it `TimedOut`, as does none that has come by an
    instant: another application has to be started.
    """

    kind = "run_ended"
    what = "to end its run"

    request_id: RequestId
    before: Mapping[str, int] = field(hash=False)
    """The incarnation that each of its members had before the application was started, by name as `flights-etl[0]`."""

    come_by: datetime | None = None
    """When the first of them has to have come at the latest, by the store's clock; None: whenever."""

    def is_reached(self, region: Region, now: datetime) -> bool:
        """Return whether the run is over; raise where there will be no checkpoint, or another try is needed."""
        from airflow_kcr.protocol.region.rows import RegionState
        from airflow_kcr.protocol.region.runs import is_complete

        come, published = self._come(region), RequestPublished(request_id=self.request_id)
        # Its application asks before its members come: until then, a request without an answer is that of an earlier
        # try. An answer may be that of another application, which was faster.
        if (come or is_complete(region, self.request_id)) and published.is_reached(region, now):
            return region.state is RegionState.STOPPED
        _require_application(region, now, self.before, come, self.come_by)
        return False

    def missing(self, region: Region, now: datetime) -> Iterator[Wait]:
        """Yield what the run's checkpoint waits for, and then the region's stop; before, its application."""
        from airflow_kcr.protocol.region import waits

        if not self._come(region):
            yield waits.Wait(rule=waits.Rule.MEMBERS, what="the run's application has not come yet")
            return
        yield from RequestPublished(request_id=self.request_id).missing(region, now)
        if not region.is_in_run:
            yield from waits.to_stop(region, now)

    def _come(self, region: Region) -> list[MemberId]:
        known = ((m, self.before.get(str(m)), row.incarnation) for m, row in sorted(region.members.items()))
        return [m for m, before, incarnation in known if before is not None and incarnation > before]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputationDone(Goal):
    """A recomputation of a checkpoint is done.

    One that fails, or whose process is lost, makes it `TimedOut`, as does one that has not started in time: another
    application has to be started.
    """

    kind = "recomputation_done"
    what = "to have recomputed a checkpoint"

    sequence: CheckpointNumber
    request_id: RequestId
    after: EventNumber
    """The region's newest event before the application was started: recomputations of earlier tries have lower
    numbers."""

    come_by: datetime
    """When it has to have started at the latest, by the store's clock."""

    def is_reached(self, region: Region, now: datetime) -> bool:
        """Return whether it is done; raise where another try is needed, or the checkpoint can't be recomputed."""
        from airflow_kcr.protocol.region import recomputations
        from airflow_kcr.protocol.region.rows import RecomputationState

        row = recomputations.replaceable(region, self.sequence)
        one, what = recomputations.newest(row, self.request_id), f"the recomputation of checkpoint {self.sequence}"
        if one is not None and one.state is RecomputationState.DONE:
            return True
        if one is None or one.number <= self.after:
            if now > self.come_by:
                raise TimedOut(f"{what} has not started by {self.come_by.isoformat()}: its application did not come")
            return False
        if one.state is RecomputationState.FAILED:
            raise TimedOut(f"{what} came to nothing: {one.failure}")
        if one.until < now:
            raise TimedOut(f"{what} says nothing any more: its application has ended; another try begins again")
        return False

    def missing(self, region: Region, now: datetime) -> Iterator[Wait]:
        """Yield that it runs."""
        from airflow_kcr.protocol.region import waits

        yield waits.Wait(rule=waits.Rule.MEMBERS, what=f"checkpoint {self.sequence} is being recomputed")


def _require_application(
    region: Region, now: datetime, members: Iterable[MemberId | str], come: Iterable[MemberId], come_by: datetime | None
) -> None:
    """Refuse an application whose members came and live no more, or of which none has come in time.

    Raises:
        TimedOut: another one has to be started.
    """
    come = list(come)
    if lost := [member for member in come if _is_gone(region, member, now)]:
        raise TimedOut(
            f"{', '.join(map(str, lost))} of region {region.name}, which is {region.state}, had no lease for "
            f"{GONE_FOR.total_seconds():.0f} s: the application has ended; another try takes its members over"
        )
    if come_by is not None and now > come_by and not come:
        raise TimedOut(
            f"{', '.join(map(str, members))} of region {region.name} did not come by {come_by.isoformat()}: the "
            "application waits for room in the cluster, or has ended there before it reached the store; see its "
            "log in the cluster, and end it there if it still waits"
        )


def _has_place(region: Region, member: MemberId) -> bool:
    group = region.rules.groups.get(member.group)
    return group is not None and member.index < group.members


def _is_gone(region: Region, member: MemberId, now: datetime) -> bool:
    lease = region.leases.get(member)
    return not region.is_live(member, now) and (lease is None or lease.until + GONE_FOR < now)
