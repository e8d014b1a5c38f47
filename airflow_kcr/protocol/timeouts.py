"""All times of a region in one value, what follows from them, and which of them contradict each other.

The defaults and formulas are those of docs/reference/timeouts.md. These rules are checked together at start, and each
refusal names the two settings that clash:

1. No time is below 10 ms: that is a mistake in the unit, and Postgres reads a timeout of 0 as "none".
2. `max_poll_interval` >= 3 x max(`reset`, `drain`), and not above the client's limit of 24 h.
3. The session timeout lies within the broker's limits, below `reset`, not above `max_poll_interval`, and, with static
   membership, above `relaunch`.
4. Three renewals fit into one `lease`.
5. A dead member's batch is known to be over within one reset attempt: `lease` + `process_end_limit` < `reset`.
6. `batch.timeout` < `drain`, unless `accept_aborted_drain`.
7. `metadata_refresh` is at most what the client takes, 1 h.

`commit`, `publish` and `close` clash with nothing: when they run out, that is an event and the members continue, or the
batch is cancelled.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator


DYNAMIC_SESSION: Final = timedelta(seconds=20)
"""The session timeout of a dynamic member: its partitions should move soon."""

STATIC_SESSION: Final = timedelta(seconds=120)
"""The least session timeout of a static member, where it is derived: a restarted driver needs about that long."""

RELAUNCH_MARGIN: Final = 1.2
"""How much longer than the longest expected relaunch a static member's slot is kept for it."""

POLL_FACTOR: Final = 3
"""How many resets or drains the poll interval holds: a member must not be thrown out while it waits for others."""

LONGEST_STORE_GRACE: Final = timedelta(seconds=30)

LONGEST_RETRY: Final = timedelta(seconds=60)
"""However often a batch has failed: what it needs may be back, and the region should resume soon then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Every time that a region's protocol uses, with the defaults of docs/reference/timeouts.md.

    What a user may leave open is None here; the properties say what then follows.
    """

    lease: timedelta = timedelta(seconds=10)
    """How long a member may write after it sent its last renewal."""

    renew: timedelta = timedelta(seconds=2)
    """How often a lease is renewed."""

    reset: timedelta = timedelta(seconds=300)
    """How long one attempt of a reset may take."""

    drain: timedelta = timedelta(seconds=180)
    """How long a drain may take, from when the last member has reached the boundary."""

    publish: timedelta = timedelta(seconds=300)
    """How long the sinks may take to publish a complete checkpoint before that is an event."""

    commit: timedelta = timedelta(seconds=30)
    """How long a member waits for its commit at a checkpoint before it continues without."""

    close: timedelta = timedelta(seconds=10)
    """How long a stopped process may finish its batch before it cancels it."""

    batch: timedelta = timedelta(minutes=2)
    """How long one batch may take before it counts as failed. A spec has it as `batch.timeout`."""

    retry: timedelta = timedelta(seconds=1)
    """How long members wait after a failed batch before they begin one; doubled with each in succession, up to 60 s."""

    relaunch: timedelta = timedelta(seconds=100)
    """How long it takes, at worst, until a member that died runs again: retry delay, submit, start of the JVM."""

    session: timedelta | None = None
    """The session timeout; None: `session_timeout` derives it."""

    max_poll: timedelta | None = None
    """`max.poll.interval`; None: `max_poll_interval` derives it."""

    metadata_refresh: timedelta = timedelta(seconds=1)
    """How often the client refreshes its partitions; its own default hides new ones for five minutes."""

    accept_aborted_drain: bool = False
    """Whether a drain may time out while a batch still uses its own time."""

    def session_timeout(self, *, static: bool) -> timedelta:
        """Return how long the coordinator keeps a silent member's partitions for it.

        Args:
            static: whether the member has a `group.instance.id`. A static member's slot waits for its relaunch, hence
                the longer time.
        """
        if self.session is not None:
            return self.session
        if not static:
            return DYNAMIC_SESSION
        return max(STATIC_SESSION, self.relaunch * RELAUNCH_MARGIN)

    @property
    def max_poll_interval(self) -> timedelta:
        """How long the event thread may go without a poll before the client leaves the group.

        3 x max(`reset`, `drain`).
        """
        if self.max_poll is not None:
            return self.max_poll
        return POLL_FACTOR * max(self.reset, self.drain)

    def retry_after(self, failures: int) -> timedelta:
        """Return how long members wait before they start a batch after this many consecutive failures.

        With the default and five failures that is half a minute in all, so that a database that is restarted does not
        halt a region.

        Args:
            failures: resets for failed batches since progress was last accepted; 0 is no wait.
        """
        if failures <= 0:
            return timedelta(0)
        longest = max(self.retry, LONGEST_RETRY)
        # No power of many failures: it would not fit into a duration.
        doublings = min(failures - 1, int(longest / self.retry).bit_length())
        return min(self.retry * (1 << doublings), longest)

    @property
    def rejoin_after(self) -> timedelta:
        """How long a partition may be without an owner before a member joins its group again for it.

        Also how long the brokers have to lack a partition of the region before the region continues without it.

        A rebalance that Kafka begins by itself is over by then.

        2 x `lease`.
        """
        return 2 * self.lease

    @property
    def arrival_wait(self) -> timedelta:
        """How long a start waits for members that have no lease yet, once those that have could do all the work.

        The attempt can still be finished then.

        min(3 x `lease`, `reset` / 4).
        """
        return min(3 * self.lease, self.reset / 4)

    @property
    def unowned_wait(self) -> timedelta:
        """How long a checkpoint waits for a partition without an owner before it continues without, inexact.

        Within a static session an owner that is down returns or loses its slot.

        Session timeout of a static member + `drain`.
        """
        return self.session_timeout(static=True) + self.drain

    @property
    def store_grace(self) -> timedelta:
        """How long a member may be without the store before it leaves its group.

        Those who get its partitions can still finish the attempt.

        min(`reset` / 4, `max_poll_interval` / 2, 30 s).
        """
        return min(self.reset / 4, self.max_poll_interval / 2, LONGEST_STORE_GRACE)

    @property
    def process_end_limit(self) -> timedelta:
        """How long a batch may still run after its cancellation before its process ends itself.

        With the lease it limits how long a dead member's batch can keep a region from being quiesced.

        As `store_grace`.
        """
        return self.store_grace

    @property
    def idle_in_transaction_session_timeout(self) -> timedelta:
        """When Postgres ends an idle transaction.

        `lease` / 2.
        """
        return self.lease / 2

    @property
    def lock_timeout(self) -> timedelta:
        """How long a statement waits for a lock: longer than a frozen holder can keep it, shorter than the statement.

        A waiter keeps its place in the queue for this long while Postgres ends the frozen transaction before it.

        3/5 x `lease`.
        """
        return self.lease * 3 / 5

    @property
    def statement_timeout(self) -> timedelta:
        """How long a statement may take.

        Renewals come at most a third of a lease apart (rule 4): one that needs all of this time is still answered
        before the lease is over.

        2/3 x `lease`.
        """
        return self.lease * 2 / 3


