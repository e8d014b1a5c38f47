"""A store whose answers get lost: before it did anything, or after it did everything."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import TypeVar

from airflow_kcr.errors import OutcomeUnknown
from airflow_kcr.ports import Chronicle, Heartbeats, Renewal, Replayed, Rule, Sign, Span
from airflow_kcr.protocol.invariants import History
from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import (
    BatchId,
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
from airflow_kcr.store.memory import MemoryTransactions
from tests.support.simulation.world import World

V = TypeVar("V")


class LossyTransactions:
    """`MemoryTransactions` behind a connection that is lost during some COMMITs; implements `ports.Transactions`.

    Args:
        inner: the store.
        world: where chance comes from.
    """

    def __init__(self, inner: MemoryTransactions, world: World) -> None:
        self._inner, self._world = inner, world
        self.lost = 0.0
        """Probability that the answer to a COMMIT is lost; half of them were committed."""

        self._again = False

    def _commit(self, run: Callable[[], Region]) -> Region:
        """Run a transaction; a lost answer is not lost twice in a row, or the caller could never find out."""
        if self._again or not self._world.chance(self.lost):
            self._again = False
            return run()
        self._again = True
        if self._world.chance(0.5):
            run()
        raise OutcomeUnknown

    def create(self, name: RegionName, rule: Callable[[datetime], Region]) -> Region:
        """See `ports.Transactions`."""
        return self._inner.create(name, rule)

    def decide(self, name: RegionName, rule: Rule) -> Region:
        """See `ports.Transactions`."""
        return self._commit(lambda: self._inner.decide(name, rule))

    def admit(
        self,
        name: RegionName,
        member: MemberId,
        batch: BatchId,
        partitions: frozenset[GroupPartition] | None,
        rule: Rule,
    ) -> Region:
        """See `ports.Transactions`."""
        return self._commit(lambda: self._inner.admit(name, member, batch, partitions, rule))

    def renew(self, renewals: Collection[Renewal]) -> Heartbeats:
        """See `ports.Transactions`."""
        return self._inner.renew(renewals)

    def read(self, name: RegionName) -> tuple[Region, datetime]:
        """See `ports.Transactions`."""
        return self._inner.read(name)

    def read_as(self, name: RegionName, member: MemberId, see: Callable[[Region, datetime], V]) -> V:
        """See `ports.Transactions`."""
        return self._inner.read_as(name, member, see)

    def names(self) -> tuple[RegionName, ...]:
        """See `ports.Transactions`."""
        return self._inner.names()

    def delete(self, name: RegionName, check: Callable[[Region, datetime], None]) -> None:
        """See `ports.Transactions`."""
        self._inner.delete(name, check)

    def events(self, name: RegionName, after: EventNumber, limit: int) -> tuple[Event, ...]:
        """See `ports.Transactions`."""
        return self._inner.events(name, after, limit)

    def batch(self, name: RegionName, batch: BatchId) -> Batch | None:
        """See `ports.Transactions`."""
        return self._inner.batch(name, batch)

    def batches(self, name: RegionName) -> Iterator[Batch]:
        """See `ports.Transactions`."""
        return self._inner.batches(name)

    def newest_work(self, name: RegionName) -> datetime | None:
        """See `ports.Transactions`."""
        return self._inner.newest_work(name)

    def batches_since(self, name: RegionName, after: CheckpointNumber) -> tuple[Batch, ...]:
        """See `ports.Transactions`."""
        return self._inner.batches_since(name, after)

    def batches_with(self, name: RegionName, partition: GroupPartition, offset: Offset) -> tuple[Batch, ...]:
        """See `ports.Transactions`."""
        return self._inner.batches_with(name, partition, offset)

    def readers(self, name: RegionName, partition: TopicPartition) -> tuple[GroupPartition, ...]:
        """See `ports.Transactions`."""
        return self._inner.readers(name, partition)

    def signs(self, names: Collection[RegionName]) -> Mapping[RegionName, tuple[Sign, datetime]]:
        """See `ports.Transactions`."""
        return self._inner.signs(names)

    def replays(self, name: RegionName, spans: Collection[Span]) -> Mapping[Epoch, Replayed]:
        """See `ports.Transactions`."""
        return self._inner.replays(name, spans)

    def registered(self, name: RegionName, member: MemberId, incarnation: Incarnation) -> str:
        """See `ports.Transactions`."""
        return self._inner.registered(name, member, incarnation)

    def history(self, name: RegionName) -> History:
        """See `ports.Transactions`."""
        return self._inner.history(name)

    def chronicle(self, name: RegionName) -> Chronicle:
        """See `ports.Transactions`."""
        return self._inner.chronicle(name)

    def wait(self, name: RegionName, after: EventNumber, timeout: timedelta) -> EventNumber:
        """See `ports.Transactions`."""
        return self._inner.wait(name, after, timeout)
