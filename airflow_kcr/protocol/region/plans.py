"""A plan: what a person's reset would do, from its target in this region to the whole seek map.

What needs the brokers' time index, or log bounds that no contribution brought, stays open: the first owner of each
partition answers. A checkpoint that lacks partitions has its gaps filled from earlier ones.

Planning changes nothing and takes no lock. What is relative is shown as it would come out now, and is resolved again
when the reset begins; a plan is applied under the epoch in which it was made, or refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Self

from airflow_kcr.errors import CheckpointNotUsable, ConfigurationError, StalePlan, UpsertNeedsConsent
from airflow_kcr.protocol import documents, values
from airflow_kcr.protocol.documents import FullDocument
from airflow_kcr.protocol.observations import LogBounds, LogView
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap, SeekEntry, SeekMap, SeekSource, write_offsets
from airflow_kcr.protocol.region import first_starts, lookup, resets, rows, timelines
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import UpsertSink
from airflow_kcr.protocol.table_outputs import TableOutput
from airflow_kcr.protocol.target_resolution import PlanLine, ignored, resolve
from airflow_kcr.protocol.targets import Situation, Target
from airflow_kcr.protocol.values import GroupPartition, Offset, drawn, format_instant

# Where each partition goes

LOOK_BACK: Final = 20
"""How many checkpoints before the one that is gone to are searched for a partition that it lacks."""


def seek_map(
    region: Region,
    now: datetime,
    request: rows.ResetRequest,
    current: OffsetMap,
    seen: Mapping[GroupPartition, LogBounds],
) -> SeekMap:
    """Return the whole map of a person's reset.

    Args:
        region: the region.
        now: the store's clock.
        request: the accepted request.
        current: the drained checkpoint's offsets, or the last done positions where it is forced.
        seen: log bounds that the checkpoint's contributions brought; empty if it is forced.

    Raises:
        CheckpointNotUsable: the log no longer has an offset that the target remembers.
    """
    partitions = region.universe_in_order()
    in_scope = frozenset(p for p in partitions if p in request.scope)
    if _needs_owners(request.target, in_scope, seen):
        still_open = {
            p: SeekEntry(offset=None, source=SeekSource.EXPLICIT, current=current.get(p))
            for p in in_scope
            if request.target.names(p)
        }
        return SeekMap({p: still_open.get(p) or _kept(region, p, current) for p in partitions})
    situation = _situation(region, request, partitions, current, LogView(bounds=seen, read_at=now))
    lines = resolve(request.target, request.scope, situation)
    lost = [line.loss for line in lines if line.unreachable]
    if lost:
        raise CheckpointNotUsable(f"{len(lost)} partition(s) can't go there, the log has moved on: {lost[0]}")
    return SeekMap({line.partition: line.entry for line in lines})


def _situation(
    region: Region,
    request: rows.ResetRequest,
    partitions: tuple[GroupPartition, ...],
    current: OffsetMap,
    log: LogView,
) -> Situation:
    """Return what the request's target is resolved against."""
    offsets, fills = checkpoint_offsets(region, lookup.target_checkpoint(region, request), partitions)
    initial = region.initial_offsets()
    return Situation(partitions=partitions, current=current, initial=initial, log=log, checkpoint=offsets, fills=fills)


def _left_by_earlier(
    region: Region, sequence: values.CheckpointNumber, lacking: frozenset[GroupPartition]
) -> dict[GroupPartition, SeekEntry]:
    """Return where earlier checkpoints left partitions that one lacks, as the brokers did not have them then.

    What was found later than that checkpoint is in none of them.
    """
    found: dict[GroupPartition, SeekEntry] = {}
    before: values.CheckpointNumber | None = sequence
    for _ in range(LOOK_BACK):
        earlier = region.archive.newest_usable(before) if lacking else None
        if earlier is None:
            break
        before = earlier.sequence
        offsets = region.offsets_of(before) or EMPTY
        has = lacking.intersection(offsets)
        if has:
            kept = has.difference(timelines.lost_to(region, before))
            found |= {p: SeekEntry(offset=offsets[p], source=SeekSource.PREVIOUS_CHECKPOINT) for p in kept}
            lacking -= has
    return found


def _needs_owners(
    target: Target, in_scope: frozenset[GroupPartition], seen: Mapping[GroupPartition, LogBounds]
) -> bool:
    """Whether only the partitions' owners can answer: a time, or a log whose bounds are unknown."""
    if target.needs_time:
        return True
    return target.needs_logs and not target.is_stored and not in_scope <= seen.keys()


