"""What an error of the Kafka client means, and questions to an admin client, retried under one deadline.

The client's own `retriable()` and `fatal()` are False on nearly everything that was ever seen, so they are not asked.

An admin client is asked by several threads at once; that it can bear, unlike a consumer. It reports an unreachable
broker or a refused login only to its error callback, and only while it is polled, so waiting here polls it.
"""

# ruff: noqa: SLF001 - the client marks the codes of its own errors with an underscore; they are part of its interface

from __future__ import annotations

import logging
import queue
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from confluent_kafka import KafkaError, KafkaException

from airflow_kcr.errors import BrokerUnavailable, CredentialsRefused, KcrError
from airflow_kcr.kafka.settings import bootstrap_servers, make_admin, without_secrets
from airflow_kcr.settings import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


# Errors


class Kind(StrEnum):
    """What can be done about an error."""

    RETRIABLE = "retriable"
    """It may heal by itself; what was asked may or may not have been done."""

    REJOIN = "rejoin"
    """The member is not in the group's present generation: nothing was done, and only the next assignment helps."""

    STALE = "stale"
    """The member's epoch was an old one: nothing was done. It learns the new one with its next heartbeat."""

    FENCED = "fenced"
    """Another process has this member's place, and the client is lost for good."""

    REFUSED = "refused"
    """Kafka does not know the client, or does not let it do this."""

    ABSENT = "absent"
    """There is no such topic or partition."""

    FINAL = "final"
    """The request is wrong; asking again gives the same answer."""


_CODES: Final[Mapping[Kind, tuple[int, ...]]] = {
    Kind.RETRIABLE: (
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
        KafkaError._WAIT_CACHE,
        KafkaError._RETRY,
        KafkaError._IN_PROGRESS,
        KafkaError._PREV_IN_PROGRESS,
        KafkaError._UNKNOWN_BROKER,
        KafkaError._NODE_UPDATE,
        KafkaError._DESTROY_BROKER,
        KafkaError._OUTDATED,
        KafkaError._INTR,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.LISTENER_NOT_FOUND,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_CONTROLLER,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
        KafkaError.REBOOTSTRAP_REQUIRED,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    ),
    Kind.REJOIN: (
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.MEMBER_ID_REQUIRED,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError._ASSIGNMENT_LOST,
    ),
    Kind.STALE: (KafkaError.STALE_MEMBER_EPOCH,),
    Kind.FENCED: (
        KafkaError._FATAL,
        KafkaError._FENCED,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.UNRELEASED_INSTANCE_ID,
    ),
    Kind.REFUSED: (
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
        KafkaError.SECURITY_DISABLED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        KafkaError.DELEGATION_TOKEN_EXPIRED,
    ),
    Kind.ABSENT: (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._NOENT,
    ),
}
_KINDS: Final[Mapping[int, Kind]] = {code: kind for kind, codes in _CODES.items() for code in codes}

IMPOSTER: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED})
"""The client is not let in at all; other refusals are about one thing that it wanted to do."""


_LACKING: Final = "OAUTHBEARER token"
_NO_CLIENT: Final = re.compile(
    r"\b(invalid_(?:request|client|grant|scope)|unauthorized_client|unsupported_grant_type|access_denied)\b"
)
"""What an OAuth server answers a client that it gives no token (RFC 6749, 5.2)."""


def is_about_token(error: KafkaError) -> bool:
    """Whether the client got no OAuth token; only its text tells this from a broker's refusal."""
    return error.code() == KafkaError._AUTHENTICATION and _LACKING in error.str()


def is_token_refused(error: KafkaError) -> bool:
    """Whether the token endpoint answered, and gives this client none; else it is away, or broken."""
    return is_about_token(error) and _NO_CLIENT.search(error.str()) is not None


def kind(error: KafkaError) -> Kind:
    """Return what can be done about an error; a code that is not known here is final."""
    return _KINDS.get(error.code(), Kind.FINAL)


def of(exception: KafkaException) -> KafkaError:
    """Return the error that an exception carries."""
    error = exception.args[0] if exception.args else None
    return error if isinstance(error, KafkaError) else KafkaError(KafkaError.UNKNOWN, str(exception))


def told(error: KafkaError, hide: Callable[[str], str] = str) -> str:
    """Return an error as text: Kafka's name for it, by which it is found in other people's documents, and its reason.

    Args:
        error: what the client reported.
        hide: takes secrets out of a text.
    """
    return f"{error.name()} ({hide(error.str())})"


# Admin calls

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

    def reopen(self, keys: Iterable[K]) -> None:
        """Make keys that failed open again."""
        for key in keys:
            del self.failed[key]
            self.open.append(key)


