"""Membership validation against the real world: before a member joins, at every checkpoint, and on request.

Reading changes nothing; `report` gives what was seen to the store, whose rules halt or warn. Members do both, a
person who only asks does the first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Protocol, TypeVar

from airflow_kcr.api.clusters import Cluster, Clusters
from airflow_kcr.api.regions import require_groups
from airflow_kcr.api.views import AnswerColumns
from airflow_kcr.errors import BrokerUnavailable, CredentialsRefused
from airflow_kcr.ports import CommittedOffset
from airflow_kcr.protocol.evidence import Evidence, Participants
from airflow_kcr.protocol.observations import ForeignConsumer, LogBounds
from airflow_kcr.protocol.region import liveness
from airflow_kcr.protocol.region.commands import ReportGroups
from airflow_kcr.protocol.region.liveness import LogEnd
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.validation import Check, is_all_right, judge
from airflow_kcr.protocol.values import CheckpointNumber, GroupId, GroupPartition, MemberId, RegionName
from airflow_kcr.runtime.leases import read_note
from airflow_kcr.spec import RegionSpec, stored_spec
from airflow_kcr.store.regions import RegionStore

T = TypeVar("T")

CHECK: Final = AnswerColumns[Check]("group", ("check", lambda one: one.question), "verdict", "detail")
"""A check as commands and the console show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """What one check of a region's groups has found."""

    checks: tuple[Check, ...]
    foreign_consumers: Mapping[GroupId, tuple[ForeignConsumer, ...]]
    """Of each group that could be described; empty: it is clean."""

    is_news: bool = True
    """Whether the region may not know this yet: not so where all are clean, and it knows of no foreign consumer."""

    @property
    def is_all_right(self) -> bool:
        """Whether nothing failed and nothing remained unknown."""
        return is_all_right(self.checks)


class Readable(Protocol):
    """Where a region is read from: a store, or the spec of one that is not declared."""

    def read(self, name: RegionName) -> tuple[StoredRegion, datetime]:
        """Return a region, and the time there."""
        ...

    def seen(self, name: RegionName) -> liveness.Seen:
        """Return what the judgement of its liveness needs beside it."""
        ...


def validate(
    store: Readable,
    name: RegionName,
    readers: Clusters,
    groups: Collection[GroupId] | None = None,
) -> Validation:
    """Check a region's groups, changing nothing.

    Args:
        store: where the region is.
        name: the region's.
        readers: how Kafka is reached.
        groups: which of its groups; None: all.

    Raises:
        UnknownRegion: there is no such region.
        ConfigurationError: it has no group of that name.
        BrokerUnavailable, CredentialsRefused: a cluster is unreachable, or refuses the login.
    """
    region, now = store.read(name)
    spec = stored_spec(region.spec.text)
    known = replace(store.seen(name), linger=spec.batch.linger)
    before = liveness.missed_before(region, now, known)
    found = [gather(region, now, spec, group, readers, before) for group in chosen_groups(region, groups)]
    # The region is read again: what has changed meanwhile would otherwise be held against it.
    region, now = store.read(name)
    found = [replace(evidence, region=region, now=now, seen=known) for evidence in found]
    checks = [check for evidence in found for check in judge(evidence)]
    seen = {e.group: e.foreign_consumers for e in found if e.described is not None}
    known_ones = any(one.group in seen for one in region.foreign_consumers)
    return Validation(checks=tuple(checks), foreign_consumers=seen, is_news=known_ones or any(seen.values()))


def report(store: RegionStore, name: RegionName, validation: Validation) -> StoredRegion:
    """Tell the store the foreign consumers of the groups, if any; the region halts or warns by its policy."""
    return store.handle(name, ReportGroups(seen=validation.foreign_consumers))


