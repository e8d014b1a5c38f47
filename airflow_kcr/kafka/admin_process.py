"""Admin calls to brokers, made in a child process: none is made where members live.

librdkafka can end the whole process of an admin client around an outage of a broker, by an assertion
(`rd_kafka_admin_response_parse`, and in calls that go to a group's coordinator: known and open upstream, librdkafka
issue 4605). Calls that describe topics leave memory behind (`TOPICS`). So an admin client lives in a child where
nothing else does (`admin_child`), which is started anew when it died, and now and then. No other module makes one:
`tests/unit/test_layering.py` and import-linter see to it.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from typing import IO, Final, Self, TypeAlias, TypeVar, cast

from airflow_kcr.errors import BrokerUnavailable, KcrError
from airflow_kcr.kafka.settings import bootstrap_servers, without_secrets
from airflow_kcr.settings import KafkaSettings

A = TypeVar("A")

Request: TypeAlias = tuple[int, object, float]
"""Its number, the question (of the first one, the client settings), and the seconds that it may take."""

Answer: TypeAlias = tuple[int, object, KcrError | None]
"""The request's number, what was found, or the error that it met."""

TIMEOUT: Final = timedelta(seconds=10)
GRACE: Final = 2.0
"""Seconds after its own deadline that the child may take to say so."""

MODULE: Final = "airflow_kcr.kafka.admin_child"

TOPICS: Final = 100_000
"""Topics that one child describes: confluent-kafka (2.16.1) never lets go of the id of any, some 100 bytes each."""


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

    def read(self, question: partial[A], within: timedelta | None = None, *, topics: int = 0) -> A:
        """Ask a question that changes nothing: again, once, if the child died of it.

        Args:
            question: a function of `questions`, with its arguments.
            within: another timeout than this process's.
            topics: how many it describes.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
            ConfigurationError: the client doesn't take the settings.
        """
        try:
            return self.change(question, within, topics=topics)
        except ChildDied:
            return self.change(question, within, topics=topics)

    def change(self, question: partial[A], within: timedelta | None = None, *, topics: int = 0) -> A:
        """Ask a question once, as `read` does.

        Raises:
            ChildDied: what it changes may have been done.
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
            ConfigurationError: the client doesn't take the settings.
        """
        seconds, what = (within or self.timeout).total_seconds(), question.func.__name__
        child = self._ready(what, seconds)
        try:
            found = child.ask(question, seconds)
        except ChildDied as died:
            with self._lock:
                if self._child is child:
                    self._drop()
            why = f"{bootstrap_servers(self.settings)}, {what}: {died.message}"
            raise ChildDied(without_secrets(why, self.settings)) from None
        self._count(child, topics)
        return cast("A", found)

    def _ready(self, what: str, seconds: float) -> Child:
        if not self._lock.acquire(timeout=seconds):
            raise BrokerUnavailable(
                f"{bootstrap_servers(self.settings)}, {what}: not asked, as the process for admin calls is not there "
                f"after {seconds:.1f} s"
            )
        try:
            if self._closed:
                raise BrokerUnavailable("admin calls: closed")
            if self._child is not None and not self._child.alive:
                self._drop()
            if self._child is None:
                self._child = Child(self.settings)
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


START_WITHIN: Final = 20.0
"""Seconds until the child answers its first message: an interpreter and the client library on a busy machine."""

END_WITHIN: Final = 2.0
"""Seconds that the child has to end by itself; then it is killed, and has as many again."""

_TAIL: Final = 300


class ChildDied(BrokerUnavailable):
    """The child ended before it answered; what it was doing may have been done."""


