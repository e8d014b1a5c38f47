"""The region store: what members, people and DAG runs ask of it, each one transaction, everything due with it.

Whatever changes something may be repeated: after a lost answer (`OutcomeUnknown`) the same call finds out what became
of the first one instead of doing it twice. A request id, a batch id, a process token or an epoch is what it is
recognised by.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Final, Protocol, TypeAlias, TypeVar, cast

from airflow_kcr.errors import BatchRefused, OutcomeUnknown, RefusedError, StoreBusy
from airflow_kcr.ports import Renewal, Rule, Transactions
from airflow_kcr.protocol.commands import (
    Acknowledge,
    AnswerEntries,
    ApplyReset,
    ChangeSpec,
    ClaimPartitions,
    Command,
    Contribute,
    DeclareRegion,
    DeleteRegion,
    DiscardBatch,
    FinishBatch,
    Heartbeat,
    KeepSlot,
    KillRegion,
    Leave,
    PartitionAdvice,
    PauseRegion,
    PinCheckpoint,
    PublishCheckpoint,
    ReadRegion,
    Reconcile,
    RecordResetAnswer,
    Register,
    Renew,
    RepairReadBack,
    ReportClusters,
    ReportForeignConsumer,
    ReportGroups,
    ReportLater,
    ReportNoted,
    ReportOutOfRange,
    ReportPartitions,
    ReportPublished,
    ReportReadBack,
    ReportSeekCommit,
    ReportStartFailures,
    RequestCheckpoint,
    RequestReset,
    RetireCheckpoints,
    StartBatch,
    StartRegion,
    StopRegion,
    StoreBoundaryOffsets,
)
from airflow_kcr.protocol.region import (
    batches,
    boundaries,
    checkpoints,
    claims,
    completion,
    events,
    lifecycle,
    lost_logs,
    membership,
    person_resets,
    resets,
    specs,
)
from airflow_kcr.protocol.region.archive import ResetPage
from airflow_kcr.protocol.region.liveness import NEVER, Seen
from airflow_kcr.protocol.region.rows import Batch, CheckpointRequest, Outcome, PersonReset
from airflow_kcr.protocol.region.state import Region, person_reset_of, record, request_of, require_member
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.values import CheckpointNumber, MemberId, RegionName

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


# The store

A = TypeVar("A")
C = TypeVar("C")
V = TypeVar("V")


class RegionStore(Transactions):
    """The region store, as members, the command line and the hook use it; each store is a subclass."""

    def handle(self, name: RegionName, command: Command[A]) -> A:
        """Handle a command and return its answer; `TABLE` has the rule of each.

        Raises:
            RefusedError: the rule refuses it; nothing has changed.
            StoreError: the store did not answer; the same command may be given again.
        """
        return cast("A", TABLE[type(command)](self, name, command))

    def look(self, name: RegionName) -> tuple[Region, datetime, Seen]:
        """Return a region, the store's clock, and what the judgement of its liveness needs beside it.

        Raises:
            UnknownRegion: there is no such region.
        """
        seen = self.seen(name)
        return *self.read(name), seen

    def reset_page(self, name: RegionName, *, before: CheckpointNumber | None, last: int | None) -> ResetPage:
        """Return what `Archive.reset_page` of a region does; nothing else of the region is read.

        Raises:
            UnknownRegion: there is no such region.
        """
        return self.read(name)[0].archive.reset_page(before=before, last=last)

    def seen(self, name: RegionName) -> Seen:
        """Return what the judgement of a region's liveness needs beside its rows, as far as the store has it."""
        return Seen(worked_at=self.newest_work(name) or NEVER)


# -- the table of commands -----------------------------------------------------------------------------------------
#
# One row a command, with its rule, its transaction and its answer.
#
# Every rule recognises a command that it has decided before: the same command again finds the first one's result. So
# where the answer to a COMMIT was lost, the command is given once more. `DeclareRegion` and `DeleteRegion` are not:
# what is there after the first can't be told from what another caller did.


class _Own(Protocol):
    """A command of a member that is shown the region in answer."""

    @property
    def member(self) -> MemberId: ...


O = TypeVar("O", bound=_Own)  # noqa: E741 - a type

Handler: TypeAlias = Callable[[Transactions, RegionName, C], A]
Row: TypeAlias = tuple[type[C], Handler[C, A]]
Decision: TypeAlias = Callable[[Region, datetime, C], Region]


def _decide(transactions: Transactions, name: RegionName, rule: Rule) -> Region:
    """Run a rule under the region's lock, and everything due with it."""
    return transactions.decide(name, lambda region, now: _whole(region, now, rule))


def _whole(region: Region, now: datetime, rule: Rule) -> Region:
    return lifecycle.reconcile(rule(completion.by_itself(region, now), now), now)


