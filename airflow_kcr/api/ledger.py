"""What became of a record, and which records were begun more than once and why: the ledger's answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from airflow_kcr.api.naming import record_named, require_groups
from airflow_kcr.api.views import instant
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.invariants.accounting import Delivery, Redelivery, deliveries, redeliveries
from airflow_kcr.protocol.invariants.history import History, Index
from airflow_kcr.protocol.invariants.replay import indexed
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import Requester
from airflow_kcr.protocol.region.state import Region, universe
from airflow_kcr.protocol.values import GroupPartition, Incarnation, MemberId, Nonce, Offset, Sequence

_UNACCOUNTED: Final = "unaccounted"


class Fate(StrEnum):
    """What became of a record in a group."""

    PROCESSED = "processed"
    """A batch with it is done, and no reset has undone that."""

    RUNNING = "running"
    """A batch with it has begun, and not ended yet."""

    BEGUN = "begun"
    """Every batch with it was discarded, undone, or its member vanished; what a pipeline wrote may be there."""

    SKIPPED = "skipped"
    """A person chose to step over it."""

    NOT_BEGUN = "not_begun"
    """No batch has begun it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """One time that a record was begun."""

    delivery: Delivery
    begun_at: datetime
    ended_at: datetime | None
    process: str
    """Host, process and application of the member."""

    cause: str
    """Why it was begun though it had been before; empty for the first time."""

    cut: Sequence | None
    """The cut that has it; None: it does not count, or is in none yet."""

    runs: tuple[Requester, ...]
    """The DAG runs that have asked for that cut."""

    def to_json(self) -> dict[str, object]:
        """Return it as in `ledger record`."""
        of = self.delivery
        return {
            "batch": of.batch,
            "member_id": str(of.member),
            "incarnation": of.incarnation,
            "process": self.process,
            "epoch": of.epoch,
            "lineage": of.lineage,
            "sequence": of.sequence,
            "begun_at": instant(self.begun_at),
            "ended_at": instant(self.ended_at),
            "outcome": of.outcome,
            "cause": self.cause or None,
            "cut": self.cut,
            "runs": [{"dag_id": run.dag_id, "run_id": run.run_id} for run in self.runs],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordView:
    """What became of one record in one group."""

    partition: GroupPartition
    offset: Offset
    fate: Fate
    begins: tuple[Begin, ...]
    """Oldest first."""

    def to_json(self) -> dict[str, object]:
        """Return it as in `ledger record`."""
        return {
            "group": self.partition.group,
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "offset": self.offset,
            "fate": self.fate,
            "begins": [begin.to_json() for begin in self.begins],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """Offsets of one partition that a batch has begun again."""

    redelivery: Redelivery
    detail: str
    """What the reset said that went back."""

    @property
    def cause(self) -> str:
        """Why the region went back."""
        return _cause(self.redelivery)

    @property
    def offsets(self) -> int:
        """How many."""
        return self.redelivery.range.width

    def to_json(self) -> dict[str, object]:
        """Return it as in `ledger repeated`."""
        of = self.redelivery
        return {
            "group": of.partition.group,
            "topic": of.partition.topic,
            "partition": of.partition.partition,
            "from_offset": of.range.from_,
            "to_offset": of.range.to,
            "offsets": self.offsets,
            "cause": self.cause,
            "epoch": of.epoch,
            "detail": self.detail,
            "batch": of.batch,
            "earlier": list(of.earlier),
        }


def record(region: Region, history: History, text: str, group: str | None) -> tuple[RecordView, ...]:
    """Return what became of a record, in each group that reads its topic.

    Args:
        region: as stored, not before the history was read.
        history: of it.
        text: `TOPIC:PARTITION:OFFSET`.
        group: only in this one.

    Raises:
        ConfigurationError: the text is not of that form, or the region has no such partition or group.
    """
    named_record = record_named(text)
    if named_record is None:
        raise ConfigurationError(f"{text!r} is not one record: write TOPIC:PARTITION:OFFSET")
    if group is not None:
        require_groups(region, [group])
    index = indexed(history)
    place, offset = named_record
    known = sorted(universe(region) | index.begun.keys())
    named = [p for p in known if (p.topic, p.partition) == place and group in (None, p.group)]
    if not named:
        of = f"group {group} of region {region.name}" if group is not None else f"region {region.name}"
        raise ConfigurationError(f"{of} has no partition {place[0]}:{place[1]}")
    ledger = _Ledger.of(index)
    return tuple(ledger.record(partition, offset) for partition in named)


def repeated(history: History, group: str | None) -> tuple[Repetition, ...]:
    """Return what was begun more than once, partition by partition, in the order of the begins.

    Args:
        history: of a region.
        group: only of this one.
    """
    index = indexed(history)
    found = [again for again in redeliveries(index) if group in (None, again.partition.group)]
    return tuple(Repetition(redelivery=again, detail=_detail(index, again)) for again in found)


def by_cause(repetitions: tuple[Repetition, ...]) -> Mapping[str, int]:
    """Return how many offsets were begun again for each cause."""
    found: Counter[str] = Counter()
    for one in repetitions:
        found[one.cause] += one.offsets
    return dict(sorted(found.items()))


def _cause(of: Redelivery) -> str:
    return _UNACCOUNTED if of.cause is None else of.cause


def _detail(index: Index, of: Redelivery) -> str:
    attempt = None if of.epoch is None else index.attempts.get(of.epoch)
    return "" if attempt is None else attempt.begun.detail


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ledger:
    """What else is known about batches."""

    index: Index
    labels: Mapping[tuple[MemberId, Incarnation], str]
    runs: Mapping[Sequence, tuple[Requester, ...]]
    again: tuple[Redelivery, ...]

    @classmethod
    def of(cls, index: Index) -> _Ledger:
        labels: dict[tuple[MemberId, Incarnation], str] = {}
        asked: dict[Nonce, Requester] = {}
        runs: dict[Sequence, dict[Nonce, Requester]] = {}
        for event in index.history.events:
            match event.body:
                case events.MemberRegistered(member=member, incarnation=incarnation, label=label):
                    labels[member, incarnation] = label
                case events.CutRequested(nonce=nonce, requester=requester):
                    asked[nonce] = requester
                case (
                    events.CutOpened(nonce=nonce, sequence=sequence)
                    | events.CutAnswered(nonce=nonce, sequence=sequence)
                ):
                    if nonce in asked and asked[nonce].run_id:
                        runs.setdefault(sequence, {})[nonce] = asked[nonce]
                case _:
                    pass
        by_cut = {s: tuple(found.values()) for s, found in runs.items()}
        return cls(index=index, labels=labels, runs=by_cut, again=tuple(redeliveries(index)))

    def record(self, partition: GroupPartition, offset: Offset) -> RecordView:
        """Return what became of a record."""
        batches = {handled.batch.batch: handled.batch for handled in self.index.begun.get(partition, ())}
        again = {
            r.batch: _cause(r) for r in self.again if r.partition == partition and r.range.from_ <= offset < r.range.to
        }
        begins = []
        for delivery in deliveries(self.index, partition, offset):
            cut = self._cut(partition, offset, delivery)
            row = batches[delivery.batch]
            begins.append(
                Begin(
                    delivery=delivery,
                    begun_at=row.begun_at,
                    ended_at=row.ended_at,
                    process=self.labels.get((delivery.member, delivery.incarnation), ""),
                    cause=again.get(delivery.batch, ""),
                    cut=cut,
                    runs=() if cut is None else self.runs.get(cut, ()),
                )
            )
        return RecordView(
            partition=partition, offset=offset, fate=self._fate(partition, offset, begins), begins=tuple(begins)
        )

    def _cut(self, partition: GroupPartition, offset: Offset, delivery: Delivery) -> Sequence | None:
        """Return the cut that has what a batch did: the first on the path that lies beyond it."""
        if not delivery.is_accepted:
            return None
        for sequence in sorted(s for s in self.index.cuts if s >= delivery.sequence):
            cut = self.index.cuts[sequence]
            if cut.completed is not None and cut.undone is None and cut.completed[1].offsets.get(partition, 0) > offset:
                return sequence
        return None

    def _fate(self, partition: GroupPartition, offset: Offset, begins: list[Begin]) -> Fate:
        if any(begin.delivery.is_accepted for begin in begins):
            return Fate.PROCESSED
        if any(begin.delivery.outcome is None for begin in begins):
            return Fate.RUNNING
        if offset in self.index.skips.get(partition, ()):
            return Fate.SKIPPED
        return Fate.BEGUN if begins else Fate.NOT_BEGUN
