"""Plan and apply: a person's reset, from what it would do to where it stands.

Planning reads the store, then the logs, and changes nothing. Applying checks again, because a target that the log no
longer has is better refused before the drain than after it; then the store decides, under the plan's name and epoch.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Final

from airflow_kcr.api.checkpoints import reach_of
from airflow_kcr.api.regions import Clusters
from airflow_kcr.api.reset_views import ResetView, of_plan
from airflow_kcr.errors import CheckpointNotUsable, ConfigurationError, GroupNotEmpty, InvalidTarget, KcrError
from airflow_kcr.protocol.observations import LogBounds, LogView, TimeAnswer
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import plans
from airflow_kcr.protocol.region.commands import ApplyReset
from airflow_kcr.protocol.region.plans import Plan
from airflow_kcr.protocol.region.rows import PersonReset, PersonResetState, RegionState, Requester, ResetRequest
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.targets import ByDuration, Needs
from airflow_kcr.protocol.values import GroupId, GroupPartition, RegionName, RequestId, few
from airflow_kcr.runtime.leases import CommitNote
from airflow_kcr.runtime.positions import bounds_and_times
from airflow_kcr.spec import stored_spec
from airflow_kcr.store.regions import RegionStore, uncollected

NOBODY: Final = Requester()

WITHOUT_WHAT_IS_LOST: Final = (
    "choose a later checkpoint, or go on without what the log has lost: plan the same with -o csv, and then that file "
    "with --from-file, which is clamped into the log and shows where"
)
"""What to do about a target that retention has overtaken."""

IN_THE_NEW_LOG: Final = (
    "choose a place in the new log, such as --to-earliest or --to-latest, or leave that topic out of the scope"
)
"""What to do about a target that is of a topic which was deleted and created again."""


def way_out(plan: Plan) -> str:
    """Return what to do about a plan whose target the logs do not have."""
    return IN_THE_NEW_LOG if any(line.recreated for line in plan.unreachable) else WITHOUT_WHAT_IS_LOST


def plan(
    store: RegionStore,
    name: RegionName,
    request: ResetRequest,
    clusters: Clusters,
    *,
    request_id: str = "",
    requester: Requester = NOBODY,
) -> Plan:
    """Return what a reset would do if it were applied now; changes nothing.

    Args:
        store: where the region is.
        name: the region's.
        request: what is asked for.
        clusters: how Kafka is reached; asked only for what the target needs.
        request_id: the plan's name; absent: a new one, with the region before it.
        requester: who chose the target, and why.

    Raises:
        InvalidTarget, UnknownCheckpoint, CheckpointNotUsable: it could not be applied.
        BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
    """
    region, now = store.read(name)
    found, _ = _planned(region, now, RequestId(request_id or f"{name}/{uuid.uuid4().hex[:12]}"), request, clusters)
    named = plans.target_checkpoint(region, request)
    soon = None if named is None or found.unreachable else reach_of(region, named).overtaken_at
    return replace(found, requester=requester, overtaken_at=soon)


def apply(
    store: RegionStore,
    name: RegionName,
    approved: Plan,
    requester: Requester,
    clusters: Clusters,
    *,
    approved_digest: str = "",
) -> ResetView:
    """Apply a plan and return where its reset stands: with members on its way, in a stopped region done.

    A plan that was applied already is found again, and not applied twice; if its region is still stopped, its offsets
    are committed to Kafka again.

    Args:
        store: where the region is.
        name: the region's.
        approved: the plan; its partitions are ignored, its request is resolved again.
        requester: who asks, and why.
        clusters: how Kafka is reached.
        approved_digest: of the plan that the store must have an approval of; empty: none is needed.

    Raises:
        StalePlan: the plan was made under another epoch, or the region was declared again, or has other partitions.
        ResetNotApproved: the store has no approval of exactly this plan.
        ConfigurationError: it is of another region, or its name was used for another request.
        CheckpointNotUsable: the log no longer has an offset that the target remembers; nothing was changed.
        RegionInState: the region can't drain; the message says what can be done.
        UpsertNeedsConsent: it would go back behind a table that can't be restored; nothing was changed.
        GroupNotEmpty: the region is stopped, and one of its groups has a consumer; nothing was changed, unless the
            message says what was.
        BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
    """
    if approved.region != name:
        raise ConfigurationError(f"the plan is of region {approved.region}, this is {name}")
    region, now = store.read(name)
    known = region.person_reset_of(approved.plan)
    if known is None:
        command = _resolved(region, now, approved, requester, clusters)
        store.handle(name, replace(command, approved_digest=approved_digest))
        region, _ = store.read(name)
        known = region.person_reset_of(approved.plan)
    else:
        _require_same(known, approved.request)
    if known is not None and is_told_from_outside(region, known):
        tell_kafka(region, clusters)
    return of_plan(region, approved.plan)


def _resolved(
    region: StoredRegion, now: datetime, approved: Plan, requester: Requester, clusters: Clusters
) -> ApplyReset:
    """Return what asks the store for a plan's reset, resolved as the region and the logs are now."""
    plans.require_fresh(region, approved)
    request = approved.request
    found, log = _planned(region, now, approved.plan, request, clusters)
    if found.unreachable:
        named = few((line.loss for line in found.unreachable), separator="; ")
        raise CheckpointNotUsable(
            f"{len(found.unreachable)} partition(s) can't go there, the log does not have it: {named}. Nothing "
            f"was changed; {way_out(found)}"
        )
    if region.state is RegionState.STOPPED and not request.forced:
        require_empty(region, clusters)
    reset = PersonReset(
        **{field.name: getattr(request, field.name) for field in fields(ResetRequest)},
        request_id=approved.plan,
        state=PersonResetState.WAITING,
        requester=requester,
        requested_at=now,
        order=0,
    )
    return ApplyReset(reset=reset, epoch=approved.epoch, resolved=found.seek, logs=log.bounds)


