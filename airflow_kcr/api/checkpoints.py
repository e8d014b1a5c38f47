"""What the API answers about checkpoints: each one, what retention has left of it, and which can be gone back to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Self

from airflow_kcr.api.columns import AnswerColumn, AnswerColumns, ShownTo
from airflow_kcr.api.views import View
from airflow_kcr.errors import CheckpointNotUsable, ConfigurationError, UnknownCheckpoint
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region import completion, resets, retention, timelines
from airflow_kcr.protocol.region.archive import CheckpointPage, LogStart
from airflow_kcr.protocol.region.rows import Checkpoint, CheckpointRequest, CheckpointState, Requester
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.values import CheckpointNumber, GroupPartition, Offset, RequestId, TopicId, format_instant


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSummary(View):
    """One checkpoint in a line."""

    checkpoint: Checkpoint
    kept: str = ""
    """Why retirement leaves it; empty: age and count decide."""

    reach: Reach | None = None
    """Whether it can still be gone back to; None: it has no offsets."""

    @classmethod
    def newest_of(cls, region: StoredRegion, *, before: CheckpointNumber | None, last: int | None) -> tuple[Self, ...]:
        """Return checkpoints, the oldest first.

        Args:
            region: as it was read.
            before: only those of lower numbers; None: all.
            last: only the newest N of these; None: all.
        """
        return cls.of_page(region, region.archive.checkpoint_page(before=before, last=last))

    @classmethod
    def of_page(cls, region: StoredRegion, page: CheckpointPage) -> tuple[Self, ...]:
        """Return the checkpoints of a page of the archive, the oldest first."""
        kept, reaches = retention.protected(region), reach(page)
        return tuple(
            cls(
                checkpoint=row,
                kept=kept.get(row.sequence, "") or retention.own_reason(row),
                reach=reaches.get(row.sequence),
            )
            for row in page.checkpoints
        )

    def facts(self) -> Mapping[str, object]:
        """Return the checkpoint as in `checkpoint list`."""
        return CHECKPOINT.facts(self)

    @property
    def log(self) -> str:
        """Whether it can still be gone back to, for people."""
        if self.reach is None:
            return ""
        if self.reach.is_unreachable:
            return "unreachable"
        return "" if self.reach.overtaken_at is None else f"until {format_instant(self.reach.overtaken_at)}"


CHECKPOINT: Final = AnswerColumns[CheckpointSummary](
    AnswerColumn("sequence", lambda c: c.checkpoint.sequence, is_number=True),
    AnswerColumn("timeline", lambda c: c.checkpoint.timeline, is_number=True),
    AnswerColumn("state", lambda c: c.checkpoint.state),
    AnswerColumn("purpose", lambda c: c.checkpoint.purpose),
    AnswerColumn("boundary", lambda c: c.checkpoint.boundary),
    AnswerColumn("inexact", lambda c: bool(c.checkpoint.inexact), ShownTo.PROGRAMS),
    AnswerColumn("committed", lambda c: c.checkpoint.committed if c.checkpoint.is_complete else None),
    AnswerColumn("current", lambda c: _is_current(c.checkpoint)),
    AnswerColumn("undone_by", lambda c: c.checkpoint.undone_by, ShownTo.PROGRAMS),
    AnswerColumn("opened_at", lambda c: c.checkpoint.opened_at, ShownTo.PROGRAMS),
    AnswerColumn("finished_at", lambda c: c.checkpoint.finished_at),
    AnswerColumn("published_at", lambda c: c.checkpoint.published_at, ShownTo.PROGRAMS),
    AnswerColumn("pinned_as", lambda c: c.checkpoint.pinned_as or None, ShownTo.PROGRAMS),
    AnswerColumn("kept_because", lambda c: c.kept or None),
    AnswerColumn("unreachable", lambda c: None if c.reach is None else c.reach.is_unreachable, ShownTo.PROGRAMS),
    AnswerColumn("overtaken_at", lambda c: None if c.reach is None else c.reach.overtaken_at, ShownTo.PROGRAMS),
    AnswerColumn("log", lambda c: c.log, ShownTo.PEOPLE),
)
"""A checkpoint as in `checkpoint list`."""


def _is_current(row: Checkpoint) -> bool | None:
    return row.is_current if row.is_current or row.undone_by is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView(View):
    """One checkpoint with its offsets."""

    region: str
    checkpoint: Checkpoint
    requester: Requester
    offsets: OffsetMap
    """Of an open one, what was contributed so far; of an aborted or retired one, none."""

    read_backs: OffsetMap
    """What Kafka holds, as read back after the commit."""

    lacking: tuple[str, ...] = ()
    """What an open one waits for."""

    runs: tuple[Requester, ...] = ()
    """The DAG runs that it answers, in the order in which they asked."""

    @classmethod
    def of(cls, region: StoredRegion, sequence: CheckpointNumber) -> Self:
        """Return one checkpoint.

        Raises:
            UnknownCheckpoint: there is none of that sequence; the message names those that there are.
        """
        row = require_checkpoint(region, sequence)
        request = region.request_of(row.request_id)
        is_open = region.open_checkpoint == sequence
        parts = completion.merged(region.contributions_to(sequence)) if is_open else EMPTY
        return cls(
            region=region.name,
            checkpoint=row,
            requester=Requester() if request is None else request.requester,
            offsets=region.offsets_of(sequence) or EMPTY if row.is_complete else parts,
            read_backs=region.archive.read_backs(sequence) if row.is_complete else EMPTY,
            lacking=completion.lacking(region, row) if is_open else (),
            runs=_runs(region, sequence),
        )

    def facts(self) -> Mapping[str, object]:
        """Return the checkpoint as in `checkpoint show`."""
        row = self.checkpoint
        return {
            "region": self.region,
            "timeline": row.timeline,
            "sequence": row.sequence,
            "state": row.state,
            "boundary": row.boundary,
            "inexact": bool(row.inexact),
            "requested_by": {"dag_id": self.requester.dag_id or None, "run_id": self.requester.run_id or None},
            "offsets": [
                {**p._asdict(), "offset": offset, "committed": self.read_backs.get(p)}
                for p, offset in self.offsets.items()
            ],
        }


def _runs(region: StoredRegion, sequence: CheckpointNumber) -> tuple[Requester, ...]:
    return tuple(one.requester for one in region.archive.requests_for([sequence]))


def require_checkpoint(region: StoredRegion, sequence: CheckpointNumber) -> Checkpoint:
    """Return a checkpoint's row.

    Raises:
        UnknownCheckpoint: there is none of that sequence; the message names those that there are.
    """
    row = region.checkpoint_of(sequence)
    if row is None:
        known = [str(other.sequence) for other in region.archive.checkpoints(last=10)]
        newest = f"its newest are {', '.join(known)}" if known else "it has none yet"
        raise UnknownCheckpoint(f"region {region.name} has no checkpoint {sequence}; {newest}")
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequestView(View):
    """Where a request for a checkpoint stands, and the checkpoint that answers it."""

    region: str
    request: CheckpointRequest
    checkpoint: Checkpoint | None

    @classmethod
    def of(cls, region: StoredRegion, request_id: RequestId) -> Self:
        """Return where the request of a request id stands.

        Raises:
            ConfigurationError: there is no request with that id.
        """
        request = region.request_of(request_id)
        if request is None:
            raise ConfigurationError(f"region {region.name} has no checkpoint request with the id {request_id!r}")
        sequence = request.sequence
        return cls(
            region=region.name,
            request=request,
            checkpoint=None if sequence is None else region.checkpoint_of(sequence),
        )

    def facts(self) -> Mapping[str, object]:
        """Return the request as in `region drain`."""
        row = self.request
        return {
            "region": self.region,
            "request_id": row.request_id,
            "state": row.state,
            "boundary": row.boundary,
            "sequence": row.sequence,
            "checkpoint": None if self.checkpoint is None else self.checkpoint.state,
            "inexact": None if self.checkpoint is None else bool(self.checkpoint.inexact),
            "why": row.refusal or None,
        }


def require_current(region: StoredRegion, sequence: CheckpointNumber) -> Checkpoint:
    """Return a checkpoint's row if it describes the region's past, or may yet come to.

    Raises:
        UnknownCheckpoint: there is none of that sequence.
        CheckpointNotUsable: it was aborted, or a reset has undone it; the message says which.
    """
    row = require_checkpoint(region, sequence)
    if row.undone_by is not None:
        raise CheckpointNotUsable(
            f"checkpoint {sequence} of region {region.name} was undone by a reset, which opened timeline "
            f"{row.undone_by}; its records are processed again, and the checkpoint that holds them has another number"
        )
    if row.state is CheckpointState.ABORTED:
        raise CheckpointNotUsable(f"checkpoint {sequence} of region {region.name} was aborted: {row.abort_reason}")
    return row


# Which checkpoints retention has overtaken, and when it will reach the others: from what members saw of the logs.
#
# Every contribution to a checkpoint has the bounds of its logs, so this doesn't ask Kafka. It is as fresh as the newest
# checkpoint; a plan reads the logs themselves.


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Whether a checkpoint can still be gone back to."""

    lost: tuple[GroupPartition, ...] = ()
    """Partitions whose log began beyond the checkpoint when it was last seen, or is of another topic than then."""

    overtaken_at: datetime | None = None
    """When the first log start will have passed the checkpoint, at the speed at which it moved; None: it did not move,
    was seen once only, or has passed it already."""

    @property
    def is_unreachable(self) -> bool:
        """Whether a reset to it would be refused."""
        return bool(self.lost)


