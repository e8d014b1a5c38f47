"""A plan: what a person's reset would do, from its target in this region to the whole seek map.

Targets are checkpoints on the current timeline; another branch only as an explicit forward jump, an open or aborted one
only by name (`allow_partial`), its gaps marked. What needs the brokers' time index, or
log bounds that no contribution brought, stays open: the first owner of each partition answers.

Planning changes nothing and takes no lock. What is relative is shown as it would come out now, and is resolved again
when the reset begins; a plan is applied under the epoch in which it was made, or refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from airflow_kcr.errors import CheckpointNotUsable, UnknownCheckpoint, UpsertNeedsConsent
from airflow_kcr.protocol.observations import LogBounds, LogView, TimeAnswer
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap, SeekEntry, SeekMap, SeekSource
from airflow_kcr.protocol.region import resets, timelines
from airflow_kcr.protocol.region.rows import (
    Checkpoint,
    CheckpointState,
    PersonReset,
    RegionState,
    Requester,
    RequestState,
)
from airflow_kcr.protocol.region.state import (
    Region,
    checkpoint_of,
    contributions_to,
    initial_offset,
    initial_offsets,
    offsets_of,
    universe,
    universe_in_order,
)
from airflow_kcr.protocol.rules import UpsertSink
from airflow_kcr.protocol.target_resolution import PlanEntry, Unreachable, resolve
from airflow_kcr.protocol.targets import Needs, Situation, Target, ToCheckpoint, ToRun
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, GroupPartition, Offset, RegionName, few

# The target

LOOK_BACK: Final = 20
"""How many checkpoints before the one that is gone to are searched for a partition that it lacks."""


class NoTimes:
    """The time index of a decision under the region's lock: no broker is asked there."""

    def first_at_or_after(self, partition: GroupPartition, instant: datetime) -> TimeAnswer:
        """Raise KeyError: the look-up was never made."""
        raise KeyError(partition, instant)


def target_checkpoint(region: Region, reset: PersonReset) -> CheckpointNumber | None:
    """Return the checkpoint that a person's target names; None for any other target.

    Raises:
        UnknownCheckpoint: there is none of that number, or no checkpoint of that DAG run on the current timeline.
        CheckpointNotUsable: the run has checkpoints of several boundaries; the message lists them.
    """
    match reset.target:
        case ToCheckpoint(sequence=sequence):
            if checkpoint_of(region, sequence) is None:
                raise UnknownCheckpoint(f"region {region.name} has no checkpoint {sequence}; list them to choose one")
            return sequence
        case ToRun(dag_id=dag_id, run_id=run_id):
            return of_run(region, dag_id, run_id)
        case _:
            return None


def of_run(region: Region, dag_id: str, run_id: str) -> CheckpointNumber:
    """Return the newest complete current checkpoint that answered a request of a DAG run.

    Raises:
        UnknownCheckpoint: there is none; the message says so if there was one, and a reset has undone it.
        CheckpointNotUsable: there are several, of different boundaries; the message lists them.
    """
    return _answer(region, dag_id, run_id, has_offsets=True)


def checkpoint_number_of_run(region: Region, dag_id: str, run_id: str) -> CheckpointNumber:
    """Return the newest current checkpoint that answered a request of a DAG run, also where it is retired.

    Raises:
        UnknownCheckpoint: there is none.
        CheckpointNotUsable: there are several, of different boundaries; the message lists them.
    """
    return _answer(region, dag_id, run_id, has_offsets=False)


def _answer(region: Region, dag_id: str, run_id: str, *, has_offsets: bool) -> CheckpointNumber:
    asked = region.archive.requests_of_run(dag_id, run_id)
    answers = sorted({request.sequence for request in asked if request.sequence is not None})
    checkpoints = [row for sequence in answers if (row := checkpoint_of(region, sequence)) is not None]
    found = [row for row in checkpoints if row.is_current and (row.is_complete or not has_offsets)]
    if not found:
        raise UnknownCheckpoint(
            f"no checkpoint on the current timeline belongs to the run {run_id} of DAG {dag_id}"
            + "".join(_undone(row) for row in checkpoints[-1:])
        )
    bounds = {c.boundary for c in found}
    if len(bounds) > 1:
        listed = ", ".join(f"{c.sequence} (boundary {c.boundary})" for c in found)
        raise CheckpointNotUsable(
            f"the run {run_id} of DAG {dag_id} has several checkpoints: {listed}; name one of them"
        )
    return found[-1].sequence


def _undone(row: Checkpoint) -> str:
    """What a run may do whose checkpoint a reset has undone; empty: none has."""
    if row.undone_by is None:
        return ""
    return (
        f": its checkpoint, checkpoint {row.sequence}, was undone by a reset, which opened timeline "
        f"{row.undone_by}; clear the "
        "task that asked for it, and it asks for a new one"
    )


