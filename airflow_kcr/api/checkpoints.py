"""What the API answers about checkpoints: each one, what retention has left of it, and which can be gone back to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Self

from airflow_kcr.api import partitions
from airflow_kcr.api.checkpoint_context import CheckpointContext, context
from airflow_kcr.api.checkpoint_stats import CheckpointStats, Phase, phases, stats
from airflow_kcr.api.regions import Handle
from airflow_kcr.api.views import AnswerColumns, RegionView, View, of
from airflow_kcr.errors import CheckpointNotUsable, ConfigurationError, UnknownCheckpoint
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region import completion, lookup, resets, retention, timelines
from airflow_kcr.protocol.region.archive import CheckpointPage, LogStart
from airflow_kcr.protocol.region.commands import PinCheckpoint, RetireCheckpoints
from airflow_kcr.protocol.region.events import CheckpointsRetired
from airflow_kcr.protocol.region.lag import LagSample
from airflow_kcr.protocol.region.liveness import Seen
from airflow_kcr.protocol.region.rows import Checkpoint, CheckpointRequest, Requester
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    GroupPartition,
    Offset,
    RequestId,
    TopicId,
    format_instant,
    instant_of,
)

_NEXT: Final = timedelta(microseconds=1)
"""The least that a boundary is later than another one."""


PUBLISHED: Final = AnswerColumns[Checkpoint](
    "timeline", "sequence", "boundary", ("inexact", lambda row: bool(row.inexact)), "revision"
)
"""What tasks return of a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSummary(View):
    """One checkpoint in a line."""

    shown = AnswerColumns["CheckpointSummary"](
        *of("checkpoint", "sequence", "timeline", "state", "purpose", "boundary"),
        ("inexact", lambda c: bool(c.checkpoint.inexact)),
        ("committed", lambda c: c.checkpoint.committed if c.checkpoint.is_complete else None),
        "current",
        *of("checkpoint", "undone_by", "opened_at", "finished_at", "published_at"),
        ("drain_seconds", lambda c: _seconds(c, Phase.DRAIN)),
        ("publish_seconds", lambda c: _seconds(c, Phase.PUBLISH)),
        ("pinned_as", lambda c: c.checkpoint.pinned_as or None),
        "checkpoint.revision",
        ("kept_because", lambda c: c.kept or None),
        ("unreachable", lambda c: None if c.reach is None else c.reach.is_unreachable),
        ("overtaken_at", lambda c: None if c.reach is None else c.reach.overtaken_at),
        ("runs", lambda c: [{"dag_id": run.dag_id, "run_id": run.run_id} for run in c.runs]),
        table=(
            *("sequence", "timeline", "state", "purpose", "boundary", "committed", "current", "finished_at"),
            *("kept_because", "log"),
        ),
    )

    checkpoint: Checkpoint
    kept: str = ""
    """Why retirement leaves it; empty: age and count decide."""

    reach: Reach | None = None
    """Whether it can still be gone back to; None: it has no offsets."""

    runs: tuple[Requester, ...] = ()
    """The DAG runs that it answers, in the order in which they asked."""

    @classmethod
    def of_page(cls, region: StoredRegion, page: CheckpointPage) -> tuple[Self, ...]:
        """Return the checkpoints of a page of the archive, the oldest first."""
        kept, reaches = retention.protected(region), reach(page)
        runs: defaultdict[CheckpointNumber | None, list[Requester]] = defaultdict(list)
        for request in page.requests:
            if request.requester.run_id:
                runs[request.sequence].append(request.requester)
        return tuple(
            cls(
                checkpoint=row,
                kept=kept.get(row.sequence, "") or retention.own_reason(row),
                reach=reaches.get(row.sequence),
                runs=tuple(runs[row.sequence]),
            )
            for row in page.checkpoints
        )

    @property
    def current(self) -> bool | None:
        """Whether it is of the current timeline; None: it is open or aborted."""
        row = self.checkpoint
        return row.is_current if row.is_current or row.undone_by is not None else None

    @property
    def log(self) -> str:
        """Whether it can still be gone back to, for people."""
        if self.reach is None:
            return ""
        if self.reach.is_unreachable:
            return "unreachable"
        return "" if self.reach.overtaken_at is None else f"until {format_instant(self.reach.overtaken_at)}"