def reach(page: CheckpointPage) -> Mapping[CheckpointNumber, Reach]:
    """Return, for each checkpoint of a page that has offsets, whether it can still be gone back to."""
    return {
        sequence: _reach(offsets, page.log_starts, page.topics[sequence]) for sequence, offsets in page.offsets.items()
    }


def reach_of(region: StoredRegion, sequence: CheckpointNumber) -> Reach:
    """Return whether one checkpoint can still be gone back to; no other one's offsets are read.

    An aborted one has no offsets of its own, so there is nothing that could be overtaken.
    """
    return reach(region.archive.checkpoint_page(before=CheckpointNumber(sequence + 1), last=1)).get(sequence, Reach())


def _reach(
    offsets: Mapping[GroupPartition, Offset],
    seen: Mapping[GroupPartition, tuple[LogStart, ...]],
    topics: Mapping[GroupPartition, TopicId],
) -> Reach:
    lost = tuple(
        p
        for p, offset in offsets.items()
        if p in seen
        and (offset < seen[p][-1].offset or timelines.is_recreated(topics.get(p, TopicId("")), seen[p][-1].topic_id))
    )
    if lost:
        return Reach(lost=lost)
    moments = [m for p, offset in offsets.items() if (m := _overtaken(offset, seen.get(p, ()))) is not None]
    return Reach(overtaken_at=min(moments, default=None))


