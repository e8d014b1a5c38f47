"""The region store: what members, people and DAG runs ask of it, each one transaction, everything due with it.

Whatever changes something may be repeated: after a lost answer (`OutcomeUnknown`) the same call finds out what became
of the first one instead of doing it twice. A request id, a batch id, a process token or an epoch is what it is
recognised by.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeAlias, TypeVar, cast

from airflow_kcr.errors import BatchRefused, OutcomeUnknown, RefusedError, StoreBusy
from airflow_kcr.ports import Heartbeats, Renewal, SinkPlace
from airflow_kcr.protocol import values
from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.region import batches, claims, commands, decisions, lag, lifecycle
from airflow_kcr.protocol.region.archive import ResetPage
from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.region.lag import LagSample
from airflow_kcr.protocol.region.liveness import NEVER, Seen
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.store.chronicle import Chronicle

A = TypeVar("A")
V = TypeVar("V")

# The garbage collector


@contextmanager
def uncollected() -> Iterator[None]:
    """Have the garbage collector wait while a region is read, decided on and written; not while its lock is.

    That makes some twenty objects for each partition and drops hardly one before its end. A collection in between
    visits every object of the process and finds nothing: at 10,000 partitions that was nearly half of a decision's
    time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # Where two threads do this at once, the first one's end lets the second be collected again: slower, not wrong.
        if was_enabled:
            gc.enable()


# What it is asked for, and answers


class Sign(NamedTuple):
    """A sign that a region is worth reading again: while it stays the same, no wait can be over."""

    counter: values.EventNumber
    is_due: bool
    """Whether something is to be done in it."""

    leases: int
    """How many of its leases are not over: time alone ends one."""

    running: int
    """How many batches run in a region that begins none, also as it is paused; their ends move no counter. Else 0."""


class Span(NamedTuple):
    """The epochs of one reset: of its first attempt and its last, and the epoch of the attempt before it."""

    since: values.Epoch
    first: values.Epoch
    last: values.Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Offsets that a reset had processed again: from where the region was to where it went, and how far it came since.

    What lies between counts as a whole, also offsets that an earlier reset had stepped over.
    """

    rewound: int = 0
    """From where it went back to up to where the region had come, batches that were not accepted among it."""

    replayed: int = 0
    """How much of that was started again since."""


B = TypeVar("B", commands.StartBatch, commands.FinishBatch)

Rule: TypeAlias = Callable[[Region, datetime], tuple[Region, A]]
"""A pure decision: the region and the store's clock in, the region and an answer out; or it raises, and nothing has
changed."""

BatchRule: TypeAlias = Callable[[Region, datetime, B], tuple[Region, A]]
"""A decision about a batch, which is started or finished."""


# The store

ONCE: Final = (commands.DeclareRegion, commands.DeleteRegion)
"""Commands that are not repeated: what is there after the first can't be told from what another caller did."""