def _seconds(summary: CheckpointSummary, phase: Phase) -> float | None:
    took = phases(summary.checkpoint).get(phase)
    return None if took is None else took.total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView(View):
    """One checkpoint with its offsets."""

    shown = AnswerColumns["CheckpointView"](
        "region",
        *of("checkpoint", "timeline", "sequence", "state", "boundary"),
        ("inexact", lambda c: bool(c.checkpoint.inexact)),
        "checkpoint.revision",
        ("requested_by", lambda c: {"dag_id": c.requester.dag_id or None, "run_id": c.requester.run_id or None}),
        (
            "offsets",
            lambda c: [
                {**p._asdict(), "offset": o, "committed": c.read_backs.get(p), "position": c.positions.get(p)}
                for p, o in c.offsets.items()
            ],
        ),
        "checkpoint.tables",
    )

    region: str
    checkpoint: Checkpoint
    requester: Requester
    offsets: OffsetMap
    """Of an open one, what was contributed so far; of an aborted or retired one, none."""

    read_backs: OffsetMap
    """What Kafka holds, as read back after the commit."""

    positions: OffsetMap = EMPTY
    """Up to where everything is accepted now."""

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
        row = lookup.require_checkpoint(region, sequence)
        request = region.request_of(row.request_id)
        is_open = region.open_checkpoint == sequence
        parts = completion.merged(region.contributions_to(sequence)) if is_open else EMPTY
        return cls(
            region=region.name,
            checkpoint=row,
            requester=Requester() if request is None else request.requester,
            offsets=region.offsets_of(sequence) or EMPTY if row.is_complete else parts,
            read_backs=region.archive.read_backs(sequence) if row.is_complete else EMPTY,
            positions=resets.positions(region),
            lacking=completion.lacking(region, row) if is_open else (),
            runs=_runs(region, sequence),
        )


def _runs(region: StoredRegion, sequence: CheckpointNumber) -> tuple[Requester, ...]:
    return tuple(one.requester for one in region.archive.requests_for([sequence]))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequestView(View):
    """Where a request for a checkpoint stands, and the checkpoint that answers it."""

    shown = AnswerColumns["CheckpointRequestView"](
        "region",
        *of("request", "request_id", "state", "boundary", "sequence"),
        ("checkpoint", lambda r: None if r.checkpoint is None else r.checkpoint.state),
        ("inexact", lambda r: None if r.checkpoint is None else bool(r.checkpoint.inexact)),
        ("why", lambda r: r.request.refusal or None),
    )

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


def shown_region(region: StoredRegion, now: datetime, seen: Seen, samples: Sequence[LagSample]) -> RegionView:
    """Return a region with when retention passes its restore point; the arguments are those of `RegionView.of`."""
    point = region.restore_checkpoint
    at = None if point is None else reach_of(region, point.sequence).overtaken_at
    return replace(RegionView.of(region, now, seen, samples), overtaken_at=at)


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
    """Return the newest checkpoints that a region can go back to; see `RegionCheckpoints.ways_back`."""
    reachable, overtaken = _reachable(region, newest)
    if not reachable:
        lost = f" that the logs still have (the newest {overtaken} are unreachable)" if overtaken else ""
        raise CheckpointNotUsable(
            f"region {region.name} has no complete checkpoint on its current timeline{lost}; plan with another target"
        )
    return tuple(reachable[::-1][:newest])


