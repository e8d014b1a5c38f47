"""Consumer groups from outside: how the coordinator describes one, what it has committed, and its offsets altered.

The calls are made in a child process (`group_process` says why), which is started with the first one, and again if it
died. Offsets are altered with three guards: only an empty group's, every partition's result
looked at, and read back.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any, Final, Self

from airflow_kcr import errors
from airflow_kcr.errors import BrokerUnavailable, ConfigurationError, GroupNotEmpty, KcrError
from airflow_kcr.kafka.child import Child, ChildDied
from airflow_kcr.kafka.failures import Kind
from airflow_kcr.kafka.settings import bootstrap_servers, without_secrets
from airflow_kcr.kafka_settings import KafkaSettings
from airflow_kcr.ports import CommittedOffset
from airflow_kcr.protocol.group_members import GroupSeen, MemberSeen
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.values import GroupId, GroupPartition, Offset, TopicName, TopicPartition

TIMEOUT: Final = timedelta(seconds=10)
GRACE: Final = 2.0
"""Seconds after its own deadline that the child may take to say so."""

MODULE: Final = "airflow_kcr.kafka.group_process"
_EMPTY: Final = frozenset({"empty", "dead"})
"""States of a group without members; one that does not exist is `dead`."""


class Groups:
    """The groups of one cluster; any thread may ask, one question at a time.

    Args:
        settings: from `settings.admin_settings`.
        timeout: for each call.
    """

    def __init__(self, settings: KafkaSettings, timeout: timedelta = TIMEOUT) -> None:
        self._settings, self._timeout = settings, timeout
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The child's process id; None while there is none."""
        child = self._child
        return child.pid if child is not None else None

    def close(self) -> None:
        """End the child."""
        with self._lock:
            self._closed = True
            self._drop()

    def describe(self, group: GroupId) -> GroupSeen:
        """Return how the coordinator sees a group; one that does not exist is `dead`.

        `stable` does not mean that its members live: a static one that was closed or died is listed until its session
        is over.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        found = self._read("describe", group=group)
        return GroupSeen(
            group=group,
            state=found["state"],
            type=found["type"],
            assignor=found["assignor"],
            members=tuple(_member(row) for row in found["members"]),
            coordinator=found["coordinator"],
        )

    def groups(self) -> tuple[GroupId, ...]:
        """Return the ids of all consumer groups; share groups are not among them.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        return tuple(GroupId(group) for group in self._read("groups")["groups"])

    def committed(
        self, group: GroupId, partitions: Collection[GroupPartition] = ()
    ) -> dict[GroupPartition, CommittedOffset]:
        """Return what Kafka holds for a group; a partition without a committed offset is absent.

        Args:
            group: any group, with members or without.
            partitions: which ones; none named: all that have one.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
            KcrError: a partition's could not be read.
        """
        found = self._read("committed", group=group, rows=[[p.topic, p.partition, 0] for p in sorted(partitions)])
        if found["failed"]:
            raise KcrError(f"the committed offsets of group {group} could not be read: {_failed(found['failed'])}")
        return {
            GroupPartition(group, TopicName(topic), partition): CommittedOffset(offset=Offset(offset), metadata=text)
            for topic, partition, offset, text in found["rows"]
            if offset >= 0
        }

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
        rows = [[p.topic, p.partition, o] for p, o in offsets.items()]
        written = self._call("alter", group=group, rows=rows, metadata=metadata)
        if any(row[2] == Kind.REJOIN for row in written["failed"]):
            # Somebody joined in between; the broker then refuses the whole.
            self.require_empty(group)
            raise GroupNotEmpty(f"group {group}: somebody joined it meanwhile: {_failed(written['failed'])}")
        held = self.committed(group, offsets)
        expected = {p: CommittedOffset(offset=o, metadata=metadata) for p, o in offsets.items()}
        wrong = sorted(str(p.topic_partition) for p, row in expected.items() if held.get(p) != row)
        if written["failed"]:
            raise KcrError(
                f"group {group}: Kafka refused offsets of {len(written['failed'])} partition(s), the others are "
                f"written: {_failed(written['failed'])}"
            )
        if wrong:
            raise KcrError(f"group {group}: Kafka said yes, but does not hold the offsets of {', '.join(wrong)}")

    def require_empty(self, group: GroupId) -> None:
        """Refuse a group that has members.

        Raises:
            GroupNotEmpty: names them.
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        seen = self.describe(group)
        if seen.state in _EMPTY and not seen.members:
            return
        who = "; ".join(
            f"{m.client_id} on {m.host.removeprefix('/')}" + (f" ({m.instance_id})" if m.instance_id else "")
            for m in seen.members[:5]
        )
        raise GroupNotEmpty(
            f"group {group} is {seen.state}, with {len(seen.members)} member(s): {who or 'none listed yet'}; "
            "stop them. A static member that was closed or killed counts until its session is over"
        )

    def _read(self, call: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        """Make a call that changes nothing: again, once, if the child died of it."""
        try:
            return self._call(call, **arguments)
        except ChildDied:
            return self._call(call, **arguments)

    def _call(self, call: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        seconds = self._timeout.total_seconds()
        with self._lock:
            child = self._ready()
            try:
                reply = child.ask({"call": call, "timeout": seconds, **arguments}, seconds + GRACE)
            except ChildDied as died:
                self._drop()
                raise ChildDied(self._hide(f"{bootstrap_servers(self._settings)}, {call}: {died.message}")) from None
        if "failure" in reply:
            raise _error(reply)
        answer: dict[str, Any] = reply["answer"]
        return answer

    def _ready(self) -> Child:
        if self._closed:
            raise BrokerUnavailable("group calls: closed")
        if self._child is not None and not self._child.alive:
            self._drop()
        if self._child is None:
            self._child = Child(MODULE, {"settings": dict(self._settings)})
        return self._child

    def _drop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def _hide(self, text: str) -> str:
        return without_secrets(text, self._settings)


def _member(row: Mapping[str, Any]) -> MemberSeen:
    return MemberSeen(
        member_id=row["member_id"],
        client_id=row["client_id"],
        host=row["host"],
        instance_id=row["instance_id"],
        partitions=frozenset(TopicPartition(TopicName(topic), number) for topic, number in row["partitions"]),
    )


def _failed(rows: list[list[Any]]) -> str:
    shown = "; ".join(f"{topic}-{number}: {text}" for topic, number, _, text in rows[:5])
    return shown + (f"; and {len(rows) - 5} more" if len(rows) > 5 else "")


def _error(reply: Mapping[str, str]) -> KcrError:
    """Return the error that the child raised."""
    kinds: dict[str, type[KcrError]] = {
        kind.__name__: kind for kind in (BrokerUnavailable, ConfigurationError, errors.CredentialsRefused)
    }
    return kinds.get(reply["failure"], KcrError)(reply["message"])