class RegionStore(ABC):
    """The region store, as members, the command line and the hook use it; each store is a subclass.

    Each call is one transaction. Every call may raise StoreUnavailable or StoreBusy (nothing was changed),
    SchemaMissing, SchemaTooOld or SchemaTooNew, and OutcomeUnknown where the answer to COMMIT was lost.
    """

    def handle(self, name: values.RegionName, command: commands.Command[A]) -> A:
        """Handle a command and return its answer; where the answer to its COMMIT was lost, it is given once more.

        Raises:
            RefusedError: its rule refuses it; nothing has changed.
            StoreError: the store did not answer; the same command may be given again.
        """
        try:
            return cast("A", self._handled(name, command))
        except OutcomeUnknown:
            if isinstance(command, ONCE):
                raise
            return cast("A", self._handled(name, command))

    def _handled(self, name: values.RegionName, command: commands.Command[object]) -> object:
        match command:
            case commands.StartBatch():
                return self.admit(name, command, batches.start)
            case commands.FinishBatch():
                self._finish_batch(name, command)
                return None
            case commands.Renew():
                return self._renew(name, command)
            case commands.ReadRegion():
                return self.read_as(name, command.member, lambda region, now: claims.shown(region, now, command))
            case commands.RetireCheckpoints():
                return self._retire(name)
            case commands.DeclareRegion():
                return self.create(name, lambda now: lifecycle.declare(name, now, command))
            case commands.DeleteRegion():
                self.delete(name, lifecycle.require_deletable)
                return None
            case _:
                region, answer = self.decide(name, lambda region, now: decisions.decide(region, now, command))
                return region if answer is None else answer

    def _finish_batch(self, name: values.RegionName, command: commands.FinishBatch) -> None:
        try:
            self.admit(name, command, batches.finish)
        except BatchRefused:
            row = self.batch(name, command.batch)
            if row is None or row.outcome is not Outcome.DONE or row.incarnation != command.incarnation:
                raise

    def _renew(self, name: values.RegionName, command: commands.Renew) -> commands.Heartbeat:
        renewal = Renewal(region=name, command=command)
        heartbeat = self.renew([renewal]).get(renewal)
        if heartbeat is None:
            raise StoreBusy(
                f"the lease of {command.member} in region {name} is being written; it was not renewed, ask again"
            )
        if isinstance(heartbeat, RefusedError):
            raise heartbeat
        return heartbeat

    def _retire(self, name: values.RegionName) -> Region:
        """Retire checkpoints, one transaction after the other, until there is none to retire."""
        while True:
            region, are_retired = self._retire_some(name)
            if not are_retired:
                return region

    def _retire_some(self, name: values.RegionName) -> tuple[Region, bool]:
        try:
            return self.decide(name, decisions.retire)
        except OutcomeUnknown:
            return self.decide(name, decisions.retire)

    # What a store does in one transaction, the region's lock first

    @abstractmethod
    def create(self, name: values.RegionName, rule: Callable[[datetime], Region]) -> Region:
        """Store a new region as `rule` makes it from the store's clock.

        Raises:
            RegionExists: there is one of that name.
            GroupInOtherRegion: one of its groups belongs to another region, which the message names.
        """

    @abstractmethod
    def decide(self, name: values.RegionName, rule: Rule[A]) -> tuple[Region, A]:
        """Run `rule` under the exclusive lock and store what it returns: rows, events and ledger changes.

        Waiters are notified after the commit. Returns the region as stored, with its events and ledger changes
        written, and the rule's answer.

        Raises:
            UnknownRegion: there is no such region.
            GroupInOtherRegion: the rule's spec claims a group of another region.
        """

    @abstractmethod
    def admit(self, name: values.RegionName, command: B, rule: BatchRule[B, A]) -> A:
        """Run `rule` under the shared lock, on a region that holds no more than a batch's start or finish needs.

        That is: the region's own row, the open checkpoint, this member and its lease, the claims of the batch's ranges,
        their boundary offsets and skips, the running batch of this id; all claims and the restore point only where the
        region checkpoints by count. Returns the rule's answer.

        Raises:
            UnknownRegion: there is no such region.
        """

    @abstractmethod
    def delete(self, name: values.RegionName, check: Callable[[Region, datetime], None]) -> None:
        """Forget a region and its history, if `check` does not raise.

        A long history goes in pieces. If that is interrupted, every other call raises RegionBeingDeleted, and this one,
        asked again, continues without another check.

        Raises:
            UnknownRegion: there is no such region.
        """

    @abstractmethod
    def renew(self, renewals: Collection[Renewal]) -> Heartbeats:
        """Extend leases, each if its incarnation holds it and it is not over; one statement for all of any regions.

        Each is answered by itself. The statement waits for no row: one that another transaction writes has no answer,
        so that it does not keep the others waiting.
        """

    # Reading a region

    @abstractmethod
    def read(self, name: values.RegionName) -> tuple[Region, datetime]:
        """Return the region as committed at one moment, and the store's clock then; takes no region lock.

        Raises:
            UnknownRegion: there is no such region.
        """

    def look(self, name: values.RegionName) -> tuple[Region, datetime, Seen]:
        """Return a region, the store's clock, and what the judgement of its liveness needs beside it.

        Raises:
            UnknownRegion: there is no such region.
        """
        seen = self.seen(name)
        return *self.read(name), seen

    def seen(self, name: values.RegionName) -> Seen:
        """Return what the judgement of a region's liveness needs beside its rows, as far as the store has it."""
        return Seen(worked_at=self.newest_work(name) or NEVER)

    @abstractmethod
    def read_as(self, name: values.RegionName, member: values.MemberId, see: Callable[[Region, datetime], V]) -> V:
        """Return what `see` makes of the region and the store's clock, all of one moment; takes no region lock.

        The region has only this member's claims, unless it checkpoints by count. What `see` does not ask for is not
        read, so its answer holds values, and none of the region's tables.

        Raises:
            UnknownRegion: there is no such region.
        """

    @abstractmethod
    def names(self) -> tuple[values.RegionName, ...]:
        """Return the names of all regions, in order."""

    @abstractmethod
    def names_with(self, groups: Collection[values.GroupId]) -> tuple[values.RegionName, ...]:
        """Return the names of the regions that have a group of one of these names, on whatever cluster, in order."""

    @abstractmethod
    def signs(self, names: Collection[values.RegionName]) -> Mapping[values.RegionName, tuple[Sign, datetime]]:
        """Return the signs of those of these regions that there are, and the store's clock; one statement for all."""

    @abstractmethod
    def wait(self, name: values.RegionName, after: values.EventNumber, timeout: timedelta) -> values.EventNumber:
        """Return the region's counter once it has moved beyond `after`; else, after `timeout`, `after`.

        Of what each of several members does (`events.PARTS`) it may not hear: who has to know reads now and then.
        """

    # Reading its past

    def reset_page(
        self, name: values.RegionName, *, before: values.CheckpointNumber | None, last: int | None
    ) -> ResetPage:
        """Return what `Archive.reset_page` of a region does; nothing else of the region is read.

        Raises:
            UnknownRegion: there is no such region.
        """
        return self.read(name)[0].archive.reset_page(before=before, last=last)

    @abstractmethod
    def events(self, name: values.RegionName, after: values.EventNumber, limit: int = 1000) -> tuple[Event, ...]:
        """Return up to `limit` events after that number, in commit order."""

    @abstractmethod
    def batch(self, name: values.RegionName, batch: values.BatchId) -> Batch | None:
        """Return one row of the ledger, whatever its outcome."""

    @abstractmethod
    def batches(self, name: values.RegionName) -> Iterator[Batch]:
        """Yield the ledger in the order in which batches began."""

    @abstractmethod
    def batches_since(
        self, name: values.RegionName, after: values.CheckpointNumber, up_to: values.CheckpointNumber | None = None
    ) -> tuple[Batch, ...]:
        """Return the batches that are stamped with a later sequence than one, oldest first; reads no older ones.

        Args:
            name: the region's.
            after: the sequence.
            up_to: the last one wanted, later ones are not read either; None: all.
        """

    @abstractmethod
    def newest_work(self, name: values.RegionName) -> datetime | None:
        """Return when the batch that was started last began or ended; None: there was none. Reads that batch alone."""

    @abstractmethod
    def batches_with(
        self, name: values.RegionName, partition: values.GroupPartition, offset: values.Offset
    ) -> tuple[Batch, ...]:
        """Return every batch whose ranges contain this offset of this partition, oldest first.

        It reads what there is near the offset, not the ledger.
        """

    @abstractmethod
    def readers(self, name: values.RegionName, partition: values.TopicPartition) -> tuple[values.GroupPartition, ...]:
        """Return the partitions of which batches of any group were started, of this topic and number, by group."""

    @abstractmethod
    def replays(self, name: values.RegionName, spans: Collection[Span]) -> Mapping[values.Epoch, Replayed]:
        """Count, by the first epoch of each reset, the offsets that it rewound and those processed again since.

        Args:
            name: the region's.
            spans: resets, the oldest first; the progress of the last of them follows from the current claims.
        """

    @abstractmethod
    def registered(self, name: values.RegionName, member: values.MemberId, incarnation: values.Incarnation) -> str:
        """Return how the process of an incarnation called itself when it registered; empty: no event tells."""

    @abstractmethod
    def history(self, name: values.RegionName) -> History:
        """Return all events and the whole ledger as committed at one moment; takes no region lock.

        Read one after the other, a batch that finished in between would look like unprocessed records.

        Raises:
            UnknownRegion: there is no such region.
        """

    @abstractmethod
    def chronicle(self, name: values.RegionName) -> Chronicle:
        """Return what is recorded of a region; raises UnknownRegion, if there is none, when it is read."""

    # Where its sinks write to

    @abstractmethod
    def taken(self, name: values.RegionName) -> frozenset[SinkPlace]:
        """Return the places that sinks of this region have taken, and that hold what its progress counts."""

    @abstractmethod
    def take(self, name: values.RegionName, place: SinkPlace) -> None:
        """Note that a sink has taken a place; noted before, it changes nothing."""

    @abstractmethod
    def let_go(self, name: values.RegionName, place: SinkPlace) -> None:
        """Forget that a sink has taken a place, so that it may start there with nothing."""

    # How far its groups are behind: no part of what it decides

    @abstractmethod
    def add_lag(self, name: values.RegionName, samples: Collection[LagSample]) -> None:
        """Keep samples of a region's groups, and thin out those that are there (`lag.surplus`).

        One that is there for the same group and moment changes nothing.
        """

    @abstractmethod
    def lag_since(self, name: values.RegionName, instant: datetime) -> tuple[LagSample, ...]:
        """Return the kept samples of a region after an instant, the oldest first."""

    def recent_lag(self, name: values.RegionName, now: datetime) -> tuple[LagSample, ...]:
        """Return the samples that verdicts are made of, the oldest first.

        Those of the last ten minutes are enough but where a position stands still: since when, the last hour says.

        Args:
            name: the region's.
            now: the store's clock.
        """
        found = self.lag_since(name, now - lag.WINDOW)
        return self.lag_since(name, now - lag.RECENT) if lag.stands_still(found) else found
