"""Admin calls that a long-lived process can't bear, and the child process that makes them.

Calls that go to a group's coordinator can end a whole process around an outage of its broker (an assertion of the
client library, known and open upstream: librdkafka issue 4605). Calls that describe topics leave memory behind
(`TOPICS`). So both are made in a child where nothing else lives, and which is started anew now and then.

The first half of this module is the caller's, the second the child's. JSON lines go in, JSON lines come out. The first
line has the client settings, which therefore are never seen in arguments or the environment; every other line is one
request, answered by one line. The end of standard input ends the child.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import IO, TYPE_CHECKING, Any, Final, Self, TypeAlias

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaException,
    Node,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AclOperation, ConfigResource, ResourceType

from airflow_kcr.errors import BrokerUnavailable, ConfigurationError, CredentialsRefused, KcrError, ServiceFailed
from airflow_kcr.kafka.calls import AdminCalls, BrokerQuestion, Kind, kind, told
from airflow_kcr.kafka.settings import bootstrap_servers, without_secrets
from airflow_kcr.protocol.observations import SHARE_OR_STREAMS
from airflow_kcr.protocol.timeouts import HEARTBEAT, SESSION
from airflow_kcr.settings import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka.admin import (
        AdminClient,
        ConfigEntry,
        ConsumerGroupDescription,
        TopicDescription,
    )

Json: TypeAlias = dict[str, Any]

TIMEOUT: Final = timedelta(seconds=10)
GRACE: Final = 2.0
"""Seconds after its own deadline that the child may take to say so."""

MODULE: Final = "airflow_kcr.kafka.admin_process"

TOPICS: Final = 100_000
"""Topics that one child describes: confluent-kafka (2.16.1) never lets go of the id of any, some 100 bytes each."""

_DESCRIBE_TOPICS: Final = frozenset({"topics", "unreadable"})


class AdminProcess:
    """Admin calls to one cluster, made in a child process; any thread may ask, one question at a time.

    The child is started with the first question, and again if it died, or after so many topics.

    Args:
        settings: from `settings.admin_settings`.
        timeout: for each call.
        topics: that one child may describe.
    """

    def __init__(self, settings: KafkaSettings, timeout: timedelta = TIMEOUT, *, topics: int = TOPICS) -> None:
        self.settings, self.timeout = settings, timeout
        self._topics, self._described = topics, 0
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
        """End the child, once the call that it makes is over; calls that wait for it are refused."""
        self._closed = True
        with self._lock:
            self._drop()

    def read(self, call: str, **arguments: Any) -> Json:  # noqa: ANN401 - JSON
        """Make a call that changes nothing: again, once, if the child died of it.

        Args:
            call: one of `CALLS`.
            arguments: those of its `Request`.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        try:
            return self.change(call, **arguments)
        except ChildDied:
            return self.change(call, **arguments)

    def change(self, call: str, **arguments: Any) -> Json:  # noqa: ANN401 - JSON
        """Make a call once, as `read` does.

        Raises:
            ChildDied: it may have been done.
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse; or others' calls took too long.
        """
        seconds = self.timeout.total_seconds()
        with self._turn(call, seconds):
            child = self._ready()
            try:
                reply = child.ask({"call": call, "timeout": seconds, **arguments}, seconds + GRACE)
            except ChildDied as died:
                self._drop()
                what = f"{bootstrap_servers(self.settings)}, {call}: {died.message}"
                raise ChildDied(without_secrets(what, self.settings)) from None
            self._described += len(arguments["rows"]) if call in _DESCRIBE_TOPICS else 0
            if self._described >= self._topics:
                self._drop()
        if "failure" in reply:
            raise _error(reply)
        answer: Json = reply["answer"]
        return answer

    @contextmanager
    def _turn(self, call: str, seconds: float) -> Iterator[None]:
        if not self._lock.acquire(timeout=seconds):
            raise BrokerUnavailable(
                f"{bootstrap_servers(self.settings)}, {call}: not asked, as calls before it have no answer "
                f"after {seconds:.1f} s"
            )
        try:
            yield
        finally:
            self._lock.release()

    def _ready(self) -> Child:
        if self._closed:
            raise BrokerUnavailable("admin calls: closed")
        if self._child is not None and not self._child.alive:
            self._drop()
        if self._child is None:
            self._child = Child(MODULE, {"settings": dict(self.settings)})
        return self._child

    def _drop(self) -> None:
        child, self._child, self._described = self._child, None, 0
        if child is not None:
            child.close()


