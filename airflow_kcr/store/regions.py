"""The region store: what members, people and DAG runs ask of it, each one transaction, everything due with it.

Whatever changes something may be repeated: after a lost answer (`OutcomeUnknown`) the same call finds out what became
of the first one instead of doing it twice. A request id, a batch id, a process token or an epoch is what it is
recognised by.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar, cast

from airflow_kcr.errors import OutcomeUnknown
from airflow_kcr.ports import Chronicle, Heartbeats, Renewal, Replayed, Rule, Sign, Span, Transactions
from airflow_kcr.protocol.commands import Command
from airflow_kcr.protocol.group_members import ForeignConsumer
from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.observations import LogView
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import (
    completion,
    events,
    foreign_consumers,
    lifecycle,
    person,
    plans,
    reconciliation,
    requests,
    retirement,
    specs,
)
from airflow_kcr.protocol.region.liveness import NEVER, Seen
from airflow_kcr.protocol.region.rows import (
    Batch,
    CheckpointPurpose,
    CheckpointRequest,
    DesiredState,
    PersonReset,
    Requester,
    SpecCheck,
)
from airflow_kcr.protocol.region.state import Region, Spec, person_reset_of, request_of
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    Epoch,
    EventNumber,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    RegionName,
    RequestId,
    TopicPartition,
)
from airflow_kcr.store import verbs

A = TypeVar("A")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecUpdate:
    """A changed spec, split by when it takes effect."""

    at_once: Spec
    later: Spec | None = None


def _there(row: V | None) -> V:
    """Return a row that a decision has just stored, or found."""
    if row is None:
        raise RuntimeError("a decision stored a row that can't be found")
    return row


def _certain(attempt: Callable[[], A]) -> A:
    """Run one transaction; where its COMMIT's answer was lost, ask again: the rule recognises what was done."""
    try:
        return attempt()
    except OutcomeUnknown:
        return attempt()


