"""The past of a region in memory: all of its rows, every question to them in Python, and what a decision works on.

The plainest statement of what `store/sql/archive.sql` and `region.sql` answer; the contract suite holds them together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from airflow_kcr.protocol.offsets import OffsetMap, SeekMap
from airflow_kcr.protocol.region.archive import (
    ACTIVE,
    ATTEMPTS,
    ENDS,
    WAITING,
    Archive,
    CheckpointPage,
    LogStart,
    Named,
    RegionPage,
    ResetPage,
    Stretch,
)
from airflow_kcr.protocol.region.rows import (
    RESET_STATES,
    BoundaryKey,
    BoundaryOffset,
    Checkpoint,
    CheckpointRequest,
    CheckpointState,
    Contribution,
    PersonReset,
    ResetAttempt,
    ResetState,
)
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    Epoch,
    GroupPartition,
    MemberId,
    Offset,
    RequestId,
    Timeline,
    TopicId,
    replace,
)


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


class Whole(Archive):
    """The archive of a region that is in memory as a whole.

    Args:
        tables: all of its rows.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def request(self, request_id: RequestId) -> CheckpointRequest | None:
        return self._tables.requests.get(request_id)

    def person_reset(self, request_id: RequestId) -> PersonReset | None:
        return self._tables.person_resets.get(request_id)

    def named(self, request_id: RequestId) -> Named:
        return self.request(request_id), self.person_reset(request_id)

    def checkpoint(self, sequence: CheckpointNumber) -> Checkpoint | None:
        return self._tables.checkpoints.get(sequence)

    def reset(self, epoch: Epoch) -> ResetAttempt | None:
        return self._tables.resets.get(epoch)

    def offsets(self, sequences: Collection[CheckpointNumber]) -> Mapping[CheckpointNumber, OffsetMap]:
        return {s: self._tables.offsets[s] for s in sequences if s in self._tables.offsets}

    def frozen(self, sequence: CheckpointNumber) -> frozenset[GroupPartition]:
        return self._tables.frozen.get(sequence, frozenset())

    def read_backs(self, sequence: CheckpointNumber) -> OffsetMap:
        return self._tables.read_backs.get(sequence, OffsetMap())

    def contributions(self, sequence: CheckpointNumber) -> Mapping[MemberId, Contribution]:
        found = sorted((member, part) for (of, member), part in self._tables.contributions.items() if of == sequence)
        return dict(found)

    def seek_map(self, epoch: Epoch) -> SeekMap | None:
        return self._tables.seek_maps.get(epoch)

    def boundary_offsets(self, boundary: datetime) -> Mapping[BoundaryKey, BoundaryOffset]:
        return {key: row for key, row in self._tables.boundary_offsets.items() if key[2] == boundary}

    def newest_aligned(self, up_to: CheckpointNumber | None) -> Checkpoint | None:
        found = [
            (c.boundary, c.sequence) for c in self._path() if c.boundary and (up_to is None or c.sequence <= up_to)
        ]
        return self._tables.checkpoints[max(found)[1]] if found else None

    def covering(self, boundary: datetime) -> Checkpoint | None:
        return next((c for c in self._path() if c.boundary is not None and c.boundary >= boundary), None)

    def newest_usable(self, before: CheckpointNumber | None) -> Checkpoint | None:
        found = [c for c in self._path() if c.is_complete and (before is None or c.sequence < before)]
        return found[-1] if found else None

    def oldest_usable(self) -> Checkpoint | None:
        return next((c for c in self._path() if c.is_complete), None)

    def newest_current(self, before: CheckpointNumber | None) -> Checkpoint | None:
        found = [c for c in self._path() if before is None or c.sequence < before]
        return found[-1] if found else None

    def newest_published(self, before: CheckpointNumber | None) -> Checkpoint | None:
        found = [c for c in self._path() if c.published_at is not None and (before is None or c.sequence < before)]
        return found[-1] if found else None

    def published_from(self, boundary: datetime | None, sequence: CheckpointNumber | None) -> Checkpoint | None:
        for row in self._path():
            beyond = boundary is None or (row.boundary is not None and row.boundary >= boundary)
            if row.published_at is not None and beyond and (sequence is None or row.sequence >= sequence):
                return row
        return None

    def undone_by(
        self, opening: OffsetMap, covered: CheckpointNumber | None, retired: Collection[CheckpointNumber]
    ) -> tuple[CheckpointNumber, ...]:
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
        rows = [row for row in self._rows() if row.undone_by is not None and row.undone_by in timelines]
        return {timeline: tuple(row.sequence for row in rows if row.undone_by == timeline) for timeline in timelines}

    def stretches(self, since: Timeline) -> tuple[Stretch, ...]:
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
        for row in self._path():
            held = self._tables.offsets.get(row.sequence, OffsetMap())
            if row.sequence >= since and (not row.is_complete or held.get(partition, 0) > offset):
                return row
        return None

    def went_back(self, partition: GroupPartition, offset: Offset, after: Epoch) -> ResetAttempt | None:
        for epoch, held in sorted(self._tables.seek_maps.items()):
            place = held.offsets.get(partition)
            if epoch > after and place is not None and place <= offset:
                return self._tables.resets[epoch]
        return None

    def checkpoints(
        self, *, first: CheckpointNumber | None = None, before: CheckpointNumber | None = None, last: int | None = None
    ) -> tuple[Checkpoint, ...]:
        found = [
            c
            for c in self._rows()
            if (first is None or c.sequence >= first) and (before is None or c.sequence < before)
        ]
        return tuple(found if last is None else found[max(len(found) - last, 0) :])

    def count(self) -> int:
        return len(self._tables.checkpoints)

    def checkpoint_page(self, *, before: CheckpointNumber | None, last: int | None) -> CheckpointPage:
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
        return RegionPage(
            checkpoints=self.checkpoint_page(before=None, last=last),
            resets=self.reset_page(before=None, last=last),
            contributions={} if newest is None else self.contributions(newest),
        )

    def topics(self, sequence: CheckpointNumber) -> Mapping[GroupPartition, TopicId]:
        return {p: log.topic_id for part in self.contributions(sequence).values() for p, log in part.bounds.items()}

    def resets(self, *, before: CheckpointNumber | None = None, last: int | None = None) -> tuple[ResetAttempt, ...]:
        found = [row for _, row in sorted(self._tables.resets.items()) if before is None or row.sequence < before]
        return tuple(found if last is None else found[max(len(found) - last, 0) :])

    def resets_from(self, sequence: CheckpointNumber, limit: int) -> tuple[ResetAttempt, ...]:
        return tuple(row for _, row in sorted(self._tables.resets.items()) if row.sequence >= sequence)[:limit]

    def reset_page(self, *, before: CheckpointNumber | None, last: int | None) -> ResetPage:
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
            undone=self.undone({row.timeline for row in rows if row.opens_timeline}),
        )

    def requests_of_run(self, dag_id: str, run_id: str) -> tuple[CheckpointRequest, ...]:
        return tuple(r for r in self._asked() if (r.requester.dag_id, r.requester.run_id) == (dag_id, run_id))

    def requests_for(self, sequences: Collection[CheckpointNumber]) -> tuple[CheckpointRequest, ...]:
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
        done = [row for row in self.resets() if row.state is ResetState.DONE and row.epoch < before]
        return done[-1] if done else None

    def kept(self) -> int:
        return sum(1 for row in self._rows() if row.is_complete)

    def oldest_kept(self, limit: int) -> tuple[Checkpoint, ...]:
        found = (c for c in self._rows() if c.state is not CheckpointState.RETIRED and not c.pinned_as)
        return tuple(row for row, _ in zip(found, range(limit), strict=False))

    def nth_complete(self, place: int) -> CheckpointNumber | None:
        complete = [c.sequence for c in self._rows() if c.is_complete]
        return complete[-place] if len(complete) >= place else None

    def _rows(self) -> list[Checkpoint]:
        return [row for _, row in sorted(self._tables.checkpoints.items())]

    def _path(self) -> list[Checkpoint]:
        return [row for row in self._rows() if row.is_current]

    def _asked(self) -> list[CheckpointRequest]:
        return sorted(self._tables.requests.values(), key=lambda row: row.order)


