"""Which records were started more than once, and why: each time but the first has a reset that accounts for it (R8)."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import ClassVar, NamedTuple

from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.invariants.moment import Invariant, Moment
from airflow_kcr.protocol.invariants.tiling import add, below, common, lacking
from airflow_kcr.protocol.offsets import SeekMap
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.events import Event, InitialOffsetsStored, ResetBegun, SeekWritten
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.region.timelines import is_recreated
from airflow_kcr.protocol.values import BatchId, EventNumber, GroupPartition, Offset, Range, TopicId, joined


@dataclass(slots=True, kw_only=True)
class Accounted(Invariant):
    """R8 (V) ranges started more than once are exactly those that the resets between them account for.

    A range that overlaps one started before needs a seek entry at or below the overlap, written between the two starts.

    It can't see how many *records* those offsets hold, nor repetitions inside Spark (a task's second attempt).
    """

    invariant: ClassVar[str] = "R8"
    standing: dict[GroupPartition, list[Range]] = field(default_factory=dict)
    """What was started of its present topic, joined, and not rewound since."""

    topics: dict[GroupPartition, TopicId] = field(default_factory=dict)

    def event(self, moment: Moment, event: Event) -> None:
        """See `Invariant`."""
        match event.body:
            case ResetBegun(seek=seek) | SeekWritten(seek=seek):
                for partition, entry in seek.items():
                    standing = self.standing.get(partition)
                    if standing and entry.offset is not None and entry.offset < standing[-1].to:
                        self.standing[partition] = list(below(standing, entry.offset))
            case InitialOffsetsStored(bounds=bounds):
                for partition, log in bounds.items():
                    if is_recreated(self.topics.get(partition, TopicId("")), log.topic_id):
                        self.standing.pop(partition, None)
                    self.topics[partition] = log.topic_id or self.topics.get(partition, TopicId(""))

    def begin(self, moment: Moment, batch: Batch) -> None:
        """See `Invariant`."""
        for partition, range_ in batch.ranges.items():
            standing = self.standing.get(partition)
            if standing is None:
                self.standing[partition] = [range_]
                continue
            for piece in add(standing, range_):
                detail = f"{partition}: batch {batch.batch} begins {piece} again, no reset went back there"
                self.add(detail, batch.started_after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Redelivery:
    """Offsets that a batch started again, because of one reset."""

    partition: GroupPartition
    range: Range
    batch: BatchId
    """The batch that started them again."""

    earlier: tuple[BatchId, ...]
    """The batches that had started any of them before, oldest first."""

    reset: ResetBegun | None
    """The reset that went back; None: nothing accounts for it (a violation of R8)."""


def redeliveries(history: History) -> Iterator[Redelivery]:
    """Yield the offsets that were started more than once, by partition, in the order of the starts."""
    tracks = defaultdict[GroupPartition, _Track](_Track)
    reset: ResetBegun | None = None
    rows = deque(sorted(history.batches, key=lambda b: (b.started_after, min(r.from_ for r in b.ranges.values()))))
    for event in history.events:
        _start(tracks, rows, before=event.number)
        match event.body:
            case ResetBegun(seek=seek) as reset:
                _rewind(tracks, seek, reset)
            case SeekWritten(seek=seek):
                _rewind(tracks, seek, reset)
            case events.Killed() | events.StoreRestoredSeen():
                reset = None
            case InitialOffsetsStored(bounds=bounds):
                for partition, log in bounds.items():
                    tracks[partition].follow(log.topic_id)
    if history.events:
        _start(tracks, rows, before=EventNumber(history.events[-1].number + 1))
    for partition, track in sorted(tracks.items()):
        starts = sorted(track.starts, key=lambda start: start.range.from_)
        reach = list(accumulate((start.range.to for start in starts), max))
        for (_, batch), range_, because in track.again:
            earlier = sorted(
                (other.started_after, other.batch)
                for _, other in _within(starts, reach, range_)
                if other.started_after <= batch.started_after and other.batch != batch.batch
            )
            yield Redelivery(
                partition=partition,
                range=range_,
                batch=batch.batch,
                earlier=tuple(one for _, one in earlier),
                reset=because,
            )


def _start(tracks: Mapping[GroupPartition, _Track], rows: deque[Batch], *, before: EventNumber) -> None:
    """Take the batches that started before an event."""
    while rows and rows[0].started_after < before:
        batch = rows.popleft()
        for partition, range_ in batch.ranges.items():
            tracks[partition].start(_Start(range_, batch))


def _rewind(tracks: Mapping[GroupPartition, _Track], seek: SeekMap, reset: ResetBegun | None) -> None:
    for partition, entry in seek.items():
        if entry.offset is not None:
            tracks[partition].rewind(entry.offset, reset)


class _Start(NamedTuple):
    """One range of a batch."""

    range: Range
    batch: Batch


@dataclass(slots=True)
class _Track:
    """One partition: its starts, and what of them a reset has rewound since."""

    starts: list[_Start] = field(default_factory=list)
    again: list[tuple[_Start, Range, ResetBegun | None]] = field(default_factory=list)
    """What of a start had been started before, with the reset that rewound it."""

    standing: tuple[Range, ...] = ()
    """Started, and not rewound since."""

    pending: list[tuple[Range, ResetBegun | None]] = field(default_factory=list)
    """Started, rewound by that reset, and not started again since."""

    topic_id: TopicId = TopicId("")

    def follow(self, topic_id: TopicId) -> None:
        """Take the topic's id: the offsets of a recreated topic are other records, none of them started yet."""
        if is_recreated(self.topic_id, topic_id):
            self.standing, self.pending = (), []
        self.topic_id = topic_id or self.topic_id

    def rewind(self, offset: Offset, reset: ResetBegun | None) -> None:
        """Go back to an offset."""
        if self.standing and offset < self.standing[-1].to:
            back = common(self.standing, [Range(offset, self.standing[-1].to)])
            self.standing = lacking(self.standing, back)
            self.pending += [(range_, reset) for range_ in back]

    def start(self, start: _Start) -> None:
        """Start a range."""
        self.starts.append(start)
        range_ = start.range
        if self.standing and range_.from_ < self.standing[-1].to:
            self.again += [(start, piece, None) for piece in common(self.standing, [range_])]
        left: list[tuple[Range, ResetBegun | None]] = []
        for back, reset in self.pending:
            self.again += [(start, piece, reset) for piece in common([back], [range_])]
            left += [(piece, reset) for piece in lacking([back], [range_])]
        self.pending = left
        if self.standing and self.standing[-1].to == range_.from_:
            # By far the most frequent case: the range continues where the last one ended.
            self.standing = (*self.standing[:-1], Range(self.standing[-1].from_, range_.to))
        else:
            self.standing = joined([*self.standing, range_])


def _within(starts: list[_Start], reach: list[Offset], range_: Range) -> Iterator[_Start]:
    """Yield what was started of a range, in no order: without reading all, as a replay repeats thousands.

    Args:
        starts: what was started of the partition, by offset.
        reach: how far any of them reaches, up to each.
        range_: the range.
    """
    beyond = bisect_left(starts, range_.to, key=lambda start: start.range.from_)
    for i in reversed(range(beyond)):
        if reach[i] <= range_.from_:
            return
        if starts[i].range.to > range_.from_:
            yield starts[i]
