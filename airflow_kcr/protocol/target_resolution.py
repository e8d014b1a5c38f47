"""What a reset target comes to: one seek entry for every partition of the region.

Rules:

- Partitions out of scope keep the position of the drain. So do those that a file lacks, and only those.
- Places that a person computed or guessed (`shift-by`, `to-offset`, `from-file`) are clamped into the log, as Kafka's
  tool does, and marked with what was asked for.
- Places that were stored (a checkpoint's, an initial offset, the current position) are promises about what was
  processed. Where the log does not have one any more it is *not* clamped but reported as unreachable, and the caller
  refuses. Who accepts the loss asks for the same offsets by a file, which is then what a person computed.
- A partition that the checkpoint lacks goes to what fills its gaps, else to its initial offset; without one its entry
  stays open for its first owner. It never keeps its position: it would miss what was read since.
- An instant in the future is refused: no record can be found there yet, and "the end" is not what was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from airflow_kcr.errors import InvalidTarget, ProtocolError
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap, SeekEntry, SeekMap, SeekSource, filled
from airflow_kcr.protocol.rules import at_end, at_offset, at_start, at_time
from airflow_kcr.protocol.targets import (
    ByDuration,
    FromFile,
    Needs,
    Scope,
    ShiftBy,
    Target,
    ToCheckpoint,
    ToCurrent,
    ToDatetime,
    ToEarliest,
    ToInitial,
    ToLatest,
    ToOffset,
    ToRun,
    describe,
)
from airflow_kcr.protocol.values import MAX_NUMBER, GroupPartition, Offset, back_from, format_instant

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

    from airflow_kcr.protocol.observations import LogBounds, LogView


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a target is resolved against.

    The checkpoint's positions, what is stored, and the logs, all given by the caller.
    """

    partitions: Collection[GroupPartition]
    """Every partition of the region."""

    current: OffsetMap
    """Their positions at the checkpoint; for a forced reset, the last done ones. One never claimed has none."""

    initial: OffsetMap
    """Their stored initial offsets."""

    log: LogView
    """What the target needs of the logs; log bounds beyond that are used to report what is unreachable."""

    checkpoint: OffsetMap | None = None
    """The offsets of the target checkpoint; None for targets that name none."""

    fills: SeekMap = field(default_factory=lambda: SeekMap({}))
    """What fills the gaps of a checkpoint, before the initial offsets do."""

    recreated: Collection[GroupPartition] = ()
    """Partitions whose log is of another topic than everything that is stored: only the log itself names a place."""

    def position(self, partition: GroupPartition) -> Offset | None:
        """Return where the partition stands: its position, else where its first owner would begin."""
        return self.current.get(partition, self.initial.get(partition))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEntry:
    """One partition's line in a plan."""

    partition: GroupPartition
    current: Offset | None
    """None: the partition has no position yet."""

    entry: SeekEntry
    in_scope: bool
    is_recreated: bool = False
    """Whether `current` is of a topic that was deleted, and the log is of another one of that name."""

    @property
    def replay(self) -> int | None:
        """How many offsets are processed again, negative: skipped; None if they are not both of one log."""
        if self.current is None or self.entry.offset is None or self.is_recreated:
            return None
        return self.current - self.entry.offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreachable:
    """A stored offset in scope that the log does not have."""

    partition: GroupPartition
    offset: Offset
    bounds: LogBounds
    is_recreated: bool = False
    """Whether the offset is of a topic that was deleted and created again."""

    def __str__(self) -> str:
        if self.is_recreated:
            return f"{self.partition} would resume at {self.offset} of a topic that was deleted and created again"
        return f"{self.partition} would resume at {self.offset}, its log has {self.bounds.start} to {self.bounds.end}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What a target came to."""

    entries: tuple[PlanEntry, ...]
    """One for every partition of the region, in their order."""

    unreachable: tuple[Unreachable, ...] = ()
    """Not empty: refuse; the seek map as it is would be out of range."""

    ignored: tuple[GroupPartition, ...] = ()
    """Partitions in scope that the checkpoint has and the region no longer does."""

    @property
    def seek(self) -> SeekMap:
        """The seek map: total but for entries that a partition's first owner writes."""
        return SeekMap({line.partition: line.entry for line in self.entries})


def times_needed(target: Target, read_at: datetime) -> datetime | None:
    """Return the instant whose offsets must be looked up before `resolve`, in UTC; None: no look-up is needed.

    Args:
        target: any target.
        read_at: the store's clock when the logs are read, as it will be in the log view.

    Raises:
        InvalidTarget: the instant is after `read_at`.
    """
    match target:
        case ToDatetime(instant=instant):
            if instant > read_at:
                raise InvalidTarget(f"{describe(target)} is in the future; it is {format_instant(read_at)} now")
            return instant
        case ByDuration(back=back):
            return back_from(read_at, back)
        case _:
            return None