RENEWALS_PER_LEASE: Final = 3
"""How many renewals a lease has room for: two may be lost without the lease being over."""

HEARTBEATS_PER_SESSION: Final = 3
HEARTBEATS_PER_MOVE: Final = 2
SESSION: Final = "consumer.session.timeout.ms"
HEARTBEAT: Final = "consumer.heartbeat.interval.ms"

SHORTEST: Final = timedelta(milliseconds=10)
LONGEST_POLL_INTERVAL: Final = timedelta(hours=24)
LONGEST_METADATA_REFRESH: Final = timedelta(hours=1)
"""The last two are the limits of librdkafka's own settings (its CONFIGURATION.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """Between which session timeouts the brokers accept a member; the defaults are Kafka's own."""

    shortest_session: timedelta = timedelta(seconds=6)
    """`group.min.session.timeout.ms`"""

    longest_session: timedelta = timedelta(seconds=1800)
    """`group.max.session.timeout.ms`"""


BROKER_DEFAULTS: Final = BrokerLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerProtocolTimes:
    """What the brokers decide for the members of one group of the consumer protocol; Kafka's defaults."""

    session: timedelta = timedelta(seconds=45)
    """`consumer.session.timeout.ms` of the group, else the broker's `group.consumer.session.timeout.ms`."""

    heartbeat: timedelta = timedelta(seconds=5)
    """`consumer.heartbeat.interval.ms` of the group, else the broker's `group.consumer.heartbeat.interval.ms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTimes:
    """The times that a group's brokers set; what is None could not be read."""

    limits: BrokerLimits | None = None
    consumer: ConsumerProtocolTimes | None = None
    protocols: frozenset[str] | None = None
    """The rebalance protocols that the brokers speak."""

    migration: str | None = None
    """`group.consumer.migration.policy`: which conversions of a group with members the brokers allow."""


class Clash(NamedTuple):
    """Two settings that contradict each other."""

    setting: str
    """As in the spec file."""

    other: str
    """As in the spec file, or a limit that isn't ours."""

    text: str

    def __str__(self) -> str:
        return self.text


