"""The past of a region: checkpoints, requests and resets that no open work needs, asked by name.

A region lives for years, and a decision must not cost more for it. So the region's value holds what is open
(`working`), and each question about the past is a method here, which a store answers by one look-up: the request of
this request id, the checkpoint of this number, the newest one aligned to a boundary. An answer is as of before the
decision; rows that the region holds itself are newer and count first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias, TypeVar

from airflow_kcr.protocol.offsets import OffsetMap, SeekMap
from airflow_kcr.protocol.region import rows
from airflow_kcr.protocol.values import (
    MAX_NUMBER,
    CheckpointNumber,
    Epoch,
    GroupPartition,
    MemberId,
    Offset,
    RequestId,
    Timeline,
    TopicId,
)

V = TypeVar("V")

ACTIVE: Final = frozenset(
    {rows.PersonResetState.WAITING, rows.PersonResetState.DRAINING, rows.PersonResetState.STARTED}
)
"""Persons' resets that have not ended."""

WAITING: Final = frozenset({rows.RequestState.QUEUED, rows.RequestState.OPEN})
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


Named: TypeAlias = tuple[rows.CheckpointRequest | None, rows.PersonReset | None]
"""The request and the reset that a request id names."""


class LogStart(NamedTuple):
    """The start of a log, and between when and when contributions saw it there."""

    last_seen: datetime
    first_seen: datetime
    offset: Offset
    topic_id: TopicId


class CheckpointPage(NamedTuple):
    """Checkpoints, and what tells whether each can still be gone back to, as of one moment."""

    checkpoints: tuple[rows.Checkpoint, ...] = ()
    requests: tuple[rows.CheckpointRequest, ...] = ()
    """As `Archive.requests_for` returns them."""

    offsets: Mapping[CheckpointNumber, OffsetMap] = MappingProxyType({})
    """Of those that have them."""

    topics: Mapping[CheckpointNumber, Mapping[GroupPartition, TopicId]] = MappingProxyType({})
    """The topic ids that these offsets are of, as their contributors saw them."""

    log_starts: Mapping[GroupPartition, tuple[LogStart, ...]] = MappingProxyType({})
    """The starts of logs that contributions saw, by when they last did.

    Those to the `ENDS` oldest and the `ENDS` newest checkpoints that are kept and were not aborted: between them lies
    how fast a log start moves, however many there are.
    """


class ResetPage(NamedTuple):
    """Attempts of resets, and what belongs to them, as of one moment."""

    resets: tuple[rows.ResetAttempt, ...] = ()
    following: tuple[rows.ResetAttempt, ...] = ()
    """The attempts right after these; none where there is no upper bound."""

    persons: tuple[rows.PersonReset, ...] = ()
    """Those that these attempts are of, and the newest that never began, in the order of asking."""

    undone: Mapping[Timeline, tuple[CheckpointNumber, ...]] = MappingProxyType({})
    """What each timeline that one of them opened took off the one before it, in ascending order."""


class RegionPage(NamedTuple):
    """The past that the page of a region shows, as of one moment."""

    checkpoints: CheckpointPage = CheckpointPage()
    resets: ResetPage = ResetPage()
    contributions: Mapping[MemberId, rows.Contribution] = MappingProxyType({})
    """To the checkpoint that was asked about."""


