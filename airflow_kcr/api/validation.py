"""Membership validation against the real world: before a member joins, at every checkpoint, and on request.

Reading changes nothing; `report` gives what was seen to the store, whose rules halt or warn. Members do both, a
person who only asks does the first.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeAlias, TypeVar

from airflow_kcr.api.regions import Cluster, client_settings, require_groups
from airflow_kcr.api.views import View
from airflow_kcr.errors import (
    BrokerUnavailable,
    ConfigurationError,
    CredentialsRefused,
    ForeignConsumerInGroup,
    KcrError,
    UnknownTopics,
)
from airflow_kcr.floods import unflooded
from airflow_kcr.ports import CommittedOffset, Logs
from airflow_kcr.protocol.evidence import CheckVerdict, Evidence, Participants
from airflow_kcr.protocol.observations import ForeignConsumer, GroupSeen, LogBounds, MemberSeen
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import liveness
from airflow_kcr.protocol.region.commands import ReportGroups
from airflow_kcr.protocol.region.liveness import LogEnd
from airflow_kcr.protocol.region.membership import require_place
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.rules import ForeignConsumerPolicy, GroupProtocol
from airflow_kcr.protocol.timeouts import BrokerTimes
from airflow_kcr.protocol.validation import Check, Question, is_all_right, judge
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    GroupId,
    GroupPartition,
    MemberId,
    RegionName,
    TopicName,
    TopicPartition,
)
from airflow_kcr.runtime.leases import read_note
from airflow_kcr.spec import RegionSpec, stored_spec
from airflow_kcr.store.regions import RegionStore

if TYPE_CHECKING:
    from airflow_kcr.kafka.groups import Groups

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

    def times(self, seen: GroupSeen) -> BrokerTimes:
        """Return the times that the brokers set for a group that was described; what may not be read is None.

        Raises:
            BrokerUnavailable: the brokers don't answer.
        """
        ...

    def unreadable(self, group: GroupId, topics: Collection[TopicName]) -> tuple[str, ...]:
        """Return which of a group and topics this client may describe but not read, in words.

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
        """Return a member's `client.id`; `prefix` is the user's own, if there is one."""
        ...


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
    readers: GroupReaders,
    names: Names,
    groups: Collection[GroupId] | None = None,
) -> Validation:
    """Check a region's groups, changing nothing.

    Args:
        store: where the region is.
        name: the region's.
        readers: how Kafka is reached.
        names: how Kafka knows its members.
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
    found = [gather(region, now, spec, group, readers, names, before) for group in _chosen(region, groups)]
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
    readers: GroupReaders,
    names: Names,
    missed_before: datetime | None = None,
) -> Evidence:
    """Return what Kafka says about one group; a call that is refused or unanswered is noted, the others continue.

    Args:
        region: as stored.
        now: the store's clock then.
        spec: its spec.
        group: one of its groups.
        readers: how Kafka is reached.
        names: how Kafka knows its members.
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
        participants=participants(region, group, names, client),
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