Setting: TypeAlias = "tuple[str, timedelta]"
"""As in the spec file, or a limit that isn't ours, and what it is."""


def _clash(one: Setting, other: Setting, rule: str, derived: str = "") -> Clash:
    """Return a clash with what must hold, why, and what to change; `derived`: whence a time that the spec lacks."""
    source = f" ({derived})" if derived else ""
    text = f"{one[0]} is {_seconds(one[1])}{source} and {other[0]} is {_seconds(other[1])}, but {rule}"
    return Clash(one[0], other[0], text)


def check(timeouts: Timeouts, *, static: bool, limits: BrokerLimits = BROKER_DEFAULTS) -> tuple[Clash, ...]:
    """Return every clash, in a stable order; none means that the region may start.

    Args:
        timeouts: what the spec says, with the defaults for the rest.
        static: whether the group's members are static; a region with both kinds is checked for each.
        limits: what the group's brokers accept, where that is known to differ from Kafka's defaults.
    """
    too_short = tuple(_too_short(timeouts))
    if too_short:
        return too_short  # every other rule would only repeat it
    return (*_poll(timeouts), *_session(timeouts, static, limits), *_members(timeouts))


def check_consumer_protocol(timeouts: Timeouts, times: ConsumerProtocolTimes) -> tuple[Clash, ...]:
    """Return every clash of a region's times with those that the brokers set for a group of the consumer protocol.

    Args:
        timeouts: as for `check`. The client refuses a `session` in this protocol, but the region counts on the spec's:
            as the time after which Kafka has given up what a silent member owned.
        times: what the brokers say of the group.
    """
    return tuple(_consumer_protocol(timeouts, times))


_ALWAYS_EXPIRES: Final = "so the first attempt would always expire"


def _consumer_protocol(timeouts: Timeouts, times: ConsumerProtocolTimes) -> Iterator[Clash]:
    session, heartbeat = (SESSION, times.session), (HEARTBEAT, times.heartbeat)
    if timeouts.session is not None and timeouts.session < times.session:
        yield _clash(
            ("timeouts.session", timeouts.session),
            session,
            "the session that the region counts on must not be shorter than the group's: Kafka keeps a silent member's "
            "partitions for the group's, whatever the spec says; leave timeouts.session out, raise it to "
            f"{_seconds(times.session)}, or lower {SESSION} of the group",
        )
    if times.session >= timeouts.reset:
        yield _clash(
            session,
            ("timeouts.reset", timeouts.reset),
            "the session timeout must be shorter than a reset: a dead member keeps its partitions until its session "
            f"ends, {_ALWAYS_EXPIRES}; lower {SESSION} of the group, or raise timeouts.reset",
        )
    if HEARTBEATS_PER_SESSION * times.heartbeat > times.session:
        yield _clash(
            heartbeat,
            session,
            f"{HEARTBEATS_PER_SESSION} heartbeats must fit into one session: one slow answer of the coordinator would "
            f"cost the member its place; lower {HEARTBEAT} or raise {SESSION} of the group",
        )
    if HEARTBEATS_PER_MOVE * times.heartbeat >= timeouts.rejoin_after:
        yield _clash(
            heartbeat,
            ("timeouts.lease", timeouts.lease),
            f"{HEARTBEATS_PER_MOVE} heartbeats must be shorter than two leases: the old owner hears with one that a "
            "partition moves, the new owner with another; a partition that has no owner for longer makes a member "
            f"leave the group and join it again; lower {HEARTBEAT} of the group, or raise timeouts.lease",
        )


def setting_name(field: str) -> str:
    """Return what the spec file calls a field of `Timeouts`."""
    return {"batch": "batch.timeout", "max_poll": "timeouts.max_poll_interval"}.get(field, f"timeouts.{field}")


def _set(timeouts: Timeouts, field: str) -> Setting:
    return setting_name(field), getattr(timeouts, field)


def _too_short(timeouts: Timeouts) -> Iterator[Clash]:
    for field in fields(timeouts):
        value = getattr(timeouts, field.name)
        if isinstance(value, timedelta) and value < SHORTEST:
            yield _clash(
                _set(timeouts, field.name),
                ("the shortest time", SHORTEST),
                "no time may be shorter: that is a mistake in the unit, and Postgres reads a timeout of 0 as none; "
                f"give {setting_name(field.name)} with its unit, for example 10s",
            )