# -- kinds of rows -------------------------------------------------------------------------------------------------


def _decided(kind: type[C], rule: Decision[C]) -> Row[C, Region]:
    """Answer with the region as decided."""
    return kind, lambda transactions, name, command: _decide(
        transactions, name, lambda region, now: rule(region, now, command)
    )


def _seen(kind: type[C], rule: Decision[C], see: Callable[[Region, datetime, C], A]) -> Row[C, A]:
    """Answer with what can be seen of the region in the same transaction."""

    def handler(transactions: Transactions, name: RegionName, command: C) -> A:
        seen: list[A] = []

        def seen_by(region: Region, now: datetime) -> Region:
            after = _whole(region, now, lambda region, now: rule(region, now, command))
            seen.append(see(after, now, command))
            return after

        transactions.decide(name, seen_by)
        return seen[-1]

    return kind, handler


def _shown(kind: type[O], rule: Decision[O]) -> Row[O, MemberRegion]:
    """Answer with what the member sees after it, so that it need not read the region again."""
    return _seen(kind, rule, lambda region, now, command: claims.of_member(region, command.member, now))


# -- commands with a transaction of their own ----------------------------------------------------------------------


def _read(transactions: Transactions, name: RegionName, command: ReadRegion) -> MemberRegion:
    return transactions.read_as(name, command.member, lambda region, now: claims.of_member(region, command.member, now))


def _renew(transactions: Transactions, name: RegionName, command: Renew) -> Heartbeat:
    member = command.member
    renewal = Renewal(region=name, command=command)
    heartbeat = transactions.renew([renewal]).get(renewal)
    if heartbeat is None:
        raise StoreBusy(f"the lease of {member} in region {name} is being written; it was not renewed, ask again")
    if isinstance(heartbeat, RefusedError):
        raise heartbeat
    return heartbeat


def _start_batch(transactions: Transactions, name: RegionName, command: StartBatch) -> Batch:
    region = transactions.admit(
        name,
        command.member,
        command.batch,
        frozenset(command.ranges),
        lambda region, now: batches.start(region, now, command),
    )
    return region.running[command.batch]


def _finish_batch(transactions: Transactions, name: RegionName, command: FinishBatch) -> None:
    batch, member, incarnation = command.batch, command.member, command.incarnation
    try:
        transactions.admit(
            name, member, batch, None, lambda region, now: batches.finish(region, now, batch, member, incarnation)
        )
    except BatchRefused:
        row = transactions.batch(name, batch)
        if row is None or row.outcome is not Outcome.DONE or row.incarnation != incarnation:
            raise


def _report_partitions(transactions: Transactions, name: RegionName, command: ReportPartitions) -> PartitionAdvice:
    advice: list[PartitionAdvice] = []

    def rule(region: Region, now: datetime) -> Region:
        after = membership.report_partitions(region, now, command)
        # Of the same state as the report: what is due besides may end a reset, in which nothing was recorded.
        advice.append(membership.advice(after, now, command.member))
        return after

    _decide(transactions, name, rule)
    return advice[-1]


def _discard_batch(region: Region, now: datetime, command: DiscardBatch) -> Region:
    if command.batch not in region.running:
        return region
    return batches.discard(region, now, command.batch, command.member, command.incarnation)


def _store_boundary_offsets(region: Region, now: datetime, command: StoreBoundaryOffsets) -> Region:
    caller = command.caller
    require_member(region, caller.member, caller.incarnation, now, epoch=caller.epoch)
    return boundaries.store(region, now, command.boundary, command.found)


def _report_seek_commit(region: Region, now: datetime, command: ReportSeekCommit) -> Region:
    caller = command.caller
    require_member(region, caller.member, caller.incarnation, now)
    body = events.SeekCommitted(epoch=caller.epoch, member=caller.member, failure=command.failure)
    return record(region, now, body)


# -- commands of operators with an answer or a transaction of their own --------------------------------------------


def _declare(transactions: Transactions, name: RegionName, command: DeclareRegion) -> Region:
    return transactions.create(
        name, lambda now: lifecycle.declare(name, command.region_id, command.spec, now, command.clusters)
    )


def _delete(transactions: Transactions, name: RegionName, _: DeleteRegion) -> None:
    transactions.delete(name, lifecycle.require_deletable)


def _retire(transactions: Transactions, name: RegionName, _: RetireCheckpoints) -> Region:
    retired: list[bool] = []

    def rule(region: Region, now: datetime) -> Region:
        after = completion.retire(region, now)
        retired.append(after.counter != region.counter)
        return lifecycle.reconcile(after, now)

    while True:
        region = _certain(lambda: transactions.decide(name, rule))
        if not retired[-1]:
            return region


