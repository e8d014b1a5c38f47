"""Admin calls to brokers, made in a child process: none is made where members live.

librdkafka can end the whole process of an admin client around an outage of a broker, by an assertion
(`rd_kafka_admin_response_parse`, and in calls that go to a group's coordinator: known and open upstream, librdkafka
issue 4605). Calls that describe topics leave memory behind (`TOPICS`). So an admin client lives in a child where
nothing else does (`admin_child`), which is started anew when it died, and now and then. No other module makes one:
`tests/unit/test_layering.py` and import-linter see to it.
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
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import IO, Any, Final, Self, TypeAlias

from airflow_kcr.errors import BrokerUnavailable, ConfigurationError, CredentialsRefused, KcrError
from airflow_kcr.kafka.settings import bootstrap_servers, without_secrets
from airflow_kcr.settings import KafkaSettings

Json: TypeAlias = dict[str, Any]

TIMEOUT: Final = timedelta(seconds=10)
GRACE: Final = 2.0
"""Seconds after its own deadline that the child may take to say so."""

MODULE: Final = "airflow_kcr.kafka.admin_child"

EARLIEST: Final = -2
LATEST: Final = -1
"""What Kafka's protocol has in place of a time for the two ends of a log."""

NO_RECORD: Final = -1
"""The offset of "no record at or after that time"; any other negative one is no answer at all."""

TOPICS: Final = 100_000
"""Topics that one child describes: confluent-kafka (2.16.1) never lets go of the id of any, some 100 bytes each."""

_DESCRIBE_TOPICS: Final = frozenset({"topics", "unreadable"})


