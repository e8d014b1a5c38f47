"""Applying a spec: a region is created, or changed as far as it may be (docs/reference/states.md).

Some changes take effect at once, the rest at the next checkpoint with a restart of the members; without a live member
all of them take effect at once. A group's id and its cluster never change: that would be another region.

Which cluster an address leads to only Kafka can tell. It is asked here where the files alone leave it open: where
another region has a group of that name, and where an address has changed. Else the first member that joins tells.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from airflow_kcr.api.clusters import Clusters
from airflow_kcr.api.views import AnswerColumns, View
from airflow_kcr.errors import BrokerUnavailable, ConfigurationError, RegionExists, UnknownRegion
from airflow_kcr.protocol.region import lost_logs as placed
from airflow_kcr.protocol.region.commands import ChangeSpec, DeclareRegion, Reconcile, ReportClusters
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.values import NO_CLUSTER, ClusterId, GroupId, region_name
from airflow_kcr.spec import Difference, RegionSpec, TakesEffect, differences, is_other_address, split, stored_spec
from airflow_kcr.store.regions import RegionStore

_LOG = logging.getLogger(__name__)


class Change(StrEnum):
    """What became of a spec."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    """It is the one in force."""

    WAITING = "waiting"
    """It was applied before and waits for the next checkpoint."""

    WITHDRAWN = "withdrawn"
    """It is the one in force, and takes back another that waited for the next checkpoint, or that members refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied(View):
    """What applying a spec does, or did."""

    shown = AnswerColumns["Applied"](
        *("region", "change"),
        ("differences", lambda a: [{"field": d.path, "takes_effect": d.takes_effect} for d in a.differences]),
    )

    region: str
    change: Change
    differences: tuple[Difference, ...] = ()
    """Every field that differs from what is in force, with when it counts."""


def compared(store: RegionStore, spec: RegionSpec, clusters: Clusters) -> Applied:
    """Return what applying a spec would do now; changes nothing.

    Args:
        store: where the region is, or will be.
        spec: to be applied.
        clusters: how Kafka is reached.

    Raises:
        RegionExists: it would need another region; the message names the fields.
    """
    name = region_name(spec.region)
    try:
        region, now = store.read(name)
    except UnknownRegion:
        return Applied(region=name, change=Change.CREATED)
    return _compared(region, now, spec, _moved(region, spec, clusters))


def apply(store: RegionStore, spec: RegionSpec, clusters: Clusters) -> Applied:
    """Create the region of a spec, or change it; the same spec again changes nothing.

    Args:
        store: where the region is, or will be.
        spec: its spec.
        clusters: how Kafka is reached.

    Raises:
        RegionExists: a difference is one that needs another region; the message names the fields. Nothing is changed.
        GroupInOtherRegion: one of its groups belongs to another region, which the message names.
    """
    name = region_name(spec.region)
    with suppress(UnknownRegion):
        store.handle(name, Reconcile())  # of a spec that waited for members who live no more
    try:
        region, now = store.read(name)
    except UnknownRegion:
        apart = _apart(store, spec, spec.rules().groups, clusters)
        store.handle(name, DeclareRegion(spec=Spec(text=spec.to_json_text(), rules=spec.rules()), clusters=apart))
        return Applied(region=name, change=Change.CREATED)
    moved = _moved(region, spec, clusters)
    plan = _compared(region, now, spec, moved)
    if plan.change in {Change.UNCHANGED, Change.WAITING}:
        return plan
    apart = _apart(store, spec, spec.rules().groups.keys() - region.own_groups.keys(), clusters)
    region = store.handle(name, _update(region, spec, {**moved, **apart}, same=moved))
    return _all_at_once(plan) if region.next_spec is None else plan


def _apart(
    store: RegionStore, spec: RegionSpec, groups: Collection[GroupId], clusters: Clusters
) -> dict[GroupId, ClusterId]:
    """Return the clusters of those of these groups whose name another region has, on another cluster.

    Raises:
        GroupInOtherRegion: it is the same cluster; or it can't be told, as a cluster does not answer.
    """
    found: dict[GroupId, ClusterId] = {}
    for name in store.names_with(groups) if groups else ():
        with suppress(UnknownRegion):  # deleted meanwhile
            other, _ = store.read(name)
            for group in sorted(other.own_groups.keys() & groups) if name != spec.region else ():
                declared = _declared(other, group)
                mine = theirs = NO_CLUSTER
                if _may_differ(declared, spec, group):
                    mine = found.get(group) or _asked(spec, group, clusters)
                    theirs = other.clusters.get(group) or (mine and _asked(declared, group, clusters))
                if not theirs or mine == theirs:
                    raise placed.group_taken(group, theirs, name)
                store.handle(name, ReportClusters(found={group: theirs}))
                found[group] = mine
    return found


