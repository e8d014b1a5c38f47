"""What was read of one group and its logs, which the checks of a region's membership are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from airflow_kcr.protocol.observations import ForeignConsumer, GroupSeen, LogBounds, MemberSeen
from airflow_kcr.protocol.region.liveness import NOTHING_SEEN, LogEnd, Seen
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import GroupRules
from airflow_kcr.protocol.timeouts import BrokerTimes
from airflow_kcr.protocol.values import CheckpointNumber, GroupId, GroupPartition, MemberId, Offset, TopicName


class CheckVerdict(StrEnum):
    """What a check came to."""

    OK = "ok"
    WARNING = "warning"
    """It may heal by itself, or harm later; the region goes on."""

    FAILED = "failed"
    UNKNOWN = "unknown"
    """What it needs could not be read."""


CheckFinding: TypeAlias = tuple[CheckVerdict, str]
"""One sentence that answers a question, and what it comes to."""

CheckFindings: TypeAlias = Iterator[CheckFinding]
"""What a question finds; what is fine counts where nothing else was found. Nothing: it could not be read."""


def failed(text: str) -> CheckFinding:
    """Return what is wrong."""
    return CheckVerdict.FAILED, text


def warning(text: str) -> CheckFinding:
    """Return what may heal by itself, or harm later."""
    return CheckVerdict.WARNING, text


def fine(text: str) -> CheckFinding:
    """Return what is as it should be."""
    return CheckVerdict.OK, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Participants:
    """By which names Kafka knows a group's members, those of earlier specs too."""

    instance_ids: Mapping[str, MemberId] = field(default_factory=dict)
    client_ids: Mapping[str, MemberId] = field(default_factory=dict)

    def member(self, seen: MemberSeen, rules: GroupRules) -> MemberId | None:
        """Return whose entry in the member list this is; None: it is not one of the region's.

        A static member is known by its instance id. In a dynamic group the client id has to do.
        """
        if seen.instance_id is not None:
            return self.instance_ids.get(seen.instance_id)
        return None if rules.static_membership else self.client_ids.get(seen.client_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was read of one group and its logs, one call after the other; what is None could not be read."""

    rules: GroupRules
    participants: Participants
    region: Region
    """As it was read last."""

    now: datetime
    """The store's clock then."""

    before: Region
    """The region as it was before Kafka was asked.

    Work goes on between the reads, so that logs end beyond the positions of before, and positions may be beyond the
    ends by now. A fault is one only where both what was before and what is now show it.
    """

    described: GroupSeen | None = None
    topics: Mapping[TopicName, int] | None = None
    """How many partitions each topic of the cluster has."""

    bounds: Mapping[GroupPartition, LogBounds] | None = None
    committed: Mapping[GroupPartition, Offset] | None = None
    earlier_ends: Mapping[GroupPartition, LogEnd] = field(default_factory=dict)
    """How far logs could be read some time ago, of partitions that are behind in a region where no batch runs."""

    noted: Mapping[GroupPartition, CheckpointNumber] = field(default_factory=dict)
    """The checkpoint or reset that a committed offset says it is of; absent: the region has not written it."""

    inherited: Mapping[GroupPartition, str] = field(default_factory=dict)
    """The other region that a committed offset says it is of: one that was deleted, or one of another store."""

    seen: Seen = NOTHING_SEEN
    """What the store and the spec say beside the region's rows."""

    times: BrokerTimes | None = None
    """What the brokers say of sessions."""

    unreadable: tuple[str, ...] = ()
    """What these credentials may describe but not read, in words: the group, topics."""

    refused: tuple[str, ...] = ()
    """Calls that Kafka did not allow, each with its reason."""

    silent: tuple[str, ...] = ()
    """Calls that had no answer, each with its reason."""

    @property
    def group(self) -> GroupId:
        """The group."""
        return self.rules.group_id

    @property
    def foreign_consumers(self) -> tuple[ForeignConsumer, ...]:
        """The foreign consumers of the group, in order; none if the group could not be described."""
        if self.described is None:
            return ()
        if not self.described.admits_consumers:
            return (ForeignConsumer(group=self.group, what=f"{self.described.type} group"),)
        found = {
            ForeignConsumer(
                group=self.described.group, client_id=m.client_id, host=m.host, instance_id=m.instance_id or ""
            )
            for m in self.described.members
            if self.participants.member(m, self.rules) is None
        }
        return tuple(sorted(found))

    def own_members(self) -> Iterator[tuple[MemberSeen, MemberId]]:
        """Yield the entries of the member list that are the region's, each with whose it is."""
        for listed in () if self.described is None else self.described.members:
            member = self.participants.member(listed, self.rules)
            if member is not None:
                yield listed, member
