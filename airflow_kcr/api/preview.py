"""Who would own what: a region's groups dealt out by the assignor, before anything is scaled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.assignors import assign
from airflow_kcr.protocol.rules import Assignor, GroupRules
from airflow_kcr.protocol.values import GroupId, MemberId, TopicName, TopicPartition


def preview(
    group: GroupRules,
    topics: Mapping[TopicName, int],
    owned: Mapping[MemberId, Iterable[TopicPartition]],
    *,
    members: int | None = None,
    assignor: Assignor | None = None,
) -> dict[MemberId, tuple[TopicPartition, ...]]:
    """Return what each member of a group would be assigned.

    Args:
        group: as the spec has it.
        topics: those that exist on its cluster, with how many partitions each has.
        owned: what its members own at present, which `sticky` leaves where it is as far as it can.
        members: another number of members than the spec's.
        assignor: another one than the spec's.

    Raises:
        ConfigurationError: `members` is not positive.
    """
    count = group.members if members is None else members
    if count < 1:
        raise ConfigurationError(f"a group has at least one member, not {count}")
    subscribed = frozenset(topic for topic in topics if group.subscribes(topic))
    # Kafka puts members in the order of their names as text; these sort as their indexes do.
    names = {f"{index:09}": MemberId(GroupId(group.group_id), index) for index in range(count)}
    previous = {name: owned.get(member, ()) for name, member in names.items()}
    dealt = assign(assignor or group.assignor, dict.fromkeys(names, subscribed), topics, previous)
    return {names[name]: partitions for name, partitions in dealt.items()}