def resolve(target: Target, scope: Scope, situation: Situation) -> Resolution:
    """Return where every partition of the region resumes if `target` is applied to `scope`.

    Args:
        target: where to.
        scope: which partitions; the others keep their position.
        situation: what `target.needs` has been read into.

    Raises:
        InvalidTarget: the scope, or an entry of the file, matches nothing in the region or is out of scope; the
            instant is in the future; a position to shift does not exist.
        ProtocolError: the target names a checkpoint and the situation has none.
        KeyError: the log was read without what the target needs.
    """
    chosen = scope.select(situation.partitions)
    times_needed(target, situation.log.read_at)
    if Needs.CHECKPOINT in target.needs and situation.checkpoint is None:
        raise ProtocolError(f"{describe(target)} can't be resolved without the offsets of its checkpoint")
    if isinstance(target, FromFile):
        _check_entries(target.entries, scope, situation.partitions)
    aimed: dict[GroupPartition, SeekEntry] = {}
    for partition in situation.partitions:
        is_aimed = partition in chosen and not (isinstance(target, FromFile) and partition not in target.entries)
        entry = _aim(target, partition, situation) if is_aimed else _kept(partition, situation)
        if entry is not None:
            aimed[partition] = entry
    seek = filled(SeekMap(aimed), initial=situation.initial, partitions=situation.partitions)
    entries = tuple(
        PlanEntry(
            partition=p,
            current=situation.current.get(p),
            entry=e,
            in_scope=p in chosen,
            is_recreated=p in situation.recreated,
        )
        for p, e in seek.items()
    )
    checkpoint = situation.checkpoint if situation.checkpoint is not None else EMPTY
    return Resolution(
        entries=entries,
        unreachable=_unreachable(target, entries, situation.log.bounds),
        ignored=tuple(p for p in checkpoint if p in scope and p not in seek),
    )


def _aim(target: Target, partition: GroupPartition, situation: Situation) -> SeekEntry | None:
    """Return the entry of one partition in scope; None: `filled` knows better."""
    match target:
        case ToCheckpoint() | ToRun():
            return _restored(partition, situation)
        case ToInitial():
            return None
        case ToCurrent():
            return _entry(situation.current.get(partition), SeekSource.EXPLICIT)
        case ToDatetime(instant=instant):
            return at_time(partition, instant, situation.log, SeekSource.EXPLICIT)
        case ByDuration(back=back):
            return at_time(partition, back_from(situation.log.read_at, back), situation.log, SeekSource.EXPLICIT)
        case _:
            return _computed(target, partition, situation)


def _computed(
    target: ToEarliest | ToLatest | ToOffset | FromFile | ShiftBy, partition: GroupPartition, situation: Situation
) -> SeekEntry:
    """Return the entry of a target that the log bounds decide."""
    bounds = situation.log.bounds[partition]
    match target:
        case ToEarliest():
            return at_start(bounds, SeekSource.EXPLICIT)
        case ToLatest():
            return at_end(bounds, SeekSource.EXPLICIT)
        case ToOffset(offset=offset):
            return at_offset(offset, bounds, SeekSource.EXPLICIT)
        case FromFile(entries=entries):
            return at_offset(entries[partition], bounds, SeekSource.EXPLICIT)
        case ShiftBy(by=by):
            position = situation.position(partition)
            if position is None or partition in situation.recreated:
                raise InvalidTarget(
                    f"{partition} has no position in this log that could be shifted; leave it out of the scope"
                )
            # What was asked for is stored with the entry, and the store's numbers have an end.
            return at_offset(min(position + by, MAX_NUMBER), bounds, SeekSource.EXPLICIT)
        case _:
            assert_never(target)


def _restored(partition: GroupPartition, situation: Situation) -> SeekEntry | None:
    checkpoint = situation.checkpoint or EMPTY
    if partition in checkpoint:
        return SeekEntry(offset=checkpoint[partition], source=SeekSource.MERGED)
    return situation.fills.get(partition)


def _kept(partition: GroupPartition, situation: Situation) -> SeekEntry | None:
    return _entry(situation.current.get(partition), SeekSource.DRAINED)


def _entry(offset: Offset | None, source: SeekSource) -> SeekEntry | None:
    return None if offset is None else SeekEntry(offset=offset, source=source)


def _check_entries(entries: OffsetMap, scope: Scope, partitions: Collection[GroupPartition]) -> None:
    strange = [str(p) for p in entries if p not in partitions]
    outside = [str(p) for p in entries if p in partitions and p not in scope]
    if strange:
        raise InvalidTarget(f"the file names {', '.join(strange)}, which the region does not have; nothing was used")
    if outside:
        raise InvalidTarget(f"the file names {', '.join(outside)}, out of the scope {scope}; nothing was used")


def _unreachable(
    target: Target, entries: tuple[PlanEntry, ...], bounds: Mapping[GroupPartition, LogBounds]
) -> tuple[Unreachable, ...]:
    """Return the entries in scope that lie outside of their log; one whose log was not read can't be judged."""
    is_stored = isinstance(target, ToCheckpoint | ToRun | ToInitial | ToCurrent)
    return tuple(
        Unreachable(
            partition=line.partition, offset=line.entry.offset, bounds=bounds[line.partition], is_recreated=is_of_old
        )
        for line in entries
        if line.in_scope and line.entry.offset is not None and line.partition in bounds
        if (is_of_old := line.is_recreated and is_stored) or line.entry.offset not in bounds[line.partition]
    )
