"""The groups of a region as their coordinators describe them, each member beside the region's that it is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from airflow_kcr.api.group_readers import GroupReaders
from airflow_kcr.api.validation import chosen_groups, participants
from airflow_kcr.api.views import AnswerColumns, View
from airflow_kcr.protocol.observations import MemberSeen
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.values import GroupId, MemberId, RegionName, TopicPartition
from airflow_kcr.spec import RegionSpec, stored_spec
from airflow_kcr.store.regions import RegionStore


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember(View):
    """One member of a group as Kafka lists it."""

    shown = AnswerColumns["DescribedMember"](
        "member", "member_id", "client_id", "host", "instance_id", "partitions", "target"
    )

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

    shown = AnswerColumns["DescribedGroup"]("group", "type", "state", "assignor", "coordinator", "members")

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
    groups: Collection[GroupId] | None = None,
) -> tuple[DescribedGroup, ...]:
    """Return a region's groups as Kafka describes them, changing nothing.

    Args:
        store: where the region is.
        name: the region's.
        readers: how Kafka is reached.
        groups: which of its groups; None: all.

    Raises:
        UnknownRegion: there is no such region.
        ConfigurationError: it has no group of that name.
        BrokerUnavailable, CredentialsRefused: a cluster is unreachable, or refuses the login or the call.
    """
    region, _ = store.read(name)
    spec = stored_spec(region.spec.text)
    return tuple(_described(region, spec, group, readers) for group in chosen_groups(region, groups))


def _described(region: StoredRegion, spec: RegionSpec, group: GroupId, readers: GroupReaders) -> DescribedGroup:
    with readers(spec, group) as cluster:
        seen, client = cluster.describe(group), cluster.client
    known, rules = participants(region, group, client), region.rules.groups[group]
    return DescribedGroup(
        group=group,
        type=seen.type,
        state=seen.state,
        assignor=seen.assignor,
        coordinator=seen.coordinator,
        members=tuple(DescribedMember.of(listed, known.member(listed, rules)) for listed in seen.members),
    )
