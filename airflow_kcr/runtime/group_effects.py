"""The effects that concern the Kafka group, and what the client hears of it as events.

What the client tells comes in its event thread; it is put into the loop's queue and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from airflow_kcr.ports import CommitAnswer, Membership
from airflow_kcr.protocol.member import effects, events
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.values import AssignmentId, CheckpointNumber, GroupPartition, Timeline
from airflow_kcr.runtime.identity import CommitNote, Identity
from airflow_kcr.runtime.metrics import Counts, Metrics

Happening: TypeAlias = "events.Event | Callable[[], None]"
"""What the loop's queue holds: an event for the machine, or something to do in the loop."""

_LOG = logging.getLogger(__name__)


class Grouping:
    """A member's place in its group, as its loop sees it; a `MembershipListener`.

    Args:
        who: the member.
        happened: the loop's queue.
        failed: ends the member because of an error.
        metrics: written in the loop only.
    """

    def __init__(
        self,
        who: Identity,
        happened: Callable[[Happening], None],
        failed: Callable[[BaseException], None],
        metrics: Metrics,
    ) -> None:
        self._who, self._happened, self._fail, self._metrics = who, happened, failed, metrics
        self._assignments = 0
        self._released: Callable[[], None] = lambda: None
        self._revoking: frozenset[GroupPartition] = frozenset()
        self._membership: Membership | None = None

    def use(self, membership: Membership) -> None:
        """Take the client; it was made with this object as its listener, so it can't be there before."""
        self._membership = membership

    @property
    def membership(self) -> Membership:
        """The client.

        Raises:
            RuntimeError: there is none yet.
        """
        if self._membership is None:
            raise RuntimeError("the member has no Kafka client yet")
        return self._membership

    # -- what the client tells, in its thread --------------------------------------------------------------------

    def assigned(self, partitions: frozenset[GroupPartition]) -> None:
        """The assignment is these partitions now."""
        self._assignments += 1
        self._happened(events.Assigned(assignment=AssignmentId(self._assignments), partitions=partitions))
        self._happened(self._count_rebalance)

    def revoking(self, partitions: frozenset[GroupPartition], released: Callable[[], None]) -> None:
        """Kafka takes these partitions as soon as nothing runs on them."""
        self._revoking, self._released = partitions, released
        self._happened(events.Revoking(partitions=partitions))

    def revoked(self) -> None:
        """Kafka revoked all of the assignment, or it was lost."""
        self._happened(events.Revoked())

    def left(self) -> None:
        """The group was left, or the client closed keeping its slot."""
        self._happened(events.LeftGroup())

    def fenced(self, why: str) -> None:
        """Kafka fenced the client; whether this process is still the member, the store says."""
        _LOG.warning("%s: Kafka fenced the client, it joins anew if its lease holds: %s", self._who.member, why)
        self._happened(lambda: self._metrics.troubled(why))
        self._happened(events.InstanceFenced())

    def failed(self, error: Exception) -> None:
        """The client can't continue."""
        self._fail(error)

    def troubled(self, why: str) -> None:
        """The client complained."""
        _LOG.warning("%s: %s", self._who.member, why)
        self._happened(lambda: self._metrics.troubled(why))

    def _count_rebalance(self) -> None:
        self._metrics.add(Counts(rebalances=1))

    # -- effects -------------------------------------------------------------------------------------------------

    def release(self, effect: effects.ReleasePartitions) -> None:
        """Let Kafka take what it is revoking; where it has not waited so long, nothing happens."""
        if effect.partitions == self._revoking:
            self._released()

    def commit(self, effect: effects.Commit, timeline: Timeline, may_write: Callable[[], bool]) -> None:
        """Commit the restore point, while the member may write.

        What Kafka holds afterwards, as read, is the commit read-back.
        """
        note = CommitNote(region=self._who.region, timeline=timeline, sequence=effect.sequence, epoch=effect.epoch)

        def heard(answer: CommitAnswer) -> None:
            if answer.failure:
                self._failed(f"the commit of checkpoint {effect.sequence}: {answer.failure}")
            held = OffsetMap({p: row.offset for p, row in answer.held.items() if p in effect.offsets})
            answered = events.CommitAnswered(sequence=effect.sequence, offsets=held, failed=bool(answer.failure))
            self._happened(answered)

        self.membership.commit(effect.offsets, note.text(), self._who.timeouts.commit, heard, may_write)

    def commit_seek(
        self,
        effect: effects.CommitSeek,
        timeline: Timeline,
        sequence: CheckpointNumber,
        noted: Callable[[str], None],
        may_write: Callable[[], bool],
    ) -> None:
        """Tell Kafka where the member resumed after a reset, while it may write.

        `noted` gets why that failed, or an empty text.
        """
        note = CommitNote(region=self._who.region, timeline=timeline, sequence=sequence, epoch=effect.caller.epoch)

        def answered(answer: CommitAnswer) -> None:
            if answer.failure:
                self._failed(f"the commit of where epoch {effect.caller.epoch} resumed: {answer.failure}")
            noted(answer.failure)

        self.membership.commit(effect.offsets, note.text(), self._who.timeouts.commit, answered, may_write)

    def _failed(self, why: str) -> None:
        _LOG.warning("%s: %s", self._who.member, why)

        def count() -> None:
            self._metrics.add(Counts(failed_commits=1))
            self._metrics.troubled(why)

        self._happened(count)
