"""What brokers answered, as values that adapters read and hand to the rules and checks.

Bounds of logs, look-ups by time, and groups with the **foreign consumers** in them: members that are not the region's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from airflow_kcr.protocol.values import GroupId, GroupPartition, Offset, TopicId, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBounds:
    """One log as it was read: [start, end), where `end` is the last stable offset, never the high watermark."""

    start: Offset
    end: Offset
    topic_id: TopicId = TopicId("")
    leader_epoch: int = -1
    """-1: the broker did not say."""

    def __contains__(self, offset: int) -> bool:
        """Whether a batch could begin at `offset`: the end is inside, it is the next offset to be written."""
        return self.start <= offset <= self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAnswer:
    """What a broker answers to "first offset at or after this time" (`list_offsets`, read_committed)."""

    offset: Offset | None
    """The first offset, in log order, whose record's timestamp is at or after the time; None: there is none (yet)."""

    found: datetime | None = None
    """That record's own timestamp; later records may be older. None if no record was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """What reset targets and start positions are resolved against, all read at one moment."""

    bounds: Mapping[GroupPartition, LogBounds]
    read_at: datetime
    """The store's clock when the log was read; durations count back from here."""

    answers: Mapping[GroupPartition, TimeAnswer] = field(default_factory=dict)
    """What the brokers answered about the one instant that `time_needed` names."""

    committed: Mapping[GroupPartition, Offset] = field(default_factory=dict)
    """Kafka's committed offsets; a partition without one is absent."""


# -- groups, as their coordinator describes them -------------------------------------------------------------------

CONSUMER: Final = "consumer"


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

    what: str = CONSUMER
    """What it is: a consumer, or a kind of group that is none of ours as a whole."""

    @property
    def is_group(self) -> bool:
        """Whether it is a group as a whole, which no member can join."""
        return self.what != CONSUMER

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
    target: frozenset[TopicPartition] | None = None
    """What the coordinator wants it to own; None: the group's protocol has no target."""


SHARE_OR_STREAMS: Final = "share or streams"
"""The type of a group that no consumer can join; the client doesn't tell which of the two."""

OTHER_GROUP: Final = "give the region a group_id that no other program uses, or delete that group"
"""What to do about one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSeen:
    """One group as its coordinator describes it."""

    group: GroupId
    state: str
    """Kafka's word in lower case, such as `stable`; `dead`: there is no such group.

    `reconciling`: the coordinator has a new target, and members have yet to acknowledge it (consumer protocol only).
    """

    type: str = "classic"
    """`classic`, `consumer` or `SHARE_OR_STREAMS`; a member of the consumer protocol converts a classic group."""

    assignor: str = ""
    """What the members agreed on; empty while they have not."""

    members: tuple[MemberSeen, ...] = ()
    coordinator: str = ""
    """host:port of the broker that coordinates it; empty: that is not known."""

    coordinator_id: int | None = None
    """Its node id."""

    @property
    def admits_consumers(self) -> bool:
        """Whether Kafka lets consumers join it."""
        return self.type != SHARE_OR_STREAMS

    @property
    def is_stable(self) -> bool:
        """Whether member list and assignments are those of one finished rebalance."""
        return self.state in STABLE


STABLE = frozenset({"stable", "empty", "dead"})
"""States in which what the coordinator lists is not about to change by itself."""