def _kept(region: Region, partition: GroupPartition, current: OffsetMap) -> SeekEntry:
    place: Offset | None = current.get(partition)
    if place is not None:
        return SeekEntry(offset=place, source=SeekSource.DRAINED, current=place)
    initial = region.initial_offset(partition)
    return SeekEntry(offset=None if initial is None else initial.offset, source=SeekSource.INITIAL)


def checkpoint_offsets(
    region: Region, sequence: values.CheckpointNumber | None, partitions: Collection[GroupPartition]
) -> tuple[OffsetMap | None, SeekMap]:
    """Return a checkpoint's offsets, and what fills its gaps: it never was complete, or some partitions were gone."""
    row = None if sequence is None else region.checkpoint_of(sequence)
    if sequence is None or row is None:
        return None, SeekMap({})
    if row.is_complete:
        complete = region.offsets_of(sequence) or EMPTY
        return complete, SeekMap(_left_by_earlier(region, sequence, frozenset(partitions).difference(complete)))
    offsets, committed = EMPTY, EMPTY
    for _, part in sorted(region.contributions_to(sequence).items()):
        offsets, committed = offsets.union(part.offsets), committed.union(part.committed)
    earlier = region.archive.newest_usable(sequence)
    previous = EMPTY if earlier is None else region.offsets_of(earlier.sequence) or EMPTY
    fills = {p: SeekEntry(offset=o, source=SeekSource.COMMITTED) for p, o in committed.items()}
    fills.update({p: SeekEntry(offset=o, source=SeekSource.PREVIOUS_CHECKPOINT) for p, o in previous.items()})
    return offsets, SeekMap(fills)


# The plan