def _overtaken(offset: Offset, rows: tuple[LogStart, ...]) -> datetime | None:
    if not rows:
        return None
    last = rows[-1]
    first = min((row for row in rows if row.topic_id == last.topic_id), key=lambda row: row.first_seen)
    moved, took = last.offset - first.offset, last.last_seen - first.first_seen
    if moved <= 0 or took <= timedelta(0):
        return None
    try:
        return last.last_seen + took * ((offset - last.offset) / moved)
    except OverflowError:
        return None  # beyond what a calendar can say


# The checkpoints that a region can go back to, and what each would mean, as far as the store knows.
#
# A plan is exact, but asks Kafka. This is for choosing before there is a plan.

_PAGE: Final = 50
"""Checkpoints that are read together, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WayBack:
    """A checkpoint that a region can go back to."""

    checkpoint: Checkpoint
    runs: tuple[Requester, ...]
    """The DAG runs that it answers, in the order in which they asked."""

    moved: int
    """How many partitions are elsewhere now."""

    replay: int
    """How many offsets would be processed again."""


def ways_back(region: StoredRegion, newest: int) -> tuple[WayBack, ...]:
    """Return the newest checkpoints that a region can go back to, the newest first.

    Args:
        region: as it was read.
        newest: how many, at most.

    Raises:
        CheckpointNotUsable: there is none; the message says whether retention is the reason.
    """
    usable = _usable(region, newest)
    reachable = [one for one in usable if one.is_reachable]
    if not reachable:
        lost = f" that the logs still have (the newest {len(usable)} are unreachable)" if usable else ""
        raise CheckpointNotUsable(
            f"region {region.name} has no complete checkpoint on its current timeline{lost}; plan with another target"
        )
    current = resets.positions(region)
    return tuple(_way_back(one, current) for one in reversed(reachable[-newest:]))


@dataclass(frozen=True, slots=True)
class _Usable:
    """A usable checkpoint as a page has it."""

    checkpoint: Checkpoint
    runs: tuple[Requester, ...]
    offsets: OffsetMap
    is_reachable: bool


def _usable(region: StoredRegion, newest: int) -> list[_Usable]:
    """Return usable checkpoints, oldest first: as many that can be reached, if there are, and perhaps more.

    Where a page has usable ones and none can be reached, those before it can't be either: logs lose their beginnings.
    """
    found: list[_Usable] = []
    before: CheckpointNumber | None = None
    size = max(newest, _PAGE)
    while (page := region.archive.checkpoint_page(before=before, last=size)).checkpoints:
        usable = list(_usable_of(page))
        found[:0] = usable
        before = page.checkpoints[0].sequence
        is_last = len(page.checkpoints) < size or not any(one.is_complete for one in page.checkpoints)
        is_overtaken = bool(usable) and not any(one.is_reachable for one in usable)
        if is_last or is_overtaken or sum(one.is_reachable for one in found) >= newest:
            break
    return found


def _usable_of(page: CheckpointPage) -> Iterator[_Usable]:
    reaches, runs = reach(page), defaultdict[CheckpointNumber | None, list[Requester]](list)
    for request in page.requests:
        runs[request.sequence].append(request.requester)
    for row in page.checkpoints:
        if row.is_complete and row.is_current:
            is_reachable = not reaches[row.sequence].is_unreachable
            yield _Usable(row, tuple(runs[row.sequence]), page.offsets[row.sequence], is_reachable)


def _way_back(one: _Usable, current: OffsetMap) -> WayBack:
    moves = [current[p] - offset for p, offset in one.offsets.items() if p in current and current[p] != offset]
    return WayBack(checkpoint=one.checkpoint, runs=one.runs, moved=len(moves), replay=sum(max(by, 0) for by in moves))