def _error(reply: Mapping[str, str]) -> KcrError:
    """Return the error that the child raised."""
    kinds: dict[str, type[KcrError]] = {
        kind.__name__: kind for kind in (BrokerUnavailable, ConfigurationError, CredentialsRefused)
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
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the child
        try:
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
        except OSError as error:
            # Too many processes, too little memory: it may heal.
            self._errors.close()
            raise ChildDied(f"the process for admin calls can't be started: {error}") from None
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
        self._read = b""
        try:
            reply = self.ask(first, START_WITHIN)
            if "ready" not in reply:
                raise ServiceFailed(f"the process for admin calls does not start: {reply.get('message', reply)}")
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
            raise ChildDied(f"the process for admin calls did not answer within {seconds:.1f} s") from None
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
            return "the process for admin calls has closed its pipes"
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _TAIL))
        said = self._errors.read().decode(errors="replace").strip()
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        return f"the process for admin calls ended {how}" + (f": {said}" if said else "")


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise BrokenPipeError
    return pipe


def _wait(pipe: IO[bytes], event: int, until: float) -> None:
    """Return when the pipe can be read or written.

    Raises:
        TimeoutError: it could not, until then.
    """
    # Of all selectors the one without a file of its own.
    with selectors.PollSelector() as selector:
        selector.register(pipe, event)
        if not selector.select(max(0.0, until - time.monotonic())):
            raise TimeoutError


# The child.


@dataclass(frozen=True, slots=True)
class Request:
    """One line of standard input."""

    call: str
    group: str
    rows: tuple[tuple[str, int, int], ...]
    """Topic, partition, offset."""

    metadata: str
    timeout: timedelta


LISTED_WITHIN: Final = 2.0
"""Seconds for the list of groups, which waits for every broker, also for one that is down."""


def describe(calls: AdminCalls, request: Request) -> Json:
    """Say how the coordinator sees the group; one that does not exist is `dead`."""
    found = _described(calls, request)
    kind, state = found.type.name.lower(), found.state.name.lower()
    # To the client a share or streams group is as dead as one that doesn't exist, but only the former is listed. It is
    # described again, as a consumer may have made the group in between.
    if found.state is ConsumerGroupState.DEAD and _is_listed(calls, request.group):
        found = _described(calls, request)
        if found.state is ConsumerGroupState.DEAD:
            kind, state = SHARE_OR_STREAMS, "unknown"
    # The client has no word for the two states in which a target is being made or acknowledged.
    elif found.type is ConsumerGroupType.CONSUMER and found.state is ConsumerGroupState.UNKNOWN:
        state = "reconciling"
    coordinator: Node | None = found.coordinator
    return {
        "state": state,
        "type": kind,
        "assignor": found.partition_assignor or "",
        "coordinator": "" if coordinator is None else f"{coordinator.host}:{coordinator.port}",
        "coordinator_id": None if coordinator is None else coordinator.id,
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.host,
                "instance_id": member.group_instance_id,
                "partitions": [[p.topic, p.partition] for p in member.assignment.topic_partitions],
                "target": None
                if member.target_assignment is None
                else [[p.topic, p.partition] for p in member.target_assignment.topic_partitions],
            }
            for member in found.members
        ],
    }


def _described(calls: AdminCalls, request: Request) -> ConsumerGroupDescription:
    def ask(admin: AdminClient, groups: list[str], left: float) -> Mapping[str, Future[ConsumerGroupDescription]]:
        return dict(admin.describe_consumer_groups(groups, request_timeout=left))

    found: ConsumerGroupDescription = _only(
        calls, request, BrokerQuestion("the description of group", [request.group], ask)
    )
    return found


