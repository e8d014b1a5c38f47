"""Consumer groups from outside: how the coordinator describes one, what it has committed, and its offsets altered.

The calls are made in a child process (`group_process` says why), which is started with the first one, and again if it
died. Offsets are altered with three guards: only an empty group's, every partition's result checked, and read back.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import IO, Any, Final, Self

from airflow_kcr import errors
from airflow_kcr.errors import BrokerUnavailable, ConfigurationError, GroupNotEmpty, KcrError, ServiceFailed
from airflow_kcr.kafka.calls import Kind
from airflow_kcr.kafka.settings import bootstrap_servers, without_secrets
from airflow_kcr.ports import CommittedOffset
from airflow_kcr.protocol.observations import OTHER_GROUP, GroupSeen, MemberSeen
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.timeouts import BrokerLimits, BrokerTimes, ConsumerProtocolTimes
from airflow_kcr.protocol.values import GroupId, GroupPartition, Offset, TopicName, TopicPartition
from airflow_kcr.settings import KafkaSettings

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
            coordinator_id=found["coordinator_id"],
        )

    def times(self, seen: GroupSeen) -> BrokerTimes:
        """Return the times that the brokers set for a group; what this client may not read is None.

        Args:
            seen: the group, described; its coordinator is asked.

        Raises:
            BrokerUnavailable: the brokers don't answer.
        """
        if seen.coordinator_id is None:
            return BrokerTimes()
        found = self._read("times", group=seen.group, rows=[["", seen.coordinator_id, 0]])
        limits, consumer = (
            None if found[name] is None else [timedelta(milliseconds=value) for value in found[name]]
            for name in ("limits", "consumer")
        )
        return BrokerTimes(
            limits=None if limits is None else BrokerLimits(shortest_session=limits[0], longest_session=limits[1]),
            consumer=None if consumer is None else ConsumerProtocolTimes(session=consumer[0], heartbeat=consumer[1]),
            protocols=None if found["protocols"] is None else frozenset(found["protocols"]),
            migration=found["migration"],
        )

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
        return tuple(self._read("unreadable", group=group, rows=[[t, 0, 0] for t in sorted(topics)])["unreadable"])

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
            # A consumer joined in between; the broker then refuses the whole request.
            self.require_empty(group)
            raise GroupNotEmpty(f"group {group}: a consumer joined it meanwhile: {_failed(written['failed'])}")
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
        if not seen.admits_consumers:
            raise GroupNotEmpty(f"group {group} is a {seen.type} group, which has no offsets to commit; {OTHER_GROUP}")
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
        partitions=_partitions(row["partitions"]),
        target=None if row["target"] is None else _partitions(row["target"]),
    )


def _partitions(rows: list[list[Any]]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(TopicName(topic), number) for topic, number in rows)


def _failed(rows: list[list[Any]]) -> str:
    shown = "; ".join(f"{topic}-{number}: {text}" for topic, number, _, text in rows[:5])
    return shown + (f"; and {len(rows) - 5} more" if len(rows) > 5 else "")


def _error(reply: Mapping[str, str]) -> KcrError:
    """Return the error that the child raised."""
    kinds: dict[str, type[KcrError]] = {
        kind.__name__: kind for kind in (BrokerUnavailable, ConfigurationError, errors.CredentialsRefused)
    }
    return kinds.get(reply["failure"], KcrError)(reply["message"])


# A long-lived child process that answers JSON lines: started when needed, again if it died, gone with its owner.
#
# No wait is without a deadline, whatever state the child is in: one that is stopped (SIGSTOP) reads nothing, so a
# request beyond the 64 KiB of a pipe would keep its writer for ever.

START_WITHIN: Final = 20.0
"""Seconds until the child answers its first line: an interpreter and the client library on a busy machine."""

END_WITHIN: Final = 2.0
"""Seconds that the child has to end by itself; then it is killed, and has as many again."""

_TAIL: Final = 300
_PIECE: Final = 65_536


class ChildDied(BrokerUnavailable):
    """The child ended before it answered; what it was doing may have been done."""


class Child:
    """One child process; used by one thread at a time.

    Args:
        module: run as `python -m`.
        first: the first line, where secrets belong: arguments and environment are seen by others.
    """

    def __init__(self, module: str, first: dict[str, Any]) -> None:
        self._module = module
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the child
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # The package may be importable in this process only (a submitted zip file).
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            # Ctrl-C at a terminal is for its owner, who then closes it.
            start_new_session=True,
            # Unbuffered: what a buffer still holds would be written by `close`, without a deadline.
            bufsize=0,
        )
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
        self._read = b""
        try:
            reply = self.ask(first, START_WITHIN)
            if "ready" not in reply:
                raise ServiceFailed(f"the process for group calls does not start: {reply.get('message', reply)}")
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def ask(self, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send one line and return the answer to it.

        Args:
            message: the line, of any length.
            seconds: for sending it and for the answer, together.

        Raises:
            ChildDied: it ended, by itself or because it did not read or answer in time.
        """
        until = time.monotonic() + seconds
        try:
            self._send(json.dumps(message).encode() + b"\n", until)
            line = self._line(until)
        except TimeoutError:
            self._process.kill()
            raise ChildDied(f"the process for group calls did not answer within {seconds:.1f} s") from None
        except (BrokenPipeError, ValueError):
            line = b""
        if not line:
            raise ChildDied(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End it: first by the end of its input, then by force; one that does not go even then is left behind."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(END_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_WITHIN)
        self._errors.close()

    def _send(self, line: bytes, until: float) -> None:
        """Write all of a line.

        Raises:
            TimeoutError: the child did not read it in time.
            BrokenPipeError, ValueError: the child, or this end of the pipe, is closed.
        """
        pipe = _pipe(self._process.stdin)
        left = memoryview(line)
        while left:
            _wait(pipe, selectors.EVENT_WRITE, until)
            with suppress(BlockingIOError):
                left = left[os.write(pipe.fileno(), left[:_PIECE]) :]

    def _line(self, until: float) -> bytes:
        """Return the next line; empty where the child ended.

        Raises:
            TimeoutError: there was none in time.
        """
        pipe = _pipe(self._process.stdout)
        while b"\n" not in self._read:
            _wait(pipe, selectors.EVENT_READ, until)
            more = os.read(pipe.fileno(), _PIECE)
            if not more:
                return b""
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _last_words(self) -> str:
        try:
            status = self._process.wait(END_WITHIN)
        except subprocess.TimeoutExpired:
            return "the process for group calls has closed its pipes"
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _TAIL))
        said = self._errors.read().decode(errors="replace").strip()
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        return f"the process for group calls ended {how}" + (f": {said}" if said else "")


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise BrokenPipeError
    return pipe


def _wait(pipe: IO[bytes], event: int, until: float) -> None:
    """Return when the pipe can be read or written.

    Raises:
        TimeoutError: it could not, until then.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, event)
        if not selector.select(max(0.0, until - time.monotonic())):
            raise TimeoutError