def _planned(
    region: StoredRegion, now: datetime, request_id: RequestId, request: ResetRequest, clusters: Clusters
) -> tuple[Plan, LogView]:
    plans.require_usable(region, now, request)
    strange = sorted(str(p) for p in request.skip if p not in region.universe())
    if strange:
        raise InvalidTarget(f"records of {', '.join(strange)} can't be skipped: the region has no such partition")
    log = read_logs(region, now, request, clusters)
    outside = [f"{p} at {o}" for p, o in request.skip.items() if not log.bounds[p].start <= o < log.bounds[p].end]
    if outside:
        raise InvalidTarget(f"there is no record to skip in the log: {', '.join(outside)}")
    with uncollected():
        return plans.plan(region, now, request_id, request, log), log


def _require_same(known: PersonReset, request: ResetRequest) -> None:
    """Refuse another request under a name that is taken: it would seem to have been applied."""
    # A duration is stored as the instant that it meant when the reset began.
    is_same_target = isinstance(request.target, ByDuration) or known.target == request.target
    if not is_same_target or (known.scope.as_asked, known.skip) != (request.scope.as_asked, request.skip):
        raise ConfigurationError(
            f"the plan {known.request_id} was applied already, with another target; make a new plan"
        )


# What a target needs of the logs, read from Kafka: bounds, and where an instant falls. One request to each broker.
#
# Positions are read from the store before this, so that a log's end is never below a position that was true with it.


@dataclass(frozen=True, slots=True)
class ReadTimes:
    """Look-ups that were made, all for one instant; implements `TimeIndex`."""

    instant: datetime | None
    answers: Mapping[GroupPartition, TimeAnswer]

    def first_at_or_after(self, partition: GroupPartition, instant: datetime) -> TimeAnswer:
        """Return the answer for one partition."""
        if instant != self.instant:
            raise KeyError(partition, instant)
        return self.answers[partition]


def read_logs(region: StoredRegion, now: datetime, request: ResetRequest, clusters: Clusters) -> LogView:
    """Read what a request's target needs, and nothing where it needs nothing.

    Args:
        region: as it was read from the store.
        now: the store's clock then; durations count back from it.
        request: what is asked for.
        clusters: how Kafka is reached.

    Raises:
        InvalidTarget: nothing is in scope, the instant is in the future, or Kafka has no such log.
        BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
    """
    instant = request.target.time_needed(now)
    spec = stored_spec(region.spec.text)
    bounds: dict[GroupPartition, LogBounds] = {}
    times: dict[GroupPartition, TimeAnswer] = {}
    for group, partitions in _wanted(region, request).items():
        with clusters(spec, group) as cluster:
            found, answers = bounds_and_times(cluster.logs, partitions, instant)
            _require(partitions, found)
            if instant is not None:
                _require(partitions, answers)
            bounds |= found
            times |= answers
    return LogView(bounds=bounds, committed={}, times=ReadTimes(instant, times), read_at=now)