class Child:
    """A long-lived child process that answers questions, and is gone with its owner; any thread may ask.

    Each thread sends its question and waits for the answer with its number, which one thread reads for all. No wait is
    without a deadline, whatever state the child is in: one that is stopped (SIGSTOP) reads nothing, so a question
    beyond what a socket holds would keep its sender for ever.

    Args:
        settings: the first message, as they hold secrets: arguments and environment are seen by others.
        module: run as `python -m`, with a socket as its standard input.

    Raises:
        ChildDied: it could not be started.
        ConfigurationError: it doesn't take the settings.
    """

    def __init__(self, settings: KafkaSettings, module: str = MODULE) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the child
        self._socket, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", module],
                stdin=theirs.fileno(),
                stdout=self._errors,
                stderr=self._errors,
                # The package may be importable in this process only (a submitted zip file).
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                # Ctrl-C at a terminal is for its owner, who then closes it.
                start_new_session=True,
            )
        except OSError as error:
            # Too many processes, too little memory: it may heal.
            self._errors.close()
            self._socket.close()
            raise ChildDied(f"the process for admin calls can't be started: {error}") from None
        finally:
            theirs.close()
        self._connection: Connection[Request, Answer] = Connection(os.dup(self._socket.fileno()))
        self._sending, self._lock, self._numbers = threading.Lock(), threading.Lock(), count()
        self._waiting: dict[int, Future[object]] = {}
        self._end: str | None = None
        """Why no more answers come, once that is so."""
        self._reader = threading.Thread(target=self._read, name="Kafka admin answers", daemon=True)
        self._reader.start()
        try:
            self.ask(settings, START_WITHIN, grace=0)
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

    def ask(self, question: object, seconds: float, grace: float = GRACE) -> object:
        """Send a question and return the answer to it.

        Args:
            question: of any size.
            seconds: that the brokers have to answer it.
            grace: further seconds for sending it, and for the child to say so.

        Raises:
            ChildDied: it ended, by itself or because it did not read or answer one that asks in time.
            KcrError: the error that the question met.
        """
        until, answer = time.monotonic() + seconds + grace, Future[object]()
        with self._lock:
            if self._end is not None:
                raise ChildDied(self._end)
            number = next(self._numbers)
            self._waiting[number] = answer
        try:
            with suppress(ConnectionError):  # it ended: its reader says how
                self._send((number, question, seconds), until)
            return answer.result(max(0.0, until - time.monotonic()))
        except TimeoutError:
            self._process.kill()
            raise ChildDied(f"the process for admin calls did not answer within {seconds + grace:.1f} s") from None
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def close(self) -> None:
        """End it: first by the end of its input, then by force; one that does not go even then is left behind."""
        with suppress(OSError):  # it is closed already
            self._socket.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(END_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_WITHIN)
        self._reader.join(END_WITHIN)

    def _send(self, request: Request, until: float) -> None:
        """Send all of a request, after those of other threads.

        Raises:
            TimeoutError: the child did not read it in time.
            ConnectionError: the child, or this end of the socket, is closed.
        """
        if not self._sending.acquire(timeout=max(0.0, until - time.monotonic())):
            raise TimeoutError
        try:
            if self._connection.closed:
                raise ConnectionError
            left = max(1, int(1e6 * (until - time.monotonic())))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", *divmod(left, 1_000_000)))
            self._connection.send(request)
        except BlockingIOError:
            raise TimeoutError from None
        finally:
            self._sending.release()

    def _read(self) -> None:
        """Hand out answers until the child ends, and then say so to all who still wait."""
        try:
            while True:
                number, found, error = self._connection.recv()
                with self._lock:
                    waiting = self._waiting.pop(number, None)
                if waiting is not None and error is not None:
                    waiting.set_exception(error)
                elif waiting is not None:
                    waiting.set_result(found)
        except (EOFError, OSError):
            self._over("")
        except Exception as error:  # noqa: BLE001 - an answer that is none: those who wait can't be told otherwise
            self._process.kill()
            self._over(f"; its answer can't be read ({type(error).__name__})")

    def _over(self, why: str) -> None:
        with self._errors:
            end = self._last_words() + why
        with self._sending:
            self._connection.close()
            self._socket.close()
        with self._lock:
            self._end, left = end, self._waiting
            self._waiting = {}
        for one in left.values():
            one.set_exception(ChildDied(end))

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