def _poll(timeouts: Timeouts) -> Iterator[Clash]:
    longest = "reset" if timeouts.reset >= timeouts.drain else "drain"
    interval, least = timeouts.max_poll_interval, POLL_FACTOR * max(timeouts.reset, timeouts.drain)
    if interval < least:
        yield _clash(
            ("timeouts.max_poll_interval", interval),
            _set(timeouts, longest),
            f"max.poll.interval must be at least {POLL_FACTOR} x max(reset, drain): a member that waits for the others "
            f"during a {longest} would be thrown out of its group for it; raise timeouts.max_poll_interval to "
            f"{_seconds(least)}, or leave it out",
        )
    if interval > LONGEST_POLL_INTERVAL:
        cause = longest if timeouts.max_poll is None else "max_poll"
        yield _clash(
            _set(timeouts, cause),
            ("the Kafka client's longest max.poll.interval", LONGEST_POLL_INTERVAL),
            f"max.poll.interval, {_seconds(interval)}, must not be longer: the client refuses to start; lower "
            f"{setting_name(cause)}",
        )
    if timeouts.metadata_refresh > LONGEST_METADATA_REFRESH:
        yield _clash(
            _set(timeouts, "metadata_refresh"),
            ("the Kafka client's longest topic.metadata.refresh.interval", LONGEST_METADATA_REFRESH),
            "the refresh must not be longer: the client refuses to start, and new partitions would be seen that late; "
            "lower timeouts.metadata_refresh",
        )


def _session(timeouts: Timeouts, static: bool, limits: BrokerLimits) -> Iterator[Clash]:
    session = timeouts.session_timeout(static=static)
    derived, lower = "", "lower timeouts.session"
    if timeouts.session is None:
        derived = f"the default of {'static' if static else 'dynamic'} members"
        if static and session > STATIC_SESSION:
            derived, lower = f"{RELAUNCH_MARGIN} x timeouts.relaunch", "lower timeouts.relaunch"
    clash = partial(_clash, ("timeouts.session", session), derived=derived)
    refused = "the broker refuses the member with INVALID_SESSION_TIMEOUT"
    if session < limits.shortest_session:
        yield clash(
            ("the broker's group.min.session.timeout.ms", limits.shortest_session),
            f"the session timeout must not be shorter: {refused}; raise timeouts.session",
        )
    if session > limits.longest_session:
        yield clash(
            ("the broker's group.max.session.timeout.ms", limits.longest_session),
            f"the session timeout must not be longer: {refused}; {lower}, or raise the broker's limit",
        )
    if session >= timeouts.reset:
        yield clash(
            _set(timeouts, "reset"),
            "the session timeout must be shorter than a reset: a dead member keeps its partitions until its session "
            f"ends, {_ALWAYS_EXPIRES}; {lower}, or raise timeouts.reset",
        )
    if session > timeouts.max_poll_interval:
        yield clash(
            ("timeouts.max_poll_interval", timeouts.max_poll_interval),
            "the session timeout must not be longer than max.poll.interval: the Kafka client refuses to start; "
            f"{lower}, or raise timeouts.max_poll_interval",
        )
    if static and session <= timeouts.relaunch:
        yield clash(
            _set(timeouts, "relaunch"),
            "a static member's session must be longer than its relaunch: a member that is started again would find its "
            "slot gone, and every restart would be a rebalance; leave timeouts.session out, raise it to "
            f"{_seconds(timeouts.relaunch * RELAUNCH_MARGIN)}, or lower timeouts.relaunch",
        )


def _members(timeouts: Timeouts) -> Iterator[Clash]:
    lease = _set(timeouts, "lease")
    if RENEWALS_PER_LEASE * timeouts.renew > timeouts.lease:
        yield _clash(
            _set(timeouts, "renew"),
            lease,
            f"{RENEWALS_PER_LEASE} renewals must fit into one lease: one slow answer of the store would cost the "
            "member its lease and its batch; lower timeouts.renew or raise timeouts.lease",
        )
    if timeouts.lease + timeouts.process_end_limit >= timeouts.reset:
        yield _clash(
            lease,
            _set(timeouts, "reset"),
            f"a lease and the {_seconds(timeouts.process_end_limit)} in which a process ends itself must be shorter "
            "than a reset: only then is a dead member's batch known to be over, "
            f"{_ALWAYS_EXPIRES}; lower timeouts.lease or raise timeouts.reset",
        )
    if timeouts.batch >= timeouts.drain and not timeouts.accept_aborted_drain:
        yield _clash(
            _set(timeouts, "batch"),
            _set(timeouts, "drain"),
            "a batch must be shorter than a drain: a checkpoint would be aborted by a batch that does nothing wrong; "
            "lower batch.timeout, raise timeouts.drain, or set timeouts.accept_aborted_drain",
        )


def _seconds(time: timedelta) -> str:
    text = f"{time / timedelta(seconds=1):.3f}".rstrip("0").rstrip(".")
    return f"{text} s"
