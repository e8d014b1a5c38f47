"""Incidents: what people are notified of, once when it begins and once when it is over.

An **incident** is made of what the region waits for (`liveness`) and of the verdict on its lag: the same reasons as
everywhere. A **watcher** looks for them again and again, and the store remembers of what it has notified people: so a
watcher that starts again, and another process of it beside, notifies them of nothing twice.

Who is to notify people claims that first. If it ends before it has said how that went, its claim runs out, and people
are notified by the next look: perhaps twice, and never not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from airflow_kcr.protocol.region import boundaries, rows, waits
from airflow_kcr.protocol.region.lag import STANDING, TO_DO, LagFinding
from airflow_kcr.protocol.region.liveness import Liveness, patience
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import ForeignConsumerPolicy
from airflow_kcr.protocol.values import DesiredState, format_instant, replace

CLAIM: Final = timedelta(minutes=5)
"""For how long only one process notifies people of an incident."""

RECEDED: Final = 1.25
"""How many times its limit an estimate has to be, until what it warned of is over: logs lose whole segments at a time,
so estimates go up and down.
"""


class IncidentKind(StrEnum):
    """What an incident is."""

    HALTED = "halted"
    """The region is halted; a person chooses."""

    STALLED = "stalled"
    """The region waits for something for longer than it may; or records are left, and no progress is made."""

    MEMBER_MISSING = "member_missing"
    """Members of a group that the spec asks for are away for longer than they may."""

    FOREIGN_CONSUMER = "foreign_consumer"
    """A foreign consumer is in a group, and the region goes on without its partitions. Where the policy is `fail`, the
    region is halted."""

    RETENTION = "retention"
    """A reset to the restore point lacks records, or soon will: retention deletes them."""

    CHECKPOINT_LATE = "checkpoint_late"
    """A boundary has passed, and its checkpoint is not made."""

    RESET = "reset"
    """A reset of a person was applied; that has no end."""


class IncidentKey(NamedTuple):
    """What tells an incident from those that a region has at the same time."""

    kind: IncidentKind
    subject: str
    """A group, a foreign consumer or the plan of a reset; empty: the region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """What people are notified of."""

    key: IncidentKey
    what: str
    """A sentence with what is wrong, for whom, and what to do."""

    since: datetime | None
    """By the store's clock; None: that is not known."""

    is_receding: bool = False
    """Whether it is past its limit again, by little: what was no incident is none yet, what was one is not over yet."""

    def text(self) -> str:
        """Return the incident as people read it."""
        since = "" if self.since is None else f" since {format_instant(self.since)}"
        return f"{self.key.kind.replace('_', ' ')}{since}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """From when on something is an incident, where that is a matter of taste."""

    late: timedelta = timedelta(minutes=15)
    """How long after its boundary a checkpoint is late."""

    retention: timedelta = timedelta(hours=4)
    """How long before retention overtakes the restore point."""


def find(
    region: Region,
    now: datetime,
    liveness: Liveness,
    verdict: LagFinding,
    overtaken_at: datetime | None,
    tolerance: Tolerance,
) -> Iterator[Incident]:
    """Yield the incidents of a region.

    Args:
        region: as stored.
        now: the store's clock.
        liveness: what it waits for.
        verdict: on its lag.
        overtaken_at: when retention overtakes the restore point, or has; None: that is not known.
        tolerance: what is no incident yet.
    """
    if region.halt is not None:
        choices = "; ".join(region.halt.choices)
        yield _incident(IncidentKind.HALTED, f"{region.halt.text}; choices: {choices}", None)
    elif region.state is not rows.RegionState.STOPPED:
        yield from _stall(region, liveness, verdict)
        yield from _missing_members(region, now)
        if region.rules.foreign_consumers is not ForeignConsumerPolicy.FAIL:
            for found in region.foreign_consumers:
                yield _incident(
                    IncidentKind.FOREIGN_CONSUMER, f"{found}; end it, or give it another group", None, found
                )
    overdue = boundaries.overdue(region, now)
    if overdue is not None and overdue >= tolerance.late:
        since = now - overdue
        what = f"boundary {format_instant(since)} passed, and its checkpoint is not made"
        yield _incident(IncidentKind.CHECKPOINT_LATE, what, since)
    if overtaken_at is not None and overtaken_at - now <= tolerance.retention * RECEDED:
        when = "have left" if overtaken_at <= now else f"leave by {format_instant(overtaken_at)}"
        what = (
            f"records that a reset to the restore point needs {when} retention; make a checkpoint, or keep them longer"
        )
        yield replace(
            _incident(IncidentKind.RETENTION, what, None), is_receding=overtaken_at - now > tolerance.retention
        )
    yield from _reset(region)


def _incident(kind: IncidentKind, what: str, since: datetime | None, subject: object = "") -> Incident:
    return Incident(key=IncidentKey(kind, str(subject)), what=what, since=since)


def _stall(region: Region, liveness: Liveness, verdict: LagFinding) -> Iterator[Incident]:
    if liveness.stalled:
        first = liveness.stalled[0]
        what = "; ".join(f"{wait.rule}: {wait.what}" for wait in liveness.stalled)
        yield _incident(IncidentKind.STALLED, f"{what}; {TO_DO[first.rule]}", first.since)
    elif verdict.verdict in STANDING and region.desired_state is DesiredState.RUNNING:
        yield _incident(IncidentKind.STALLED, f"{verdict.what}; {verdict.to_do}", verdict.since)


def _missing_members(region: Region, now: datetime) -> Iterator[Incident]:
    absent: dict[str, list[waits.Wait]] = {}
    for wait in waits.absent(region, now):
        if wait.since is not None and wait.since + patience(region) <= now:
            absent.setdefault(str(wait.group), []).append(wait)
    for group, found in absent.items():
        since = min(wait.since for wait in found if wait.since is not None)
        yield _incident(IncidentKind.MEMBER_MISSING, "; ".join(wait.what for wait in found), since, group)


def _reset(region: Region) -> Iterator[Incident]:
    attempt = region.resets.get(region.epoch)
    asked = None if attempt is None or attempt.person is None else region.person_reset_of(attempt.person)
    if attempt is None or asked is None or attempt.done_at is None:
        return
    reason = f", because: {asked.requester.reason}" if asked.requester.reason else ""
    what = f"{asked.requester.who} reset it, {asked.target}{reason}"
    yield _incident(IncidentKind.RESET, what, attempt.done_at, asked.request_id)


# What people were notified of


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentNotice:
    """What people are to be notified of, or were."""

    incident: Incident
    is_sent: bool = False
    """Whether people know that it has started."""

    over_at: datetime | None = None
    """When it was found to be over, by the store's clock, of which people are to be notified."""

    claimed_until: datetime | None = None
    """Until then, one process notifies people of it; None: none does."""

    def text(self, region: Region) -> str:
        """Return what people read."""
        if self.over_at is None:
            return f"region {region.name}: {self.incident.text()}"
        kind, at = self.incident.key.kind, format_instant(self.over_at)
        if kind in {IncidentKind.HALTED, IncidentKind.STALLED} and region.state is rows.RegionState.RUNNING:
            return f"region {region.name} runs again since {at}; it was {self.incident.text()}"
        return f"region {region.name}: over since {at}: {self.incident.text()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherMemory:
    """What a watcher has notified people of, as the store keeps it."""

    since: datetime
    """When it first looked: of a reset before that, people are not notified."""

    looked_at: datetime | None = None
    """When the region was read for the newest look."""

    notices: tuple[IncidentNotice, ...] = ()


