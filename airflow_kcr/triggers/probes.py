"""One poll of what a task waits for. It blocks, so it is made in a worker's task or in a thread of the triggerer.

It also makes the transitions that are due in the region: no member may be alive to make them. What only Kafka
can tell is asked as `kcr lag` and `kcr group validate` ask it: with an admin's calls, never as a consumer of a group.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Final

from airflow_kcr.api import partitions
from airflow_kcr.api.incidents import incidents_of, judged, names
from airflow_kcr.api.regions import connect
from airflow_kcr.api.validation import validate
from airflow_kcr.api.waiting import AWAY, Progress, missing, reconciled
from airflow_kcr.errors import BrokerUnavailable, KcrError, TimedOut
from airflow_kcr.goals import RUNNING, Goal, WaitingFor
from airflow_kcr.protocol.evidence import CheckVerdict
from airflow_kcr.protocol.region import lag, waits
from airflow_kcr.protocol.region.incidents import Tolerance
from airflow_kcr.protocol.values import GroupId, RegionName
from airflow_kcr.store.answers import Sign
from airflow_kcr.store.regions import RegionStore
from airflow_kcr.triggers.payloads import (
    IncidentsChange,
    LagBelow,
    MembershipHealthy,
    Progresses,
    Status,
    TriggerAnswer,
)

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

    from airflow_kcr.hooks.kcr import KcrHook
    from airflow_kcr.protocol.region.state import Region as StoredRegion

REFRESH: Final = 10.0
"""Seconds after which a region is read again though nothing happened in it."""


def probe(
    store: RegionStore, name: RegionName, waiting_for: WaitingFor, hook: KcrHook
) -> tuple[Progress | None, datetime]:
    """Return how far a region is from what a task waits for (None: it is reached), and the store's clock then.

    Args:
        store: where the region is.
        name: the region's.
        waiting_for: what for.
        hook: by which Kafka is reached, where it has to be asked.

    Raises:
        TimedOut: it was not in time, for any waiter; requesting it again may help.
        RefusedError: it can't be reached any more.
        StoreError, BrokerUnavailable: the store or a broker is away.
    """
    region, now = reconciled(store, name)
    return _progress(store, region, now, waiting_for, hook), now


def _progress(
    store: RegionStore, region: StoredRegion, now: datetime, waiting_for: WaitingFor, hook: KcrHook
) -> Progress | None:
    match waiting_for:
        case LagBelow():
            return _lag(store, region, waiting_for, hook)
        case Progresses():
            return _standing(store, region, now)
        case IncidentsChange():
            return _incidents(store, region, now, waiting_for)
        case MembershipHealthy():
            return _membership(store, region, now, waiting_for, hook)
        case Goal():
            return None if waiting_for.is_reached(region, now) else missing(region, now, waiting_for)
        case _:
            raise TypeError(waiting_for)


def _lag(store: RegionStore, region: StoredRegion, wanted: LagBelow, hook: KcrHook) -> Progress | None:
    rows = partitions.lag(region, hook.cluster, lambda: store.read(region.name)[0])
    unknown = [f"the lag of {row.partition} is not known" for row in rows if row.lag is None]
    behind = sorted((row for row in rows if row.lag), key=lambda row: -(row.lag or 0))
    total = sum(row.lag or 0 for row in rows)
    if rows and not unknown and total < wanted.records:
        return None
    named = [
        f"{row.partition} is {row.lag:,} offsets behind (claimed by {row.member or 'no member'})" for row in behind
    ]
    first = f"it is {total:,} offsets behind" if rows else "it has no partition yet"
    return _missing(f"to have a lag below {wanted.records:,}", region, (first, *unknown, *named))


def _standing(store: RegionStore, region: StoredRegion, now: datetime) -> Progress | None:
    if not RUNNING.is_reached(region, now):
        return missing(region, now, RUNNING)
    waits, verdict = judged(store, region, now)
    named = [wait.text() for wait in waits.stalled]
    if not named and verdict.verdict in lag.STANDING:
        named = [verdict.text()]
    return _missing("to make progress again; it is stalled", region, named) if named else None


def _incidents(store: RegionStore, region: StoredRegion, now: datetime, wanted: IncidentsChange) -> Progress | None:
    found = names(incidents_of(store, region, now, Tolerance(late=wanted.late, retention=wanted.retention)))
    return _missing("to have other incidents", region, found) if found == wanted.known else None


def _membership(
    store: RegionStore, region: StoredRegion, now: datetime, wanted: MembershipHealthy, hook: KcrHook
) -> Progress | None:

    # A group without a consumer contradicts nothing; the sensor waits for its members to be there.
    absent = [wait.what for wait in waits.absent(region, now) if not wanted.groups or wait.group in wanted.groups]
    groups = [GroupId(group) for group in wanted.groups] or None
    checks = validate(store, region.name, hook.cluster, groups).checks
    wrong = [
        f"group {check.group}, {check.question}: {check.detail}"
        for check in checks
        if check.verdict in {CheckVerdict.FAILED, CheckVerdict.UNKNOWN}
    ]
    return _missing("to have a healthy membership", region, (*absent, *wrong)) if absent or wrong else None


def _missing(what: str, region: StoredRegion, named: Collection[str]) -> Progress:
    return Progress(what=f"{region.name} {what}", waited=timedelta(0), state=str(region.state), missing=tuple(named))


# -- the poller's ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What one poll has found for a waiting task."""

    answer: TriggerAnswer | None = None
    """None: it is not reached yet."""

    missing: str = ""
    """For people: what it waits for, and who is missing."""

    now: datetime | None = None
    """The store's clock; None: the store was away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What was found in a region when it was read last."""

    sign: Sign
    at: float
    found: Mapping[WaitingFor, ProbeResult]


