"""A plan: what a reset would do, before it is applied (docs/reference/targets.md).

Planning changes nothing and takes no lock. What is relative is shown as it would come out now, and is resolved again
when the reset begins; a plan is applied under the epoch in which it was made, or refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_kcr.errors import UpsertNeedsConsent
from airflow_kcr.protocol.delivery import UpsertSink
from airflow_kcr.protocol.observations import LogView
from airflow_kcr.protocol.region import recreated_topics, resets, resolution, timelines
from airflow_kcr.protocol.region.rows import PersonReset, RegionState, Requester, RequestState
from airflow_kcr.protocol.region.state import Region, initial_offsets, universe_in_order
from airflow_kcr.protocol.seek_map import SeekEntry, SeekMap
from airflow_kcr.protocol.target_resolution import PlanEntry, Situation, Unreachable, resolve
from airflow_kcr.protocol.targets import FromFile, Needs, ShiftBy, Target, ToLatest, ToOffset
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, GroupPartition, RegionName


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
        InvalidTarget, UnknownCheckpoint, CheckpointNotUsable: it could not be applied; see `resolution.require_usable`.
        KeyError: the log was read without what the target needs.
    """
    resolution.require_usable(region, now, reset)
    partitions, sequence = universe_in_order(region), resolution.target_checkpoint(region, reset)
    offsets, fills = resolution.checkpoint_offsets(region, sequence, partitions)
    is_undrained = reset.forced or region.state is RegionState.STOPPED
    situation = Situation(
        partitions=partitions,
        current=resets.last_done(region) if is_undrained else resets.positions(region),
        initial=initial_offsets(region),
        log=log,
        checkpoint=offsets,
        fills=fills,
        recreated=recreated_topics.found(region, log.bounds),
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
    match target:
        case ToLatest():
            return False
        case ToOffset(offset=offset):
            return offset < current
        case ShiftBy(by=by):
            return by < 0
        case FromFile(entries=entries):
            return entries.get(partition, current) < current
        case _:
            return True
