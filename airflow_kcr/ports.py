"""What the core needs from the world, as protocols.

An adapter implements one of them; its contract suite runs against every implementation, the real one first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, TypeAlias

from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import (
    BatchId,
    Epoch,
    EventNumber,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    RegionName,
)

Rule: TypeAlias = Callable[[Region, datetime], Region]
"""A pure decision: the region and the store's clock in, the region out; or it raises and nothing has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a renewal tells: enough to know whether anything is worth reading."""

    now: datetime
    """The store's clock."""

    counter: EventNumber
    epoch: Epoch
    incarnation: Incarnation
    """The member's newest incarnation."""

    renewed: bool
    """Whether the lease was renewed; an expired lease, or one of an older incarnation, never is."""

    due_at: datetime | None
    """When something is due in the region without anybody asking."""


class Transactions(Protocol):
    """A store of regions: each call is one transaction, the region's lock first (design section 4).

    Every call may raise StoreUnavailable or StoreBusy (nothing was changed), SchemaMissing, SchemaTooOld or
    SchemaTooNew, and OutcomeUnknown where the answer to COMMIT was lost.
    """

    def create(self, name: RegionName, rule: Callable[[datetime], Region]) -> Region:
        """Store a new region as `rule` makes it from the store's clock.

        Raises:
            RegionExists: there is one of that name.
            GroupInOtherRegion: one of its groups belongs to another region, which the message names.
        """
        ...

    def decide(self, name: RegionName, rule: Rule) -> Region:
        """Run `rule` under the exclusive lock and store what it returns: rows, events and ledger changes.

        Waiters are told after the commit. The answer is the region as stored, its events and ledger changes settled.

        Raises:
            UnknownRegion: there is no such region.
            GroupInOtherRegion: the rule's spec claims a group of another region.
        """
        ...

    def permit(
        self,
        name: RegionName,
        member: MemberId,
        batch: BatchId,
        partitions: frozenset[GroupPartition] | None,
        rule: Rule,
    ) -> Region:
        """Run `rule` under the shared lock, on a region that holds no more than a batch's begin or end needs.

        That is: the region's own row, the open cut, this member and its lease, the claims of `partitions` (None: those
        of the batch's ranges), their bound offsets and skips, the running batch of this id; all claims and the base
        only where the region cuts by count.

        Raises:
            UnknownRegion: there is no such region.
        """
        ...

    def renew(self, name: RegionName, member: MemberId, incarnation: Incarnation, lease: timedelta) -> Beat:
        """Extend the lease by `lease` from now, if this incarnation holds it and it is not over; one statement.

        Raises:
            UnknownRegion, UnknownMember: there is no such row.
        """
        ...

    def read(self, name: RegionName) -> tuple[Region, datetime]:
        """Return the region as committed at one moment, and the store's clock then; takes no region lock.

        Raises:
            UnknownRegion: there is no such region.
        """
        ...

    def read_for(self, name: RegionName, member: MemberId) -> tuple[Region, datetime]:
        """As `read`, with only this member's claims: what `view.of_member` needs.

        Raises:
            UnknownRegion: there is no such region.
        """
        ...

    def names(self) -> tuple[RegionName, ...]:
        """Return the names of all regions, in order."""
        ...

    def delete(self, name: RegionName, check: Callable[[Region, datetime], None]) -> None:
        """Forget a region and its history, if `check` does not raise.

        Raises:
            UnknownRegion: there is no such region.
        """
        ...

    def events(self, name: RegionName, after: EventNumber, limit: int) -> tuple[Event, ...]:
        """Return up to `limit` events after that number, in commit order."""
        ...

    def batch(self, name: RegionName, batch: BatchId) -> Batch | None:
        """Return one row of the ledger, whatever its outcome."""
        ...

    def batches(self, name: RegionName) -> Iterator[Batch]:
        """Yield the ledger in the order in which batches began."""
        ...

    def batches_with(self, name: RegionName, partition: GroupPartition, offset: Offset) -> tuple[Batch, ...]:
        """Return every batch whose ranges contain this offset of this partition, oldest first."""
        ...

    def wait(self, name: RegionName, after: EventNumber, timeout: timedelta) -> None:
        """Return when the region's counter may have moved beyond `after`, or after `timeout`; a hint only."""
        ...