class StoreProbes:
    """Probes of one store, one after the other, over one connection that is kept open in between.

    Args:
        url: the store's.
    """

    def __init__(self, url: URL) -> None:
        self._store = connect(url)
        self._seen: dict[RegionName, _Seen] = {}

    def close(self) -> None:
        """Close the connection."""
        self._store.close()

    def probe_all(
        self, wanted: Mapping[RegionName, Mapping[WaitingFor, KcrHook]]
    ) -> dict[tuple[RegionName, WaitingFor], ProbeResult]:
        """Return what there is of what is waited for in several regions, for which only the store is asked.

        One statement asks for the signs of all. A region is read if its sign has changed, if there is something else to
        wait for in it, or if that was some time ago: what is said of who is missing has seconds in it.
        """
        try:
            signs = self._store.signs(wanted)
        except KcrError as error:
            return _all_of(wanted, _failed(error))
        found: dict[tuple[RegionName, WaitingFor], ProbeResult] = {}
        for name, each in wanted.items():
            seen, (sign, now) = self._seen.get(name), signs.get(name, (None, None))
            if seen is None or sign is None or not _is_known(seen, sign, each):
                probed = self.probe(name, each, next(iter(each.values())))
                self._remember(name, sign, probed)
                if any(one.now is None and one.answer is None for one in probed.values()):
                    # For all: each region would take as long again to find it out.
                    return _all_of(wanted, next(iter(probed.values()))) | found
            else:
                probed = {what: replace(seen.found[what], now=now) for what in each}
            found |= {(name, what): one for what, one in probed.items()}
        self._seen = {name: seen for name, seen in self._seen.items() if name in wanted}
        return found

    def _remember(self, name: RegionName, sign: Sign | None, found: Mapping[WaitingFor, ProbeResult]) -> None:
        """Remember what was found if a sign tells whether it still holds; the sign is from before the read."""
        self._seen.pop(name, None)
        if sign is not None and all(isinstance(what, Goal | IncidentsChange | Progresses) for what in found):
            self._seen[name] = _Seen(sign=sign, at=monotonic(), found=found)

    def probe(
        self, name: RegionName, waiting_for: Collection[WaitingFor], hook: KcrHook
    ) -> dict[WaitingFor, ProbeResult]:
        """Return what there is of each of these in one region, which is read once for all."""
        try:
            region, now = reconciled(self._store, name)
        except KcrError as error:
            return dict.fromkeys(waiting_for, _failed(error))
        return {each: self._found(region, now, each, hook) for each in waiting_for}

    def _found(self, region: StoredRegion, now: datetime, waiting_for: WaitingFor, hook: KcrHook) -> ProbeResult:
        try:
            left = _progress(self._store, region, now, waiting_for, hook)
        except KcrError as error:
            return _failed(error, now)
        if left is None:
            return ProbeResult(answer=TriggerAnswer(status=Status.REACHED), now=now)
        return ProbeResult(missing=str(left), now=now)


def _failed(error: KcrError, now: datetime | None = None) -> ProbeResult:
    """Return what an error means for a task that waits: to go on waiting, or an answer."""
    if isinstance(error, AWAY):
        return ProbeResult(missing=f"waiting for the store: {error.message}")
    if isinstance(error, BrokerUnavailable):
        return ProbeResult(missing=f"waiting for Kafka: {error.message}", now=now)
    status = Status.TIMED_OUT if isinstance(error, TimedOut) else Status.REFUSED
    return ProbeResult(answer=TriggerAnswer(status=status, detail=error.message), now=now)


def _is_known(seen: _Seen, sign: Sign, wanted: Collection[WaitingFor]) -> bool:
    """Whether what was found still holds."""
    return (
        seen.sign == sign
        and not sign.is_due
        and monotonic() - seen.at < REFRESH
        and all(what in seen.found and seen.found[what].answer is None for what in wanted)
    )


def _all_of(
    wanted: Mapping[RegionName, Collection[WaitingFor]], finding: ProbeResult
) -> dict[tuple[RegionName, WaitingFor], ProbeResult]:
    return {(name, what): finding for name, each in wanted.items() for what in each}