def _reachable(region: StoredRegion, newest: int) -> tuple[list[WayBack], int]:
    """Return usable checkpoints that can be reached, oldest first, and how many can't be of those that were looked at.

    Where a page has usable ones and none can be reached, those before it can't be either: logs lose their beginnings.
    """
    current, found, overtaken = resets.positions(region), list[WayBack](), 0
    before: CheckpointNumber | None = None
    size = max(newest, _PAGE)
    while (page := region.archive.checkpoint_page(before=before, last=size)).checkpoints:
        reaches = reach(page)
        usable = [row for row in page.checkpoints if row.is_complete and row.is_current]
        reachable = [row for row in usable if not reaches[row.sequence].is_unreachable]
        found[:0] = [_way_back(row, page, current) for row in reachable]
        overtaken += len(usable) - len(reachable)
        before = page.checkpoints[0].sequence
        is_last = len(page.checkpoints) < size or not any(one.is_complete for one in page.checkpoints)
        if is_last or (usable and not reachable) or len(found) >= newest:
            break
    return found, overtaken


def _way_back(row: Checkpoint, page: CheckpointPage, current: OffsetMap) -> WayBack:
    offsets = page.offsets[row.sequence]
    moves = [current[p] - offset for p, offset in offsets.items() if p in current and current[p] != offset]
    return WayBack(
        checkpoint=row,
        runs=tuple(request.requester for request in page.requests if request.sequence == row.sequence),
        moved=len(moves),
        replay=sum(max(by, 0) for by in moves),
    )