class AdminCalls:
    """An admin client whose calls are answered, or fail with an error for the reader, within a deadline.

    Args:
        settings: from `settings.admin_settings`.
        timeout: for each call.

    Raises:
        ConfigurationError: the client doesn't take the settings.
    """

    def __init__(self, settings: KafkaSettings, timeout: timedelta) -> None:
        self._settings, self.timeout = settings, timeout
        # What the client calls back knows nothing of its owner: in a ring, only garbage collection would end them.
        self._notes = _Notes()
        self._held = HeldClient(make_admin(settings, self._notes.note))
        self._kept = in_our_thread(self, self._held)

    def close(self) -> None:
        """Let the client go; it has nothing to say good-bye to."""
        self._kept.detach()
        self._held.client = None

    def answer(self, *questions: BrokerQuestion[Any, Any], timeout: timedelta | None = None) -> None:
        """Ask until every key is answered.

        Args:
            questions: asked side by side.
            timeout: another one than this client's.

        Raises:
            BrokerUnavailable: not all was answered in time; the message says what was tried, and why it failed.
            CredentialsRefused: the client is not let in, or may not do this.
        """
        patience = _Patience(timeout or self.timeout)
        self._begin(questions[0].what)
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

    def answer_once(self, question: BrokerQuestion[Any, Any], timeout: timedelta) -> None:
        """Ask without asking again: for what changes something.

        Raises:
            BrokerUnavailable: no answer came; it may have been done.
            CredentialsRefused: as for `answer`.
        """
        patience = _Patience(timeout, first_attempt=timeout.total_seconds())
        self._begin(question.what)
        trouble = self._attempt((question,), patience)
        if trouble is not None:
            raise self._unavailable(patience, *trouble, "; it may have been done all the same, read what became of it")

    def blocking(self, what: str, call: Callable[[AdminClient, float], T]) -> T:
        """Make a call that only exists in a form that blocks.

        Args:
            what: for messages.
            call: given the seconds that it may take.

        Raises:
            BrokerUnavailable, CredentialsRefused: as for `answer`.
            KcrError: an error that does not heal.
        """
        patience = _Patience(self.timeout)
        self._begin(what)
        while True:
            try:
                found = call(self._client(what), patience.next_attempt())
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
                    raise KcrError(f"{what}: {self.told(error)}")

    def told(self, error: KafkaError) -> str:
        """Return an error as text without secrets."""
        return told(error, lambda text: without_secrets(text, self._settings))

    def refused(self, what: str, error: KafkaError) -> CredentialsRefused:
        """Return the error for a refusal: not let in, or not allowed to do this."""
        servers = bootstrap_servers(self._settings)
        if error.code() in IMPOSTER:
            return CredentialsRefused(
                f"the brokers at {servers} do not let the client in: {self.told(error)}; "
                "check security.protocol and the sasl and ssl settings"
            )
        return CredentialsRefused(f"the brokers at {servers} do not allow {what}: {self.told(error)}; grant that right")

    # No frame that raises keeps the client in a variable: the traceback would hold it (`HeldClient`).

    def _client(self, what: str) -> AdminClient:
        admin = self._held.client  # read once: another thread may close it
        if admin is None:
            raise BrokerUnavailable(f"{what}: the admin client was closed")
        return admin

    def _begin(self, what: str) -> None:
        # What it has to say of its connections before this call is old.
        self._client(what).poll(0)
        self._notes.clear()

    def _attempt(
        self, questions: Sequence[BrokerQuestion[Any, Any]], patience: _Patience
    ) -> tuple[str, KafkaError] | None:
        """Ask for what is open, and wait; return what may heal, or raise for a refusal."""
        seconds, what = patience.next_attempt(), questions[0].what
        sent = [future for question in questions for future in question.send(self._client(what), seconds)]
        self._wait(sent, patience, what)
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
                self._client(what).poll(0)
                refusal = self._notes.refusal
                if refusal is not None:
                    raise self.refused(what, refusal)

    def _pause(self, patience: _Patience, what: str, error: KafkaError) -> None:
        """Wait before the next attempt, serving the client; give up if no time is left for one."""
        self._client(what).poll(patience.next_pause())
        refusal = self._notes.refusal or self._notes.token_refusal
        if refusal is not None:
            raise self.refused(what, refusal)
        if patience.left <= 0:
            raise self._unavailable(patience, what, error)

    def _renew(self, patience: _Patience) -> None:
        """Have the client refresh the leaders: by itself it keeps asking the ones it knows."""
        try:
            self._client("the topics").list_topics(timeout=min(RENEWAL, patience.left))
        except KafkaException as exception:
            # The next attempt reports the same itself; this is for readers who wonder how often.
            _log.debug("The picture of the cluster was not renewed: %s", self.told(of(exception)))

    def _unavailable(self, patience: _Patience, what: str, error: KafkaError, then: str = "") -> BrokerUnavailable:
        why = self._notes.token or self._notes.newest or error
        return BrokerUnavailable(
            f"no answer for {what}: tried {bootstrap_servers(self._settings)} for {patience.seconds:.1f} s; "
            f"{self.told(why)}{then}"
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


# Admin clients are let go in a thread of ours, never in one of the client library.
#
# The library ends the whole process when a client is destroyed in that client's own thread. It calls back into Python
# there with the answers to earlier requests; so Python may collect its garbage there, and the garbage may contain the
# very client: one that was dropped with a request open, by a frame that an exception's traceback still holds.


@dataclass(slots=True)
class HeldClient:
    """An owner's only reference to its client: the thread that empties it destroys the client."""

    client: AdminClient | None


_DROPPED: Final[queue.SimpleQueue[HeldClient]] = queue.SimpleQueue()
_lock: Final = threading.Lock()
_threads: Final[list[threading.Thread]] = []
"""The thread that lets go, once it is needed; one that did not survive a fork is replaced."""


def in_our_thread(owner: object, held: HeldClient) -> weakref.finalize[[HeldClient], object]:
    """Keep a client until its owner is gone, and destroy it in a thread of ours then.

    The collecting thread still has what it collects when our thread gets it, hence a `HeldClient`: the client itself
    would be destroyed by whichever of the two is the last to let go.

    Args:
        owner: has the client in `held`; no other reference may exist, not even for the time of a call that can raise.
        held: the client.

    Returns:
        What to `detach` before the owner lets the client go itself.
    """
    with _lock:
        if not _threads or not _threads[-1].is_alive():
            thread = threading.Thread(target=_let_go, name="Kafka admin clients", daemon=True)
            thread.start()
            _threads[:] = [thread]
    kept = weakref.finalize(owner, _DROPPED.put, held)
    # A process that ends takes its clients with it.
    kept.atexit = False
    return kept


def _let_go() -> None:
    while True:
        _DROPPED.get().client = None
