"""What became of a record, which records were started more than once and why, and the events of a region's history."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final, cast

from airflow_kcr.api.regions import record_named, require_groups
from airflow_kcr.api.views import OF_PARTITION, AnswerColumns, View, document_of, of
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol import documents
from airflow_kcr.protocol.invariants.accounting import Redelivery, redeliveries
from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.region.rows import Batch, Checkpoint, Outcome, Requester
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, EventNumber, GroupPartition, Offset, RegionName
from airflow_kcr.store.regions import RegionStore

_UNACCOUNTED: Final = "unaccounted"


class Fate(StrEnum):
    """What became of a record in a group."""

    PROCESSED = "processed"
    """A batch with it is done, and no reset has undone that."""

    RUNNING = "running"
    """A batch with it has started, and not ended yet."""

    STARTED = "started"
    """Every batch with it was discarded, undone, or its member vanished; what a pipeline wrote may be there."""

    SKIPPED = "skipped"
    """A person chose to step over it."""

    NOT_STARTED = "not_started"
    """No batch has started it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordStart(View):
    """One time that a record was started."""

    shown = AnswerColumns["RecordStart"](
        "batch.batch",
        ("member_id", lambda s: s.batch.member),
        *("batch.incarnation", "process"),
        *of("batch", "epoch", "timeline", "sequence", "started_at", "finished_at"),
        "outcome",
        ("cause", lambda s: s.cause or None),
        *("checkpoint", "revision"),
        ("runs", lambda s: [{"dag_id": run.dag_id, "run_id": run.run_id} for run in s.runs]),
    )

    batch: Batch
    outcome: Outcome | None
    """Of the batch at this record: UNDONE where a reset went back to it or before; None: it still runs."""

    process: str
    """Host, process and application of the member."""

    cause: str
    """Why it was started though it had been before; empty for the first time."""

    checkpoint: CheckpointNumber | None
    """The checkpoint that has it; None: it does not count, or is in none yet."""

    revision: int
    """The revision of that checkpoint that replaced what this group had written; 0: it stands as it was written."""

    runs: tuple[Requester, ...]
    """The DAG runs that have asked for that checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordView(View):
    """What became of one record in one group."""

    shown = AnswerColumns["RecordView"](*OF_PARTITION, "offset", "fate", "starts")

    partition: GroupPartition
    offset: Offset
    fate: Fate
    starts: tuple[RecordStart, ...]
    """Oldest first."""


@dataclass(frozen=True, slots=True)
class Repetition(View):
    """Offsets of one partition that a batch has started again."""

    shown = AnswerColumns["Repetition"](
        *of("redelivery.partition", "group", "topic", "partition"),
        ("from_offset", lambda r: r.redelivery.range.from_),
        ("to_offset", lambda r: r.redelivery.range.to),
        *("offsets", "cause"),
        ("epoch", lambda r: None if r.redelivery.reset is None else r.redelivery.reset.epoch),
        ("detail", lambda r: "" if r.redelivery.reset is None else r.redelivery.reset.detail),
        *of("redelivery", "batch", "earlier"),
        table=("group", "topic", "partition", "from_offset", "to_offset", "offsets", "cause", "epoch", "detail"),
    )

    redelivery: Redelivery

    @property
    def cause(self) -> str:
        """Why the region went back."""
        reset = self.redelivery.reset
        return _UNACCOUNTED if reset is None else reset.cause

    @property
    def offsets(self) -> int:
        """How many."""
        return self.redelivery.range.width


def record(store: RegionStore, name: RegionName, text: str, group: str | None) -> tuple[RecordView, ...]:
    """Return what became of a record, in each group that reads its topic.

    What it reads depends on how often the record was started, and not on what else the ledger has.

    Args:
        store: where the region is.
        name: the region's.
        text: `TOPIC:PARTITION:OFFSET`.
        group: only in this one.

    Raises:
        ConfigurationError: the text is not of that form, or the region has no such partition or group.
    """
    named_record = record_named(text)
    if named_record is None:
        raise ConfigurationError(f"{text!r} is not one record: write TOPIC:PARTITION:OFFSET")
    region, _ = store.read(name)
    if group is not None:
        require_groups(region, [group])
    place, offset = named_record
    known = {p for p in region.universe() if p.topic_partition == place} | {*store.readers(name, place)}
    named = sorted(p for p in known if group in (None, p.group))
    if not named:
        of = f"group {group} of region {region.name}" if group is not None else f"region {region.name}"
        raise ConfigurationError(f"{of} has no partition {place.topic}:{place.partition}")
    told = partial(_Record, store=store, region=region, offset=offset)
    return tuple(told(partition=partition).view() for partition in named)


def repeated(history: History, group: str | None) -> tuple[Repetition, ...]:
    """Return what was started more than once, partition by partition, in the order of the starts.

    Args:
        history: of a region.
        group: only of this one.
    """
    # Of what was started again before the kept events, nothing says why.
    first = history.events[0].number if history.events else EventNumber(1)
    told = {b.batch for b in history.batches if b.started_after >= first - 1}
    found = (r for r in redeliveries(history) if r.batch in told and group in (None, r.partition.group))
    return tuple(map(Repetition, found))


def by_cause(repetitions: tuple[Repetition, ...]) -> Mapping[str, int]:
    """Return how many offsets were started again for each cause."""
    found: Counter[str] = Counter()
    for one in repetitions:
        found[one.cause] += one.offsets
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """One record in one group, and where what is known of it is asked for."""

    store: RegionStore
    region: Region
    partition: GroupPartition
    offset: Offset

    def view(self) -> RecordView:
        """Return what became of it."""
        starts: list[RecordStart] = []
        earlier: Epoch | None = None
        batches = self.store.batches_with(self.region.name, self.partition, self.offset)
        for batch in batches:
            starts.append(self._start(batch, earlier))
            earlier = batch.epoch
        return RecordView(partition=self.partition, offset=self.offset, fate=self._fate(starts), starts=tuple(starts))

    def _start(self, batch: Batch, earlier: Epoch | None) -> RecordStart:
        """Return one start.

        Args:
            batch: of it.
            earlier: the epoch in which the record was started last before it; None: it is the first time.
        """
        mark = batch.undone_from.get(self.partition)
        is_undone = batch.outcome is Outcome.DONE and mark is not None and mark <= self.offset
        outcome = Outcome.UNDONE if is_undone else batch.outcome
        checkpoint = self._checkpoint(batch) if outcome is Outcome.DONE else None
        return RecordStart(
            batch=batch,
            outcome=outcome,
            process=self._process(batch),
            cause="" if earlier is None else self._cause(batch, earlier),
            checkpoint=None if checkpoint is None else checkpoint.sequence,
            revision=0 if checkpoint is None else checkpoint.revision_of(self.partition.group),
            runs=() if checkpoint is None else self._runs(checkpoint.sequence),
        )

    def _cause(self, batch: Batch, earlier: Epoch) -> str:
        """Return why it was started again: the first reset since that went back to the record or before it."""
        back = self.region.archive.went_back(self.partition, self.offset, earlier)
        return _UNACCOUNTED if back is None or back.epoch > batch.epoch else str(back.cause)

    def _checkpoint(self, batch: Batch) -> Checkpoint | None:
        """Return the checkpoint that has what a batch did: the first on the current timeline that lies beyond it."""
        return self.region.archive.holding(self.partition, self.offset, batch.sequence)

    def _runs(self, checkpoint: CheckpointNumber) -> tuple[Requester, ...]:
        asked = self.region.archive.requests_for([checkpoint])
        return tuple(request.requester for request in asked if request.requester.run_id)

    def _process(self, batch: Batch) -> str:
        member = self.region.members.get(batch.member)
        if member is not None and member.incarnation == batch.incarnation:
            return member.label
        return self.store.registered(self.region.name, batch.member, batch.incarnation)

    def _fate(self, starts: list[RecordStart]) -> Fate:
        if any(start.outcome is Outcome.DONE for start in starts):
            return Fate.PROCESSED
        if any(start.outcome is None for start in starts):
            return Fate.RUNNING
        if self.offset in self.region.skips.get(self.partition, ()):
            return Fate.SKIPPED
        return Fate.STARTED if starts else Fate.NOT_STARTED


# Events as JSON, and in a line for people.


def event_to_json(event: Event) -> dict[str, object]:
    """Return an event as in `events`; its body as it is stored, what is at its default left out."""
    head = {"number": event.number, "at": event.at, "epoch": event.epoch, "timeline": event.timeline}
    return document_of(head | {"kind": event.kind, "body": _body(event)})


def brief(event: Event, width: int) -> str:
    """Return an event's details in at most `width` characters; its JSON has all of them."""
    texts = (f"{name}={_text(value)}" for name, value in _body(event).items())
    text = " ".join(texts)
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _body(event: Event) -> dict[str, object]:
    return cast("dict[str, object]", documents.write(event.body, type(event.body)))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
