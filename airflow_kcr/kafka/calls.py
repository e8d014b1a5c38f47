"""Questions to an admin client, retried under one deadline.

For the child of `admin_process` alone: librdkafka can end the process of an admin client, with all that it hosts.

An admin client is asked by several threads at once; that it can bear, unlike a consumer. It reports an unreachable
broker or a refused login only to its error callback, and only while it is polled, so waiting here polls it.
"""

# ruff: noqa: SLF001 - the client marks the codes of its own errors with an underscore; they are part of its interface

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from airflow_kcr.errors import BrokerUnavailable, CredentialsRefused, KcrError
from airflow_kcr.kafka.failures import IMPOSTER, Kind, described, is_about_token, is_token_refused, kind, of
from airflow_kcr.kafka.logins import advice
from airflow_kcr.kafka.settings import bootstrap_servers, made
from airflow_kcr.settings import KafkaSettings

K = TypeVar("K")
T = TypeVar("T")

_log = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""Seconds between two attempts at what may heal."""

POLL_PERIOD: Final = 0.05
"""Seconds after which a wait reads what the client says of its connections."""

FIRST_ATTEMPT: Final = 2.0
"""Seconds for the first attempt; each further one has twice as long, as a broker may just be slow. But a request to a
broker that has died since the client last read the metadata gets no answer, however long one waits: while connections
fail, attempts stay short, and go to the present leader."""

RENEWAL: Final = 1.0
"""Seconds that renewing the client's picture of the cluster may take."""


@dataclass(slots=True)
class BrokerQuestion(Generic[K, T]):
    """Something asked for each of several keys; `found` and `failed` hold the answers, each key is in one of them.

    Args:
        what: a few words for messages, such as "offsets of".
        open: the keys.
        ask: sends the question for some keys, given the seconds left.
        is_answer: whether what came back is one. If a leader went away, the client fills in a result that seems
            successful, with an offset that means nothing.
    """

    what: str
    open: list[K]
    ask: Callable[[AdminClient, list[K], float], Mapping[K, Future[T]]]
    is_answer: Callable[[T], bool] = lambda _: True
    found: dict[K, T] = field(default_factory=dict)
    failed: dict[K, KafkaError] = field(default_factory=dict)
    """Keys with an error that does not heal: absent, or final."""

    _asked: dict[K, Future[T]] = field(default_factory=dict)

    def send(self, admin: AdminClient, seconds: float) -> list[Future[T]]:
        """Ask for the keys that are open."""
        self._asked = dict(self.ask(admin, self.open, seconds)) if self.open else {}
        return list(self._asked.values())

    def take(self) -> tuple[K, KafkaError] | None:
        """Sort the answers that have come; return one that may heal, or is a refusal, if there is any."""
        worst: tuple[K, KafkaError] | None = None
        for key, future in self._asked.items():
            if not future.done():
                worst = worst or (key, KafkaError(KafkaError.REQUEST_TIMED_OUT))
                continue
            error = _error(future)
            if error is None and not self.is_answer(future.result()):
                error = KafkaError(KafkaError.NETWORK_EXCEPTION, "the client made up a result without an answer")
            if error is None:
                self.found[key] = future.result()
            elif kind(error) in (Kind.RETRIABLE, Kind.REFUSED):
                worst = (key, error) if worst is None or kind(error) is Kind.REFUSED else worst
            else:
                self.failed[key] = error
        self.open = [key for key in self.open if key not in self.found and key not in self.failed]
        return worst


