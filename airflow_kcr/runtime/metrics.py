"""What is measured of a member, under the names that streamsx.kafka has for them.

The loop is the only writer; whoever shows something takes a `Snapshot`, in any thread: numbers of one moment may be a
step apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from airflow_kcr.protocol.member.state import Member, State, Why
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.region import recreated
from airflow_kcr.protocol.region.rows import CheckpointPhase, Claim, RegionState
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, GroupPartition, Incarnation, MemberId, Offset, Timeline
from airflow_kcr.runtime.clocks import Seconds

UNKNOWN: Final = -1
"""What a number says that is not known: a lag without a position, a drain that never was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A member at one moment."""

    member: MemberId
    state: State
    why: Why | None
    epoch: Epoch
    timeline: Timeline
    region_state: RegionState | None
    """None before the region was read."""

    newest: CheckpointNumber
    """The newest number that a checkpoint or a reset has used, as far as the member has seen."""

    checkpoint: CheckpointNumber | None
    checkpoint_phase: CheckpointPhase | None
    positions: Mapping[GroupPartition, Offset]
    """The next offset to process of each claimed partition."""

    lag: Mapping[GroupPartition, int]
    """Records between the position and the last stable offset, as last read; -1 where it was not read yet, or where
    the position is of another topic of that name."""

    counters: Mapping[str, int | float]
    """The numbers of `Metrics.counters`, by name."""

    incarnation: Incarnation | None = None
    """None while it is not registered."""


@dataclass(slots=True)
class Metrics:
    """The numbers of one member, since its process began."""

    rebalances: int = 0
    batches: int = 0
    records: int = 0
    failed_batches: int = 0
    discarded_batches: int = 0
    resets: int = 0
    checkpoints: int = 0
    commits_failed: int = 0
    troubles: int = 0
    store_losses: int = 0
    last_batch_seconds: float = 0.0
    busy_seconds: float = 0.0
    drain_millis: int = UNKNOWN
    drain_millis_max: int = UNKNOWN
    last_trouble: str = ""
    _draining: tuple[CheckpointNumber, Seconds] | None = field(default=None, repr=False)

    def drain_seen(self, checkpoint: CheckpointNumber, now: Seconds) -> None:
        """Note that a checkpoint drains; the first look at it counts."""
        if self._draining is None or self._draining[0] != checkpoint:
            self._draining = (checkpoint, now)

    def contributed(self, checkpoint: CheckpointNumber, now: Seconds) -> None:
        """Note that this member's part of a checkpoint is stored: its drain is over."""
        self.checkpoints += 1
        if self._draining is None or self._draining[0] != checkpoint:
            return
        self.drain_millis = round((now - self._draining[1]) * 1000)
        self.drain_millis_max = max(self.drain_millis_max, self.drain_millis)
        self._draining = None

    def batch_ended(self, records: int) -> None:
        """Note that a batch of so many offsets was accepted."""
        self.batches += 1
        self.records += records

    def troubled(self, why: str) -> None:
        """Note a complaint of the client, of Kafka or of a sink that the member lives with."""
        self.troubles += 1
        self.last_trouble = why

    def snapshot(self, member: Member, ends: Mapping[GroupPartition, LogBounds]) -> Snapshot:
        """Return the member as it is now.

        Args:
            member: the machine.
            ends: the logs as they were last read.
        """
        view = member.view
        checkpoint = None if view is None else view.checkpoint
        positions = dict(member.positions)
        lag = {p: _lag(o, ends.get(p), None if view is None else view.claims.get(p)) for p, o in positions.items()}
        return Snapshot(
            member=member.member,
            state=member.state,
            why=member.why,
            epoch=member.newest_epoch,
            timeline=member.newest_timeline,
            region_state=None if view is None else view.state,
            newest=member.newest_sequence,
            checkpoint=None if checkpoint is None else checkpoint.sequence,
            checkpoint_phase=None if checkpoint is None else checkpoint.phase,
            positions=positions,
            lag=lag,
            counters=self.counters(member, lag),
            incarnation=member.incarnation,
        )

    def counters(self, member: Member, lag: Mapping[GroupPartition, int]) -> dict[str, int | float]:
        """Return every number by its name; those that streamsx.kafka has, under its names."""
        assigned = frozenset[GroupPartition]() if member.assignment is None else member.assignment.partitions
        return {
            "isGroupManagementActive": int(member.in_group),
            "nAssignedPartitions": len(assigned),
            "nConsumedTopics": len({p.topic for p in assigned}),
            "nPartitionRebalances": self.rebalances,
            "nPendingMessages": sum(n for n in lag.values() if n > 0),
            "drainTimeMillis": self.drain_millis,
            "drainTimeMillisMax": self.drain_millis_max,
            "nClaimedPartitions": len(member.positions),
            "nBatches": self.batches,
            "nRecords": self.records,
            "nFailedBatches": self.failed_batches,
            "nDiscardedBatches": self.discarded_batches,
            "nResets": self.resets,
            "nCheckpoints": self.checkpoints,
            "nFailedCommits": self.commits_failed,
            "nTroubles": self.troubles,
            "nStoreLosses": self.store_losses,
            "batchTimeMillis": round(self.last_batch_seconds * 1000),
            "busyTimeMillis": round(self.busy_seconds * 1000),
        }


def _lag(position: Offset, log: LogBounds | None, claim: Claim | None) -> int:
    if log is None or (claim is not None and recreated.is_another(claim.topic_id, log.topic_id)):
        return UNKNOWN
    # The end may have been read before the position moved past it.
    return max(log.end - position, 0)
