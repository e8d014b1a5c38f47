"""The groups of a region as their coordinators describe them, each member beside the region's that it is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from airflow_kcr.api.clusters import Cluster, Clusters, ask_each
from airflow_kcr.api.validation import chosen_groups, participants
from airflow_kcr.api.views import AnswerColumns, View, of
from airflow_kcr.protocol.observations import GroupSeen, MemberSeen
from airflow_kcr.protocol.rules import GroupRules
from airflow_kcr.protocol.values import GroupId, MemberId, RegionName
from airflow_kcr.store.regions import RegionStore


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember(View):
    """One member of a group as Kafka lists it."""

    shown = AnswerColumns["DescribedMember"](
        "member",
        *of("seen", "member_id", "client_id"),
        ("host", lambda m: m.seen.host.removeprefix("/")),
        "seen.instance_id",
        ("partitions", lambda m: sorted(m.seen.partitions)),
        ("target", lambda m: None if m.seen.target is None else sorted(m.seen.target)),
    )

    seen: MemberSeen
    member: MemberId | None
    """Which member of the region it is; None: a foreign consumer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup(View):
    """One group of a region as its coordinator describes it."""

    shown = AnswerColumns["DescribedGroup"](
        *of("seen", "group", "type", "state", "assignor", "coordinator"),
        "members",
    )

    seen: GroupSeen
    members: tuple[DescribedMember, ...]


def described(
    store: RegionStore,
    name: RegionName,
    readers: Clusters,
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

    def describe(cluster: Cluster, rules: GroupRules) -> DescribedGroup:
        seen, known = cluster.describe(rules.group_id), participants(region, rules.group_id, cluster.client)
        members = tuple(DescribedMember(seen=listed, member=known.member(listed, rules)) for listed in seen.members)
        return DescribedGroup(seen=seen, members=members)

    return tuple(ask_each(region, readers, describe, chosen_groups(region, groups)).values())
