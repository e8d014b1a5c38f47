"""R8: what was started more than once, and which reset accounts for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from airflow_kcr.protocol.invariants.check import Invariant, Violations
from airflow_kcr.protocol.invariants.history import Handled, Index, Place, Start
from airflow_kcr.protocol.invariants.moment import Moment
from airflow_kcr.protocol.invariants.tiling import add, below, common, joined, lacking
from airflow_kcr.protocol.region.events import Event, InitialOffsetsStored, ResetBegun, SeekWritten
from airflow_kcr.protocol.region.recreated_topics import is_another
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.values import EventNumber, GroupPartition, Offset, Range, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A range that was started again, in one piece, because of one reset."""

    partition: GroupPartition
    range: Range
    batch: Batch
    """The batch that began it again."""

    reset: EventNumber | None
    """The event that rewound it; None: nothing accounts for it."""


@dataclass(slots=True, kw_only=True)
class Accounted(Invariant):
    """R8 (V) ranges started more than once are exactly those that the resets between them account for.

    A range that overlaps one started before needs a seek entry at or below the overlap, written between the two starts.

    It can't see how many *records* those offsets hold, nor repetitions inside Spark (a task's second attempt).
    """

    invariant: ClassVar[str] = "R8"
    sees_batches: ClassVar[bool] = True
    standing: dict[GroupPartition, list[Range]] = field(default_factory=dict)
    """What was started of its present topic, joined, and not rewound since."""

    topics: dict[GroupPartition, TopicId] = field(default_factory=dict)

    def event(self, moment: Moment, event: Event, findings: Violations) -> None:
        """See `Invariant`."""
        match event.body:
            case ResetBegun(seek=seek) | SeekWritten(seek=seek):
                for partition, entry in seek.items():
                    standing = self.standing.get(partition)
                    if standing and entry.offset is not None and entry.offset < standing[-1].to:
                        self.standing[partition] = list(below(standing, entry.offset))
            case InitialOffsetsStored(bounds=bounds):
                for partition, log in bounds.items():
                    if is_another(self.topics.get(partition, TopicId("")), log.topic_id):
                        self.standing.pop(partition, None)
                    self.topics[partition] = log.topic_id or self.topics.get(partition, TopicId(""))
            case _:
                pass

    def begin(self, moment: Moment, batch: Batch, findings: Violations) -> None:
        """See `Invariant`."""
        for partition, range_ in batch.ranges.items():
            standing = self.standing.get(partition)
            if standing is None:
                self.standing[partition] = [range_]
                continue
            for piece in add(standing, range_):
                detail = f"{partition}: batch {batch.batch} begins {piece} again, no reset went back there"
                findings.add(detail, batch.started_after)


def started_again(index: Index) -> Iterator[Again]:
    """Yield every range that was started again, partition by partition, in the order of the starts."""
    for partition in sorted(index.begun):
        yield from _Track(index=index, partition=partition).walk()


@dataclass(slots=True, kw_only=True)
class _Track:
    """One partition: what was started, and what of it a reset has rewound since."""

    index: Index
    partition: GroupPartition
    standing: tuple[Range, ...] = ()
    """Started, and not rewound since."""

    topic_id: TopicId = TopicId("")
    pending: list[tuple[Range, EventNumber]] = field(default_factory=list)
    """Started, rewound by the reset of that event, and not started again since."""

    def walk(self) -> Iterator[Again]:
        """Yield what is started again."""
        steps: list[tuple[EventNumber, int, Offset, Handled | Place | Start]] = []
        steps += [(s.number, 0, Offset(0), s) for s in self.index.starts.get(self.partition, ())]
        steps += [(p.number, 0, Offset(0), p) for p in self.index.seeks.get(self.partition, ())]
        steps += [(h.number, 1, h.range.from_, h) for h in self.index.begun.get(self.partition, ())]
        for _, _, _, step in sorted(steps, key=lambda s: s[:3]):
            if isinstance(step, Handled):
                yield from self._begin(step)
            elif isinstance(step, Start):
                self._follow(step.topic_id)
            elif step.offset is not None:
                self._rewind(step.number, step.offset)

    def _follow(self, topic_id: TopicId) -> None:
        if is_another(self.topic_id, topic_id):
            # The offsets of a recreated topic are those of other records: none of them was started yet.
            self.standing, self.pending = (), []
        self.topic_id = topic_id or self.topic_id

    def _rewind(self, number: EventNumber, offset: Offset) -> None:
        if not self.standing or offset >= self.standing[-1].to:
            return
        back = common(self.standing, [Range(offset, self.standing[-1].to)])
        self.standing = lacking(self.standing, back)
        self.pending += [(r, number) for r in back]

    def _begin(self, handled: Handled) -> Iterator[Again]:
        range_, batch = handled.range, handled.batch
        if self.standing and range_.from_ < self.standing[-1].to:
            for piece in common(self.standing, [range_]):
                yield Again(partition=self.partition, range=piece, batch=batch, reset=None)
        left: list[tuple[Range, EventNumber]] = []
        for back, number in self.pending:
            for piece in common([back], [range_]):
                yield Again(partition=self.partition, range=piece, batch=batch, reset=number)
            left += [(r, number) for r in lacking([back], [range_])]
        self.pending = left
        if self.standing and self.standing[-1].to == range_.from_:
            # By far the most frequent case: the range continues where the last one ended.
            self.standing = (*self.standing[:-1], Range(self.standing[-1].from_, range_.to))
        else:
            self.standing = joined([*self.standing, range_])