class RegionStore:
    """The region store, as everybody uses it: members, the command line, the hook.

    Args:
        transactions: where regions are kept.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def handle(self, name: RegionName, command: Command[A]) -> A:
        """Handle a member's command and return its answer; `verbs` has the rule of each.

        Raises:
            RefusedError: the rule refuses it; nothing has changed.
            StoreError: the store did not answer; the same command may be given again.
        """
        handler = verbs.TABLE[type(command)]
        return cast("A", _certain(lambda: handler(self._transactions, name, command)))

    # -- regions -------------------------------------------------------------------------------------------------

    def declare(self, name: RegionName, spec: Spec) -> Region:
        """Declare a region; it is stopped until it is started.

        Raises:
            RegionExists: there is one of that name.
            GroupInOtherRegion: one of its groups belongs to another region, which the message names.
        """
        return self._transactions.create(name, lambda now: lifecycle.declare(name, spec, now))

    def change_spec(self, name: RegionName, update: SpecUpdate) -> Region:
        """Change the spec: part of it at once, the rest at the next checkpoint or start."""
        return self._decide(
            name, lambda region, now: specs.change(region, now, at_once=update.at_once, later=update.later)
        )

    def check_spec(self, name: RegionName, checks: Iterable[SpecCheck]) -> Region:
        """Say what members' process has found of a spec; of one that nobody waits for or has, it says nothing."""
        found = tuple(checks)
        return self._decide(name, lambda region, now: specs.checked(region, now, found))

    def start(self, name: RegionName, requester: Requester = lifecycle.NOBODY) -> Region:
        """Start a stopped or halted region, or resume a paused one."""
        return self._decide(name, lambda region, now: lifecycle.start(region, now, requester))

    def pause(self, name: RegionName, requester: Requester = lifecycle.NOBODY) -> Region:
        """Pause: batches in flight end, none begins, membership stays."""
        return self._decide(name, lambda region, now: lifecycle.pause(region, now, requester))

    def stop(self, name: RegionName, requester: Requester = lifecycle.NOBODY) -> Region:
        """Stop: a checkpoint, published and committed, then all leave."""
        return self._decide(name, lambda region, now: lifecycle.stop(region, now, requester))

    def kill(self, name: RegionName, requester: Requester = lifecycle.NOBODY) -> Region:
        """Kill: all leave now; the next start resumes at the restore point."""
        return self._decide(name, lambda region, now: lifecycle.kill(region, now, requester))

    def delete(self, name: RegionName) -> None:
        """Forget a stopped region and its history.

        Raises:
            RegionInState: it is not stopped, or a member still holds a lease.
        """
        self._transactions.delete(name, lifecycle.require_deletable)

    def reconcile(self, name: RegionName) -> Region:
        """Do whatever is due; anybody may, and doing it twice changes nothing."""
        return self._decide(name, lambda region, now: region)

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
        """Return the partitions of which batches of any group were begun, of this topic and number, by group."""
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
        worked_at, claimed_at = self._transactions.newest_work(name)
        return Seen(worked_at=worked_at or NEVER, claimed_at=claimed_at or NEVER)

    def history(self, name: RegionName) -> History:
        """Return all events and the whole ledger as committed at one moment."""
        return self._transactions.history(name)

    def chronicle(self, name: RegionName) -> Chronicle:
        """Return what is recorded of a region, to be read page by page: what `kcr verify` judges."""
        return self._transactions.chronicle(name)

    def wait(self, name: RegionName, after: EventNumber, timeout: timedelta) -> EventNumber:
        """Wait, at most `timeout`, until the region's counter moved beyond `after`; return what is known."""
        return self._transactions.wait(name, after, timeout)

    # -- members -------------------------------------------------------------------------------------------------

    def renew_all(self, renewals: Collection[Renewal]) -> Heartbeats:
        """Renew leases of any regions: one statement for all, outside the regions' locks, each answered by itself."""
        return self._transactions.renew(renewals)

    def report_foreign_consumer(self, name: RegionName, text: str) -> Region:
        """Halt the region for a foreign consumer in one of its groups; a halted or stopped one stays as it is."""
        return self._decide(name, lambda region, now: lifecycle.foreign_consumer(region, now, text))

    def report_groups(self, name: RegionName, seen: Mapping[GroupId, tuple[ForeignConsumer, ...]]) -> Region:
        """Say which foreign consumers are in the groups that were looked at.

        The region halts, holds or warns by its policy.

        What is told twice changes nothing, and a clean report lets a region go on that holds, whoever it was that told
        of the foreign consumer.
        """
        return self._decide(name, lambda region, now: foreign_consumers.report(region, now, seen))

    # -- boundaries and checkpoints -------------------------------------------------------------------------------

    def request_checkpoint(
        self,
        name: RegionName,
        request_id: RequestId,
        *,
        boundary: datetime | None = None,
        purpose: CheckpointPurpose = CheckpointPurpose.REQUEST,
        allow_inexact: bool = False,
        then: DesiredState | None = None,
        requester: Requester = lifecycle.NOBODY,
    ) -> CheckpointRequest:
        """Ask for a checkpoint, or find out where a request of this request id stands.

        Raises:
            RegionInState, CheckpointRefused: see `requests.ask`.
        """
        rule = partial(
            requests.ask,
            request_id=request_id,
            purpose=purpose,
            boundary=boundary,
            allow_inexact=allow_inexact,
            then=then,
            requester=requester,
        )
        return _there(request_of(self._decide(name, rule), request_id))

    def publish(self, name: RegionName, sequence: CheckpointNumber) -> Region:
        """Say that the sinks show what belongs to a complete checkpoint, where no member can."""
        return self._decide(name, lambda region, now: completion.publish(region, now, sequence, None))

    def repair_read_back(self, name: RegionName, sequence: CheckpointNumber, offsets: OffsetMap) -> Region:
        """Store Kafka's commit read-back of the restore point as repaired while its groups were empty."""
        return self._decide(name, lambda region, now: completion.repair(region, now, sequence, offsets))

    def retire(self, name: RegionName) -> Region:
        """Forget the checkpoints that age and count retire; many of them in one transaction after the other."""
        retired: list[bool] = []

        def rule(region: Region, now: datetime) -> Region:
            after = retirement.retire(region, now)
            retired.append(after.counter != region.counter)
            return reconciliation.reconcile(after, now)

        while True:
            region = _certain(lambda: self._transactions.decide(name, rule))
            if not retired[-1]:
                return region

    def pin(self, name: RegionName, sequence: CheckpointNumber, label: str, reason: str) -> Region:
        """Pin a checkpoint under a label, or release it with an empty one."""
        return self._decide(name, lambda region, now: retirement.pin(region, now, sequence, label, reason))

    # -- resets --------------------------------------------------------------------------------------------------

    def plan_reset(self, name: RegionName, reset: PersonReset, log: LogView) -> plans.Plan:
        """Return what a reset would do if it were applied now; changes nothing.

        Raises:
            InvalidTarget, UnknownCheckpoint, CheckpointNotUsable: see `plans.plan`.
        """
        region, now = self._transactions.read(name)
        return plans.plan(region, now, reset, log)

    def apply_reset(self, name: RegionName, request: person.Apply) -> PersonReset:
        """Accept a person's reset, and return where it stands.

        Raises:
            StalePlan, RegionInState, ResetInProgress, UnknownCheckpoint, CheckpointNotUsable, InvalidTarget: see
                `person.apply`.
        """
        region = self._decide(name, lambda region, now: person.apply(region, now, request))
        return _there(person_reset_of(region, request.reset.request_id))

    def epoch(self, name: RegionName) -> Epoch:
        """Return the region's epoch now."""
        return self._transactions.read(name)[0].epoch

    # ------------------------------------------------------------------------------------------------------------

    def _decide(self, name: RegionName, rule: Rule) -> Region:
        return _certain(lambda: verbs.decide(self._transactions, name, rule))