def participants(region: StoredRegion, group: GroupId, names: Names, client: str | None = None) -> Participants:
    """Return by which names Kafka knows a group's members: those of the spec, and those that ever were.

    Args:
        region: as stored.
        group: one of its groups.
        names: how Kafka knows its members.
        client: the user's own `client.id`, if there is one.
    """
    members = {MemberId(group, n) for n in range(region.rules.groups[group].members)}
    members |= {m for m in region.members if m.group == group}
    prefix = () if client is None else (client,)
    return Participants(
        instance_ids={names.instance_id(region.name, m): m for m in members},
        client_ids={names.client_id(region.name, m, *prefix): m for m in members},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember(View):
    """One member of a group as Kafka lists it."""

    member: MemberId | None
    """Which member of the region it is; None: a foreign consumer."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...] | None
    """What the coordinator wants it to own; None: the group's protocol has no target."""

    @classmethod
    def of(cls, seen: MemberSeen, member: MemberId | None) -> Self:
        """Return what there is to show of a member."""
        return cls(
            member=member,
            member_id=seen.member_id,
            client_id=seen.client_id,
            host=seen.host.removeprefix("/"),
            instance_id=seen.instance_id,
            partitions=tuple(sorted(seen.partitions)),
            target=None if seen.target is None else tuple(sorted(seen.target)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup(View):
    """One group of a region as its coordinator describes it."""

    group: GroupId
    type: str
    """`classic`, `consumer`, or `share or streams`, which no consumer can join."""

    state: str
    assignor: str
    coordinator: str
    members: tuple[DescribedMember, ...]


def described(
    store: RegionStore,
    name: RegionName,
    readers: GroupReaders,
    names: Names,
    groups: Collection[GroupId] | None = None,
) -> tuple[DescribedGroup, ...]:
    """Return a region's groups as Kafka describes them, changing nothing.

    Args:
        store: where the region is.
        name: the region's.
        readers: how Kafka is reached.
        names: how Kafka knows its members.
        groups: which of its groups; None: all.

    Raises:
        UnknownRegion: there is no such region.
        ConfigurationError: it has no group of that name.
        BrokerUnavailable, CredentialsRefused: a cluster is unreachable, or refuses the login or the call.
    """
    region, _ = store.read(name)
    spec = stored_spec(region.spec.text)
    return tuple(_described(region, spec, group, readers, names) for group in _chosen(region, groups))


def _described(
    region: StoredRegion, spec: RegionSpec, group: GroupId, readers: GroupReaders, names: Names
) -> DescribedGroup:
    with readers(spec, group) as cluster:
        seen, client = cluster.describe(group), cluster.client
    known, rules = participants(region, group, names, client), region.rules.groups[group]
    return DescribedGroup(
        group=group,
        type=seen.type,
        state=seen.state,
        assignor=seen.assignor,
        coordinator=seen.coordinator,
        members=tuple(DescribedMember.of(listed, known.member(listed, rules)) for listed in seen.members),
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


# Kafka as validation reads it, over the Kafka client: logs, committed offsets, and how a group is described.


@dataclass(frozen=True, slots=True)
class RealGroupReader:
    """One cluster; implements `GroupReader`."""

    logs: Logs
    groups: Groups
    client: str | None = None
    """See `GroupReader.client`."""

    def committed(
        self, group: GroupId, partitions: Collection[GroupPartition]
    ) -> Mapping[GroupPartition, CommittedOffset]:
        """See `regions.Cluster.committed`; without partitions there is nothing to ask."""
        return self.groups.committed(group, partitions) if partitions else {}

    def describe(self, group: GroupId) -> GroupSeen:
        """See `GroupReader.describe`."""
        return self.groups.describe(group)

    def times(self, seen: GroupSeen) -> BrokerTimes:
        """See `GroupReader.times`."""
        return self.groups.times(seen)

    def unreadable(self, group: GroupId, topics: Collection[TopicName]) -> tuple[str, ...]:
        """See `GroupReader.unreadable`."""
        return self.groups.unreadable(group, topics)

    def require_empty(self, group: GroupId) -> None:
        """See `regions.Cluster.require_empty`."""
        self.groups.require_empty(group)

    def alter(self, group: GroupId, offsets: OffsetMap, metadata: str) -> None:
        """See `regions.Cluster.alter`."""
        self.groups.alter(group, offsets, metadata)


@contextmanager
def reader_with(settings: Mapping[str, str]) -> Iterator[GroupReader]:
    """Open the cluster that client settings lead to.

    Args:
        settings: the user's, secrets filled in.

    Raises:
        ConfigurationError: they can't be used by the client.
    """
    from airflow_kcr.kafka.admin_process import AdminProcess
    from airflow_kcr.kafka.groups import Groups
    from airflow_kcr.kafka.logs import BrokerLogs
    from airflow_kcr.kafka.settings import admin_settings

    with AdminProcess(admin_settings(settings)) as process:
        yield RealGroupReader(BrokerLogs(process), Groups(process), client=settings.get("client.id"))


def real_reader(spec: RegionSpec, group: GroupId) -> AbstractContextManager[GroupReader]:
    """Open the cluster of one of a region's groups, by the environment of this process.

    Raises:
        ConfigurationError: its settings need a variable that is not set, or can't be used by the client.
    """
    return reader_with(client_settings(spec, group, os.environ))


# Preflight: what has to be true before a member joins its group. Nothing is consumed, nothing is committed yet.
#
# Whatever can't work is said here, with the error that says it best, instead of showing later as a region that waits.


def preflight(
    store: RegionStore,
    name: RegionName,
    members: Collection[MemberId],
    readers: GroupReaders,
    names: Names,
) -> Validation:
    """Check what members are about to join, and tell the store who else is in their groups.

    What is found and raises nothing is for the caller to show: it may heal, or the region decides it when it runs.

    Args:
        store: where the region is.
        name: the region's.
        members: those that this process is going to host.
        readers: how Kafka is reached.
        names: how Kafka knows the region's members.

    Raises:
        StoreError: the store can't be reached, or serves another schema.
        UnknownRegion, UnknownMember: the store has no such region, or its spec no such member.
        BrokerUnavailable: Kafka can't be reached.
        CredentialsRefused: it does not let the client in, or not do what it needs.
        UnknownTopics: a listed topic does not exist.
        ConfigurationError: the spec says `protocol: consumer`, and the brokers don't speak it, or their times
            contradict the region's.
        ForeignConsumerInGroup: a foreign consumer is in a group, and the policy is `fail`; or Kafka lets no consumer
            join the group, by any policy.
    """
    region, _ = store.read(name)
    for member in sorted(members):
        require_place(region, member)
    found = validate(store, name, readers, names, {member.group for member in members})
    for question, error, verdicts in (
        # Who only looks is warned of rights that are enough for that. A member with them would wait for ever.
        (Question.RIGHTS, CredentialsRefused, {CheckVerdict.FAILED, CheckVerdict.WARNING}),
        (Question.TOPICS, UnknownTopics, {CheckVerdict.FAILED}),
    ):
        lines = [check for check in found.checks if check.question is question and check.verdict in verdicts]
        if lines:
            raise error("; ".join(f"group {check.group}: {check.detail}" for check in lines))
    # A member of the classic protocol is told by the broker as it joins; with the other one it would wait for ever.
    by_the_broker = {group for group, rules in region.rules.groups.items() if rules.protocol is GroupProtocol.CONSUMER}
    times = [check for check in _failed(found, Question.TIMES) if check.group in by_the_broker]
    if times:
        raise ConfigurationError("; ".join(f"group {check.group}: {check.detail}" for check in times))
    region = report(store, name, found)
    failed = _failed(found, Question.FOREIGN_CONSUMERS)
    closed = any(o.is_group for group in found.foreign_consumers.values() for o in group)
    if failed and (closed or region.rules.foreign_consumers is ForeignConsumerPolicy.FAIL):
        raise ForeignConsumerInGroup("; ".join(check.detail for check in failed))
    return found


def _failed(found: Validation, question: Question) -> tuple[Check, ...]:
    return tuple(c for c in found.checks if c.question is question and c.verdict is CheckVerdict.FAILED)


# Polls the groups of a region while members run: at every checkpoint, and every few seconds.
#
# The findings of a poll go to the store, whose rules halt or warn; so a foreign consumer is noticed, and that it is
# gone.

PERIOD: Final = 10.0
"""Seconds between two polls if nothing calls for one."""

FOREIGN_PERIOD: Final = 2.0
"""Seconds between two polls while a foreign consumer is in a group."""

DEBOUNCE: Final = 5.0
"""Seconds for which members that are missing, or too many, are normal: they have just been started, or stopped."""

_POLL_PERIOD: Final = 0.25

_LOG = logging.getLogger(__name__)
_AGAIN = unflooded(f"{__name__}.again")


class GroupWatch:
    """Watches the groups that a process hosts members of.

    Args:
        store: told what is found.
        region: whose groups.
        groups: which of them.
        readers: how Kafka is reached.
        names: how Kafka knows the members.
        newest_checkpoint: the newest number that a checkpoint or a reset has used, as this process sees it. Whether one
            is open would not do: an idle region's checkpoint is over between two polls.
    """

    def __init__(
        self,
        store: RegionStore,
        region: RegionName,
        groups: Collection[GroupId],
        readers: GroupReaders,
        names: Names,
        newest_checkpoint: Callable[[], CheckpointNumber],
    ) -> None:
        self._store, self._region, self._groups = store, region, frozenset(groups)
        self._readers, self._names, self._newest_checkpoint = readers, names, newest_checkpoint
        self._ending = threading.Event()
        self._said: frozenset[str] = frozenset()
        self._thread = threading.Thread(target=self._run, name=f"{region} groups", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def end(self) -> None:
        """End after the running check; returns at once."""
        self._ending.set()

    def _run(self) -> None:
        next_poll, seen = monotonic() + DEBOUNCE, self._newest_checkpoint()
        while not self._ending.wait(_POLL_PERIOD):
            newest = self._newest_checkpoint()
            if monotonic() < next_poll and newest == seen:
                continue
            seen = newest
            next_poll = monotonic() + (FOREIGN_PERIOD if self._poll() else PERIOD)

    def _poll(self) -> bool:
        """Poll once, and return whether a foreign consumer is in a group."""
        try:
            found = validate(self._store, self._region, self._readers, self._names, self._groups)
            if found.is_news:
                report(self._store, self._region, found)
        except KcrError as error:
            _AGAIN.warning("the groups of region %s could not be checked: %s", self._region, error)
            return False
        self._say(found)
        return any(found.foreign_consumers.values())

    def _say(self, found: Validation) -> None:
        """Log what failed, each only when it begins or changes in substance."""
        failed = sorted(f"group {c.group}: {c.detail}" for c in found.checks if c.verdict is CheckVerdict.FAILED)
        for text in failed:
            if substance(text) not in self._said:
                _LOG.warning("%s", text)
        self._said = frozenset(map(substance, failed))


_MOVES: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z|(?<![\w\[-])\d[\d,.]*(?![\w\]-])")
"""Instants, offsets, counts and seconds; not the numbers in the names of partitions and members."""


def substance(text: str) -> str:
    """Return what a finding says, without the numbers that move while nothing else does: since when, how many."""
    return _MOVES.sub("…", text)
