"""What is measured of a member: what it is at one moment, and what became of its work since its process began.

The loop is the only writer; readers take a `Snapshot`, in any thread: numbers of one moment may be a step apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

from airflow_kcr.protocol.member.state import MemberMachine
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.region import timelines
from airflow_kcr.protocol.region.rows import Claim
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, GroupPartition, Offset
from airflow_kcr.runtime.leases import Seconds

UNKNOWN: Final = -1
"""What a lag says that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What became of a member's work since its process began; a sum of several members' has the longest times.

    Members take part in the same resets, so of these a sum has the most.
    """

    batches: int = 0
    """Accepted by the store."""

    records: int = 0
    """Offsets of those."""

    checkpoints: int = 0
    """Contributed to."""

    resets: int = 0
    """Taken part in, but for the first: it brings a member to where it starts, so it is no incident."""

    rebalances: int = 0
    failed_batches: int = 0
    discarded_batches: int = 0
    failed_commits: int = 0
    store_losses: int = 0
    """How often the store did not answer any more."""

    troubles: int = 0
    """Complaints of the client, of Kafka or of a sink that the member lives with."""

    last_trouble: str = ""
    batch_time: timedelta = timedelta(0)
    """In batches, whatever became of them."""

    last_batch: timedelta | None = None
    """None before the first."""

    longest_drain: timedelta | None = None
    """From the first read of a checkpoint that drains to the contribution; None before the first."""

    def __add__(self, more: Counts) -> Counts:
        """Return the sum, with the longer times and the later complaint."""
        return Counts(
            batches=self.batches + more.batches,
            records=self.records + more.records,
            checkpoints=self.checkpoints + more.checkpoints,
            resets=max(self.resets, more.resets),
            rebalances=self.rebalances + more.rebalances,
            failed_batches=self.failed_batches + more.failed_batches,
            discarded_batches=self.discarded_batches + more.discarded_batches,
            failed_commits=self.failed_commits + more.failed_commits,
            store_losses=self.store_losses + more.store_losses,
            troubles=self.troubles + more.troubles,
            last_trouble=more.last_trouble or self.last_trouble,
            batch_time=self.batch_time + more.batch_time,
            last_batch=_longer(self.last_batch, more.last_batch),
            longest_drain=_longer(self.longest_drain, more.longest_drain),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A member at one moment."""

    machine: MemberMachine
    lag: Mapping[GroupPartition, int]
    """Records between the position and the last stable offset, as last read; -1 if it was not read yet, or where
    the position is of another topic of that name."""

    counts: Counts


@dataclass(slots=True)
class Metrics:
    """The numbers of one member, since its process began."""

    counts: Counts = field(default_factory=Counts)
    _draining: tuple[CheckpointNumber, Seconds] | None = field(default=None, repr=False)
    _reset: Epoch | None = field(default=None, repr=False)
    """The epoch of the newest reset that the member took part in."""

    def drain_seen(self, checkpoint: CheckpointNumber, now: Seconds) -> None:
        """Note that a checkpoint drains; the first note counts."""
        if self._draining is None or self._draining[0] != checkpoint:
            self._draining = (checkpoint, now)

    def contributed(self, checkpoint: CheckpointNumber, now: Seconds) -> None:
        """Note that this member's part of a checkpoint is stored: its drain is over."""
        self.add(Counts(checkpoints=1))
        if self._draining is None or self._draining[0] != checkpoint:
            return
        self.add(Counts(longest_drain=timedelta(seconds=now - self._draining[1])))
        self._draining = None

    def add(self, counts: Counts) -> None:
        """Note what happened."""
        self.counts += counts

    def batch_took(self, seconds: Seconds) -> None:
        """Note how long the last batch took, whatever became of it."""
        took = timedelta(seconds=seconds)
        self.counts = replace(self.counts, last_batch=took, batch_time=self.counts.batch_time + took)

    def reset(self, epoch: Epoch) -> None:
        """Note that the sinks were reset for an epoch; the first brings the member to where it starts."""
        if self._reset is not None and epoch > self._reset:
            self.counts = replace(self.counts, resets=self.counts.resets + 1)
        self._reset = epoch

    def troubled(self, why: str) -> None:
        """Note a complaint of the client, of Kafka or of a sink that the member lives with."""
        self.add(Counts(troubles=1, last_trouble=why))

    def snapshot(self, member: MemberMachine, ends: Mapping[GroupPartition, LogBounds]) -> Snapshot:
        """Return the member as it is now.

        Args:
            member: the machine.
            ends: the logs as they were last read.
        """
        claims = {} if member.view is None else member.view.claims
        lag = {p: _lag(o, ends.get(p), claims.get(p)) for p, o in member.positions.items()}
        return Snapshot(machine=member, lag=lag, counts=self.counts)


def _longer(one: timedelta | None, other: timedelta | None) -> timedelta | None:
    return max((time for time in (one, other) if time is not None), default=None)


def _lag(position: Offset, log: LogBounds | None, claim: Claim | None) -> int:
    if log is None or (claim is not None and timelines.is_recreated(claim.topic_id, log.topic_id)):
        return UNKNOWN
    # The end may have been read before the position moved past it.
    return max(log.end - position, 0)