class AdminCalls:
    """An admin client whose calls are answered, or fail with an error for the reader, within a deadline.

    Args:
        settings: from `settings.admin_settings`.

    Raises:
        ConfigurationError: the client doesn't take the settings, or its named login gets no token.
        BrokerUnavailable: who gives tokens does not answer.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        # What the client calls back knows nothing of its owner: in a ring, only garbage collection would end them.
        self._notes = _Notes()
        self._client = made(AdminClient, settings, self._notes.note)  # type: ignore[arg-type]

    def answer(self, *questions: BrokerQuestion[Any, Any], timeout: timedelta) -> None:
        """Ask until every key is answered.

        Args:
            questions: asked side by side.
            timeout: for all of it.

        Raises:
            BrokerUnavailable: not all was answered in time; the message says what was tried, and why it failed.
            CredentialsRefused: the client is not let in, or may not do this.
        """
        patience = _Patience(timeout)
        self._begin()
        while True:
            trouble = self._attempt(questions, patience)
            if trouble is None:
                self._notes.token = None
                return
            what, error = trouble
            if self._notes.newest is not None:
                patience.stay_short()
            self._pause(patience, what, error)
            self._renew(patience)

    def only(self, question: BrokerQuestion[Any, T], timeout: timedelta) -> T:
        """Ask about one key, and return the answer.

        Raises:
            BrokerUnavailable, CredentialsRefused: as for `answer`.
            KcrError: an error that does not heal.
        """
        self.answer(question, timeout=timeout)
        return self._first(question)

    def once(self, question: BrokerQuestion[Any, T], timeout: timedelta) -> T:
        """Ask about one key without asking again: for what changes something.

        Raises:
            BrokerUnavailable: no answer came; it may have been done.
            CredentialsRefused, KcrError: as for `only`.
        """
        patience = _Patience(timeout, first_attempt=timeout.total_seconds())
        self._begin()
        trouble = self._attempt((question,), patience)
        if trouble is not None:
            raise self._unavailable(patience, *trouble, "; it may have been done all the same, read what became of it")
        return self._first(question)

    def _first(self, question: BrokerQuestion[Any, T]) -> T:
        for key in question.failed:
            raise self.failed(question, key)
        return next(iter(question.found.values()))

    def failed(self, question: BrokerQuestion[K, Any], key: K) -> KcrError:
        """Return the error for a key that failed."""
        return KcrError(f"{question.what} {key}: {described(question.failed[key], self._settings)}")

    def blocking(self, what: str, call: Callable[[AdminClient, float], T], timeout: timedelta) -> T:
        """Make a call that only exists in a form that blocks.

        Args:
            what: for messages.
            call: given the seconds that it may take.
            timeout: for all attempts.

        Raises:
            BrokerUnavailable, CredentialsRefused: as for `answer`.
            KcrError: an error that does not heal.
        """
        patience = _Patience(timeout)
        self._begin()
        while True:
            try:
                found = call(self._client, patience.next_attempt())
            except KafkaException as exception:
                error = of(exception)
            else:
                self._notes.token = None
                return found
            match kind(error):
                case Kind.REFUSED:
                    raise self.refused(what, error)
                case Kind.RETRIABLE:
                    self._pause(patience, what, error)
                case _:
                    raise KcrError(f"{what}: {described(error, self._settings)}")

    def refused(self, what: str, error: KafkaError) -> CredentialsRefused:
        """Return the error for a refusal: not let in, or not allowed to do this."""
        servers = bootstrap_servers(self._settings)
        if error.code() in IMPOSTER:
            return CredentialsRefused(
                f"the brokers at {servers} do not let the client in: {described(error, self._settings)}; "
                f"{advice(self._settings)}"
            )
        return CredentialsRefused(
            f"the brokers at {servers} do not allow {what}: {described(error, self._settings)}; grant that right"
        )

    def _begin(self) -> None:
        # What it has to say of its connections before this call is old.
        self._client.poll(0)
        self._notes.clear()

    def _attempt(
        self, questions: Sequence[BrokerQuestion[Any, Any]], patience: _Patience
    ) -> tuple[str, KafkaError] | None:
        """Ask for what is open, and wait; return what may heal, or raise for a refusal."""
        seconds = patience.next_attempt()
        sent = [future for question in questions for future in question.send(self._client, seconds)]
        self._wait(sent, patience, questions[0].what)
        found: tuple[str, KafkaError] | None = None
        for question in questions:
            worst = question.take()
            if worst is None:
                continue
            key, error = worst
            what = f"{question.what} {_text(key)}"
            if kind(error) is Kind.REFUSED:
                raise self.refused(what, error)
            found = found or (what, error)
        return found

    def _wait(self, sent: list[Future[Any]], patience: _Patience, what: str) -> None:
        waiting = sent
        while waiting and patience.left > 0:
            waiting = list(wait(waiting, min(POLL_PERIOD, patience.left), FIRST_EXCEPTION).not_done)
            if waiting:
                self._client.poll(0)
                refusal = self._notes.refusal
                if refusal is not None:
                    raise self.refused(what, refusal)

    def _pause(self, patience: _Patience, what: str, error: KafkaError) -> None:
        """Wait before the next attempt, serving the client; give up if no time is left for one."""
        self._client.poll(patience.next_pause())
        refusal = self._notes.refusal or self._notes.token_refusal
        if refusal is not None:
            raise self.refused(what, refusal)
        if patience.left <= 0:
            raise self._unavailable(patience, what, error)

    def _renew(self, patience: _Patience) -> None:
        """Have the client refresh the leaders: by itself it keeps asking the ones it knows."""
        try:
            self._client.list_topics(timeout=min(RENEWAL, patience.left))
        except KafkaException as exception:
            # The next attempt reports the same itself; this is for readers who wonder how often.
            _log.debug("The picture of the cluster was not renewed: %s", described(of(exception), self._settings))

    def _unavailable(self, patience: _Patience, what: str, error: KafkaError, then: str = "") -> BrokerUnavailable:
        why = self._notes.token or self._notes.newest or error
        return BrokerUnavailable(
            f"no answer for {what}: tried {bootstrap_servers(self._settings)} for {patience.seconds:.1f} s; "
            f"{described(why, self._settings)}{then}"
        )


class _Notes:
    """What a client said of its connections, which no answer says."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.newest: KafkaError | None = None
        """Replaced as a whole, so any thread may read it."""

        self.token: KafkaError | None = None
        """Why there was no new token, until a call is answered. The client says it once, long before a call perhaps,
        and not that it has got one since; what is connected stays so until the old token's time is over."""

    @property
    def token_refusal(self) -> KafkaError | None:
        """The reason, if the endpoint gives this client none: it counts once an attempt has failed."""
        return self.token if self.token is not None and is_token_refused(self.token) else None

    @property
    def refusal(self) -> KafkaError | None:
        """The newest, if it is a refusal."""
        newest = self.newest
        return newest if newest is not None and kind(newest) is Kind.REFUSED else None

    def clear(self) -> None:
        """Forget it."""
        with self._lock:
            self.newest = None

    def note(self, error: KafkaError) -> None:
        """Note an error; called by the client, in the thread that polls."""
        with self._lock:
            if is_about_token(error):
                self.token = error
                return
            # That all brokers are down follows from the errors of each, which say more; a refusal says most.
            known = self.newest is not None
            if known and (error.code() == KafkaError._ALL_BROKERS_DOWN or self.refusal is not None):
                return
            self.newest = error


