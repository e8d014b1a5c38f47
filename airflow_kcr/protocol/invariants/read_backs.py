"""R4: what Kafka holds, and what the checkpoints say about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from airflow_kcr.protocol.invariants.check import Check, Findings
from airflow_kcr.protocol.invariants.moment import Moment
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region.events import CommitReadBack, CommitResolved, Event
from airflow_kcr.protocol.region.rows import Committed
from airflow_kcr.protocol.values import CheckpointNumber, EventNumber, GroupPartition, Offset


class Wrong(NamedTuple):
    """A commit read-back that differs from a checkpoint that says yes."""

    sequence: CheckpointNumber
    number: EventNumber
    detail: str


@dataclass(slots=True, kw_only=True)
class ReadBacks(Check):
    """R4 (V) Kafka's commit read-back equals the checkpoint, or the checkpoint says failed or superseded.

    `CommitResolved` says yes only when the newest commit read-backs of all the checkpoint's partitions equal its
    offsets; a commit read-back that differs while it says yes is followed at once by another resolution; only the
    restore point is ever read back.

    It can't see what somebody else commits to Kafka after the commit was read back.
    """

    invariant: ClassVar[str] = "R4"
    restore_point: CheckpointNumber | None = None
    """The checkpoint that the rest is about.

    Only the restore point is read back, and only what is read back is resolved.
    """

    told: dict[GroupPartition, Offset] = field(default_factory=dict)
    says: Committed | None = None
    wrong: Wrong | None = None

    def event(self, moment: Moment, event: Event, findings: Findings) -> None:
        """See `Check`."""
        body, number = event.body, event.number
        if self.wrong is not None and not (isinstance(body, CommitResolved) and body.sequence == self.wrong.sequence):
            findings.add(self.wrong.detail, self.wrong.number)
        self.wrong = None
        if isinstance(body, CommitReadBack):
            if moment.restore_point != body.sequence or body.sequence not in moment.kept:
                findings.add(
                    f"checkpoint {body.sequence} was committed to Kafka, the restore point is {moment.restore_point}",
                    number,
                )
                return
            self._about(body.sequence)
            self.told.update(body.offsets)
            differs = self._differing(moment)
            if differs and self.says is Committed.YES:
                self.wrong = Wrong(body.sequence, number, f"checkpoint {body.sequence} is called committed, {differs}")
        elif isinstance(body, CommitResolved):
            self._about(body.sequence)
            self.says = body.committed
            lacks = self._differing(moment) or self._unheard(moment)
            if body.committed is Committed.YES and lacks:
                findings.add(f"checkpoint {body.sequence} is called committed, {lacks}", number)

    def finish(self, moment: Moment, findings: Findings) -> None:
        """See `Check`."""
        if self.wrong is not None:
            findings.add(self.wrong.detail, self.wrong.number)

    def _about(self, sequence: CheckpointNumber) -> None:
        if sequence != self.restore_point:
            self.restore_point, self.told, self.says = sequence, {}, None

    def _wanted(self, moment: Moment) -> OffsetMap:
        kept = None if self.restore_point is None else moment.kept.get(self.restore_point)
        return EMPTY if kept is None else kept.offsets

    def _differing(self, moment: Moment) -> str:
        wanted = self._wanted(moment)
        differs = [p for p, o in sorted(self.told.items()) if p in wanted and wanted[p] != o]
        return f"Kafka holds {self.told[differs[0]]} for {differs[0]}, not {wanted[differs[0]]}" if differs else ""

    def _unheard(self, moment: Moment) -> str:
        lacks = [p for p in self._wanted(moment) if p not in self.told]
        if lacks:
            return f"nobody heard of {lacks[0]}"
        return "" if self.restore_point in moment.kept else "nobody opened it"