class Archive:
    """The past of one region, by name. Rows come in the order of their numbers, the oldest first.

    As it stands it is that of a region that has been through nothing; a store answers from its rows.
    """

    # One row

    def request(self, request_id: RequestId) -> rows.CheckpointRequest | None:
        """Return the request of a request id."""
        return self._first(rows.CheckpointRequest, "request", request_id=request_id)

    def person_reset(self, request_id: RequestId) -> rows.PersonReset | None:
        """Return a person's reset by its request id."""
        return self._first(rows.PersonReset, "person_reset", request_id=request_id)

    def named(self, request_id: RequestId) -> Named:
        """Return what a request id names.

        A request, a person's reset, or both, as one asks for its checkpoint under its own.
        """
        return None, None

    def checkpoint(self, sequence: CheckpointNumber) -> rows.Checkpoint | None:
        """Return the checkpoint of a number."""
        return self._first(rows.Checkpoint, "checkpoint", sequence=sequence)

    def reset(self, epoch: Epoch) -> rows.ResetAttempt | None:
        """Return the attempt that began an epoch."""
        return self._first(rows.ResetAttempt, "reset", epoch=epoch)

    # What belongs to one row

    def offsets(self, sequences: Collection[CheckpointNumber]) -> Mapping[CheckpointNumber, OffsetMap]:
        """Return the offsets of those of these checkpoints that have them."""
        return {}

    def frozen(self, sequence: CheckpointNumber) -> frozenset[GroupPartition]:
        """Return the partitions that were frozen when a checkpoint was opened; none once it is retired."""
        return frozenset()

    def read_backs(self, sequence: CheckpointNumber) -> OffsetMap:
        """Return what Kafka held after the commit of a checkpoint, as it was read back."""
        return OffsetMap()

    def contributions(self, sequence: CheckpointNumber) -> Mapping[MemberId, rows.Contribution]:
        """Return what was contributed to a checkpoint; nothing once it is retired."""
        return {}

    def seek_map(self, epoch: Epoch) -> SeekMap | None:
        """Return where the reset that began an epoch went."""
        return None

    def boundary_offsets(self, boundary: datetime) -> Mapping[rows.BoundaryKey, rows.BoundaryOffset]:
        """Return where a boundary falls, as far as that was found."""
        return {}

    # The current timeline

    def newest_aligned(self, up_to: CheckpointNumber | None) -> rows.Checkpoint | None:
        """Return the newest current checkpoint, of at most this number, that was aligned to a boundary."""
        return self._first(rows.Checkpoint, "newest_aligned", up_to=or_last(up_to))

    def covering(self, boundary: datetime) -> rows.Checkpoint | None:
        """Return the oldest current checkpoint that was aligned to this boundary or a later one."""
        return self._first(rows.Checkpoint, "covering", boundary=boundary)

    def newest_usable(self, before: CheckpointNumber | None) -> rows.Checkpoint | None:
        """Return the newest current checkpoint that has its offsets, of a lower number than this."""
        return self._first(rows.Checkpoint, "newest_usable", before=or_last(before))

    def oldest_usable(self) -> rows.Checkpoint | None:
        """Return the oldest current checkpoint that has its offsets."""
        return self._first(rows.Checkpoint, "oldest_usable")

    def newest_current(self, before: CheckpointNumber | None) -> rows.Checkpoint | None:
        """Return the newest current checkpoint of a lower number than this, retired ones too."""
        return self._first(rows.Checkpoint, "newest_current", before=or_last(before))

    def newest_published(self, before: CheckpointNumber | None) -> rows.Checkpoint | None:
        """Return the newest published current checkpoint of a lower number than this, retired ones too."""
        return self._first(rows.Checkpoint, "newest_published", before=or_last(before))

    def published_from(self, boundary: datetime | None, sequence: CheckpointNumber | None) -> rows.Checkpoint | None:
        """Return the oldest published current checkpoint at or beyond a boundary, and of at least a number."""
        if boundary is None:
            return self._first(rows.Checkpoint, "published_from", least=sequence or 0)
        return self._first(rows.Checkpoint, "published_from_boundary", boundary=boundary, least=sequence or 0)

    def undone_by(
        self, opening: OffsetMap, covered: CheckpointNumber | None, retired: Collection[CheckpointNumber]
    ) -> tuple[CheckpointNumber, ...]:
        """Return the current checkpoints that a timeline opening at these offsets takes off it; see `timelines`.

        Args:
            opening: where it opens.
            covered: a checkpoint that is known to stay; retired ones before it stay as well.
            retired: current checkpoints that this decision has retired; they are judged as such.
        """
        return ()

    def undone(self, timelines: Collection[Timeline]) -> Mapping[Timeline, tuple[CheckpointNumber, ...]]:
        """Return the checkpoints that each of these timelines took off the one before it, in ascending order."""
        return dict.fromkeys(timelines, ())

    def stretches(self, since: Timeline) -> tuple[Stretch, ...]:
        """Return what this timeline and the later ones have undone, by timeline and then by number."""
        return ()

    # One record

    def holding(self, partition: GroupPartition, offset: Offset, since: CheckpointNumber) -> rows.Checkpoint | None:
        """Return the oldest current checkpoint, of at least a number, that lies beyond an offset of a partition.

        One that is retired has no offsets any more, and is taken to lie beyond whatever was done before it.
        """
        return self._first(rows.Checkpoint, "holding", since=since, **_place(partition, offset))

    def went_back(self, partition: GroupPartition, offset: Offset, after: Epoch) -> rows.ResetAttempt | None:
        """Return the first reset after an epoch that sent a partition to this offset or before it."""
        return self._first(rows.ResetAttempt, "went_back", after=after, **_place(partition, offset))

    # Lists

    def checkpoints(
        self, *, first: CheckpointNumber | None = None, before: CheckpointNumber | None = None, last: int | None = None
    ) -> tuple[rows.Checkpoint, ...]:
        """Return checkpoints of at least one number and below another; of these the `last` newest, or all."""
        return self.found(rows.Checkpoint, "checkpoints", first=first or 0, before=or_last(before), last=last)[::-1]

    def count(self) -> int:
        """Return how many checkpoints there are, whatever became of them."""
        return 0

    def checkpoint_page(self, *, before: CheckpointNumber | None, last: int | None) -> CheckpointPage:
        """Return what there is to show of checkpoints below a number; of these the `last` newest, or all."""
        return CheckpointPage()

    def region_page(self, newest: CheckpointNumber | None, last: int) -> RegionPage:
        """Return both pages, each with the `last` newest rows, and the contributions to the checkpoint `newest`."""
        return RegionPage()

    def topics(self, sequence: CheckpointNumber) -> Mapping[GroupPartition, TopicId]:
        """Return the topic ids that the offsets of a kept checkpoint are of, as their contributors saw them."""
        return {}

    def resets(
        self, *, before: CheckpointNumber | None = None, last: int | None = None
    ) -> tuple[rows.ResetAttempt, ...]:
        """Return attempts of resets that burned lower numbers than one; of these the `last` newest, or all."""
        return self.found(rows.ResetAttempt, "resets", before=or_last(before), last=last)[::-1]

    def resets_from(self, sequence: CheckpointNumber, limit: int) -> tuple[rows.ResetAttempt, ...]:
        """Return the first attempts of resets that burned this number or a higher one, at most `limit`."""
        return self.found(rows.ResetAttempt, "resets_from", sequence=sequence, limit=limit)

    def reset_page(self, *, before: CheckpointNumber | None, last: int | None) -> ResetPage:
        """Return what there is to show of resets that began before a number was burned, or were asked for before.

        Args:
            before: the number; None: all.
            last: the newest `ATTEMPTS` attempts for each of N resets and one more, and the newest N of persons' resets
                that never began; None: all of both.
        """
        return ResetPage()

    def requests_of_run(self, dag_id: str, run_id: str) -> tuple[rows.CheckpointRequest, ...]:
        """Return the requests of a DAG run, in the order of asking."""
        return self.found(rows.CheckpointRequest, "requests_of_run", dag=dag_id, run=run_id)

    def requests_for(self, sequences: Collection[CheckpointNumber]) -> tuple[rows.CheckpointRequest, ...]:
        """Return the DAG runs' requests that opened these checkpoints, or that they answered, in that order."""
        return self.found(rows.CheckpointRequest, "requests_for", sequences=list(sequences)) if sequences else ()

    # Resets and retention

    def last_done(self, before: Epoch) -> rows.ResetAttempt | None:
        """Return the newest reset that was done and began an earlier epoch."""
        return self._first(rows.ResetAttempt, "last_done", before=before)

    def kept(self) -> int:
        """Return how many complete checkpoints have their offsets."""
        return 0

    def oldest_kept(self, limit: int) -> tuple[rows.Checkpoint, ...]:
        """Return the oldest checkpoints that are neither retired nor pinned."""
        return self.found(rows.Checkpoint, "oldest_kept", limit=limit)

    def nth_complete(self, place: int) -> CheckpointNumber | None:
        """Return the number of the complete one that has `place - 1` newer ones with offsets; None: there are fewer."""
        return None

    # How a store answers

    def found(self, of: type[V], question: str, **parameters: object) -> tuple[V, ...]:
        """Return the rows of a class that answer a question, by the name that `store/sql/archive.sql` has for it."""
        return ()

    def _first(self, of: type[V], question: str, **parameters: object) -> V | None:
        return next(iter(self.found(of, question, **parameters)), None)


def or_last(number: CheckpointNumber | None) -> int:
    """Return a number that every checkpoint is below, where none is given."""
    return MAX_NUMBER if number is None else number


def _place(partition: GroupPartition, offset: Offset) -> dict[str, object]:
    return {"group": partition.group, "topic": partition.topic, "partition": partition.partition, "offset": offset}


NOTHING: Final = Archive()
"""The archive of a region that has been through nothing."""