def gather(
    region: StoredRegion,
    now: datetime,
    spec: RegionSpec,
    group: GroupId,
    readers: Clusters,
    missed_before: datetime | None = None,
) -> Evidence:
    """Return what Kafka says about one group; a call that is refused or unanswered is noted, the others continue.

    Args:
        region: as stored.
        now: the store's clock then.
        spec: its spec.
        group: one of its groups.
        readers: how Kafka is reached.
        missed_before: asks, of partitions that are behind, which of their records came before this instant; None: that
            is of no interest.

    Raises:
        BrokerUnavailable, CredentialsRefused: the cluster as a whole is unreachable, or refuses the login.
    """
    rules = region.rules.groups[group]
    with readers(spec, group) as cluster:
        client = cluster.client
        topics = cluster.logs.topics()
        there = sorted(rules.partitions(topics))
        calls = _Calls()
        described = calls.asked(f"describe group {group}", lambda: cluster.describe(group))
        times = (
            None
            if described is None
            else calls.asked(f"read the times of group {group}", lambda: cluster.times(described))
        )
        unreadable = calls.asked(
            f"look up the rights on group {group}", lambda: cluster.unreadable(group, {p.topic for p in there})
        )
        # What was committed was in the log before, and the log only grows.
        held = calls.asked(f"read the committed offsets of group {group}", lambda: cluster.committed(group, there))
        bounds = calls.asked(f"read the logs of group {group}", lambda: cluster.logs.bounds(there))
        behind = {p: log for p, log in (bounds or {}).items() if _is_behind(region, p, log)}
        ends = (
            {}
            if missed_before is None
            else calls.asked(
                f"look records of group {group} up by time", lambda: _ends_at(cluster, missed_before, behind)
            )
        )
    return Evidence(
        rules=rules,
        participants=participants(region, group, client),
        region=region,
        now=now,
        before=region,
        described=described,
        topics=topics,
        times=times,
        bounds=bounds,
        earlier_ends=ends or {},
        committed=None if held is None else {p: row.offset for p, row in held.items()},
        noted=noted(region, held or {}),
        inherited=inherited(region, held or {}),
        unreadable=unreadable or (),
        refused=tuple(calls.refused),
        silent=tuple(calls.silent),
    )


def _is_behind(region: StoredRegion, partition: GroupPartition, log: LogBounds) -> bool:
    claim = region.claims.get(partition)
    return claim is not None and claim.position is not None and claim.position < log.end


def _ends_at(
    cluster: Cluster, instant: datetime, logs: Mapping[GroupPartition, LogBounds]
) -> dict[GroupPartition, LogEnd]:
    """Return how far logs went at an instant, by their time index: up to the first record that came later."""
    answers = cluster.logs.first_at_or_after(dict.fromkeys(logs, instant)) if logs else {}
    return {
        p: LogEnd(log.end if (found := answers[p].offset) is None else found, instant)
        for p, log in logs.items()
        if p in answers
    }


def noted(
    region: StoredRegion, held: Mapping[GroupPartition, CommittedOffset]
) -> dict[GroupPartition, CheckpointNumber]:
    """Return what committed offsets say they are of, where this region has written them."""
    notes = {p: read_note(row.metadata) for p, row in held.items()}
    return {p: note.sequence for p, note in notes.items() if note is not None and note.region_id == region.region_id}


def inherited(region: StoredRegion, held: Mapping[GroupPartition, CommittedOffset]) -> dict[GroupPartition, str]:
    """Return which other region committed offsets say they are of: its name may be the same."""
    notes = {p: read_note(row.metadata) for p, row in held.items()}
    return {
        p: f"region {note.region} (id {note.region_id})"
        for p, note in notes.items()
        if note is not None and note.region_id != region.region_id
    }


def participants(region: StoredRegion, group: GroupId, client: str | None = None) -> Participants:
    """Return by which names Kafka knows a group's members: those of the spec, and those that ever were.

    Args:
        region: as stored.
        group: one of its groups.
        client: the user's own `client.id`, if there is one.
    """
    # It loads Kafka's client, which commands that only read the store don't need.
    from airflow_kcr.kafka import settings as names

    members = {MemberId(group, n) for n in range(region.rules.groups[group].members)}
    members |= {m for m in region.members if m.group == group}
    prefix = () if client is None else (client,)
    return Participants(
        instance_ids={names.instance_id(region.name, m): m for m in members},
        client_ids={names.client_id(region.name, m, *prefix): m for m in members},
    )


class _Calls:
    """Calls to Kafka that may fail one by one, and why they did."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.silent: list[str] = []

    def asked(self, what: str, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except CredentialsRefused as error:
            self.refused.append(f"Kafka does not allow to {what}: {error.message}")
        except BrokerUnavailable as error:
            self.silent.append(f"{what}: {error.message}")
        return None


def chosen_groups(region: StoredRegion, groups: Collection[GroupId] | None) -> tuple[GroupId, ...]:
    """Return the groups that are asked for, in order; None: all.

    Raises:
        ConfigurationError: the region has no group of one of these names.
    """
    known = region.rules.groups.keys()
    require_groups(region, groups or ())
    return tuple(sorted(known if groups is None else groups))
