"""What lies around a checkpoint: the records that it has, its neighbours, and the resets that touched it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from airflow_kcr.api import reset_views
from airflow_kcr.api.reset_views import ResetView
from airflow_kcr.api.views import OF_PARTITION, AnswerColumns, View, of
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region.lookup import require_checkpoint
from airflow_kcr.protocol.region.rows import Checkpoint, Requester
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import CheckpointNumber, GroupPartition, Range, Timeline

RESETS: Final = 5
"""How many resets before a checkpoint are looked at for what it repeats."""

_PAGE: Final = 20
"""Attempts of resets that are read together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRange(View):
    """What a checkpoint has of one partition."""

    shown = AnswerColumns["CheckpointRange"](
        *OF_PARTITION, ("from_offset", lambda r: r.range.from_), ("to_offset", lambda r: r.range.to)
    )

    partition: GroupPartition
    range: Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat(View):
    """Offsets of a checkpoint that had been processed before a reset went back over them."""

    shown = AnswerColumns["Repeat"](
        *of("reset", "reset_id", "cause"), ("reason", lambda r: r.reset.requester.reason or None), "offsets"
    )

    reset: ResetView
    offsets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour(View):
    """A checkpoint beside another one, with the DAG runs that it answers."""

    shown = AnswerColumns["Neighbour"](
        "sequence", ("runs", lambda n: [{"dag_id": run.dag_id, "run_id": run.run_id} for run in n.runs])
    )

    sequence: CheckpointNumber
    runs: tuple[Requester, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointContext(View):
    """A checkpoint, and what lies around it."""

    shown = AnswerColumns["CheckpointContext"](
        "region",
        *of("checkpoint", "sequence", "state", "undone_by"),
        *("undone_by_reset", "previous", "next", "offsets", "ranges", "repeats"),
    )

    region: str
    checkpoint: Checkpoint
    undone_by_reset: str | None
    """The id of the reset that took it off the current timeline; None: none has."""

    previous: Neighbour | None
    """The newest current checkpoint before it; a reset to it undoes this one."""

    next: Neighbour | None
    """The oldest published current one after it."""

    ranges: tuple[CheckpointRange, ...]
    """What it has beyond what it was built on, the most first; nothing once it is retired."""

    repeats: tuple[Repeat, ...]
    """By the newest `RESETS` resets before it, the newest first."""

    @property
    def offsets(self) -> int:
        """How many, in all of its ranges."""
        return sum(one.range.width for one in self.ranges)


def context(region: Region, sequence: CheckpointNumber) -> CheckpointContext:
    """Return what lies around a checkpoint.

    Raises:
        UnknownCheckpoint: there is none of that sequence.
    """
    row = require_checkpoint(region, sequence)
    previous, following = _neighbours(region, sequence)
    ranges = dict(_ranges(region, row))
    return CheckpointContext(
        region=region.name,
        checkpoint=row,
        undone_by_reset=None if row.undone_by is None else _opened_by(region, sequence, row.undone_by),
        previous=previous,
        next=following,
        ranges=tuple(
            CheckpointRange(partition=p, range=its)
            for p, its in sorted(ranges.items(), key=lambda item: (-item[1].width, item[0]))
        ),
        repeats=tuple(_repeats(region, row, ranges)),
    )


def _neighbours(region: Region, sequence: CheckpointNumber) -> tuple[Neighbour | None, Neighbour | None]:
    archive = region.archive
    rows = archive.newest_current(sequence), archive.published_from(None, CheckpointNumber(sequence + 1))
    asked = archive.requests_for([row.sequence for row in rows if row is not None])

    def neighbour(row: Checkpoint | None) -> Neighbour | None:
        if row is None:
            return None
        runs = tuple(one.requester for one in asked if one.sequence == row.sequence and one.requester.run_id)
        return Neighbour(sequence=row.sequence, runs=runs)

    return neighbour(rows[0]), neighbour(rows[1])


def _ranges(region: Region, row: Checkpoint) -> Iterator[tuple[GroupPartition, Range]]:
    """Yield what a checkpoint has beyond what it was built on, partitions without any left out."""
    if not row.is_complete:
        return
    before = _built_on(region, row.previous)
    for partition, offset in (region.offsets_of(row.sequence) or EMPTY).items():
        start = before.get(partition)
        if start is not None and start < offset:
            yield partition, Range(start, offset)


def _built_on(region: Region, sequence: CheckpointNumber | None) -> OffsetMap:
    """Return the offsets of a restore point: of a checkpoint, or of the reset that burned its number."""
    if sequence is None:
        return EMPTY
    if region.checkpoint_of(sequence) is not None:
        return region.offsets_of(sequence) or EMPTY
    attempts = [one for one in region.archive.resets_from(sequence, 1) if one.sequence == sequence]
    seek = region.archive.seek_map(attempts[0].epoch) if attempts else None
    return EMPTY if seek is None else seek.offsets


def _opened_by(region: Region, after: CheckpointNumber, timeline: Timeline) -> str | None:
    """Return the id of the reset that opened a timeline."""
    while page := region.archive.resets_from(CheckpointNumber(after + 1), _PAGE):
        for one in page:
            if one.opens_timeline and one.timeline == timeline:
                return reset_views.found(region, str(one.sequence)).reset_id
        after = page[-1].sequence
    return None


def _repeats(region: Region, row: Checkpoint, ranges: Mapping[GroupPartition, Range]) -> Iterator[Repeat]:
    """Yield the resets that went back over what a checkpoint has, each with how much of it."""
    if not ranges:
        return
    page = region.archive.reset_page(before=row.sequence, last=RESETS)
    for reset in reversed(reset_views.of_page(region.name, page, RESETS)):
        count = sum(_overlap(its, ranges.get(p)) for p, its in _gone_over(region, reset).items())
        if count:
            yield Repeat(reset=reset, offsets=count)


def _gone_over(region: Region, reset: ResetView) -> Mapping[GroupPartition, Range]:
    """Return what a reset went back over: from where it went to up to where its partitions were."""
    found: dict[GroupPartition, Range] = {}
    for attempt in reset.attempts:
        for partition, entry in (region.archive.seek_map(attempt.epoch) or {}).items():
            if entry.offset is None or entry.current is None or entry.recreated:
                continue
            known = found.get(partition, Range(entry.current, entry.current))
            found[partition] = Range(min(entry.offset, known.from_), known.to)
    return found


def _overlap(one: Range, other: Range | None) -> int:
    return 0 if other is None else max(min(one.to, other.to) - max(one.from_, other.from_), 0)
