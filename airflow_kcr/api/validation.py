"""Membership validation against the real world: reads what the checks need, and tells the store of foreign consumers.

A look changes nothing; `report` gives what was seen to the store, whose rules halt, hold or warn. Members do both, a
person who only asks does the first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol, TypeAlias, TypeVar

from airflow_kcr.api.clusters import Cluster
from airflow_kcr.api.naming import require_groups
from airflow_kcr.errors import BrokerUnavailable, CredentialsRefused
from airflow_kcr.ports import CommittedOffset
from airflow_kcr.protocol.evidence import Check, Evidence, Participants
from airflow_kcr.protocol.group_checks import foreign_consumers_in
from airflow_kcr.protocol.group_members import ForeignConsumer, GroupSeen
from airflow_kcr.protocol.membership_checks import is_all_right, judge
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.region import liveness
from airflow_kcr.protocol.region.liveness import LogEnd
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.values import CheckpointNumber, GroupId, GroupPartition, MemberId, RegionName
from airflow_kcr.runtime.identity import read_note
from airflow_kcr.spec import RegionSpec
from airflow_kcr.store.regions import RegionStore

T = TypeVar("T")


class GroupReader(Cluster, Protocol):
    """One Kafka cluster, as validation sees it. Calls block, each under a deadline."""

    @property
    def client(self) -> str | None:
        """The user's own `client.id` for it, by which a member's begins; None: there is none."""
        ...

    def describe(self, group: GroupId) -> GroupSeen:
        """Return the group as its coordinator describes it; one that does not exist is `dead`.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        ...


GroupReaders: TypeAlias = Callable[[RegionSpec, GroupId], AbstractContextManager[GroupReader]]
"""Opens the cluster of one of a region's groups, for as long as the context lasts."""


class Names(Protocol):
    """How Kafka knows the members of a region: what their clients are configured with (`kafka.settings` is one)."""

    def instance_id(self, region: RegionName, member: MemberId) -> str:
        """Return a static member's `group.instance.id`."""
        ...

    def client_id(self, region: RegionName, member: MemberId, prefix: str = ...) -> str:
        """Return a member's `client.id`; `prefix` is the user's own, where there is one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """What one look at a region's groups has found."""

    checks: tuple[Check, ...]
    foreign_consumers: Mapping[GroupId, tuple[ForeignConsumer, ...]]
    """Of each group that could be described; empty: it is clean."""

    @property
    def is_all_right(self) -> bool:
        """Whether nothing failed and nothing remained unknown."""
        return is_all_right(self.checks)


def validate(
    store: RegionStore,
    name: RegionName,
    readers: GroupReaders,
    names: Names,
    groups: Collection[GroupId] | None = None,
) -> Validation:
    """Look at a region's groups, changing nothing.

    Args:
        store: where the region is.
        name: the region's.
        readers: how Kafka is reached.
        names: how Kafka knows its members.
        groups: which of its groups; None: all.

    Raises:
        UnknownRegion: there is no such region.
        ConfigurationError: it has no group of that name.
        BrokerUnavailable, CredentialsRefused: a cluster can't be reached, or lets nobody in.
    """
    region, now = store.read(name)
    spec = RegionSpec.from_json(region.spec.text)
    known = replace(store.seen(name), linger=spec.batch.linger)
    before = liveness.missed_before(region, now, known)
    found = [gather(region, spec, group, readers, names, before) for group in _chosen(region, groups)]
    # The region is read again: what has changed meanwhile would otherwise be held against it.
    region, now = store.read(name)
    checks = [check for evidence in found for check in judge(region, now, evidence, known)]
    seen = {e.group: foreign_consumers_in(e) for e in found if e.described is not None}
    return Validation(checks=tuple(checks), foreign_consumers=seen)


def report(store: RegionStore, name: RegionName, validation: Validation) -> StoredRegion:
    """Tell the store who was found in the groups, nobody included; the region halts, holds, goes on or warns."""
    return store.report_groups(name, validation.foreign_consumers)


def gather(
    region: StoredRegion,
    spec: RegionSpec,
    group: GroupId,
    readers: GroupReaders,
    names: Names,
    missed_before: datetime | None = None,
) -> Evidence:
    """Return what Kafka says about one group; a call that is refused or unanswered is noted, the others go on.

    Args:
        region: as stored.
        spec: its spec.
        group: one of its groups.
        readers: how Kafka is reached.
        names: how Kafka knows its members.
        missed_before: asks, of partitions that are behind, which of their records came before this instant; None: that
            is of no interest.

    Raises:
        BrokerUnavailable, CredentialsRefused: the cluster as a whole can't be reached, or lets nobody in.
    """
    rules = region.rules.groups[group]
    with readers(spec, group) as cluster:
        client = cluster.client
        topics = cluster.logs.topics()
        there = sorted(rules.partitions(topics))
        calls = _Calls()
        described = calls.asked(f"describe group {group}", lambda: cluster.describe(group))
        bounds = calls.asked(f"read the logs of group {group}", lambda: cluster.logs.bounds(there))
        held = calls.asked(f"read the committed offsets of group {group}", lambda: cluster.committed(group, there))
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
        participants=participants(region, group, names, client),
        described=described,
        topics=topics,
        bounds=bounds,
        earlier_ends=ends or {},
        committed=None if held is None else {p: row.offset for p, row in held.items()},
        noted=noted(region, held or {}),
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
    return {p: note.sequence for p, note in notes.items() if note is not None and note.region == region.name}


def participants(region: StoredRegion, group: GroupId, names: Names, client: str | None = None) -> Participants:
    """Return by which names Kafka knows a group's members: those of the spec, and those that ever were.

    Args:
        region: as stored.
        group: one of its groups.
        names: how Kafka knows its members.
        client: the user's own `client.id`, where there is one.
    """
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


def _chosen(region: StoredRegion, groups: Collection[GroupId] | None) -> tuple[GroupId, ...]:
    known = region.rules.groups.keys()
    require_groups(region, groups or ())
    return tuple(sorted(known if groups is None else groups))
