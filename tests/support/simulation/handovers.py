"""Partitions that go on with another owner in the same epoch, told from the history alone: when, and when not.

Written from the words of the rule, not with `claims`: a partition is handed over at its position where everything that
was started on it is accepted; where that isn't so, or its sink may hold output in the process of its owner before, the
claim begins a reset. So does that of a partition that the last reset was done without.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import Batch, CheckpointPurpose, Outcome, RegionState, ResetCause
from airflow_kcr.protocol.values import Epoch, EventNumber, GroupId, GroupPartition, Incarnation, MemberId

Owner = tuple[MemberId, Incarnation, Epoch]


class During(StrEnum):
    """What the region was doing when a partition was handed over."""

    RUNNING = "running"
    APPROACH = "a checkpoint approached its boundary"
    DRAIN = "a checkpoint drained"
    PERSON = "a person's reset drained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """One partition that went on with another owner, beyond what was started since its resume point."""

    number: EventNumber
    partition: GroupPartition
    during: During


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """A claim, until it is known whether it begins a reset."""

    number: EventNumber
    during: During
    moved: tuple[GroupPartition, ...]
    """To another owner, beyond what was started since the resume point."""

    is_unsettled: bool
    """Whether one of its partitions can't go on where it stands."""


@dataclass(slots=True, kw_only=True)
class Handovers:
    """What a history says of them.

    Args:
        batches: the whole ledger.
        holding: groups whose sinks may hold output in their members' processes.
    """

    batches: tuple[Batch, ...]
    holding: Collection[GroupId] = ()
    owners: dict[GroupPartition, Owner] = field(default_factory=dict)
    resumed: dict[GroupPartition, EventNumber] = field(default_factory=dict)
    """Since which event the partition's resume point is in force: what was started before it is behind it."""

    unplaced: set[GroupPartition] = field(default_factory=set)
    """Which partitions the last reset was done without, as no member could say where they go."""

    during: During = During.RUNNING
    purpose: CheckpointPurpose = CheckpointPurpose.REQUEST
    found: list[Handover] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def take(self, history: Collection[events.Event]) -> Handovers:
        """Go through a history."""
        claim: _Claim | None = None
        for event in history:
            match event.body:
                case events.Claimed():
                    self._settle(claim, resets=False)
                    claim = self._claimed(event, event.body)
                case events.ResetBegun(cause=ResetCause.CLAIM):
                    self._settle(claim, resets=True)
                    claim = None
                case events.MemberLeft(member=member, dropped=dropped):
                    self._drop(member, dropped, event.epoch)
                case _:
                    pass
            self._phase(event)
        self._settle(claim, resets=False)
        return self

    def _drop(self, member: MemberId, dropped: Collection[GroupPartition], epoch: Epoch) -> None:
        """What is dropped without having been claimed in the epoch has not gone to its place in it either."""
        for partition in dropped:
            before = self.owners.get(partition)
            self.owners[partition] = (member, Incarnation(0), epoch if before is None else before[2])

    def _claimed(self, event: events.Event, body: events.Claimed) -> _Claim:
        """Return which partitions go to another owner, and whether one of them can't go on where it stands."""
        owner = (body.member, body.incarnation, body.epoch)
        moved: list[GroupPartition] = []
        is_unsettled = not self.unplaced.isdisjoint(body.partitions)
        for partition in body.partitions:
            before = self.owners.get(partition)
            if before is not None and before != owner:
                started = list(self._started(partition, body.epoch, event.number))
                if started:
                    moved.append(partition)
                is_unsettled |= before[2] != body.epoch
                is_unsettled |= any(not self._accepted(b, event.number) for b in started)
                is_unsettled |= bool(started) and partition.group in self.holding
            self.owners[partition] = owner
        self._drop(body.member, body.dropped, body.epoch)
        return _Claim(number=event.number, during=self.during, moved=tuple(moved), is_unsettled=is_unsettled)

    def _started(self, partition: GroupPartition, epoch: Epoch, before: EventNumber) -> Iterator[Batch]:
        since = self.resumed.get(partition, EventNumber(0))
        for batch in self.batches:
            if batch.epoch == epoch and partition in batch.ranges and since <= batch.started_after < before:
                yield batch

    @staticmethod
    def _accepted(batch: Batch, before: EventNumber) -> bool:
        done = batch.outcome in {Outcome.DONE, Outcome.UNDONE} and batch.proven_in is None
        return done and batch.finished_after is not None and batch.finished_after < before

    def _settle(self, claim: _Claim | None, *, resets: bool) -> None:
        if claim is None:
            return
        if resets and not claim.is_unsettled:
            self.wrong.append(f"claim {claim.number} begins a reset, and all started on its partitions is accepted")
        if not resets:
            self.found += [Handover(number=claim.number, partition=p, during=claim.during) for p in claim.moved]

    def _phase(self, event: events.Event) -> None:
        match event.body:
            case events.CheckpointOpened(purpose=purpose):
                self.purpose, self.during = purpose, During.APPROACH
            case events.StateChanged(after=RegionState.DRAINING):
                self.during = During.PERSON if self.purpose is CheckpointPurpose.RESET else During.DRAIN
            case events.CheckpointCompleted(offsets=offsets):
                self.during = During.RUNNING
                self.resumed |= dict.fromkeys(offsets, event.number)
            case events.CheckpointAborted():
                self.during = During.RUNNING
            case events.ResetBegun(seek=seek) | events.SeekWritten(seek=seek):
                self.resumed |= dict.fromkeys(seek, event.number)
                self.unplaced = {p for p in self.unplaced | seek.keys() if p not in seek or seek[p].offset is None}
            case _:
                pass