def _request(region: Region, now: datetime, command: RequestCheckpoint) -> CheckpointRequest:
    return _there(request_of(region, command.request_id))


def _applied(region: Region, now: datetime, command: ApplyReset) -> PersonReset:
    return _there(person_reset_of(region, command.reset.request_id))


def _there(row: V | None) -> V:
    """Return a row that a decision has just stored, or found."""
    if row is None:
        raise RuntimeError("a decision stored a row that can't be found")
    return row


# -- the table -----------------------------------------------------------------------------------------------------


def _certain(attempt: Callable[[], A]) -> A:
    """Run one transaction; where its COMMIT's answer was lost, ask again: the rule recognises what was done."""
    try:
        return attempt()
    except OutcomeUnknown:
        return attempt()


def _repeated(handler: Handler[C, A]) -> Handler[C, A]:
    return lambda transactions, name, command: _certain(lambda: handler(transactions, name, command))


_ONCE: Final = (
    (DeclareRegion, _declare),
    (DeleteRegion, _delete),
    (RetireCheckpoints, _retire),  # each of its transactions is repeated by itself
)

_REPEATED: Final[tuple[tuple[type[Command[object]], Callable[..., object]], ...]] = (
    _seen(Register, membership.register, lambda region, now, c: region.members[c.member].incarnation),
    (Renew, _renew),
    (ReadRegion, _read),
    _decided(Reconcile, lambda region, now, c: region),
    _decided(Leave, lambda region, now, c: membership.leave(region, now, c.member, c.incarnation)),
    _decided(KeepSlot, lambda region, now, c: membership.keep_slot(region, now, c.member, c.incarnation)),
    _decided(ReportLater, lifecycle.seen_later),
    _decided(ReportNoted, lambda region, now, c: lifecycle.noted_later(region, now, c.partition, c.noted)),
    _shown(ClaimPartitions, claims.claim),
    (ReportPartitions, _report_partitions),
    _decided(AnswerEntries, lambda region, now, c: resets.answer(region, now, c.caller, c.found)),
    _shown(Acknowledge, lambda region, now, c: resets.acknowledge(region, now, c.caller)),
    _decided(RequestReset, lambda region, now, c: resets.request(region, now, c.caller, c.cause, c.detail)),
    _decided(ReportOutOfRange, lost_logs.report_out_of_range),
    (StartBatch, _start_batch),
    (FinishBatch, _finish_batch),
    _decided(DiscardBatch, _discard_batch),
    _decided(StoreBoundaryOffsets, _store_boundary_offsets),
    _shown(Contribute, completion.contribute),
    _shown(ReportPublished, lambda region, now, c: completion.publish(region, now, c.sequence, c.member)),
    _decided(
        ReportReadBack,
        lambda region, now, c: completion.read_back(region, now, c.sequence, c.member, c.incarnation, c.offsets),
    ),
    _decided(ReportSeekCommit, _report_seek_commit),
    _decided(ChangeSpec, specs.change),
    _decided(ReportClusters, lost_logs.report_clusters),
    _decided(ReportStartFailures, lambda region, now, c: specs.failed_to_start(region, now, c.failures)),
    _decided(StartRegion, lambda region, now, c: lifecycle.start(region, now, c.requester)),
    _decided(PauseRegion, lambda region, now, c: lifecycle.pause(region, now, c.requester)),
    _decided(StopRegion, lambda region, now, c: lifecycle.stop(region, now, c.requester)),
    _decided(KillRegion, lambda region, now, c: lifecycle.kill(region, now, c.requester)),
    _decided(ReportForeignConsumer, lambda region, now, c: membership.halt_for_foreign_consumer(region, now, c.text)),
    _decided(ReportGroups, lambda region, now, c: membership.report_foreign_consumers(region, now, c.seen)),
    _seen(RequestCheckpoint, checkpoints.ask, _request),
    _decided(PublishCheckpoint, lambda region, now, c: completion.publish(region, now, c.sequence, None)),
    _decided(RepairReadBack, lambda region, now, c: completion.repair(region, now, c.sequence, c.offsets)),
    _decided(PinCheckpoint, lambda region, now, c: completion.pin(region, now, c.sequence, c.label, c.reason)),
    _decided(RecordResetAnswer, lambda region, now, c: person_resets.answered(region, now, c.answer)),
    _seen(ApplyReset, person_resets.apply, _applied),
)

TABLE: Final[Mapping[type[Command[object]], Callable[..., object]]] = {
    **{kind: _repeated(handler) for kind, handler in _REPEATED},
    **dict(_ONCE),
}
"""One row a command; a new one needs its value in `protocol.commands`, its rule, and its row here."""