def _wanted(region: StoredRegion, request: ResetRequest) -> dict[GroupId, list[GroupPartition]]:
    partitions = set(request.skip)
    if Needs.LOG_BOUNDS in request.target.needs:
        partitions |= {p for p in request.scope.select(region.universe()) if request.target.names(p)}
    found: dict[GroupId, list[GroupPartition]] = {}
    for partition in sorted(partitions):
        found.setdefault(partition.group, []).append(partition)
    return found


def _require(partitions: list[GroupPartition], answers: Mapping[GroupPartition, object]) -> None:
    gone = [str(p) for p in partitions if p not in answers]
    if gone:
        raise InvalidTarget(
            f"Kafka has no log of {few(gone)}: the topic was deleted or has fewer partitions now; "
            "leave it out of the scope"
        )


# A reset while the groups are empty: the same map, told to Kafka from outside.
#
# The store comes first: its new epoch makes whatever a zombie still does void, and its restore point is where the
# next start goes, whatever Kafka holds. Then Kafka's committed offsets are altered with three guards (only an empty
# group's, every partition's result checked, read back), so that lag tools tell the truth. What fails there can be
# repeated with the same plan: it is one reset, and only Kafka's part is repeated.


def is_told_from_outside(region: StoredRegion, reset: PersonReset) -> bool:
    """Whether a reset was applied to the still stopped region: then only the caller commits its offsets to Kafka."""
    return (
        region.state is RegionState.STOPPED
        and reset.state is PersonResetState.DONE
        and reset.epoch is not None
        and region.restore_epoch == region.epoch == reset.epoch
    )


def require_empty(region: StoredRegion, clusters: Clusters) -> None:
    """Refuse while one of the region's groups has a consumer; changes nothing.

    Raises:
        GroupNotEmpty: names the members of every such group.
        BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
    """
    spec = stored_spec(region.spec.text)
    found: list[str] = []
    for group in sorted(region.rules.groups):
        with clusters(spec, group) as cluster:
            try:
                cluster.require_empty(group)
            except GroupNotEmpty as error:
                found.append(error.message)
    if found:
        raise GroupNotEmpty(f"{'; '.join(found)}. Nothing was changed")


def tell_kafka(region: StoredRegion, clusters: Clusters) -> None:
    """Alter the committed offsets of the region's groups to its restore point, read back.

    Raises:
        GroupNotEmpty, KcrError, BrokerUnavailable, CredentialsRefused: of the first group that could not be altered;
            the message says what stands, and how to repeat the rest.
    """
    spec, offsets = stored_spec(region.spec.text), region.seek.offsets
    note = CommitNote(
        region=region.name,
        region_id=region.region_id,
        timeline=region.timeline,
        sequence=region.resets[region.epoch].sequence,
        epoch=region.epoch,
    ).text()
    failed: list[tuple[GroupId, KcrError]] = []
    for group in sorted(region.rules.groups):
        own = offsets.restrict(_of_group(offsets, group))
        if not own:
            continue
        try:
            with clusters(spec, group) as cluster:
                cluster.alter(group, own, note)
        except KcrError as error:
            failed.append((group, error))
    if failed:
        what = "; ".join(f"group {group}: {error.message}" for group, error in failed)
        raise type(failed[0][1])(
            f"the reset is stored (epoch {region.epoch}): the next start of region {region.name} resumes there, "
            f"whatever Kafka says. But Kafka's committed offsets do not all say so: {what}. Apply the same plan again "
            "to tell Kafka alone"
        ) from failed[0][1]


def _of_group(offsets: OffsetMap, group: GroupId) -> Collection[GroupPartition]:
    return [partition for partition in offsets if partition.group == group]
