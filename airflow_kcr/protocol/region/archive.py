"""What is over in a region: checkpoints, requests and resets that no open work needs, asked by name.

A region lives for years, and a decision must not cost more for it. So the region's value holds what is open
(`working`), and each question about the past is a method here, which a store answers by one look-up: the request of
this request id, the checkpoint of this number, the newest one aligned to a boundary. An answer is as of before the
decision; rows that the region holds itself are newer and count first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple, Protocol

from airflow_kcr.protocol.offsets import OffsetMap, SeekMap
from airflow_kcr.protocol.region.rows import (
    BoundaryKey,
    BoundaryOffset,
    Checkpoint,
    CheckpointRequest,
    CheckpointState,
    Contribution,
    PersonReset,
    PersonResetState,
    RequestState,
    ResetAttempt,
    ResetState,
)
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    Epoch,
    GroupPartition,
    MemberId,
    Offset,
    RequestId,
    Timeline,
    TopicId,
)

ACTIVE: Final = frozenset({PersonResetState.WAITING, PersonResetState.DRAINING, PersonResetState.STARTED})
"""Persons' resets that have not ended."""

WAITING: Final = frozenset({RequestState.QUEUED, RequestState.OPEN})
"""Requests that have not ended."""


ENDS: Final = 3
"""Checkpoints at either end of the kept ones, from which `CheckpointPage.log_starts` tells."""

ATTEMPTS: Final = 5
"""Attempts of one reset that a page of resets reckons with."""


class Stretch(NamedTuple):
    """Checkpoints that one timeline took off the current timeline, with none between them that it left."""

    by: Timeline
    first: CheckpointNumber
    last: CheckpointNumber


class Named(NamedTuple):
    """What a request id names."""

    request: CheckpointRequest | None = None
    reset: PersonReset | None = None


class LogStart(NamedTuple):
    """The start of a log, and between when and when contributions saw it there."""

    last_seen: datetime
    first_seen: datetime
    offset: Offset
    topic_id: TopicId


class CheckpointPage(NamedTuple):
    """Checkpoints, and what tells whether each can still be gone back to, as of one moment."""

    checkpoints: tuple[Checkpoint, ...]
    requests: tuple[CheckpointRequest, ...]
    """As `Archive.requests_for` returns them."""

    offsets: Mapping[CheckpointNumber, OffsetMap]
    """Of those that have them."""

    topics: Mapping[CheckpointNumber, Mapping[GroupPartition, TopicId]]
    """The topic ids that these offsets are of, as their contributors saw them."""

    log_starts: Mapping[GroupPartition, tuple[LogStart, ...]]
    """The starts of logs that contributions saw, by when they last did.

    Those to the `ENDS` oldest and the `ENDS` newest checkpoints that are kept and were not aborted: between them lies
    how fast a log start moves, however many there are.
    """


class ResetPage(NamedTuple):
    """Attempts of resets, and what belongs to them, as of one moment."""

    resets: tuple[ResetAttempt, ...]
    following: tuple[ResetAttempt, ...]
    """The attempts right after these; none where there is no upper bound."""

    persons: tuple[PersonReset, ...]
    """Those that these attempts are of, and the newest that never began, in the order of asking."""

    undone: Mapping[Timeline, tuple[CheckpointNumber, ...]]
    """What each timeline that one of them opened took off the one before it, in ascending order."""


class RegionPage(NamedTuple):
    """What the page of a region shows of its past, as of one moment."""

    checkpoints: CheckpointPage
    resets: ResetPage
    contributions: Mapping[MemberId, Contribution]
    """To the checkpoint that was asked about."""


