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
from typing import ClassVar

from airflow_kcr.errors import ProtocolError
from airflow_kcr.protocol.documents import FullDocument
from airflow_kcr.protocol.offsets import SeekEntry, SeekMap, SeekSource, filled
from airflow_kcr.protocol.scopes import Scope
from airflow_kcr.protocol.targets import Situation, Target
from airflow_kcr.protocol.values import GroupPartition, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLine(FullDocument):
    """One partition of a plan. What is not known is None."""

    also = ("clamped", "replay", "skip")
    RECREATED: ClassVar = "the topic was made anew, where it is now is of the one before"

    partition: GroupPartition
    current: Offset | None
    target: Offset | None
    source: SeekSource
    in_scope: bool = True
    asked: int | None = None
    """What was asked for, where the log does not have it and the target was clamped."""

    unreachable: bool = False
    """Whether the log does not have the target, and it is one that is not clamped: the reset would be refused."""

    recreated: bool = False
    """Whether the topic was deleted and created again: `current` is of the one before, and nothing is counted from it.
    """

    log_start: Offset | None = None
    log_end: Offset | None = None

    @property
    def entry(self) -> SeekEntry:
        """Its entry in the seek map."""
        return SeekEntry(offset=self.target, source=self.source, current=self.current, clamped_from=self.asked)

    @property
    def clamped(self) -> bool:
        """Whether the log does not have what was asked for."""
        return self.asked is not None

    @property
    def replay(self) -> int | None:
        """How many offsets are processed again."""
        way = self.way
        return None if way is None else max(-way, 0)

    @property
    def skip(self) -> int | None:
        """How many offsets are passed over."""
        way = self.way
        return None if way is None else max(way, 0)

    @property
    def way(self) -> int | None:
        """How far it moves, negative: back; None: not both of its offsets are known and of one log."""
        if self.current is None or self.target is None or self.recreated:
            return None
        return self.target - self.current

    @property
    def is_moved(self) -> bool:
        """Whether the partition does not stay where it is."""
        return self.current != self.target or self.recreated

    @property
    def badness(self) -> tuple[bool, bool, bool, int]:
        """What the worst partitions have most of: unreachable, of another topic, clamped, far away."""
        away = max(self.replay or 0, self.skip or 0)
        return self.unreachable, self.recreated, self.clamped, away

    @property
    def loss(self) -> str:
        """Why its target can't be reached."""
        if self.recreated:
            return f"{self.partition} would resume at {self.target} of a topic that was deleted and created again"
        return f"{self.partition} would resume at {self.target}, its log has {self.log_start} to {self.log_end}"


def resolve(target: Target, scope: Scope, situation: Situation) -> tuple[PlanLine, ...]:
    """Return where every partition of the region resumes if `target` is applied to `scope`, in their order.

    An entry without an offset is one that the partition's first owner writes.

    Args:
        target: where to.
        scope: which partitions; the others keep their position.
        situation: what the target needs has been read into.

    Raises:
        InvalidTarget: the scope, or an entry of the file, matches nothing in the region or is out of scope; the
            instant is in the future; a position to shift does not exist.
        ProtocolError: the target names a checkpoint and the situation has none.
        KeyError: the log was read without what the target needs.
    """
    chosen = scope.select(situation.partitions)
    target.time_needed(situation.log.read_at)
    if target.needs_checkpoint and situation.checkpoint is None:
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
    return tuple(_line(target, p, e, situation, in_scope=p in chosen) for p, e in seek.items())


def ignored(scope: Scope, situation: Situation) -> tuple[GroupPartition, ...]:
    """Return the partitions in scope that the target checkpoint has and the region no longer does."""
    known = frozenset(situation.partitions)
    return tuple(p for p in situation.checkpoint or () if p in scope and p not in known)


def _line(
    target: Target, partition: GroupPartition, entry: SeekEntry, situation: Situation, *, in_scope: bool
) -> PlanLine:
    """Return a partition's line; one whose log was not read can't be judged."""
    log, recreated = situation.log.bounds.get(partition), partition in situation.recreated
    is_lost = (
        log is not None and entry.offset is not None and ((recreated and target.is_stored) or entry.offset not in log)
    )
    return PlanLine(
        partition=partition,
        current=situation.current.get(partition),
        target=entry.offset,
        source=entry.source,
        in_scope=in_scope,
        asked=entry.clamped_from,
        unreachable=in_scope and is_lost,
        recreated=recreated,
        log_start=None if log is None else log.start,
        log_end=None if log is None else log.end,
    )


def _kept(partition: GroupPartition, situation: Situation) -> SeekEntry | None:
    current = situation.current.get(partition)
    return None if current is None else SeekEntry(offset=current, source=SeekSource.DRAINED)