def require_usable(region: Region, now: datetime, reset: PersonReset) -> None:
    """Refuse a target that can't be used as it is asked for, before anything is stored.

    Raises:
        InvalidTarget: the scope, or a file's entry, names what is not in the region; a time lies in the future.
        UnknownCheckpoint, CheckpointNotUsable: the message says which option would allow it, if one would.
    """
    partitions = universe(region)
    reset.scope.select(partitions)
    reset.target.require_fit(partitions, reset.scope)
    reset.target.time_needed(now)
    sequence = target_checkpoint(region, reset)
    row = None if sequence is None else checkpoint_of(region, sequence)
    if sequence is None or row is None:
        return
    if row.state is CheckpointState.RETIRED:
        raise CheckpointNotUsable(f"checkpoint {sequence} is retired; its offsets are gone")
    if not row.is_complete and not reset.allow_partial:
        raise CheckpointNotUsable(
            f"checkpoint {sequence} is {row.state}, not complete; allow_partial uses it with its gaps filled and marked"
        )
    if row.is_complete and not row.is_current and not reset.forward:
        raise CheckpointNotUsable(
            f"checkpoint {sequence} is not on the current timeline: timeline {row.undone_by} opened before it; a "
            f"forward jump (--forward) goes there without processing what lies between; "
            f"missing: {missing_text(region, row)}"
        )
    lost = [p for p in timelines.lost_to(region, sequence) if p in reset.scope]
    if lost:
        named = ", ".join(sorted({p.topic for p in lost}))
        raise CheckpointNotUsable(
            f"checkpoint {sequence} is older than its topic: {named} was deleted and created again since, so its "
            "offsets mean other records now; choose a newer checkpoint, or leave that topic out of the scope"
        )


def missing_text(region: Region, row: Checkpoint) -> str:
    """Return what a forward jump to a checkpoint of another branch would leave out, by partition."""
    gaps = [
        f"{p} [{claim.position}, {o})"
        for p, o in (offsets_of(region, row.sequence) or EMPTY).items()
        if (claim := region.claims.get(p)) is not None and claim.position is not None and claim.position < o
    ]
    return few(gaps, 10) or "nothing"


def seek_map(
    region: Region,
    now: datetime,
    reset: PersonReset,
    current: OffsetMap,
    seen: Mapping[GroupPartition, LogBounds],
) -> SeekMap:
    """Return the whole map of a person's reset.

    Args:
        region: the region.
        now: the store's clock.
        reset: the accepted request.
        current: the drained checkpoint's offsets, or the last done positions where it is forced.
        seen: log bounds that the checkpoint's contributions brought; empty if it is forced.

    Raises:
        CheckpointNotUsable: the log no longer has an offset that the target remembers.
    """
    sequence = target_checkpoint(region, reset)
    partitions = universe_in_order(region)
    in_scope = frozenset(p for p in partitions if p in reset.scope)
    if _needs_owners(reset.target, in_scope, seen):
        asked = {p for p in in_scope if reset.target.names(p)}
        return SeekMap({p: _still_open(p, current) if p in asked else _kept(region, p, current) for p in partitions})
    offsets, fills = checkpoint_offsets(region, sequence, partitions)
    situation = Situation(
        partitions=partitions,
        current=current,
        initial=initial_offsets(region),
        log=LogView(bounds=seen, committed={}, times=NoTimes(), read_at=now),
        checkpoint=offsets,
        fills=fills,
    )
    found = resolve(reset.target, reset.scope, situation)
    if found.unreachable:
        raise CheckpointNotUsable(
            f"{len(found.unreachable)} partition(s) can't go there, the log has moved on: {found.unreachable[0]}"
        )
    return SeekMap({p: e.coming_from(current.get(p)) for p, e in found.seek.items()})


def _left_by_earlier(
    region: Region, sequence: CheckpointNumber, lacking: frozenset[GroupPartition]
) -> dict[GroupPartition, SeekEntry]:
    """Return where earlier checkpoints left partitions that one lacks, as the brokers did not have them then.

    What was found later than that checkpoint is in none of them.
    """
    found: dict[GroupPartition, SeekEntry] = {}
    before: CheckpointNumber | None = sequence
    for _ in range(LOOK_BACK):
        earlier = region.archive.newest_usable(before) if lacking else None
        if earlier is None:
            break
        before = earlier.sequence
        offsets = offsets_of(region, before) or EMPTY
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
    if Needs.TIME_INDEX in target.needs:
        return True
    return Needs.LOG_BOUNDS in target.needs and not target.is_stored and not in_scope <= seen.keys()


def _still_open(partition: GroupPartition, current: OffsetMap) -> SeekEntry:
    return SeekEntry(offset=None, source=SeekSource.EXPLICIT, current=current.get(partition))


def _kept(region: Region, partition: GroupPartition, current: OffsetMap) -> SeekEntry:
    place: Offset | None = current.get(partition)
    if place is not None:
        return SeekEntry(offset=place, source=SeekSource.DRAINED, current=place)
    initial = initial_offset(region, partition)
    return SeekEntry(offset=None if initial is None else initial.offset, source=SeekSource.INITIAL)