def take(
    memory: WatcherMemory, found: Collection[Incident], looked_at: datetime, now: datetime
) -> tuple[WatcherMemory, tuple[IncidentNotice, ...]]:
    """Return the memory after a look, and the notices that this caller is to send, which it has claimed.

    Args:
        memory: as stored.
        found: the incidents of the region, as they were when it was read.
        looked_at: when that was, by the store's clock. Another process may have looked since; then this look is of no
            use: what it found may be over, and people were notified of that.
        now: the store's clock.
    """
    if memory.looked_at is not None and looked_at < memory.looked_at:
        return memory, ()
    present = {incident.key: incident for incident in found}
    known = {notice.incident.key: notice for notice in memory.notices}
    for key, incident in present.items():
        is_old = key.kind is IncidentKind.RESET and (incident.since or now) <= memory.since
        if key not in known and not is_old and not incident.is_receding:
            known[key] = IncidentNotice(incident=incident)
    kept, claimed = [], []
    for key, notice in known.items():
        if notice.claimed_until is not None and notice.claimed_until > now:
            kept.append(notice)
            continue
        current = _looked_at(notice, key in present, now)
        if current is not None and (not current.is_sent or current.over_at is not None):
            current = replace(current, claimed_until=now + CLAIM)
            claimed.append(current)
        kept += [] if current is None else [current]
    return replace(memory, looked_at=looked_at, notices=tuple(kept)), tuple(claimed)


def _looked_at(notice: IncidentNotice, is_present: bool, now: datetime) -> IncidentNotice | None:
    """Return a notice as it is now; None: there is nothing more to say."""
    if is_present:
        return replace(notice, over_at=None, claimed_until=None)
    if not notice.is_sent or notice.incident.key.kind is IncidentKind.RESET:
        return None
    return replace(notice, over_at=notice.over_at or now, claimed_until=None)


def settle(memory: WatcherMemory, sent: Mapping[IncidentKey, bool]) -> WatcherMemory:
    """Return the memory after a caller has sent the notices that it had claimed.

    Args:
        memory: as stored.
        sent: by incident, whether people were notified; of the others, the next look takes care.
    """
    kept = []
    for notice in memory.notices:
        is_sent = sent.get(notice.incident.key)
        if is_sent is None:
            kept.append(notice)
        elif not is_sent:
            kept.append(replace(notice, claimed_until=None))
        elif notice.over_at is None:
            kept.append(replace(notice, is_sent=True, claimed_until=None))
    return replace(memory, notices=tuple(kept))