class Archive(Protocol):
    """The past of one region, by name. Rows come in the order of their numbers, the oldest first."""

    # -- one row ---------------------------------------------------------------------------------------------------

    def request(self, request_id: RequestId) -> CheckpointRequest | None:
        """Return the request of a request id."""
        ...

    def person_reset(self, request_id: RequestId) -> PersonReset | None:
        """Return a person's reset by its request id."""
        ...

    def named(self, request_id: RequestId) -> Named:
        """Return what a request id names.

        A request, a person's reset, or both, as one asks for its checkpoint under its own.
        """
        ...

    def checkpoint(self, sequence: CheckpointNumber) -> Checkpoint | None:
        """Return the checkpoint of a number."""
        ...

    def reset(self, epoch: Epoch) -> ResetAttempt | None:
        """Return the attempt that began an epoch."""
        ...

    # -- what belongs to one row -----------------------------------------------------------------------------------

    def offsets(self, sequences: Collection[CheckpointNumber]) -> Mapping[CheckpointNumber, OffsetMap]:
        """Return the offsets of those of these checkpoints that have them."""
        ...

    def frozen(self, sequence: CheckpointNumber) -> frozenset[GroupPartition]:
        """Return the partitions that were frozen when a checkpoint was opened; none once it is retired."""
        ...

    def read_backs(self, sequence: CheckpointNumber) -> OffsetMap:
        """Return what Kafka held after the commit of a checkpoint, as it was read back."""
        ...

    def contributions(self, sequence: CheckpointNumber) -> Mapping[MemberId, Contribution]:
        """Return what was contributed to a checkpoint; nothing once it is retired."""
        ...

    def seek_map(self, epoch: Epoch) -> SeekMap | None:
        """Return where the reset that began an epoch went."""
        ...

    def boundary_offsets(self, boundary: datetime) -> Mapping[BoundaryKey, BoundaryOffset]:
        """Return where a boundary falls, as far as that was found."""
        ...

    # -- the current timeline ---------------------------------------------------------------------------------------

    def newest_aligned(self, up_to: CheckpointNumber | None) -> Checkpoint | None:
        """Return the newest current checkpoint, of at most this number, that was aligned to a boundary."""
        ...

    def covering(self, boundary: datetime) -> Checkpoint | None:
        """Return the oldest current checkpoint that was aligned to this boundary or a later one."""
        ...

    def newest_usable(self, before: CheckpointNumber | None) -> Checkpoint | None:
        """Return the newest current checkpoint that has its offsets, of a lower number than this."""
        ...

    def oldest_usable(self) -> Checkpoint | None:
        """Return the oldest current checkpoint that has its offsets."""
        ...

    def newest_current(self, before: CheckpointNumber | None) -> Checkpoint | None:
        """Return the newest current checkpoint of a lower number than this, retired ones too."""
        ...

    def newest_published(self, before: CheckpointNumber | None) -> Checkpoint | None:
        """Return the newest published current checkpoint of a lower number than this, retired ones too."""
        ...

    def published_from(self, boundary: datetime | None, sequence: CheckpointNumber | None) -> Checkpoint | None:
        """Return the oldest published current checkpoint at or beyond a boundary, and of at least a number."""
        ...

    def undone_by(
        self, opening: OffsetMap, covered: CheckpointNumber | None, retired: Collection[CheckpointNumber]
    ) -> tuple[CheckpointNumber, ...]:
        """Return the current checkpoints that a timeline opening at these offsets takes off it; see `timelines`.

        Args:
            opening: where it opens.
            covered: a checkpoint that is known to stay; retired ones before it stay as well.
            retired: current checkpoints that this decision has retired; they are judged as such.
        """
        ...

    def undone(self, timelines: Collection[Timeline]) -> Mapping[Timeline, tuple[CheckpointNumber, ...]]:
        """Return the checkpoints that each of these timelines took off the one before it, in ascending order."""
        ...

    def stretches(self, since: Timeline) -> tuple[Stretch, ...]:
        """Return what this timeline and the later ones have undone, by timeline and then by number."""
        ...

    # -- one record ------------------------------------------------------------------------------------------------

    def holding(self, partition: GroupPartition, offset: Offset, since: CheckpointNumber) -> Checkpoint | None:
        """Return the oldest current checkpoint, of at least a number, that lies beyond an offset of a partition.

        One that is retired has no offsets any more, and is taken to lie beyond whatever was done before it.
        """
        ...

    def went_back(self, partition: GroupPartition, offset: Offset, after: Epoch) -> ResetAttempt | None:
        """Return the first reset after an epoch that sent a partition to this offset or before it."""
        ...

    # -- lists -----------------------------------------------------------------------------------------------------

    def checkpoints(
        self, *, first: CheckpointNumber | None = None, before: CheckpointNumber | None = None, last: int | None = None
    ) -> tuple[Checkpoint, ...]:
        """Return checkpoints of at least one number and below another; of these the `last` newest, or all."""
        ...

    def count(self) -> int:
        """Return how many checkpoints there are, whatever became of them."""
        ...

    def checkpoint_page(self, *, before: CheckpointNumber | None, last: int | None) -> CheckpointPage:
        """Return what there is to show of checkpoints below a number; of these the `last` newest, or all."""
        ...

    def region_page(self, newest: CheckpointNumber | None, last: int) -> RegionPage:
        """Return both pages, each with the `last` newest rows, and the contributions to the checkpoint `newest`."""
        ...

    def topics(self, sequence: CheckpointNumber) -> Mapping[GroupPartition, TopicId]:
        """Return the topic ids that the offsets of a kept checkpoint are of, as their contributors saw them."""
        ...

    def resets(self, *, before: CheckpointNumber | None = None, last: int | None = None) -> tuple[ResetAttempt, ...]:
        """Return attempts of resets that burned lower numbers than one; of these the `last` newest, or all."""
        ...

    def resets_from(self, sequence: CheckpointNumber, limit: int) -> tuple[ResetAttempt, ...]:
        """Return the first attempts of resets that burned this number or a higher one, at most `limit`."""
        ...

    def reset_page(self, *, before: CheckpointNumber | None, last: int | None) -> ResetPage:
        """Return what there is to show of resets that began before a number was burned, or were asked for before.

        Args:
            before: the number; None: all.
            last: the newest `ATTEMPTS` attempts for each of N resets and one more, and the newest N of persons' resets
                that never began; None: all of both.
        """
        ...

    def requests_of_run(self, dag_id: str, run_id: str) -> tuple[CheckpointRequest, ...]:
        """Return the requests of a DAG run, in the order of asking."""
        ...

    def requests_for(self, sequences: Collection[CheckpointNumber]) -> tuple[CheckpointRequest, ...]:
        """Return the DAG runs' requests that opened these checkpoints, or that they answered, in that order."""
        ...

    # -- resets and retention ----------------------------------------------------------------------------------------

    def last_done(self, before: Epoch) -> ResetAttempt | None:
        """Return the newest reset that was done and began an earlier epoch."""
        ...

    def kept(self) -> int:
        """Return how many complete checkpoints have their offsets."""
        ...

    def oldest_kept(self, limit: int) -> tuple[Checkpoint, ...]:
        """Return the oldest checkpoints that are neither retired nor pinned."""
        ...

    def nth_complete(self, place: int) -> CheckpointNumber | None:
        """Return the number of the complete one that has `place - 1` newer ones with offsets; None: there are fewer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Every row that a region ever had, of the tables that grow with time; as in `Region`, which holds a part."""

    boundary_offsets: Mapping[BoundaryKey, BoundaryOffset] = field(default_factory=dict)
    requests: Mapping[RequestId, CheckpointRequest] = field(default_factory=dict)
    checkpoints: Mapping[CheckpointNumber, Checkpoint] = field(default_factory=dict)
    offsets: Mapping[CheckpointNumber, OffsetMap] = field(default_factory=dict)
    frozen: Mapping[CheckpointNumber, frozenset[GroupPartition]] = field(default_factory=dict)
    contributions: Mapping[tuple[CheckpointNumber, MemberId], Contribution] = field(default_factory=dict)
    read_backs: Mapping[CheckpointNumber, OffsetMap] = field(default_factory=dict)
    resets: Mapping[Epoch, ResetAttempt] = field(default_factory=dict)
    seek_maps: Mapping[Epoch, SeekMap] = field(default_factory=dict)
    person_resets: Mapping[RequestId, PersonReset] = field(default_factory=dict)


