"""R4: what Kafka holds, and what the checkpoints say about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from airflow_kcr.protocol.invariants.check import Check
from airflow_kcr.protocol.invariants.findings import Findings
from airflow_kcr.protocol.invariants.moment import Moment
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region.events import CommitResolved, Echoed, Event
from airflow_kcr.protocol.region.rows import Committed
from airflow_kcr.protocol.values import EventNumber, GroupPartition, Offset, Sequence


class Wrong(NamedTuple):
    """An echo that differs from a checkpoint that says yes."""

    sequence: Sequence
    number: EventNumber
    detail: str


@dataclass(slots=True, kw_only=True)
class Echoing(Check):
    """R4 (V) Kafka's echo equals the checkpoint, or the checkpoint says failed or superseded.

    `CommitResolved` says yes only when the newest echoes of all the checkpoint's partitions equal its offsets; an echo
    that differs while it says yes is followed at once by another resolution; only the base is ever echoed.

    It can't see what somebody else commits to Kafka after the echo was read back.
    """

    invariant: ClassVar[str] = "R4"
    base: Sequence | None = None
    """The cut that the rest is about: only the base is echoed, and only what is echoed is resolved."""

    told: dict[GroupPartition, Offset] = field(default_factory=dict)
    says: Committed | None = None
    wrong: Wrong | None = None

    def event(self, moment: Moment, event: Event, findings: Findings) -> None:
        """See `Check`."""
        body, number = event.body, event.number
        if self.wrong is not None and not (isinstance(body, CommitResolved) and body.sequence == self.wrong.sequence):
            findings.add(self.wrong.detail, self.wrong.number)
        self.wrong = None
        if isinstance(body, Echoed):
            if moment.base != body.sequence or body.sequence not in moment.kept:
                findings.add(f"cut {body.sequence} was committed to Kafka, the base is {moment.base}", number)
                return
            self._about(body.sequence)
            self.told.update(body.offsets)
            differs = self._differing(moment)
            if differs and self.says is Committed.YES:
                self.wrong = Wrong(body.sequence, number, f"cut {body.sequence} is called committed, {differs}")
        elif isinstance(body, CommitResolved):
            self._about(body.sequence)
            self.says = body.committed
            lacks = self._differing(moment) or self._unheard(moment)
            if body.committed is Committed.YES and lacks:
                findings.add(f"cut {body.sequence} is called committed, {lacks}", number)

    def finish(self, moment: Moment, findings: Findings) -> None:
        """See `Check`."""
        if self.wrong is not None:
            findings.add(self.wrong.detail, self.wrong.number)

    def _about(self, sequence: Sequence) -> None:
        if sequence != self.base:
            self.base, self.told, self.says = sequence, {}, None

    def _wanted(self, moment: Moment) -> OffsetMap:
        kept = None if self.base is None else moment.kept.get(self.base)
        return EMPTY if kept is None else kept.offsets

    def _differing(self, moment: Moment) -> str:
        wanted = self._wanted(moment)
        differs = [p for p, o in sorted(self.told.items()) if p in wanted and wanted[p] != o]
        return f"Kafka holds {self.told[differs[0]]} for {differs[0]}, not {wanted[differs[0]]}" if differs else ""

    def _unheard(self, moment: Moment) -> str:
        lacks = [p for p in self._wanted(moment) if p not in self.told]
        if lacks:
            return f"nobody heard of {lacks[0]}"
        return "" if self.base in moment.kept else "nobody opened it"