class RegionCheckpoints(Handle):
    """The checkpoints of a region: each one, what retention leaves of it, and Kafka beside it."""

    def list(self, *, before: int | None = None, last: int | None = None) -> tuple[CheckpointSummary, ...]:
        """Return checkpoints, the oldest first; what it costs depends on how many, not on how many there were.

        Args:
            before: only those of lower numbers; None: all.
            last: only the newest N of these; None: all.
        """
        region = self.read()
        number = None if before is None else CheckpointNumber(before)
        return CheckpointSummary.of_page(region, region.archive.checkpoint_page(before=number, last=last))

    def count(self) -> int:
        """Return how many checkpoints the region has had, retired ones too."""
        return self.read().archive.count()

    def stats(self, within: timedelta = timedelta(days=1)) -> tuple[CheckpointStats, ...]:
        """Return how long the checkpoints of a time took, by phase and by member, each from the slowest on.

        Args:
            within: how long ago they were complete, at most.
        """
        region, now = self.store.read(self.name)
        return stats(region, now - within)

    def show(self, sequence: int) -> CheckpointView:
        """Return one checkpoint with its offsets.

        Raises:
            UnknownCheckpoint: there is none of that sequence.
        """
        return CheckpointView.of(self.read(), CheckpointNumber(sequence))

    def context(self, sequence: int) -> CheckpointContext:
        """Return what lies around a checkpoint: what it has, its neighbours, and the resets that touched it.

        Raises:
            UnknownCheckpoint: there is none of that sequence.
        """
        return context(self.read(), CheckpointNumber(sequence))

    def that_answered(self, dag_id: str, run_id: str) -> tuple[int, ...]:
        """Return the checkpoints that answered the requests of a DAG run, undone ones too, in ascending order."""
        asked = self.read().archive.requests_of_run(dag_id, run_id)
        return tuple(sorted({one.sequence for one in asked if one.sequence is not None}))

    def of_run(self, dag_id: str, run_id: str) -> CheckpointView:
        """Return the newest complete current checkpoint that answered a request of a DAG run.

        Raises:
            UnknownCheckpoint: there is none.
            CheckpointNotUsable: there are several, of different boundaries.
        """
        region = self.read()
        return CheckpointView.of(region, lookup.of_run(region, dag_id, run_id))

    def between(self, after: datetime, up_to: datetime) -> tuple[int, ...]:
        """Return the current checkpoints that were aligned to a boundary between two instants, oldest first.

        Args:
            after: the first of them is of a later boundary.
            up_to: the last of them is of this boundary or an earlier one.

        Raises:
            UnknownCheckpoint: there is none.
            ConfigurationError: an instant has no zone.
        """
        region, found, last = self.read(), list[int](), instant_of("up_to", up_to)
        row = region.archive.covering(instant_of("after", after) + _NEXT)
        while row is not None and row.boundary is not None and row.boundary <= last:
            found.append(row.sequence)
            row = region.archive.covering(row.boundary + _NEXT)
        if not found:
            raise UnknownCheckpoint(
                f"region {self.name} has no checkpoint of a boundary after {format_instant(after)}, at most "
                f"{format_instant(up_to)}"
            )
        return tuple(found)

    def at(self, boundary: datetime) -> Checkpoint | None:
        """Return the current checkpoint that is aligned to a boundary, an instant with a zone; None: there is none."""
        instant = instant_of("boundary", boundary)
        row = self.read().archive.covering(instant)
        return row if row is not None and row.boundary == instant else None

    def number_of_run(self, dag_id: str, run_id: str) -> int:
        """Return the number of the newest current checkpoint that a DAG run has, also where it is retired.

        Raises:
            UnknownCheckpoint: there is none.
            CheckpointNotUsable: there are several, of different boundaries.
        """
        return lookup.of_run(self.read(), dag_id, run_id, has_offsets=False)

    def ways_back(self, newest: int) -> tuple[WayBack, ...]:
        """Return the newest checkpoints that the region can go back to, and what each would mean, the newest first.

        Args:
            newest: how many, at most.

        Raises:
            CheckpointNotUsable: there is none; the message says whether retention is the reason.
        """
        return ways_back(self.read(), newest)

    def pin(self, sequence: int, label: str = "pinned", reason: str = "") -> CheckpointView:
        """Keep a checkpoint from retirement, under a label.

        Raises:
            UnknownCheckpoint: there is none of that sequence.
            CheckpointNotUsable: it has no offsets to keep.
            ConfigurationError: the label is empty, which would release it.
        """
        if not label:
            raise ConfigurationError("a pin needs a label; `unpin` releases a checkpoint")
        return self._pinned(sequence, label, reason)

    def unpin(self, sequence: int) -> CheckpointView:
        """Unpin a checkpoint; retention applies to it again.

        Raises:
            UnknownCheckpoint, CheckpointNotUsable: as for `pin`.
        """
        return self._pinned(sequence, "", "")

    def retire(self) -> tuple[int, ...]:
        """Forget the checkpoints that age and count retire, and return their sequences."""
        counter = self.read().counter
        self.store.handle(self.name, RetireCheckpoints())
        gone: list[int] = []
        while page := self.store.events(self.name, counter):
            gone += [s for event in page if isinstance(event.body, CheckpointsRetired) for s in event.body.sequences]
            counter = page[-1].number
        return tuple(gone)

    def compare(self, sequence: int) -> tuple[partitions.Comparison, ...]:
        """Return a checkpoint beside what Kafka has, partition by partition.

        Raises:
            UnknownCheckpoint, CheckpointNotUsable: there is none of that sequence, or it has no offsets.
            BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
        """
        return partitions.compare(self.read(), CheckpointNumber(sequence), self.clusters)

    def repair(self, sequence: int) -> CheckpointView:
        """Tell Kafka the restore point's offsets while its groups are empty, read back; see `partitions.repair`.

        Raises:
            CheckpointRefused: the checkpoint is not the restore point.
            GroupNotEmpty: a group has a consumer; its members commit by themselves, at the latest with the next
                checkpoint.
            BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
        """
        number = CheckpointNumber(sequence)
        return CheckpointView.of(partitions.repair(self.store, self.name, number, self.clusters), number)

    def _pinned(self, sequence: int, label: str, reason: str) -> CheckpointView:
        known = lookup.require_checkpoint(self.read(), CheckpointNumber(sequence)).sequence
        pin = PinCheckpoint(sequence=known, label=label, reason=reason, who=self.requester.who)
        return CheckpointView.of(self.store.handle(self.name, pin), known)