def _is_listed(calls: AdminCalls, group: str) -> bool:
    """Whether a broker lists the group, of whatever type; no answer is no."""

    def ask(admin: AdminClient, left: float) -> bool:
        with warnings.catch_warnings():
            # What is to be used instead lists no group of another type.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                return any(row.error is None for row in admin.list_groups(group, timeout=min(left, LISTED_WITHIN)))
            except KafkaException:
                # A broker is down. That a consumer can't join is then only seen when it tries.
                return False

    return calls.blocking(f"the list of group {group}", ask)


def committed(calls: AdminCalls, request: Request) -> Json:
    """Say what is committed: of all partitions if none are named."""

    def ask(admin: AdminClient, groups: list[str], left: float) -> Mapping[str, Future[ConsumerGroupTopicPartitions]]:
        rows = [TopicPartition(topic, partition) for topic, partition, _ in request.rows] or None
        return dict(
            admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, rows) for group in groups], request_timeout=left
            )
        )

    return _rows(_only(calls, request, BrokerQuestion("the committed offsets of group", [request.group], ask)))


def alter(calls: AdminCalls, request: Request) -> Json:
    """Write offsets; the errors of single partitions come back with them. Asked once: it may have been done."""

    def ask(admin: AdminClient, groups: list[str], left: float) -> Mapping[str, Future[ConsumerGroupTopicPartitions]]:
        rows = [TopicPartition(t, p, o, metadata=request.metadata) for t, p, o in request.rows]
        return dict(
            admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, rows) for group in groups], request_timeout=left
            )
        )

    question = BrokerQuestion("altering the offsets of group", [request.group], ask)
    calls.answer_once(question, request.timeout)
    return _rows(_first(calls, question))


_LIMITS: Final = ("group.min.session.timeout.ms", "group.max.session.timeout.ms")
_CONSUMER: Final = (SESSION, HEARTBEAT)
_PROTOCOLS: Final = "group.coordinator.rebalance.protocols"
_MIGRATION: Final = "group.consumer.migration.policy"


def times(calls: AdminCalls, request: Request) -> Json:
    """Say which times the brokers set for the group, which rebalance protocols they speak, and which they convert.

    Null: they don't tell this client, or have no such setting.
    """
    (_, number, _), *_ = request.rows
    broker = _configured(calls, request, ConfigResource(ResourceType.BROKER, str(number)))
    group = _configured(calls, request, ConfigResource(ResourceType.GROUP, request.group))
    return {
        "limits": _milliseconds(broker, _LIMITS),
        "consumer": _milliseconds(group, _CONSUMER),
        "protocols": broker[_PROTOCOLS].split(",") if _PROTOCOLS in broker else None,
        "migration": broker.get(_MIGRATION, "").lower() or None,
    }


def _configured(calls: AdminCalls, request: Request, resource: ConfigResource) -> dict[str, str]:
    """Return the settings that this client may read."""

    def ask(
        admin: AdminClient, keys: list[ConfigResource], left: float
    ) -> Mapping[ConfigResource, Future[dict[str, ConfigEntry]]]:
        return dict(admin.describe_configs(keys, request_timeout=left))

    question = BrokerQuestion("the settings of", [resource], ask)
    try:
        calls.answer(question, timeout=request.timeout)
    except CredentialsRefused:
        # Nothing depends on it: a member is told by the broker when it joins.
        return {}
    return {name: entry.value for name, entry in question.found.get(resource, {}).items() if entry.value}


def _milliseconds(settings: Mapping[str, str], names: tuple[str, ...]) -> list[int] | None:
    return [int(settings[name]) for name in names] if settings.keys() >= set(names) else None