class _Patience:
    """What is left of a deadline, and pauses that grow within it."""

    def __init__(self, timeout: timedelta, first_attempt: float = FIRST_ATTEMPT) -> None:
        self.seconds = timeout.total_seconds()
        self._ends_at = time.monotonic() + self.seconds
        self._pause, self._attempt = FIRST_PAUSE, first_attempt

    @property
    def left(self) -> float:
        """Seconds left; never negative."""
        return max(0.0, self._ends_at - time.monotonic())

    def next_attempt(self) -> float:
        """Return how long the next attempt may take."""
        attempt, self._attempt = self._attempt, 2 * self._attempt
        return min(attempt, self.left)

    def stay_short(self) -> None:
        """Give the next attempt no more time than the first had."""
        self._attempt = FIRST_ATTEMPT

    def next_pause(self) -> float:
        """Return the pause before the next attempt."""
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return min(pause, self.left)


def _error(future: Future[Any]) -> KafkaError | None:
    """Return the error of a future that is done; raises what is none of Kafka's."""
    exception = future.exception()
    if isinstance(exception, KafkaException):
        return of(exception)
    if exception is not None:
        raise exception
    return None


def _text(key: object) -> str:
    return "-".join(map(str, key)) if isinstance(key, Iterable) and not isinstance(key, str) else str(key)
