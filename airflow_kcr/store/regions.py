"""The region store: what members, people and DAG runs ask of it, each one transaction, everything due with it.

Whatever changes something may be repeated: after a lost answer (`OutcomeUnknown`) the same call finds out what became
of the first one instead of doing it twice. A request id, a batch id, a process token or an epoch is what it is
recognised by.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import TypeVar, cast

from airflow_kcr.ports import Chronicle, Heartbeats, Renewal, Replayed, Sign, Span, Transactions
from airflow_kcr.protocol.commands import Command
from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.region import (
    events,
)
from airflow_kcr.protocol.region.liveness import NEVER, Seen
from airflow_kcr.protocol.region.rows import (
    Batch,
)
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    Epoch,
    EventNumber,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    RegionName,
    TopicPartition,
)
from airflow_kcr.store import verbs

A = TypeVar("A")
V = TypeVar("V")


class RegionStore:
    """The region store, as members, the command line and the hook use it.

    Args:
        transactions: where regions are kept.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def handle(self, name: RegionName, command: Command[A]) -> A:
        """Handle a command and return its answer; `verbs` has the rule of each.

        Raises:
            RefusedError: the rule refuses it; nothing has changed.
            StoreError: the store did not answer; the same command may be given again.
        """
        return cast("A", verbs.TABLE[type(command)](self._transactions, name, command))

    def read(self, name: RegionName) -> tuple[Region, datetime]:
        """Return the region as committed at one moment, and the store's clock then."""
        return self._transactions.read(name)

    def names(self) -> tuple[RegionName, ...]:
        """Return the names of all regions, in order."""
        return self._transactions.names()

    def events(self, name: RegionName, after: EventNumber, limit: int = 1000) -> tuple[events.Event, ...]:
        """Return up to `limit` events after that number, in commit order."""
        return self._transactions.events(name, after, limit)

    def batches(self, name: RegionName) -> Iterator[Batch]:
        """Yield the ledger in the order in which batches began."""
        return self._transactions.batches(name)

    def batches_since(self, name: RegionName, after: CheckpointNumber) -> tuple[Batch, ...]:
        """Return the batches that are stamped with a later sequence than this, oldest first."""
        return self._transactions.batches_since(name, after)

    def batches_with(self, name: RegionName, partition: GroupPartition, offset: Offset) -> tuple[Batch, ...]:
        """Return every batch whose ranges contain this offset of this partition, oldest first."""
        return self._transactions.batches_with(name, partition, offset)

    def readers(self, name: RegionName, partition: TopicPartition) -> tuple[GroupPartition, ...]:
        """Return the partitions of which batches of any group were started, of this topic and number, by group."""
        return self._transactions.readers(name, partition)

    def signs(self, names: Collection[RegionName]) -> Mapping[RegionName, tuple[Sign, datetime]]:
        """Return what tells whether each of these regions is worth reading again, and the store's clock."""
        return self._transactions.signs(names)

    def replays(self, name: RegionName, spans: Collection[Span]) -> Mapping[Epoch, Replayed]:
        """Return what resets made to be processed again, by the first epoch of each; see `ports.Transactions`."""
        return self._transactions.replays(name, spans)

    def registered(self, name: RegionName, member: MemberId, incarnation: Incarnation) -> str:
        """Return how the process of an incarnation called itself when it registered; empty: no event tells."""
        return self._transactions.registered(name, member, incarnation)

    def seen(self, name: RegionName) -> Seen:
        """Return what the judgement of a region's liveness needs beside its rows, as far as the store has it."""
        return Seen(worked_at=self._transactions.newest_work(name) or NEVER)

    def history(self, name: RegionName) -> History:
        """Return all events and the whole ledger as committed at one moment."""
        return self._transactions.history(name)

    def chronicle(self, name: RegionName) -> Chronicle:
        """Return what is recorded of a region, to be read page by page: what `kcr verify` judges."""
        return self._transactions.chronicle(name)

    def wait(self, name: RegionName, after: EventNumber, timeout: timedelta) -> EventNumber:
        """Wait, at most `timeout`, until the region's counter moved beyond `after`; return what is known."""
        return self._transactions.wait(name, after, timeout)

    def renew_all(self, renewals: Collection[Renewal]) -> Heartbeats:
        """Renew leases of any regions: one statement for all, outside the regions' locks, each answered by itself."""
        return self._transactions.renew(renewals)
