"""The verbs of the region store: each one transaction, its decision asked of the protocol, everything due done with it.

Every verb may be repeated: after a lost answer (`OutcomeUnknown`) the same call finds out what became of the first one
instead of doing it twice. A request id, a batch id, a process token or an epoch is what it recognises it by.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from airflow_kcr.errors import BatchRefused, OutcomeUnknown, RefusedError, StoreBusy
from airflow_kcr.ports import Chronicle, Heartbeat, Heartbeats, Renewal, Replayed, Rule, Sign, Span, Transactions
from airflow_kcr.protocol.group_members import ForeignConsumer
from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.observations import LogBounds, LogView
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import (
    acknowledgement,
    batches,
    boundaries,
    claims,
    completion,
    events,
    foreign_consumers,
    lifecycle,
    membership,
    out_of_range,
    person,
    plans,
    reconciliation,
    requests,
    retirement,
    specs,
    unowned,
    view,
)
from airflow_kcr.protocol.region.acknowledgement import Caller, Found
from airflow_kcr.protocol.region.batches import BatchRequest
from airflow_kcr.protocol.region.liveness import NEVER, Seen
from airflow_kcr.protocol.region.rows import (
    Batch,
    BoundaryOffset,
    CheckpointPurpose,
    CheckpointRequest,
    DesiredState,
    Noted,
    Outcome,
    PersonReset,
    Requester,
    ResetCause,
    SpecCheck,
)
from airflow_kcr.protocol.region.state import Region, Spec, person_reset_of, record, request_of, require_member
from airflow_kcr.protocol.region.view import MemberView
from airflow_kcr.protocol.values import (
    BatchId,
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


class RegionStore:
    """The region store, as everybody uses it: members, the command line, the hook.

    Args:
        transactions: where regions are kept.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

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
        worked_at, claimed_at = self._transactions.worked_at(name), self._transactions.claimed_at(name)
        return Seen(worked_at=worked_at or NEVER, claimed_at=claimed_at or NEVER)

    def history(self, name: RegionName) -> History:
        """Return all events and the whole ledger as committed at one moment."""
        return self._transactions.history(name)

    def chronicle(self, name: RegionName) -> Chronicle:
        """Return what is recorded of a region, to be read page by page: what `kcr verify` judges."""
        return self._transactions.chronicle(name)

    def wait(self, name: RegionName, after: EventNumber, timeout: timedelta) -> EventNumber:
        """Wait for a hint that the region's counter moved beyond `after`, at most `timeout`; return what is known."""
        return self._transactions.wait(name, after, timeout)

    # -- members -------------------------------------------------------------------------------------------------

    def register(self, name: RegionName, arrival: membership.Arrival) -> Incarnation:
        """Register a new incarnation of a member with a fresh lease, and return it.

        Raises:
            UnknownMember, RegionInState, MemberInUse: see `membership.register`.
        """
        region = self._decide(name, lambda region, now: membership.register(region, now, arrival))
        return region.members[arrival.member].incarnation

    def renew(self, name: RegionName, member: MemberId, incarnation: Incarnation, lease: timedelta) -> Heartbeat:
        """Renew one lease; `renew_all` says how.

        Raises:
            UnknownRegion, UnknownMember: there is no such row.
            StoreBusy: somebody writes the lease at this moment.
        """
        renewal = Renewal(region=name, member=member, incarnation=incarnation, lease=lease)
        heartbeat = self.renew_all([renewal]).get(renewal)
        if heartbeat is None:
            raise StoreBusy(f"the lease of {member} in region {name} is being written; it was not renewed, ask again")
        if isinstance(heartbeat, RefusedError):
            raise heartbeat
        return heartbeat

    def renew_all(self, renewals: Collection[Renewal]) -> Heartbeats:
        """Renew leases of any regions: one statement for all, outside the regions' locks, each answered by itself."""
        return self._transactions.renew(renewals)

    def view(self, name: RegionName, member: MemberId) -> MemberView:
        """Return what a member sees of its region."""
        return self._transactions.look(name, member, lambda region, now: view.of_member(region, member, now))

    def leave(self, name: RegionName, member: MemberId, incarnation: Incarnation) -> Region:
        """Give up lease and claims: the member left its group."""
        return self._decide(name, lambda region, now: membership.leave(region, now, member, incarnation))

    def keep_slot(self, name: RegionName, member: MemberId, incarnation: Incarnation) -> Region:
        """Give up the lease, not the claims: a static member stops and expects to come back."""
        return self._decide(name, lambda region, now: membership.keep_slot(region, now, member, incarnation))

    def claim(self, name: RegionName, proposal: claims.Proposal) -> MemberView:
        """Replace the member's claims by its assignment; the answer is what it now sees.

        Raises:
            StaleIncarnation, LeaseExpired, RegionInState, ConfigurationError, OffsetOutsideLog: see `claims.claim`.
        """
        return self._decide_for(proposal.member, name, lambda region, now: claims.claim(region, now, proposal))

    def answer(self, name: RegionName, caller: Caller, found: Mapping[GroupPartition, Found]) -> Region:
        """Write open seek entries of the member's own partitions; the first writer wins."""
        return self._decide(name, lambda region, now: acknowledgement.answer(region, now, caller, found))

    def acknowledge(self, name: RegionName, caller: Caller) -> MemberView:
        """Say that the member is quiesced, its fences raised and its positions set; the answer is what it now sees."""
        return self._decide_for(
            caller.member, name, lambda region, now: acknowledgement.acknowledge(region, now, caller)
        )

    def request_reset(self, name: RegionName, caller: Caller, cause: ResetCause, detail: str) -> Region:
        """Ask for a reset automatically; one asked for in an older epoch is already answered."""
        return self._decide(name, lambda region, now: acknowledgement.request(region, now, caller, cause, detail))

    def report_out_of_range(
        self, name: RegionName, caller: Caller, observed: Mapping[GroupPartition, LogBounds]
    ) -> Region:
        """Say what the logs of the member's partitions look like, re-read, where a position seemed to be outside."""
        return self._decide(name, lambda region, now: out_of_range.report(region, now, caller, observed))

    def report_later(self, name: RegionName, memory: lifecycle.Memory) -> Region:
        """Say that the member remembers later numbers than the store: a restored store halts its regions."""
        return self._decide(name, lambda region, now: lifecycle.seen_later(region, now, memory))

    def report_noted(self, name: RegionName, place: GroupPartition, note: Noted) -> Region:
        """Say that Kafka's commit metadata knows later numbers than the store; the region halts, and adopts none."""
        return self._decide(name, lambda region, now: lifecycle.noted_later(region, now, place, note))

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

    def report_partitions(self, name: RegionName, inventory: unowned.Inventory) -> unowned.Standing:
        """Say which partitions the brokers have of what a member's group subscribes to.

        Returns:
            What the member has to do about those that have no owner.

        Raises:
            StaleIncarnation, UnknownMember, LeaseExpired: the member may not act.
        """
        found: list[unowned.Standing] = []

        def rule(region: Region, now: datetime) -> Region:
            region = unowned.report(region, now, inventory)
            found.append(unowned.standing(region, now, inventory.member))
            return region

        self._decide(name, rule)
        return found[-1]

    # -- batches -------------------------------------------------------------------------------------------------

    def begin_batch(self, name: RegionName, request: BatchRequest) -> Batch:
        """Begin a batch, and return its row.

        Raises:
            FencedError: the admissions is refused; see `batches.begin`.
        """

        def attempt() -> Region:
            return self._transactions.admit(
                name,
                request.member,
                request.batch,
                frozenset(request.ranges),
                lambda region, now: batches.begin(region, now, request),
            )

        return self._certain(attempt).running[request.batch]

    def end_batch(self, name: RegionName, batch: BatchId, member: MemberId, incarnation: Incarnation) -> None:
        """End a batch: its work is accepted, positions advance. An end that was already accepted is no error.

        Raises:
            FencedError: the end is refused, the work is discarded; see `batches.end`.
        """

        def attempt() -> Region:
            return self._transactions.admit(
                name, member, batch, None, lambda region, now: batches.end(region, now, batch, member, incarnation)
            )

        try:
            self._certain(attempt)
        except BatchRefused:
            row = self._transactions.batch(name, batch)
            if row is None or row.outcome is not Outcome.DONE or row.incarnation != incarnation:
                raise

    def discard_batch(self, name: RegionName, batch: BatchId, member: MemberId, incarnation: Incarnation) -> None:
        """Say that nothing of a batch runs any more and nothing of it counts; already closed is no error."""

        def rule(region: Region, now: datetime) -> Region:
            if batch not in region.running:
                return region
            return batches.discard(region, now, batch, member, incarnation)

        self._decide(name, rule)

    # -- boundaries and checkpoints
    # -----------------------------------------------------------------------------------------

    def store_bounds(
        self, name: RegionName, caller: Caller, boundary: datetime, found: Mapping[GroupPartition, BoundaryOffset]
    ) -> Region:
        """Store where a boundary falls in some partitions; the first writer wins."""

        def rule(region: Region, now: datetime) -> Region:
            require_member(region, caller.member, caller.incarnation, now, epoch=caller.epoch)
            return boundaries.store(region, now, boundary, found)

        return self._decide(name, rule)

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

    def contribute(self, name: RegionName, part: completion.Part) -> MemberView:
        """Store a member's part of the draining checkpoint; the last one completes it.

        The answer is what it now sees.
        """
        return self._decide_for(part.member, name, lambda region, now: completion.contribute(region, now, part))

    def publish(self, name: RegionName, sequence: CheckpointNumber) -> Region:
        """Say that the sinks show what belongs to a complete checkpoint, where no member can."""
        return self._decide(name, lambda region, now: completion.publish(region, now, sequence, None))

    def published_by(self, name: RegionName, sequence: CheckpointNumber, member: MemberId) -> MemberView:
        """Say that the member's sinks show what belongs to a complete checkpoint; the answer is what it now sees."""
        return self._decide_for(member, name, lambda region, now: completion.publish(region, now, sequence, member))

    def read_back(
        self,
        name: RegionName,
        sequence: CheckpointNumber,
        member: MemberId,
        incarnation: Incarnation,
        offsets: OffsetMap,
    ) -> Region:
        """Store what Kafka answered, read back, to a member's commit of the restore point."""
        return self._decide(
            name, lambda region, now: completion.read_back(region, now, sequence, member, incarnation, offsets)
        )

    def repair_read_back(self, name: RegionName, sequence: CheckpointNumber, offsets: OffsetMap) -> Region:
        """Store Kafka's commit read-back of the restore point as repaired while its groups were empty."""
        return self._decide(name, lambda region, now: completion.repair(region, now, sequence, offsets))

    def note_seek_commit(self, name: RegionName, caller: Caller, failure: str) -> Region:
        """Note that a member told Kafka where it resumed after a reset, or why it could not."""

        def rule(region: Region, now: datetime) -> Region:
            require_member(region, caller.member, caller.incarnation, now)
            body = events.SeekCommitted(epoch=caller.epoch, member=caller.member, failure=failure)
            return record(region, now, body)

        return self._decide(name, rule)

    def retire(self, name: RegionName) -> Region:
        """Forget the checkpoints that age and count retire; many of them in one transaction after the other."""
        retired: list[bool] = []

        def rule(region: Region, now: datetime) -> Region:
            after = retirement.retire(region, now)
            retired.append(after.counter != region.counter)
            return reconciliation.reconcile(after, now)

        while True:
            region = self._certain(lambda: self._transactions.decide(name, rule))
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
        def with_consequences(region: Region, now: datetime) -> Region:
            return reconciliation.reconcile(rule(retirement.by_itself(region, now), now), now)

        return self._certain(lambda: self._transactions.decide(name, with_consequences))

    def _decide_for(self, member: MemberId, name: RegionName, rule: Rule) -> MemberView:
        """Decide, and return what a member sees in the same transaction: it need not look again."""
        seen: list[MemberView] = []

        def looked(region: Region, now: datetime) -> Region:
            after = reconciliation.reconcile(rule(retirement.by_itself(region, now), now), now)
            seen.append(view.of_member(after, member, now))
            return after

        self._certain(lambda: self._transactions.decide(name, looked))
        return seen[-1]

    def _certain(self, attempt: Callable[[], Region]) -> Region:
        """Run one transaction; where its COMMIT's answer was lost, ask again: the rule recognises what was done."""
        try:
            return attempt()
        except OutcomeUnknown:
            return attempt()