def checkpoint_offsets(
    region: Region, sequence: CheckpointNumber | None, partitions: Collection[GroupPartition]
) -> tuple[OffsetMap | None, SeekMap]:
    """Return a checkpoint's offsets, and what fills its gaps: it never was complete, or some partitions were gone."""
    row = None if sequence is None else checkpoint_of(region, sequence)
    if sequence is None or row is None:
        return None, SeekMap({})
    if row.is_complete:
        complete = offsets_of(region, sequence) or EMPTY
        return complete, SeekMap(_left_by_earlier(region, sequence, frozenset(partitions).difference(complete)))
    offsets, committed = EMPTY, EMPTY
    for _, part in sorted(contributions_to(region, sequence).items()):
        offsets, committed = offsets.union(part.offsets), committed.union(part.committed)
    earlier = region.archive.newest_usable(sequence)
    previous = EMPTY if earlier is None else offsets_of(region, earlier.sequence) or EMPTY
    fills = {p: SeekEntry(offset=o, source=SeekSource.COMMITTED) for p, o in committed.items()}
    fills.update({p: SeekEntry(offset=o, source=SeekSource.PREVIOUS_CHECKPOINT) for p, o in previous.items()})
    return offsets, SeekMap(fills)


# The plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a reset would do, partition by partition and in total."""

    region: RegionName
    epoch: Epoch
    """The epoch in which it was made; under another it is refused."""

    reset: PersonReset
    entries: tuple[PlanEntry, ...]
    unreachable: tuple[Unreachable, ...]
    """Offsets in scope that the log no longer has: the reset would be refused."""

    ignored: tuple[GroupPartition, ...]
    """Partitions of the target checkpoint that the region no longer has."""

    undoes: tuple[CheckpointNumber, ...]
    """Checkpoints that it would take off the current timeline."""

    runs: tuple[Requester, ...]
    """The DAG runs whose checkpoints those are: what they published is processed again."""

    upserts: tuple[UpsertSink, ...] = ()
    """Sinks whose tables it could not restore: it needs a person's consent."""

    @property
    def seek(self) -> SeekMap:
        """The whole map, with the positions that it was resolved by."""
        return _whole(self.entries)


def plan(region: Region, now: datetime, reset: PersonReset, log: LogView) -> Plan:
    """Return what a reset would do if it were applied now.

    Args:
        region: the region.
        now: the store's clock.
        reset: what would be asked for.
        log: boundaries and time look-ups of the partitions in scope, as the target needs.

    Raises:
        InvalidTarget, UnknownCheckpoint, CheckpointNotUsable: it could not be applied; see `plans.require_usable`.
        KeyError: the log was read without what the target needs.
    """
    require_usable(region, now, reset)
    partitions, sequence = universe_in_order(region), target_checkpoint(region, reset)
    offsets, fills = checkpoint_offsets(region, sequence, partitions)
    is_undrained = reset.forced or region.state is RegionState.STOPPED
    situation = Situation(
        partitions=partitions,
        current=resets.last_done(region) if is_undrained else resets.positions(region),
        initial=initial_offsets(region),
        log=log,
        checkpoint=offsets,
        fills=fills,
        recreated=timelines.recreated(region, log.bounds),
    )
    found = resolve(reset.target, reset.scope, situation)
    undoes = timelines.undone_by(region, found.seek.offsets)
    return Plan(
        region=region.name,
        epoch=region.epoch,
        reset=reset,
        entries=found.entries,
        unreachable=found.unreachable,
        ignored=found.ignored,
        undoes=undoes,
        runs=_runs(region, undoes),
        upserts=not_restored(region, reset, _whole(found.entries)),
    )


def _whole(entries: tuple[PlanEntry, ...]) -> SeekMap:
    return SeekMap({line.partition: line.entry.coming_from(line.current) for line in entries})


def _runs(region: Region, undoes: tuple[CheckpointNumber, ...]) -> tuple[Requester, ...]:
    """Return the DAG runs that were answered by these checkpoints, in the order of their checkpoints."""
    answers = [r for r in region.archive.requests_for(undoes) if r.state is RequestState.ANSWERED]
    return tuple(r.requester for r in sorted(answers, key=lambda r: r.sequence or 0))


def not_restored(region: Region, reset: PersonReset, seek: SeekMap) -> tuple[UpsertSink, ...]:
    """Return the sinks whose tables a reset would go back behind, without being able to restore them.

    Args:
        region: the region, for its sinks.
        reset: what is asked for.
        seek: the whole map, with the present positions.
    """
    back = {p.group for p, entry in seek.items() if p in reset.scope and _goes_back(reset.target, p, entry)}
    return tuple(sink for name, group in sorted(region.rules.groups.items()) if name in back for sink in group.upserts)


def require(region: Region, reset: PersonReset, seek: SeekMap) -> None:
    """Refuse to go back behind what can't be restored, unless the requester has consented.

    Raises:
        UpsertNeedsConsent: names the sinks, what it means, and the word that consents.
    """
    if reset.consent_upsert:
        return
    sinks = not_restored(region, reset, seek)
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
    if entry.offset is not None and Needs.TIME_INDEX not in target.needs:
        return entry.offset < current
    return target.goes_back(partition, current)
