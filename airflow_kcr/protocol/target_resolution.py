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

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_kcr.errors import ProtocolError
from airflow_kcr.protocol.offsets import EMPTY, SeekEntry, SeekMap, SeekSource, filled
from airflow_kcr.protocol.scopes import Scope
from airflow_kcr.protocol.targets import Needs, Situation, Target
from airflow_kcr.protocol.values import GroupPartition, Offset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_kcr.protocol.observations import LogBounds


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
    target.time_needed(situation.log.read_at)
    if Needs.CHECKPOINT in target.needs and situation.checkpoint is None:
        raise ProtocolError(f"{target} can't be resolved without the offsets of its checkpoint")
    target.require_fit(situation.partitions, scope)
    aimed: dict[GroupPartition, SeekEntry] = {}
    for partition in situation.partitions:
        if partition in chosen and target.names(partition):
            entry = target.entry(partition, situation)
        else:
            entry = _kept(partition, situation)
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


def _kept(partition: GroupPartition, situation: Situation) -> SeekEntry | None:
    current = situation.current.get(partition)
    return None if current is None else SeekEntry(offset=current, source=SeekSource.DRAINED)


def _unreachable(
    target: Target, entries: tuple[PlanEntry, ...], bounds: Mapping[GroupPartition, LogBounds]
) -> tuple[Unreachable, ...]:
    """Return the entries in scope that lie outside of their log; one whose log was not read can't be judged."""
    return tuple(
        Unreachable(
            partition=line.partition, offset=line.entry.offset, bounds=bounds[line.partition], is_recreated=is_of_old
        )
        for line in entries
        if line.in_scope and line.entry.offset is not None and line.partition in bounds
        if (is_of_old := line.is_recreated and target.is_stored) or line.entry.offset not in bounds[line.partition]
    )
