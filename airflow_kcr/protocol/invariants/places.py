"""R5, R10: where partitions begin, and where they go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from airflow_kcr.protocol.invariants.check import Check, Findings
from airflow_kcr.protocol.invariants.moment import Moment
from airflow_kcr.protocol.region.events import CheckpointCompleted, Event, InitialOffsetsStored, ResetBegun, SeekWritten
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.values import EventNumber, GroupPartition, Offset, TopicId


class Place(NamedTuple):
    """Where a partition has to go on; nothing has begun there since."""

    number: EventNumber
    offset: Offset | None
    """None: its seek entry is open."""


class Start(NamedTuple):
    """An initial offset that was stored."""

    number: EventNumber
    offset: Offset
    topic_id: TopicId


@dataclass(slots=True, kw_only=True)
class Resumed(Check):
    """R5 (V) the first range begun on a partition after a reset starts at its resume point, whoever owns it.

    For every resume point (a seek entry, past skipped offsets; in its epoch replaced by the offsets of a completed
    checkpoint), the first range begun while it is in force must begin there, and none may begin where there is none
    yet.

    It can't see the first *record* that Spark read in that range: offsets may be missing in a log (compaction, markers
    of transactions).
    """

    invariant: ClassVar[str] = "R5"
    sees_batches: ClassVar[bool] = True
    expected: dict[GroupPartition, Place] = field(default_factory=dict)
    known: set[GroupPartition] = field(default_factory=set)
    """Partitions that have had a resume point, or begun without one, which is told once."""

    def event(self, moment: Moment, event: Event, findings: Findings) -> None:
        """See `Check`."""
        match event.body:
            case ResetBegun(seek=seek) | SeekWritten(seek=seek):
                for partition, entry in seek.items():
                    place = None if entry.offset is None else moment.past_skips(partition, entry.offset)
                    self.expected[partition] = Place(event.number, place)
                self.known.update(seek)
            case CheckpointCompleted(sequence=sequence, offsets=offsets) if moment.is_on_path(sequence):
                for partition, offset in offsets.items():
                    self.expected[partition] = Place(event.number, offset)
                self.known.update(offsets)
            case _:
                pass

    def begin(self, moment: Moment, batch: Batch, findings: Findings) -> None:
        """See `Check`."""
        if not self.expected and self.known.issuperset(batch.ranges):
            return
        for partition, range_ in batch.ranges.items():
            place = self.expected.pop(partition, None)
            if place is None:
                if partition not in self.known:
                    self.known.add(partition)
                    detail = f"{partition}: batch {batch.batch} begins {range_} without a resume point"
                    findings.add(detail, batch.begun_after)
                continue
            begins = f"{partition}: batch {batch.batch} begins {range_}"
            if place.offset is None:
                findings.add(f"{begins}, its seek entry is open", place.number, batch.begun_after)
            elif range_.from_ not in {place.offset, moment.past_skips(partition, place.offset)}:
                findings.add(f"{begins}, it resumes at {place.offset}", place.number, batch.begun_after)


@dataclass(slots=True, kw_only=True)
class ResolvedOnce(Check):
    """R10 (V) a start position is resolved once per partition.

    No partition has two initial offsets for one topic id. A broker that tells no id can't tell a recreated topic
    either: without two different ids a second one counts as a second resolution.

    It can't see whether the position was resolved as the spec's start asks.
    """

    invariant: ClassVar[str] = "R10"
    starts: dict[GroupPartition, list[Start]] = field(default_factory=dict)

    def event(self, moment: Moment, event: Event, findings: Findings) -> None:
        """See `Check`."""
        if not isinstance(event.body, InitialOffsetsStored):
            return
        for partition, offset in event.body.offsets.items():
            log = event.body.bounds.get(partition)
            start = Start(event.number, offset, TopicId("") if log is None else log.topic_id)
            earlier = next((e for e in self.starts.get(partition, ()) if _may_be_one_topic(e, start)), None)
            if earlier is not None:
                detail = f"{partition}: the initial offset {start.offset} was stored, it had {earlier.offset} already"
                findings.add(detail, earlier.number, start.number)
            self.starts.setdefault(partition, []).append(start)


def _may_be_one_topic(a: Start, b: Start) -> bool:
    return a.topic_id == b.topic_id or not a.topic_id or not b.topic_id