class Whole:
    """The archive of a region that is in memory as a whole.

    Args:
        tables: all of its rows.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def request(self, request_id: RequestId) -> CheckpointRequest | None:
        """See `Archive.request`."""
        return self._tables.requests.get(request_id)

    def person_reset(self, request_id: RequestId) -> PersonReset | None:
        """See `Archive.person_reset`."""
        return self._tables.person_resets.get(request_id)

    def named(self, request_id: RequestId) -> Named:
        """See `Archive.named`."""
        return Named(self.request(request_id), self.person_reset(request_id))

    def checkpoint(self, sequence: CheckpointNumber) -> Checkpoint | None:
        """See `Archive.checkpoint`."""
        return self._tables.checkpoints.get(sequence)

    def reset(self, epoch: Epoch) -> ResetAttempt | None:
        """See `Archive.reset`."""
        return self._tables.resets.get(epoch)

    def offsets(self, sequences: Collection[CheckpointNumber]) -> Mapping[CheckpointNumber, OffsetMap]:
        """See `Archive.offsets`."""
        return {s: self._tables.offsets[s] for s in sequences if s in self._tables.offsets}

    def frozen(self, sequence: CheckpointNumber) -> frozenset[GroupPartition]:
        """See `Archive.frozen`."""
        return self._tables.frozen.get(sequence, frozenset())

    def read_backs(self, sequence: CheckpointNumber) -> OffsetMap:
        """See `Archive.read_backs`."""
        return self._tables.read_backs.get(sequence, OffsetMap())

    def contributions(self, sequence: CheckpointNumber) -> Mapping[MemberId, Contribution]:
        """See `Archive.contributions`."""
        found = sorted((member, part) for (of, member), part in self._tables.contributions.items() if of == sequence)
        return dict(found)

    def seek_map(self, epoch: Epoch) -> SeekMap | None:
        """See `Archive.seek_map`."""
        return self._tables.seek_maps.get(epoch)

    def boundary_offsets(self, boundary: datetime) -> Mapping[BoundaryKey, BoundaryOffset]:
        """See `Archive.boundary_offsets`."""
        return {key: row for key, row in self._tables.boundary_offsets.items() if key[2] == boundary}

    def newest_aligned(self, up_to: CheckpointNumber | None) -> Checkpoint | None:
        """See `Archive.newest_aligned`."""
        found = [
            (c.boundary, c.sequence) for c in self._path() if c.boundary and (up_to is None or c.sequence <= up_to)
        ]
        return self._tables.checkpoints[max(found)[1]] if found else None

    def covering(self, boundary: datetime) -> Checkpoint | None:
        """See `Archive.covering`."""
        return next((c for c in self._path() if c.boundary is not None and c.boundary >= boundary), None)

    def newest_usable(self, before: CheckpointNumber | None) -> Checkpoint | None:
        """See `Archive.newest_usable`."""
        found = [c for c in self._path() if c.is_complete and (before is None or c.sequence < before)]
        return found[-1] if found else None

    def oldest_usable(self) -> Checkpoint | None:
        """See `Archive.oldest_usable`."""
        return next((c for c in self._path() if c.is_complete), None)

    def newest_current(self, before: CheckpointNumber | None) -> Checkpoint | None:
        """See `Archive.newest_current`."""
        found = [c for c in self._path() if before is None or c.sequence < before]
        return found[-1] if found else None

    def newest_published(self, before: CheckpointNumber | None) -> Checkpoint | None:
        """See `Archive.newest_published`."""
        found = [c for c in self._path() if c.published_at is not None and (before is None or c.sequence < before)]
        return found[-1] if found else None

    def published_from(self, boundary: datetime | None, sequence: CheckpointNumber | None) -> Checkpoint | None:
        """See `Archive.published_from`."""
        for row in self._path():
            beyond = boundary is None or (row.boundary is not None and row.boundary >= boundary)
            if row.published_at is not None and beyond and (sequence is None or row.sequence >= sequence):
                return row
        return None

    def undone_by(
        self, opening: OffsetMap, covered: CheckpointNumber | None, retired: Collection[CheckpointNumber]
    ) -> tuple[CheckpointNumber, ...]:
        """See `Archive.undone_by`."""
        gone: list[CheckpointNumber] = []
        newest = covered
        for row in reversed(self._path()):
            if row.is_complete and row.sequence not in retired:
                stays = opening.covers(self._tables.offsets[row.sequence])
                newest = row.sequence if stays and newest is None else newest
            else:
                stays = newest is not None and row.sequence < newest
            if not stays:
                gone.append(row.sequence)
        return tuple(sorted(gone))

    def undone(self, timelines: Collection[Timeline]) -> Mapping[Timeline, tuple[CheckpointNumber, ...]]:
        """See `Archive.undone`."""
        rows = [row for row in self._rows() if row.undone_by is not None and row.undone_by in timelines]
        return {timeline: tuple(row.sequence for row in rows if row.undone_by == timeline) for timeline in timelines}

    def stretches(self, since: Timeline) -> tuple[Stretch, ...]:
        """See `Archive.stretches`."""
        found: list[Stretch] = []
        before: Timeline | None = None
        for row in self._rows():
            if not (row.is_current or row.undone_by is not None):
                continue  # it was never complete: nothing of it is anywhere
            if row.undone_by is not None and row.undone_by >= since:
                if row.undone_by == before:
                    found[-1] = found[-1]._replace(last=row.sequence)
                else:
                    found.append(Stretch(row.undone_by, row.sequence, row.sequence))
            before = row.undone_by
        return tuple(sorted(found))

    def holding(self, partition: GroupPartition, offset: Offset, since: CheckpointNumber) -> Checkpoint | None:
        """See `Archive.holding`."""
        for row in self._path():
            held = self._tables.offsets.get(row.sequence, OffsetMap())
            if row.sequence >= since and (not row.is_complete or held.get(partition, 0) > offset):
                return row
        return None

    def went_back(self, partition: GroupPartition, offset: Offset, after: Epoch) -> ResetAttempt | None:
        """See `Archive.went_back`."""
        for epoch, held in sorted(self._tables.seek_maps.items()):
            place = held.offsets.get(partition)
            if epoch > after and place is not None and place <= offset:
                return self._tables.resets[epoch]
        return None

    def checkpoints(
        self, *, first: CheckpointNumber | None = None, before: CheckpointNumber | None = None, last: int | None = None
    ) -> tuple[Checkpoint, ...]:
        """See `Archive.checkpoints`."""
        found = [
            c
            for c in self._rows()
            if (first is None or c.sequence >= first) and (before is None or c.sequence < before)
        ]
        return tuple(found if last is None else found[max(len(found) - last, 0) :])

    def count(self) -> int:
        """See `Archive.count`."""
        return len(self._tables.checkpoints)

    def checkpoint_page(self, *, before: CheckpointNumber | None, last: int | None) -> CheckpointPage:
        """See `Archive.checkpoint_page`."""
        rows = self.checkpoints(before=before, last=last)
        complete = [row.sequence for row in rows if row.is_complete]
        return CheckpointPage(
            checkpoints=rows,
            requests=self.requests_for([row.sequence for row in rows]),
            offsets=self.offsets(complete),
            topics={sequence: self.topics(sequence) for sequence in complete},
            log_starts=self._log_starts(),
        )

    def region_page(self, newest: CheckpointNumber | None, last: int) -> RegionPage:
        """See `Archive.region_page`."""
        return RegionPage(
            checkpoints=self.checkpoint_page(before=None, last=last),
            resets=self.reset_page(before=None, last=last),
            contributions={} if newest is None else self.contributions(newest),
        )

    def topics(self, sequence: CheckpointNumber) -> Mapping[GroupPartition, TopicId]:
        """See `Archive.topics`."""
        return {p: log.topic_id for part in self.contributions(sequence).values() for p, log in part.bounds.items()}

    def resets(self, *, before: CheckpointNumber | None = None, last: int | None = None) -> tuple[ResetAttempt, ...]:
        """See `Archive.resets`."""
        found = [row for _, row in sorted(self._tables.resets.items()) if before is None or row.sequence < before]
        return tuple(found if last is None else found[max(len(found) - last, 0) :])

    def resets_from(self, sequence: CheckpointNumber, limit: int) -> tuple[ResetAttempt, ...]:
        """See `Archive.resets_from`."""
        return tuple(row for _, row in sorted(self._tables.resets.items()) if row.sequence >= sequence)[:limit]

    def reset_page(self, *, before: CheckpointNumber | None, last: int | None) -> ResetPage:
        """See `Archive.reset_page`."""
        rows = self.resets(before=before, last=None if last is None else last * ATTEMPTS + 1)
        following = () if before is None else self.resets_from(before, ATTEMPTS)
        until = following[0].started_at if following else None
        asked = sorted(self._tables.person_resets.values(), key=lambda row: row.order)
        waited = [row for row in asked if row.epoch is None and (until is None or row.requested_at < until)]
        names = {
            *(row.person for row in rows),
            *(row.request_id for row in (waited if last is None else waited[max(len(waited) - last, 0) :])),
        }
        return ResetPage(
            resets=rows,
            following=following,
            persons=tuple(row for row in asked if row.request_id in names),
            undone=self.undone({row.timeline for row in rows if row.restore_point == row.sequence}),
        )

    def requests_of_run(self, dag_id: str, run_id: str) -> tuple[CheckpointRequest, ...]:
        """See `Archive.requests_of_run`."""
        return tuple(r for r in self._asked() if (r.requester.dag_id, r.requester.run_id) == (dag_id, run_id))

    def requests_for(self, sequences: Collection[CheckpointNumber]) -> tuple[CheckpointRequest, ...]:
        """See `Archive.requests_for`."""
        wanted = frozenset(sequences)
        return tuple(r for r in self._asked() if r.requester.dag_id and r.sequence in wanted)

    def _log_starts(self) -> Mapping[GroupPartition, tuple[LogStart, ...]]:
        over = {CheckpointState.RETIRED, CheckpointState.ABORTED}
        kept = [row.sequence for row in self._rows() if row.state not in over]
        ends = {*kept[:ENDS], *kept[-ENDS:]}
        seen: dict[tuple[GroupPartition, Offset, TopicId], list[datetime]] = {}
        for part in (part for (sequence, _), part in self._tables.contributions.items() if sequence in ends):
            for partition, log in part.bounds.items():
                seen.setdefault((partition, log.start, log.topic_id), []).append(part.contributed_at)
        found: dict[GroupPartition, list[LogStart]] = {}
        for (partition, start, topic_id), moments in seen.items():
            found.setdefault(partition, []).append(LogStart(max(moments), min(moments), start, topic_id))
        return {partition: tuple(sorted(rows)) for partition, rows in found.items()}

    def last_done(self, before: Epoch) -> ResetAttempt | None:
        """See `Archive.last_done`."""
        done = [row for row in self.resets() if row.state is ResetState.DONE and row.epoch < before]
        return done[-1] if done else None

    def kept(self) -> int:
        """See `Archive.kept`."""
        return sum(1 for row in self._rows() if row.is_complete)

    def oldest_kept(self, limit: int) -> tuple[Checkpoint, ...]:
        """See `Archive.oldest_kept`."""
        found = (c for c in self._rows() if c.state is not CheckpointState.RETIRED and not c.pinned_as)
        return tuple(row for row, _ in zip(found, range(limit), strict=False))

    def nth_complete(self, place: int) -> CheckpointNumber | None:
        """See `Archive.nth_complete`."""
        complete = [c.sequence for c in self._rows() if c.is_complete]
        return complete[-place] if len(complete) >= place else None

    def _rows(self) -> list[Checkpoint]:
        return [row for _, row in sorted(self._tables.checkpoints.items())]

    def _path(self) -> list[Checkpoint]:
        return [row for row in self._rows() if row.is_current]

    def _asked(self) -> list[CheckpointRequest]:
        return sorted(self._tables.requests.values(), key=lambda row: row.order)


NOTHING: Final = Whole(Tables())
"""The archive of a region that has been through nothing."""