def working(region: Region, tables: Tables) -> Region:
    """Return a region with the rows that decisions work on, of all that it has; see `Region`.

    Args:
        region: its own row, and the tables that don't grow with time.
        tables: the others, whole.
    """
    archive = Whole(tables)
    complete = (s for s, row in tables.checkpoints.items() if row.state is CheckpointState.COMPLETE)
    newest = archive.newest_usable(None)
    sequences = {region.open_checkpoint, region.restore_sequence, region.stopping, region.aligned, *complete}
    if newest is not None:
        sequences.add(newest.sequence)
    requests = {request_id: row for request_id, row in tables.requests.items() if row.state in WAITING}
    checkpoint = None if region.open_checkpoint is None else tables.checkpoints[region.open_checkpoint]
    bounds = {
        region.next_boundary,
        None if checkpoint is None else checkpoint.boundary,
        *(row.boundary for row in requests.values()),
    }
    epochs = {region.epoch, region.restore_epoch}
    opened = None if region.restore_epoch is None else tables.resets.get(region.restore_epoch)
    mapped = {region.restore_epoch, region.epoch if region.state in RESET_STATES else None}
    return replace(
        region,
        archive=archive,
        boundary_offsets={key: row for key, row in tables.boundary_offsets.items() if key[2] in bounds},
        requests=requests,
        checkpoints={s: row for s, row in tables.checkpoints.items() if s in sequences},
        offsets={s: held for s, held in tables.offsets.items() if s == region.restore_sequence},
        frozen={s: held for s, held in tables.frozen.items() if s == region.open_checkpoint},
        contributions={key: part for key, part in tables.contributions.items() if key[0] == region.open_checkpoint},
        read_backs={s: held for s, held in tables.read_backs.items() if s == region.restore_sequence},
        resets={epoch: row for epoch, row in tables.resets.items() if epoch in epochs},
        seek_maps={epoch: held for epoch, held in tables.seek_maps.items() if epoch in mapped},
        person_resets={
            request_id: row
            for request_id, row in tables.person_resets.items()
            if row.state in ACTIVE or (opened is not None and request_id == opened.person)
        },
    )