def unreadable(calls: AdminCalls, request: Request) -> Json:
    """Say which of the group and the topics named this client may describe, and not read."""

    def ask_group(admin: AdminClient, groups: list[str], left: float) -> Mapping[str, Future[ConsumerGroupDescription]]:
        return dict(admin.describe_consumer_groups(groups, include_authorized_operations=True, request_timeout=left))

    def ask_topics(admin: AdminClient, topics: list[str], left: float) -> Mapping[str, Future[TopicDescription]]:
        named = TopicCollection(topics)
        return dict(admin.describe_topics(named, include_authorized_operations=True, request_timeout=left))

    group = BrokerQuestion("the rights on group", [request.group], ask_group)
    topics = BrokerQuestion("the rights on topic", [topic for topic, _, _ in request.rows], ask_topics)
    calls.answer(group, topics, timeout=request.timeout)
    # A topic that is gone is none that may not be read; neither is what the broker tells no rights of.
    told = {
        **{f"group {name}": found.authorized_operations for name, found in group.found.items()},
        **{f"topic {name}": found.authorized_operations for name, found in topics.found.items()},
    }
    lacking = [name for name, may in told.items() if may and AclOperation.READ not in may]
    return {"unreadable": lacking}


def topics(calls: AdminCalls, request: Request) -> Json:
    """Say which id and how many partitions topics have now; one that is not there is absent."""

    def ask(admin: AdminClient, names: list[str], left: float) -> Mapping[str, Future[TopicDescription]]:
        return dict(admin.describe_topics(TopicCollection(names), request_timeout=left))

    question = BrokerQuestion("topic", [topic for topic, _, _ in request.rows], ask)
    calls.answer(question, timeout=request.timeout)
    for name, error in question.failed.items():
        if kind(error) is not Kind.ABSENT:
            raise KcrError(f"{question.what} {name}: {calls.told(error)}")
    return {name: [str(found.topic_id), len(found.partitions)] for name, found in question.found.items()}


CALLS: Final[Mapping[str, Callable[[AdminCalls, Request], Json]]] = {
    "describe": describe,
    "committed": committed,
    "alter": alter,
    "times": times,
    "topics": topics,
    "unreadable": unreadable,
}


def serve(lines: Iterable[str], answer: Callable[[str], None]) -> None:
    """Answer requests until there are no more.

    Args:
        lines: settings first, then requests.
        answer: takes one line for each request.
    """
    calls: AdminCalls | None = None
    for line in lines:
        try:
            message: Json = json.loads(line)
            if calls is None:
                calls = AdminCalls(KafkaSettings(message["settings"]), timedelta(seconds=10))
                reply: Json = {"ready": True}
            else:
                request = _request(message)
                reply = {"answer": CALLS[request.call](calls, request)}
        except KcrError as error:
            reply = {"failure": type(error).__name__, "message": error.message}
        except (KafkaException, ValueError, TypeError, LookupError) as error:
            # By its kind only: the text might repeat a setting.
            reply = {"failure": "KcrError", "message": f"an admin call could not be made ({type(error).__name__})"}
        answer(json.dumps(reply))


def _request(message: Json) -> Request:
    return Request(
        call=message["call"],
        group=message.get("group", ""),
        rows=tuple((str(t), int(p), int(o)) for t, p, o in message.get("rows", ())),
        metadata=message.get("metadata", ""),
        timeout=timedelta(seconds=message["timeout"]),
    )


def _only(calls: AdminCalls, request: Request, question: BrokerQuestion[str, Any]) -> Any:  # noqa: ANN401 - the question's type
    calls.answer(question, timeout=request.timeout)
    return _first(calls, question)


def _first(calls: AdminCalls, question: BrokerQuestion[str, Any]) -> Any:  # noqa: ANN401 - the question's type
    for key, error in question.failed.items():
        raise KcrError(f"{question.what} {key}: {told(error)}")
    return next(iter(question.found.values()))


def _rows(found: ConsumerGroupTopicPartitions) -> Json:
    rows, failed = [], []
    for row in found.topic_partitions or ():
        if row.error is None:
            rows.append([row.topic, row.partition, row.offset, row.metadata or ""])
        else:
            failed.append([row.topic, row.partition, kind(row.error), told(row.error)])
    return {"rows": rows, "failed": failed}


def main() -> None:
    """Serve standard input."""
    # If the library aborts, a core file would hold the settings.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def answer(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    serve(sys.stdin, answer)


if __name__ == "__main__":
    main()