class AdminProcess:
    """Admin calls to one cluster, made in a child process; any thread may ask, also while others wait for an answer.

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
        """End the child; calls that it does not answer soon are refused."""
        self._closed = True
        with self._lock:
            self._drop()

    def read(self, call: str, within: timedelta | None = None, **arguments: Any) -> Json:  # noqa: ANN401 - JSON
        """Make a call that changes nothing: again, once, if the child died of it.

        Args:
            call: one of `admin_child.CALLS`.
            within: another timeout than this process's.
            arguments: those of its `Request`.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
            ConfigurationError: the client doesn't take the settings.
        """
        try:
            return self.change(call, within, **arguments)
        except ChildDied:
            return self.change(call, within, **arguments)

    def change(self, call: str, within: timedelta | None = None, **arguments: Any) -> Json:  # noqa: ANN401 - JSON
        """Make a call once, as `read` does.

        Raises:
            ChildDied: it may have been done.
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
            ConfigurationError: the client doesn't take the settings.
        """
        seconds = (within or self.timeout).total_seconds()
        child = self._ready(call, seconds)
        try:
            reply = child.ask({"call": call, "timeout": seconds, **arguments}, seconds + GRACE)
        except ChildDied as died:
            with self._lock:
                if self._child is child:
                    self._drop()
            what = f"{bootstrap_servers(self.settings)}, {call}: {died.message}"
            raise ChildDied(without_secrets(what, self.settings)) from None
        if call in _DESCRIBE_TOPICS:
            self._count(child, len(arguments["rows"]))
        answer: Json = _answer(reply)
        return answer

    def _ready(self, call: str, seconds: float) -> Child:
        if not self._lock.acquire(timeout=seconds):
            raise BrokerUnavailable(
                f"{bootstrap_servers(self.settings)}, {call}: not asked, as the process for admin calls is not there "
                f"after {seconds:.1f} s"
            )
        try:
            if self._closed:
                raise BrokerUnavailable("admin calls: closed")
            if self._child is not None and not self._child.alive:
                self._drop()
            if self._child is None:
                self._child = Child(MODULE, {"settings": dict(self.settings)})
            return self._child
        finally:
            self._lock.release()

    def _count(self, child: Child, topics: int) -> None:
        with self._lock:
            if self._child is child:
                self._described += topics
                if self._described >= self._topics:
                    self._drop()

    def _drop(self) -> None:
        child, self._child, self._described = self._child, None, 0
        if child is not None:
            child.close()


def _answer(reply: Json) -> Json:
    """Return what the child answers, or raise the error that it raised."""
    if "failure" in reply:
        kinds = {kind.__name__: kind for kind in (BrokerUnavailable, ConfigurationError, CredentialsRefused)}
        raise kinds.get(reply["failure"], KcrError)(reply["message"])
    answer: Json = reply["answer"]
    return answer


# A long-lived child process that answers JSON lines: started when needed, again if it died, gone with its owner.
#
# Any thread sends its request and waits for the answer with its number, which one thread reads for all. No wait is
# without a deadline, whatever state the child is in: one that is stopped (SIGSTOP) reads nothing, so a request beyond
# the 64 KiB of a pipe would keep its writer for ever.

START_WITHIN: Final = 20.0
"""Seconds until the child answers its first line: an interpreter and the client library on a busy machine."""

END_WITHIN: Final = 2.0
"""Seconds that the child has to end by itself; then it is killed, and has as many again."""

_TAIL: Final = 300
_PIECE: Final = 65_536


class ChildDied(BrokerUnavailable):
    """The child ended before it answered; what it was doing may have been done."""


class Child:
    """One child process; any thread may ask.

    Args:
        module: run as `python -m`.
        first: the first line, where secrets belong: arguments and environment are seen by others.

    Raises:
        ChildDied: it could not be started.
        ConfigurationError: it doesn't take the first line.
    """

    def __init__(self, module: str, first: Json) -> None:
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
        os.set_blocking(_pipe(self._process.stdin).fileno(), False)
        self._sending, self._lock, self._numbers = threading.Lock(), threading.Lock(), count()
        self._waiting: dict[int, Future[Json]] = {}
        self._end: str | None = None
        """Why no more answers come, once that is so."""
        self._reader = threading.Thread(target=self._read, name="Kafka admin answers", daemon=True)
        self._reader.start()
        try:
            _answer(self.ask(first, START_WITHIN))
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs, and answers."""
        return self._end is None and self._process.poll() is None

    def ask(self, message: Json, seconds: float) -> Json:
        """Send one line and return the answer to it.

        Args:
            message: the line, of any length.
            seconds: for sending it and for the answer, together.

        Raises:
            ChildDied: it ended, by itself or because it did not read or answer one that asks in time.
        """
        until, answer = time.monotonic() + seconds, Future[Json]()
        with self._lock:
            if self._end is not None:
                raise ChildDied(self._end)
            number = next(self._numbers)
            self._waiting[number] = answer
        try:
            with suppress(BrokenPipeError, ValueError):  # it ended: its reader says how
                self._send(json.dumps({"number": number, **message}).encode() + b"\n", until)
            return answer.result(max(0.0, until - time.monotonic()))
        except TimeoutError:
            self._process.kill()
            raise ChildDied(f"the process for admin calls did not answer within {seconds:.1f} s") from None
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def close(self) -> None:
        """End it: first by the end of its input, then by force; one that does not go even then is left behind."""
        if self._sending.acquire(timeout=END_WITHIN):
            _pipe(self._process.stdin).close()
            self._sending.release()
        try:
            self._process.wait(END_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_WITHIN)
        self._reader.join(END_WITHIN)

    def _send(self, line: bytes, until: float) -> None:
        """Write all of a line, after those of other threads.

        Raises:
            TimeoutError: the child did not read it in time.
            BrokenPipeError, ValueError: the child, or this end of the pipe, is closed.
        """
        if not self._sending.acquire(timeout=max(0.0, until - time.monotonic())):
            raise TimeoutError
        try:
            pipe = _pipe(self._process.stdin)
            left = memoryview(line)
            while left:
                _wait(pipe, until)
                with suppress(BlockingIOError):
                    left = left[os.write(pipe.fileno(), left[:_PIECE]) :]
        finally:
            self._sending.release()

    def _read(self) -> None:
        """Hand out answers until the child ends, and then say so to all who still wait."""
        with self._errors, _pipe(self._process.stdout) as pipe, open(pipe.fileno(), "rb", closefd=False) as lines:
            for line in lines:
                reply = json.loads(line)
                with self._lock:
                    answer = self._waiting.pop(reply["number"], None)
                if answer is not None:
                    answer.set_result(reply)
            end = self._last_words()
        with self._lock:
            self._end, waiting = end, self._waiting
            self._waiting = {}
        for answer in waiting.values():
            answer.set_exception(ChildDied(end))

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


def _wait(pipe: IO[bytes], until: float) -> None:
    """Return when the pipe takes more.

    Raises:
        TimeoutError: it did not, until then.
    """
    # Of all selectors the one without a file of its own.
    with selectors.PollSelector() as selector:
        selector.register(pipe, selectors.EVENT_WRITE)
        if not selector.select(max(0.0, until - time.monotonic())):
            raise TimeoutError
