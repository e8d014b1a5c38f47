"""A changed spec takes effect: some of it at once, the rest at the next checkpoint or start (docs/reference/states.md).

What changes the members themselves (topics, number, pipeline, delivery) waits for a moment at which nothing is in
flight: the completion of a checkpoint, where it is a reset to that very checkpoint, or the next start. Nothing waits
for a checkpoint that no member can take: without a live member, or in a reset that members can't start for, a changed
spec counts at once.

A spec is checked where it is applied, and by each process before its members take part. One that members can't start
with leaves the region in its reset, which names the reason, until the next spec corrects it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from airflow_kcr.protocol.region import boundaries, events, lost_logs, membership, resets, rows
from airflow_kcr.protocol.region.commands import ChangeSpec, ReportStartFailures
from airflow_kcr.protocol.region.state import Region, Spec, put
from airflow_kcr.protocol.values import DesiredState, Incarnation, MemberId, drawn, replace


def change(region: Region, now: datetime, wanted: ChangeSpec) -> Region:
    """Return the region with a changed spec.

    Raises:
        OtherCluster: a group was found on another cluster than the region has consumed it from.
    """
    region = _changed(region, now, wanted.at_once, wanted.later)
    for group, cluster in sorted(wanted.clusters.items()):
        region = lost_logs.cluster_found(region, now, group, cluster)
    return _with_own_clusters(region)


def _with_own_clusters(region: Region) -> Region:
    """Return the region without the clusters of groups that it has no more: who has one later asks again."""
    if region.clusters.keys() <= region.own_groups.keys():
        return region
    return replace(region, clusters={g: c for g, c in region.clusters.items() if g in region.own_groups})


def _changed(region: Region, now: datetime, at_once: Spec, later: Spec | None) -> Region:
    if later is None:
        return replace(_in_force(region, now, at_once), next_spec=None)
    if region.state is rows.RegionState.STOPPED:
        return take_pending(replace(region, next_spec=later), now)
    if not region.live_members(now):
        return unattended(replace(region, next_spec=later), now)
    region = replace(_in_force(region, now, at_once), next_spec=later)
    return region.record(now, events.SpecProposed(revision=later.revision))


def _in_force(region: Region, now: datetime, spec: Spec) -> Region:
    if spec == region.spec:
        return region
    schedule_changed = spec.rules.checkpoint.schedule != region.rules.checkpoint.schedule
    region = replace(region, spec=spec, start_failures=(), retire_at=now)
    region = _without_strangers(_with_own_clusters(region), now)
    deliveries = {str(g): str(rules.delivery) for g, rules in spec.rules.groups.items()}
    region = region.record(now, events.SpecChanged(revision=spec.revision, deliveries=deliveries))
    if schedule_changed and region.restore_point is not None:
        after = boundaries.next_boundary_after(region, now)
        return boundaries.with_next_boundary(region, now, after, "the checkpoint schedule was changed")
    return region


def _without_strangers(region: Region, now: datetime) -> Region:
    """Fence members that the new spec has no place for, and forget their claims: nothing waits for them any more."""
    for member, row in sorted(region.members.items()):
        rules = region.rules.groups.get(member.group)
        if not row.left and (rules is None or member.index >= rules.members):
            region = membership.let_go(region, now, row)
    return region


def take_pending(region: Region, now: datetime) -> Region:
    """Return the region with a waiting spec in force.

    Live members were built from the old one: their leases end, so that they can neither start nor acknowledge anything,
    and they return built from the new one.
    """
    if region.next_spec is None:
        return region
    return _in_force(replace(_without_leases(region, now), next_spec=None), now, region.next_spec)


def restart(region: Region, now: datetime) -> Region:
    """Return the region in a reset to the checkpoint that has just been completed, under its changed spec.

    The automatic target is that checkpoint, so no timeline opens.
    """
    detail = f"the spec changed; members restart at checkpoint {region.restore_sequence}"
    return resets.begin(take_pending(region, now), now, rows.ResetCause.SPEC_CHANGED, detail=detail)


def unattended(region: Region, now: datetime) -> Region:
    """Return the region with a waiting spec in force, if no live member runs the old one: no checkpoint is coming.

    What was started since the restore point is processed again, by members built from the new spec, as if the region
    had been stopped and started.
    """
    if region.next_spec is None or region.live_members(now):
        return region
    region = take_pending(region, now)
    if region.desired_state is DesiredState.STOPPED or region.state in {
        rows.RegionState.STOPPED,
        rows.RegionState.HALTED,
    }:
        return region
    return resets.begin(region, now, rows.ResetCause.SPEC_CHANGED, detail="the spec changed while no member lived")


def corrected(region: Region, now: datetime) -> Region:
    """Return the region with a waiting spec in force, if a reset waits for members that can't start with the present.

    That reset is never done, so no checkpoint is coming. Nothing has started in its epoch, so the members that live
    lose nothing when they restart.
    """
    if region.next_spec is None or not _is_blocked(region, now):
        return region
    detail = "the spec changed while members could not start with the one before"
    return resets.begin(take_pending(region, now), now, rows.ResetCause.SPEC_CHANGED, detail=detail)


def _is_blocked(region: Region, now: datetime) -> bool:
    return region.state in rows.RESET_STATES and bool(start_failures(region, now))


def _without_leases(region: Region, now: datetime) -> Region:
    """End every lease; claims stay until the next incarnations make theirs.

    A batch that still runs is quiesced when it would have been: its process does not know yet that its lease has ended.
    The leases are no incarnation's any more, as a clock that goes back would give them back to those that had them.
    """
    for member in region.leases:
        region = membership.with_predecessor_fenced(region, member)
    ended = {
        m: rows.Lease(incarnation=Incarnation(0), until=min(lease.until, now)) for m, lease in region.leases.items()
    }
    return replace(region, leases=put(region.leases, ended))


# -- members that can't start with a spec ------------------------------------------------------------------------------


def failed_to_start(region: Region, now: datetime, report: ReportStartFailures) -> Region:
    """Return the region with why processes could not start members with the spec in force.

    What is said of any other spec, or while the member lives, is too late to mean anything. Each reason is remembered
    once: who starts a process that can't start does so again and again.
    """
    for said in report.failures:
        failure = replace(said, incarnation=_newest(region, said.member))
        is_late = failure.digest != region.spec.digest or region.is_live(failure.member, now)
        if is_late or failure in region.start_failures:
            continue
        others = (one for one in region.start_failures if one.member != failure.member)
        region = replace(region, start_failures=tuple(sorted((*others, failure), key=lambda one: one.member)))
        region = region.record(now, drawn(events.StartFailed, failure))
    return region


def _newest(region: Region, member: MemberId) -> Incarnation:
    row = region.members.get(member)
    return Incarnation(0) if row is None else row.incarnation


def start_failures(region: Region, now: datetime) -> tuple[rows.StartFailure, ...]:
    """Return why members could not start with the spec in force, each since it last lived."""
    return tuple(
        one
        for one in region.start_failures
        if one.incarnation == _newest(region, one.member) and not region.is_live(one.member, now)
    )


def describe_start_failure(region: Region, now: datetime, failure: rows.StartFailure) -> str:
    """Return the sentence about a member that could not start with the spec in force, with the way out."""
    counts = _counts(region, now) if region.live_members(now) else "at once, as no member lives"
    return (
        f"{failure.member} could not start with revision {failure.revision} of the spec, which is in force: "
        f"{failure.refusal}; put that right, or apply a corrected spec, which counts {counts}, and start the member "
        "again"
    )


def _counts(region: Region, now: datetime) -> str:
    """Return when a changed spec counts, as the region now is, where members live."""
    return "at once" if _is_blocked(region, now) else "at the next checkpoint"


def notes(region: Region, now: datetime) -> Iterator[str]:
    """Yield what a person should know of a spec that waits, or can't be started with."""
    if region.next_spec is not None:
        yield f"a changed spec takes effect {_counts(region, now)}, with a restart of the members"
    for failure in start_failures(region, now):
        yield describe_start_failure(region, now, failure)