WORST: Final = 20
"""How many partitions a summary has: what fits on a screen with the buttons beneath it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals(FullDocument):
    """A plan in numbers."""

    partitions: int
    moved: int
    """Those that don't stay where they are."""

    replay: int
    skip: int
    clamped: int
    unreachable: int

    @classmethod
    def of(cls, lines: tuple[PlanLine, ...]) -> Self:
        """Return the numbers of all lines of a plan."""
        moved = replay = skip = clamped = unreachable = 0
        for line in lines:  # once, as there may be ten thousand
            moved += line.is_moved
            way = line.way or 0
            replay, skip = (replay, skip + way) if way > 0 else (replay - way, skip)
            clamped += line.asked is not None
            unreachable += line.unreachable
        return cls(
            partitions=len(lines), moved=moved, replay=replay, skip=skip, clamped=clamped, unreachable=unreachable
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(FullDocument):
    """What a reset would do, made under one epoch, and all that is needed to apply it; the store keeps none.

    `plan` is its name: the reset is accepted under it, so that a plan that is applied twice is one reset.
    """

    also = ("target", "scope")

    plan: values.RequestId
    region: values.RegionName
    region_id: values.RegionId
    """Which region of that name; for another it is refused."""

    epoch: values.Epoch
    """The epoch in which it was made; under another it is refused."""

    made_at: datetime
    request: rows.ResetRequest
    requester: rows.Requester = field(default_factory=rows.Requester)
    """Who chose its target, and why."""

    entries: tuple[PlanLine, ...]
    """One for each partition; fewer in a summary."""

    totals: Totals
    undoes: tuple[values.CheckpointNumber, ...] = ()
    """The checkpoints that it would take off the current timeline."""

    runs: tuple[rows.Requester, ...] = ()
    """The DAG runs whose checkpoints those are: what they published is processed again."""

    tables: tuple[TableOutput, ...] = ()
    """What those have in tables that people own, all of which goes. What is not processed again comes back with the
    next checkpoint."""

    ignored: tuple[GroupPartition, ...] = ()
    """Partitions of the target checkpoint that the region no longer has."""

    upserts: tuple[UpsertSink, ...] = ()
    """Sinks whose tables it could not restore: applied, it needs consent."""

    overtaken_at: datetime | None = None
    """When retention will have overtaken the target, at the speed of the logs' starts between the checkpoints."""

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Return the plan that a document is of, also of a summary.

        Raises:
            ConfigurationError: it is not a plan.
        """
        try:
            found = documents.read(document, cls)
            values.region_name(found.region)
        except ValueError as error:
            raise ConfigurationError(f"not a plan of a reset; `kcr reset plan … -o json` writes one: {error}") from None
        if not found.plan:
            raise ConfigurationError("not a plan of a reset: it has no name")
        return found

    @property
    def target(self) -> str:
        """The target in words."""
        return str(self.request.target)

    @property
    def scope(self) -> str:
        """The scope as its options."""
        return str(self.request.scope)

    @property
    def seek(self) -> SeekMap:
        """The whole map, with the positions that it was resolved by."""
        return SeekMap({line.partition: line.entry for line in self.entries})

    @property
    def unreachable(self) -> tuple[PlanLine, ...]:
        """The partitions whose logs don't have the target: the reset would be refused."""
        return tuple(line for line in self.entries if line.unreachable)

    @property
    def worst(self) -> tuple[PlanLine, ...]:
        """The partitions that move, the worst first."""
        moving = [line for line in self.entries if any(line.badness)]
        return tuple(sorted(moving, key=lambda line: line.badness, reverse=True))

    def summary(self) -> dict[str, object]:
        """Return the plan's document with its worst partitions only; it can be applied like the whole."""
        return replace(self, entries=self.worst[:WORST]).to_json()

    @property
    def digest(self) -> str:
        """What identifies all that applying it does; an approval is of this, not of the plan's name."""
        return hashlib.sha256(json.dumps(self.summary(), sort_keys=True).encode()).hexdigest()

    def notes(self, line: PlanLine) -> list[str]:
        """Return what to know of a line beside its numbers."""
        notes = [] if line.in_scope else ["out of scope"]
        is_by_time = self.request.target.needs_time
        if is_by_time and line.in_scope and line.target is not None and line.target == line.log_end:
            notes.append("no record since then, the log's end")
        if line.clamped:
            notes.append(f"clamped, asked for {line.asked}")
        if line.recreated:
            notes.append(line.RECREATED)
        if line.unreachable:
            notes.append(f"unreachable, the log has {line.log_start} to {line.log_end}")
        return notes

    @property
    def moves(self) -> str:
        """How many partitions it moves, in words; where it moves none, that it changes nothing."""
        totals = self.totals
        if not totals.moved:
            return f"nothing: all {totals.partitions:,} partition(s) are at their targets already"
        return f"{totals.moved:,} of {totals.partitions:,} partition(s)"

    def heading(self, instant: Callable[[datetime], str] = format_instant) -> dict[str, str]:
        """Return what a person reads above the partitions, by name; empty where there is nothing to say.

        Args:
            instant: how an instant is written.
        """
        totals = self.totals
        return {
            "target": self.target,
            "scope": self.scope,
            "moves": self.moves,
            "records processed again": f"{totals.replay:,}",
            "records skipped": f"{totals.skip:,}" if totals.skip else "",
            "records skipped by name": ", ".join(f"{p} at {o}" for p, o in self.request.skip.items()),
            "clamped into the log": f"{totals.clamped:,} partition(s)" if totals.clamped else "",
            "not in the log any more": f"{totals.unreachable:,} partition(s)" if totals.unreachable else "",
            "out of reach": f"from {instant(self.overtaken_at)} on, by retention" if self.overtaken_at else "",
            "checkpoints undone": ", ".join(map(str, self.undoes)),
            "DAG runs undone": ", ".join(f"{run.dag_id} / {run.run_id}" for run in self.runs),
            "leave their tables": ", ".join(map(str, self.tables)),
            "not restored, as mode upsert keeps no history": ", ".join(map(str, self.upserts)),
            "not in the region": ", ".join(map(str, self.ignored)),
        }

    def to_csv(self) -> str:
        """Return the targets of the partitions in scope as Kafka's reset CSV; those not known yet are left out."""
        return write_offsets(
            {line.partition: line.target for line in self.entries if line.in_scope and line.target is not None}
        )


def plan(region: Region, now: datetime, request_id: values.RequestId, request: rows.ResetRequest, log: LogView) -> Plan:
    """Return what a reset would do if it were applied now.

    Args:
        region: the region.
        now: the store's clock.
        request_id: the plan's name.
        request: what would be asked for.
        log: boundaries and time look-ups of the partitions in scope, as the target needs.

    Raises:
        InvalidTarget, UnknownCheckpoint, CheckpointNotUsable: it could not be applied; see `lookup.require_usable`.
        KeyError: the log was read without what the target needs.
    """
    lookup.require_usable(region, now, request)
    is_undrained = request.forced or region.state is rows.RegionState.STOPPED
    current = first_starts.reached(region) if is_undrained else resets.positions(region)
    situation = _situation(region, request, region.universe_in_order(), current, log)
    situation = replace(situation, recreated=timelines.recreated(region, log.bounds))
    entries = resolve(request.target, request.scope, situation)
    made = Plan(
        plan=request_id,
        region=region.name,
        region_id=region.region_id,
        epoch=region.epoch,
        made_at=log.read_at,
        request=request,
        entries=entries,
        totals=Totals.of(entries),
        ignored=ignored(request.scope, situation),
    )
    seek = made.seek
    undoes = timelines.undone_by(region, seek.offsets)
    return replace(
        made,
        undoes=undoes,
        runs=answered_runs(region, undoes),
        tables=_tables(region, undoes),
        upserts=not_restored(region, request, seek),
    )


def require_fresh(region: Region, plan: Plan) -> None:
    """Refuse a plan that was made for another region than there is now.

    Raises:
        StalePlan: the region was declared again, or has another epoch, or other partitions.
    """
    if plan.region_id != region.region_id:
        raise StalePlan(
            f"the plan was made for an earlier region {region.name} (id {plan.region_id}), which was deleted and "
            f"declared again (id {region.region_id}); plan again"
        )
    require_epoch(region, plan.epoch)
    if plan.totals.partitions != len(region.universe()):
        raise StalePlan(
            f"the plan is of {plan.totals.partitions} partition(s), region {region.name} has "
            f"{len(region.universe())} now; plan again and check what has changed"
        )


def require_epoch(region: Region, epoch: values.Epoch) -> None:
    """Refuse a plan that was made in another epoch.

    Raises:
        StalePlan: the region has another one.
    """
    if epoch != region.epoch:
        raise StalePlan(
            f"the plan was made in epoch {epoch}, region {region.name} is in epoch {region.epoch}: "
            "something was reset or started since; plan again and check what has changed"
        )


def answered_runs(region: Region, undoes: tuple[values.CheckpointNumber, ...]) -> tuple[rows.Requester, ...]:
    """Return the DAG runs that were answered by these checkpoints, in the order of their checkpoints.

    The run of a reset, which drains the region first, is none: cleared, it would reset the region once more.
    """
    answers = [
        request
        for request in region.archive.requests_for(undoes)
        if request.state is rows.RequestState.ANSWERED and request.purpose is not rows.CheckpointPurpose.RESET
    ]
    return tuple(r.requester for r in sorted(answers, key=lambda r: r.sequence or 0))


def _tables(region: Region, undoes: tuple[values.CheckpointNumber, ...]) -> tuple[TableOutput, ...]:
    """Return what checkpoints have in tables, added up for each."""
    if not undoes:
        return ()
    checkpoints = region.archive.checkpoints(first=min(undoes), before=values.CheckpointNumber(max(undoes) + 1))
    undone = frozenset(undoes)
    found: dict[tuple[str, ...], TableOutput] = {}
    for one in (one for row in checkpoints if row.sequence in undone for one in row.tables):
        before = found.get(one.place)
        files, rows_ = (before.files, before.rows) if before else (0, 0)
        found[one.place] = drawn(TableOutput, one, files=one.files + files, rows=one.rows + rows_)
    return tuple(found.values())


def not_restored(region: Region, request: rows.ResetRequest, seek: SeekMap) -> tuple[UpsertSink, ...]:
    """Return the sinks whose tables a reset would go back behind, without being able to restore them.

    Args:
        region: the region, for its sinks.
        request: what is asked for.
        seek: the whole map, with the present positions.
    """
    back = {p.group for p, entry in seek.items() if p in request.scope and _goes_back(request.target, p, entry)}
    return tuple(sink for name, group in sorted(region.rules.groups.items()) if name in back for sink in group.upserts)


def require(region: Region, request: rows.ResetRequest, seek: SeekMap) -> None:
    """Refuse to go back behind what can't be restored, unless the requester has consented.

    Raises:
        UpsertNeedsConsent: names the sinks, what it means, and the word that consents.
    """
    if request.consent_upsert:
        return
    sinks = not_restored(region, request, seek)
    if sinks:
        raise UpsertNeedsConsent(
            f"{', '.join(map(str, sinks))}: mode upsert keeps no history, so going back can't restore it. Rows that "
            "were replaced stay as they are, and the table mixes old and new until the replay has passed where the "
            f"region {region.name} is now. Nothing was reset; if that is acceptable, apply the plan with "
            "--consent-upsert (consent_upsert=True in Python)"
        )


def _goes_back(target: Target, partition: GroupPartition, entry: SeekEntry) -> bool:
    current = entry.current
    if current is None:
        return False
    # If an owner looks a time up after the start, there is no one left to ask: it counts as going back.
    if entry.offset is not None and not target.needs_time:
        return entry.offset < current
    return target.goes_back(partition, current)
