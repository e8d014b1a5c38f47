"""What the store answers to a member's commands, as events: for tests that care for the answer, not for the command.

Each makes the command that it answers, with no more in it than a member recognises it by.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from airflow_kcr.errors import BatchRefused, KcrError, PartitionBusy, RegionInState, UnknownMember, UnknownTopics
from airflow_kcr.protocol.member.messages import Answered as _Answered
from airflow_kcr.protocol.member.messages import Event
from airflow_kcr.protocol.member.messages import Refused as _Refused
from airflow_kcr.protocol.offsets import EMPTY
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.region.commands import Caller, PartitionAdvice
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.values import (
    AssignmentId,
    BatchId,
    CheckpointNumber,
    Epoch,
    EventNumber,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    Range,
    Timeline,
)

ME = MemberId(GroupId("g"), 0)
FIRST = Incarnation(1)
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def registered(incarnation: Incarnation, sent_at: float) -> Event:
    command = commands.Register(member=ME, token="t")
    return _Answered(command=command, result=incarnation, sent_at=sent_at)


def registration_refused(why: str = "no such index", error: KcrError | None = None) -> Event:
    return _Refused(command=commands.Register(member=ME, token="t"), error=error or UnknownMember(why))


def heartbeat(
    counter: EventNumber,
    *,
    epoch: Epoch = Epoch(2**60),
    incarnation: Incarnation = FIRST,
    renewed: bool = True,
    needs_reconciling: bool = False,
    is_other_history: bool = False,
) -> commands.Heartbeat:
    return commands.Heartbeat(
        now=NOW,
        counter=counter,
        epoch=epoch,
        incarnation=incarnation,
        renewed=renewed,
        reconcile_at=NOW if needs_reconciling else None,
        is_other_history=is_other_history,
    )


RENEW = commands.Renew(member=ME, incarnation=FIRST, lease=timedelta(seconds=10))


def renewed(
    sent_at: float, counter: EventNumber, *, needs_reconciling: bool = False, epoch: Epoch = Epoch(2**60)
) -> Event:
    """By default of an epoch that no member can have seen more than."""
    result = heartbeat(counter, needs_reconciling=needs_reconciling, epoch=epoch)
    return _Answered(command=RENEW, result=result, sent_at=sent_at)


def not_renewed(incarnation: Incarnation, *, counter: EventNumber = EventNumber(2**60)) -> Event:
    """The lease is over, or a newer incarnation holds it."""
    result = heartbeat(counter, incarnation=incarnation, renewed=False, epoch=Epoch(2**60))
    return _Answered(command=RENEW, result=result)


def renewal_refused() -> Event:
    return _Refused(command=RENEW, error=UnknownMember("it is not registered"))


def view_read(view: MemberRegion) -> Event:
    return _Answered(command=commands.ReadRegion(member=ME), result=view)


def read_refused(why: str) -> Event:
    return _Refused(command=commands.ReadRegion(member=ME), error=UnknownMember(why))


def _claim(assignment: AssignmentId) -> commands.ClaimPartitions:
    return commands.ClaimPartitions(member=ME, incarnation=FIRST, assignment=assignment, partitions={})


def claim_granted(assignment: AssignmentId, view: MemberRegion) -> Event:
    return _Answered(command=_claim(assignment), result=view)


def claim_refused(assignment: AssignmentId, why: str, *, lacks_logs: bool = False) -> Event:
    error: KcrError = UnknownTopics(why) if lacks_logs else RegionInState(why)
    return _Refused(command=_claim(assignment), error=error)


def claim_waits(assignment: AssignmentId) -> Event:
    return _Refused(command=_claim(assignment), error=PartitionBusy("a batch of another runs there"))


def _start(batch: BatchId, ranges: Mapping[GroupPartition, Range]) -> commands.StartBatch:
    return commands.StartBatch(batch=batch, member=ME, incarnation=FIRST, epoch=Epoch(1), ranges=ranges)


def batch_started(batch: BatchId, ranges: Mapping[GroupPartition, Range] | None = None) -> Event:
    row = Batch(
        batch=batch,
        member=ME,
        incarnation=FIRST,
        epoch=Epoch(1),
        timeline=Timeline(1),
        sequence=CheckpointNumber(2),
        ranges=ranges or {},
        started_at=NOW,
        started_after=EventNumber(10),
    )
    return _Answered(command=_start(batch, ranges or {}), result=row)


def start_refused(batch: BatchId, why: str) -> Event:
    return _Refused(command=_start(batch, {}), error=BatchRefused(why))


def _finish(batch: BatchId) -> commands.FinishBatch:
    return commands.FinishBatch(batch=batch, member=ME, incarnation=FIRST)


def batch_accepted(batch: BatchId) -> Event:
    return _Answered(command=_finish(batch), result=None)


def finish_refused(batch: BatchId, why: str) -> Event:
    return _Refused(command=_finish(batch), error=BatchRefused(why))


def discarded(batch: BatchId) -> Event:
    command = commands.DiscardBatch(batch=batch, member=ME, incarnation=FIRST)
    return _Answered(command=command, result=None)


def discard_refused(batch: BatchId) -> Event:
    command = commands.DiscardBatch(batch=batch, member=ME, incarnation=FIRST)
    return _Refused(command=command, error=BatchRefused("it is not running"))


def _acknowledge(epoch: Epoch) -> commands.Acknowledge:
    return commands.Acknowledge(caller=Caller(member=ME, incarnation=FIRST, epoch=epoch))


def acknowledged(epoch: Epoch, view: MemberRegion) -> Event:
    return _Answered(command=_acknowledge(epoch), result=view)


def acknowledgement_refused(epoch: Epoch, why: str) -> Event:
    return _Refused(command=_acknowledge(epoch), error=RegionInState(why))


def _contribute(sequence: CheckpointNumber) -> commands.Contribute:
    return commands.Contribute(
        sequence=sequence, member=ME, incarnation=FIRST, epoch=Epoch(1), offsets=EMPTY, bounds={}
    )


def contributed(sequence: CheckpointNumber, view: MemberRegion) -> Event:
    return _Answered(command=_contribute(sequence), result=view)


def contribution_refused(sequence: CheckpointNumber, why: str) -> Event:
    return _Refused(command=_contribute(sequence), error=RegionInState(why))


def published(sequence: CheckpointNumber, view: MemberRegion) -> Event:
    return _Answered(command=commands.ReportPublished(sequence=sequence, member=ME), result=view)


def publication_failed(sequence: CheckpointNumber) -> Event:
    return _Refused(command=commands.ReportPublished(sequence=sequence, member=ME), error=RegionInState("not now"))


def partitions_reported(advice: PartitionAdvice) -> Event:
    command = commands.ReportPartitions(member=ME, incarnation=FIRST, partitions=frozenset())
    return _Answered(command=command, result=advice)


def report_refused() -> Event:
    command = commands.ReportPartitions(member=ME, incarnation=FIRST, partitions=frozenset())
    return _Refused(command=command, error=RegionInState("not now"))


def told() -> Event:
    """Of a command whose answer is not awaited."""
    return _Answered(command=commands.Reconcile(), result=None)


def not_told() -> Event:
    return _Refused(command=commands.Reconcile(), error=RegionInState("not now"))
