"""The incidents of a region, and what a watcher is to notify people of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from airflow_kcr.api.checkpoints import reach_of
from airflow_kcr.protocol.region import incidents, lag, liveness
from airflow_kcr.protocol.region.incidents import Incident, IncidentKey, IncidentNotice, Tolerance, WatcherMemory
from airflow_kcr.protocol.region.lag import LagFinding
from airflow_kcr.protocol.region.liveness import Liveness
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import RegionName
from airflow_kcr.store.garbage import uncollected
from airflow_kcr.store.regions import RegionStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a watcher has found."""

    region: Region
    incidents: tuple[Incident, ...]
    notices: tuple[IncidentNotice, ...]
    """What this caller is to notify people of, and no other for now."""


def judged(store: RegionStore, region: Region, now: datetime) -> tuple[Liveness, LagFinding]:
    """Return what a region waits for, and the worst verdict on its lag; Kafka is not asked."""
    with uncollected():
        waits = liveness.judge(region, now, store.seen(region.name))
        return waits, lag.worst(lag.judge(region, now, waits, store.recent_lag(region.name, now)).values())


def incidents_of(store: RegionStore, region: Region, now: datetime, tolerance: Tolerance) -> tuple[Incident, ...]:
    """Return the incidents of a region that was read at a moment of the store's clock; Kafka is not asked."""
    waits, verdict = judged(store, region, now)
    return tuple(incidents.find(region, now, waits, verdict, _overtaken_at(region, now), tolerance))


def _overtaken_at(region: Region, now: datetime) -> datetime | None:
    point = region.restore_checkpoint
    reach = None if point is None else reach_of(region, point.sequence)
    return None if reach is None else now if reach.is_unreachable else reach.overtaken_at


def look(store: RegionStore, name: RegionName, watcher: str, tolerance: Tolerance) -> Look:
    """Look for incidents, and claim what people are to be notified of; `settle` says how that went.

    Raises:
        UnknownRegion: there is no such region.
        StoreError: the store is away.
    """
    region, now = store.read(name)
    found = incidents_of(store, region, now, tolerance)
    notices = store.remember(name, watcher, lambda memory, at: incidents.take(memory, found, now, at))
    return Look(region=region, incidents=found, notices=notices)


def names(found: Iterable[Incident]) -> tuple[str, ...]:
    """Return the names of incidents: while they stay the same, there is nothing to notify people of."""
    return tuple(sorted(" ".join(_name(incident)) for incident in found))


def _name(incident: Incident) -> Iterator[str]:
    yield incident.key.kind
    if incident.key.subject:
        yield incident.key.subject
    if incident.is_receding:
        yield "recedes"


def settle(store: RegionStore, name: RegionName, watcher: str, sent: Mapping[IncidentKey, bool]) -> bool:
    """Say of which notices people were notified, and return whether they were of all; else the next look takes care.

    Raises:
        StoreError: the store is away; people are notified again once the claim is over.
    """

    def rule(memory: WatcherMemory, _: datetime) -> tuple[WatcherMemory, bool]:
        after = incidents.settle(memory, sent)
        return after, all(notice.is_sent and notice.over_at is None for notice in after.notices)

    return store.remember(name, watcher, rule)
