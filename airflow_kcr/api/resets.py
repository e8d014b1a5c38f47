"""Plan, look, apply: a person's reset, from what it would do to where it stands.

Planning reads the store, then the logs, and changes nothing. Applying looks again, because a target that the log no
longer has is better refused before the drain than after it; then the store decides, under the plan's name and epoch.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import datetime
from typing import Final

from airflow_kcr.api import offline
from airflow_kcr.api.clusters import Clusters
from airflow_kcr.api.reachability import reach_of
from airflow_kcr.api.reset_logs import read_logs
from airflow_kcr.api.reset_plans import PlanView
from airflow_kcr.api.reset_requests import ResetRequest
from airflow_kcr.api.reset_views import ResetView, of_plan
from airflow_kcr.errors import CheckpointNotUsable, ConfigurationError, InvalidTarget, StalePlan
from airflow_kcr.protocol.observations import LogView
from airflow_kcr.protocol.region import plans, resolution
from airflow_kcr.protocol.region.person import Apply
from airflow_kcr.protocol.region.rows import PersonReset, PersonResetState, RegionState, Requester
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.region.state import person_reset_of, universe
from airflow_kcr.protocol.targets import ByDuration
from airflow_kcr.protocol.values import RegionName, RequestId
from airflow_kcr.store.regions import RegionStore

_NAMED: Final = 5

WITHOUT_WHAT_IS_LOST: Final = (
    "choose a later checkpoint, or go on without what the log has lost: plan the same with -o csv, and then that file "
    "with --from-file, which is clamped into the log and shows where"
)
"""What to do about a target that retention has overtaken."""

IN_THE_NEW_LOG: Final = (
    "choose a place in the new log, such as --to-earliest or --to-latest, or leave that topic out of the scope"
)
"""What to do about a target that is of a topic which was deleted and created again."""


def way_out(plan: PlanView) -> str:
    """Return what to do about a plan whose target the logs do not have."""
    anew = any(line.is_unreachable and line.is_recreated for line in plan.lines)
    return IN_THE_NEW_LOG if anew else WITHOUT_WHAT_IS_LOST


def plan(
    store: RegionStore, name: RegionName, request: ResetRequest, clusters: Clusters, *, request_id: str = ""
) -> PlanView:
    """Return what a reset would do if it were applied now; changes nothing.

    Args:
        store: where the region is.
        name: the region's.
        request: what is asked for.
        clusters: how Kafka is reached; asked only for what the target needs.
        request_id: the plan's name; absent: a new one, with the region before it.

    Raises:
        InvalidTarget, UnknownCheckpoint, CheckpointNotUsable: it could not be applied.
        BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
    """
    region, now = store.read(name)
    found, log = _planned(region, now, _asked(request, now, request_id or f"{name}/{uuid.uuid4().hex[:12]}"), clusters)
    named = resolution.target_checkpoint(region, found.reset)
    soon = None if named is None or found.unreachable else reach_of(region, named).overtaken_at
    return replace(PlanView.of(found, request, log), overtaken_at=soon)


def apply(
    store: RegionStore,
    name: RegionName,
    approved: PlanView,
    requester: Requester,
    clusters: Clusters,
    *,
    forced: bool = False,
    consent_upsert: bool = False,
) -> ResetView:
    """Apply a plan and return where its reset stands: with members on its way, in a stopped region done.

    A plan that was applied already is found again, and not applied twice; where its region is still stopped, Kafka is
    told again.

    Args:
        store: where the region is.
        name: the region's.
        approved: the plan; its partitions are not looked at, its request is resolved anew.
        requester: who asks, and why.
        clusters: how Kafka is reached.
        forced: without a drain, from the last done positions; the only way from a halted or starting region.
        consent_upsert: tables of mode `upsert` that it goes back behind are not restored, and that is acceptable.

    Raises:
        StalePlan: the plan was made under another epoch, or the region has other partitions now.
        ConfigurationError: it is of another region, or its name was used for another request.
        CheckpointNotUsable: the log no longer has an offset that the target remembers; nothing was changed.
        RegionInState: the region can't drain; the message says what can be done.
        UpsertNeedsConsent: it would go back behind a table that can't be restored; nothing was changed.
        GroupNotEmpty: the region is stopped, and somebody is in one of its groups; nothing was changed, unless the
            message says what was.
        BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
    """
    if approved.region != name:
        raise ConfigurationError(f"the plan is of region {approved.region}, this is {name}")
    region, now = store.read(name)
    known = person_reset_of(region, approved.request_id)
    if known is None:
        _accept(store, region, now, approved, requester, clusters, forced=forced, consent_upsert=consent_upsert)
        region, _ = store.read(name)
        known = person_reset_of(region, approved.request_id)
    else:
        _require_same(known, approved.request)
    if known is not None and offline.is_told_from_outside(region, known):
        offline.tell_kafka(region, clusters)
    return of_plan(region, approved.request_id)


def _accept(
    store: RegionStore,
    region: StoredRegion,
    now: datetime,
    approved: PlanView,
    requester: Requester,
    clusters: Clusters,
    *,
    forced: bool,
    consent_upsert: bool,
) -> None:
    if approved.epoch != region.epoch:
        raise StalePlan(
            f"the plan was made in epoch {approved.epoch}, region {region.name} is in epoch {region.epoch}: "
            "something was reset or started since; plan again and look at what has changed"
        )
    if len(universe(region)) != approved.totals.partitions:
        raise StalePlan(
            f"the plan is of {approved.totals.partitions} partition(s), region {region.name} has "
            f"{len(universe(region))} now; plan again and look at what has changed"
        )
    asked = replace(
        _asked(approved.request, now, approved.plan),
        requester=requester,
        forced=forced,
        consent_upsert=consent_upsert,
    )
    found, log = _planned(region, now, asked, clusters)
    if found.unreachable:
        named = "; ".join(map(str, found.unreachable[:_NAMED]))
        more = f"; and {len(found.unreachable) - _NAMED} more" if len(found.unreachable) > _NAMED else ""
        raise CheckpointNotUsable(
            f"{len(found.unreachable)} partition(s) can't go there, the log does not have it: {named}{more}. Nothing "
            f"was changed; {way_out(PlanView.of(found, approved.request, log))}"
        )
    if region.state is RegionState.STOPPED and not forced:
        offline.require_empty(region, clusters)
    store.apply_reset(region.name, Apply(reset=asked, epoch=approved.made_under, resolved=found.seek, logs=log.bounds))


def _asked(request: ResetRequest, now: datetime, request_id: str) -> PersonReset:
    return PersonReset(
        request_id=RequestId(request_id),
        target=request.target,
        scope=request.scope,
        state=PersonResetState.WAITING,
        requester=Requester(),
        requested_at=now,
        order=0,
        skip=request.skip,
        forward=request.forward,
        allow_partial=request.allow_partial,
    )


def _planned(region: StoredRegion, now: datetime, asked: PersonReset, clusters: Clusters) -> tuple[plans.Plan, LogView]:
    resolution.require_usable(region, now, asked)
    strange = sorted(str(p) for p in asked.skip if p not in universe(region))
    if strange:
        raise InvalidTarget(f"records of {', '.join(strange)} can't be skipped: the region has no such partition")
    request = ResetRequest(target=asked.target, scope=asked.scope, skip=asked.skip)
    log = read_logs(region, now, request, clusters)
    outside = [f"{p} at {o}" for p, o in asked.skip.items() if not log.bounds[p].start <= o < log.bounds[p].end]
    if outside:
        raise InvalidTarget(f"there is no record to skip in the log: {', '.join(outside)}")
    return plans.plan(region, now, asked, log), log


def _require_same(known: PersonReset, request: ResetRequest) -> None:
    """Refuse another request under a name that is taken: it would look as if it had been applied."""
    # A duration is stored as the instant that it meant when the reset began.
    is_same_target = isinstance(request.target, ByDuration) or known.target == request.target
    if not is_same_target or (known.scope.as_asked, known.skip) != (request.scope.as_asked, request.skip):
        raise ConfigurationError(
            f"the plan {known.request_id} was applied already, with another target; make a new plan"
        )
