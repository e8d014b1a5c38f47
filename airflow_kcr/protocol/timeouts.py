"""All times of a region in one value, and what follows from them.

The defaults and formulas are those of docs/reference/timeouts.md. What may
not be combined is in `timeout_checks`: this module only derives.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

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
        """How long the event thread may go without a poll before the client leaves the group."""
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

        Two leases: a rebalance that Kafka begins by itself is over by then.
        """
        return 2 * self.lease

    @property
    def arrival_wait(self) -> timedelta:
        """How long a start waits for members that have no lease yet, once those that have could do all the work.

        Three leases, and no more than a quarter of a reset, so that the attempt can still be finished.
        """
        return min(3 * self.lease, self.reset / 4)

    @property
    def unowned_wait(self) -> timedelta:
        """How long a checkpoint waits for a partition without an owner before it continues without, inexact.

        A static session, within which an owner that is down returns or loses its slot, and a drain.
        """
        return self.session_timeout(static=True) + self.drain

    @property
    def store_grace(self) -> timedelta:
        """How long a member may be without the store before it leaves its group.

        A quarter of a reset, so that those who get its partitions can still finish the attempt.
        """
        return min(self.reset / 4, self.max_poll_interval / 2, LONGEST_STORE_GRACE)

    @property
    def process_end_limit(self) -> timedelta:
        """How long a batch may still run after its cancellation before its process ends itself.

        With the lease it limits how long a dead member's batch can keep a region from being quiesced.
        """
        return self.store_grace

    @property
    def idle_in_transaction_session_timeout(self) -> timedelta:
        """When Postgres ends an idle transaction: half a lease."""
        return self.lease / 2

    @property
    def lock_timeout(self) -> timedelta:
        """How long a statement waits for a lock: longer than a frozen holder can keep it, shorter than the statement.

        A waiter keeps its place in the queue for this long while Postgres ends the frozen transaction before it.
        """
        return self.lease * 3 / 5

    @property
    def statement_timeout(self) -> timedelta:
        """How long a statement may take.

        Two thirds of a lease, as renewals come at most a third apart (`timeout_checks`, rule 4): one that needs all of
        this time is still answered before the lease is over.
        """
        return self.lease * 2 / 3
