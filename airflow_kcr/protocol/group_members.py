"""A Kafka group as its coordinator describes it, and the **foreign consumers** in it.

Members that are not the region's.

What a broker answered is a value here; adapters read it and hand it to the rules and checks.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_kcr.protocol.values import GroupId, TopicPartition


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class ForeignConsumer:
    """A consumer in a group that is not one of the region's members.

    A consumer that leaves and joins again gets a new member id, so it is known by what stays.
    """

    group: GroupId
    client_id: str = ""
    host: str = ""
    instance_id: str = ""
    """Its static id; empty: it is dynamic."""

    what: str = "consumer"
    """What it is: a consumer, or a kind of group that is none of ours as a whole."""

    def __str__(self) -> str:
        """A name that says where to find it."""
        static = f", group.instance.id {self.instance_id}" if self.instance_id else ""
        client = f" {self.client_id}" if self.client_id else ""
        host = f" on host {self.host.removeprefix('/')}" if self.host else ""
        return f"{self.what}{client}{host}{static} in group {self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSeen:
    """One member as the coordinator lists it."""

    member_id: str
    """Made by Kafka; new at every join."""

    client_id: str
    host: str
    instance_id: str | None = None
    """Its static id; None: it is dynamic."""

    partitions: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSeen:
    """One group as its coordinator describes it."""

    group: GroupId
    state: str
    """Kafka's word in lower case, such as `stable`; `dead` where there is no such group."""

    type: str = "classic"
    """Kafka's word in lower case; a consumer-protocol member converts the group to `consumer` while it is there."""

    assignor: str = ""
    """What the members agreed on; empty while they have not."""

    members: tuple[MemberSeen, ...] = ()
    coordinator: str = ""
    """host:port of the broker that coordinates it; empty: that is not known."""

    @property
    def is_stable(self) -> bool:
        """Whether member list and assignments are those of one finished rebalance."""
        return self.state in STABLE


STABLE = frozenset({"stable", "empty", "dead"})
"""States in which what the coordinator lists is not about to change by itself."""