def _declared(region: StoredRegion, group: GroupId) -> RegionSpec:
    """Return the spec that has a group of a region: the one in force, or else the one that waits."""
    waits = group not in region.spec.rules.groups and region.next_spec is not None
    return stored_spec((region.next_spec if waits and region.next_spec else region.spec).text)


def _may_differ(old: RegionSpec, new: RegionSpec, group: GroupId) -> bool:
    """Whether Kafka has to be asked if a group is on one cluster by both specs: they have no address in common."""
    (before, old_conn), (after, new_conn) = old.cluster_of(group), new.cluster_of(group)
    if before is None or after is None:
        return (old_conn, before) != (new_conn, after)
    return is_other_address(before, after)


def _moved(region: StoredRegion, spec: RegionSpec, clusters: Clusters) -> dict[GroupId, ClusterId]:
    """Return the clusters of groups that have another address, and are on the same cluster by both."""
    old, found = stored_spec(region.spec.text), dict[GroupId, ClusterId]()
    for group in sorted(old.rules().groups.keys() & spec.rules().groups.keys()):
        if not _may_differ(old, spec, group):
            continue
        cluster = _asked(spec, group, clusters)
        known = region.clusters.get(group) or (cluster and _asked(old, group, clusters))
        if cluster and known and cluster != known:
            raise RegionExists(
                f"group {group} would move from Kafka cluster {known} to {cluster}, and can't in region {region.name}: "
                "offsets of the one mean nothing in the other; make another region, with a name and groups of its "
                "own, or write the address of the cluster that it has"
            )
        if cluster and cluster == known:
            found[group] = cluster
    return found


def _asked(spec: RegionSpec, group: GroupId, clusters: Clusters) -> ClusterId:
    """Return which cluster a group's address leads to; empty: it does not answer, or can't be reached from here."""
    try:
        with clusters(spec, group) as cluster:
            return cluster.logs.cluster_id()
    except (BrokerUnavailable, ConfigurationError) as error:
        _LOG.warning("group %s: its cluster could not be asked which one it is: %s", group, error)
        return NO_CLUSTER


def _compared(region: StoredRegion, now: datetime, spec: RegionSpec, same: Collection[str]) -> Applied:
    found = tuple(differences(stored_spec(region.spec.text), spec, same))
    refused = [d.path for d in found if d.takes_effect is TakesEffect.REFUSED]
    if refused:
        raise RegionExists(
            f"region {region.name} exists, and {', '.join(refused)} can't change in it; make another region, "
            "with a name and groups of its own, or write what it has"
        )
    plan = Applied(region=region.name, change=_change(region, spec.to_json_text()), differences=found)
    is_attended = region.state is not RegionState.STOPPED and bool(region.live_members(now))
    return plan if is_attended else _all_at_once(plan)


def _change(region: StoredRegion, wanted: str) -> Change:
    waiting = None if region.next_spec is None else region.next_spec.text
    if wanted == waiting:
        return Change.WAITING
    if wanted != region.spec.text:
        return Change.CHANGED
    return Change.UNCHANGED if waiting is None else Change.WITHDRAWN


def _all_at_once(plan: Applied) -> Applied:
    """Return the answer if no live member would have to be rebuilt."""
    return replace(plan, differences=tuple(Difference(d.path, TakesEffect.AT_ONCE) for d in plan.differences))


def _update(
    region: StoredRegion, spec: RegionSpec, on: Mapping[GroupId, ClusterId], same: Collection[str]
) -> ChangeSpec:
    parts = split(stored_spec(region.spec.text), spec, same)
    newest = region.spec.revision if region.next_spec is None else region.next_spec.revision
    at_once = region.spec
    if parts.at_once.to_json_text() != region.spec.text:
        newest += 1
        at_once = _stored(parts.at_once, newest)
    later = None if parts.later is None else _stored(parts.later, newest + 1)
    return ChangeSpec(at_once=at_once, later=later, clusters=on)


def _stored(spec: RegionSpec, revision: int) -> Spec:
    return Spec(text=spec.to_json_text(), rules=spec.rules(), revision=revision)
