"""Consumer groups from outside: how the coordinator describes one, what it has committed, and its offsets altered.

Offsets are altered with three guards: only an empty group's, every partition's result checked, and read back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from airflow_kcr.errors import GroupNotEmpty, KcrError
from airflow_kcr.kafka import questions
from airflow_kcr.kafka.admin_process import AdminProcess
from airflow_kcr.kafka.failures import Kind
from airflow_kcr.kafka.first_records import first_records
from airflow_kcr.kafka.logs import BrokerLogs
from airflow_kcr.ports import CommittedOffset
from airflow_kcr.protocol.observations import OTHER_GROUP, GroupSeen, TimeAnswer
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.timeouts import BrokerTimes
from airflow_kcr.protocol.values import GroupId, GroupPartition, Offset, TopicName, few

_EMPTY: Final = frozenset({"empty", "dead"})
"""States of a group without members; one that does not exist is `dead`."""


class Groups:
    """The groups of one cluster, with its logs; any thread may ask.

    Args:
        process: makes the calls.
        user: the user's own client settings for it.
    """

    def __init__(self, process: AdminProcess, user: Mapping[str, str] = MappingProxyType({})) -> None:
        self._process, self._user, self.client = process, user, user.get("client.id")
        self.logs = BrokerLogs(process)

    def first_records(self, places: Mapping[GroupPartition, Offset]) -> dict[GroupPartition, TimeAnswer]:
        """Return the first record at or beyond each place, as `first_records.first_records` does."""
        return first_records(self._user, places)

    def describe(self, group: GroupId) -> GroupSeen:
        """Return how the coordinator sees a group; one that does not exist is `dead`.

        `stable` does not mean that its members live: a static one that was closed or died is listed until its session
        is over.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        return self._process.read(partial(questions.describe, group=group))

    def times(self, seen: GroupSeen) -> BrokerTimes:
        """Return the times that the brokers set for a group; what this client may not read is None.

        Args:
            seen: the group, described; its coordinator is asked.

        Raises:
            BrokerUnavailable: the brokers don't answer.
        """
        if seen.coordinator_id is None:
            return BrokerTimes()
        return self._process.read(partial(questions.times, broker=seen.coordinator_id, group=seen.group))

    def compacted(self, names: Collection[TopicName]) -> frozenset[TopicName]:
        """Return the topics from whose logs compaction takes records, of those whose settings may be described.

        Raises:
            BrokerUnavailable: the brokers don't answer.
        """
        return self._process.read(partial(questions.compacted, names=sorted(names)), topics=len(names))

    def unreadable(self, group: GroupId, topics: Collection[TopicName]) -> tuple[str, ...]:
        """Return which of a group and topics this client may describe, but has no right to read.

        The coordinator and the brokers say so, of a group that does not exist yet too; what they don't tell is absent.

        Args:
            group: any group.
            topics: those that are read; one that does not exist is absent.

        Returns:
            Each in words, such as `group flights-etl`.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        question = partial(questions.unreadable, group=group, names=sorted(topics))
        return self._process.read(question, topics=len(topics))

    def committed(
        self, group: GroupId, partitions: Collection[GroupPartition] | None = None
    ) -> dict[GroupPartition, CommittedOffset]:
        """Return what Kafka holds for a group; a partition without a committed offset is absent.

        Args:
            group: any group, with members or without.
            partitions: which ones; None: all that have one.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
            KcrError: a partition's could not be read.
        """
        if partitions is not None and not partitions:
            return {}
        places = None if partitions is None else sorted(p.topic_partition for p in partitions)
        found = self._process.read(partial(questions.committed, group=group, partitions=places))
        return {GroupPartition(group, *place): row for place, row in found.items()}

    def alter(self, group: GroupId, offsets: OffsetMap, metadata: str = "") -> None:
        """Write the committed offsets of a group that has no members, and read them back.

        Raises:
            GroupNotEmpty: it has members; nothing was written.
            KcrError: partitions were refused, or Kafka holds something else; the message names them. The others are
                written.
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse; read what became of it.
        """
        foreign = sorted(str(p) for p in offsets if p.group != group)
        if foreign or not offsets:
            raise KcrError(f"group {group}: {', '.join(foreign) or 'no offset'} can't be written to it")
        self.require_empty(group)
        places = {p.topic_partition: o for p, o in offsets.items()}
        alter = partial(questions.alter, group=group, offsets=places, metadata=metadata)
        if refused := self._process.change(alter):
            if any(kind is Kind.REJOIN for kind, _ in refused.values()):
                # A consumer joined in between; the broker then refuses the whole request.
                self.require_empty(group)
                raise GroupNotEmpty(f"group {group}: a consumer joined it meanwhile: {questions.refusals(refused)}")
            raise KcrError(
                f"group {group}: Kafka refused offsets of {len(refused)} partition(s), the others are written: "
                f"{questions.refusals(refused)}"
            )
        held = self.committed(group, offsets)
        expected = {p: CommittedOffset(offset=o, metadata=metadata) for p, o in offsets.items()}
        wrong = sorted(str(p.topic_partition) for p, row in expected.items() if held.get(p) != row)
        if wrong:
            raise KcrError(f"group {group}: Kafka said yes, but does not hold the offsets of {', '.join(wrong)}")

    def require_empty(self, group: GroupId) -> None:
        """Refuse a group that has members.

        Raises:
            GroupNotEmpty: names them.
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        seen = self.describe(group)
        if not seen.admits_consumers:
            raise GroupNotEmpty(f"group {group} is a {seen.type} group, which has no offsets to commit; {OTHER_GROUP}")
        if seen.state in _EMPTY and not seen.members:
            return
        named = (
            f"{m.client_id} on {m.host.removeprefix('/')}" + (f" ({m.instance_id})" if m.instance_id else "")
            for m in seen.members
        )
        who = few(named, separator="; ")
        raise GroupNotEmpty(
            f"group {group} is {seen.state}, with {len(seen.members)} member(s): {who or 'none listed yet'}; "
            "stop them. A static member that was closed or killed counts until its session is over"
        )
