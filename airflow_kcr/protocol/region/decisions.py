"""The table of rules: each command that changes a region as a whole, what it is decided by, and what answers it.

Every rule recognises a command that it has decided before: the same command again finds the first one's result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias

from airflow_kcr.protocol.region import (
    batches,
    boundaries,
    claims,
    commands,
    completion,
    lifecycle,
    lost_logs,
    membership,
    person_resets,
    publication,
    recomputations,
    reconciliation,
    requests,
    resets,
    restored,
    retention,
    runs,
    specs,
    unowned,
)
from airflow_kcr.protocol.region.rows import Recomputation
from airflow_kcr.protocol.region.state import Region

# Of any command: its key in the table says which.
Rule: TypeAlias = Callable[[Region, datetime, Any], Region]
Answer: TypeAlias = Callable[[Region, datetime, Any], object]


def decide(region: Region, now: datetime, command: commands.Command[object]) -> tuple[Region, object]:
    """Return the region after a command and everything due with it, and the answer; None: the region itself.

    Raises:
        RefusedError: the rule refuses it; nothing has changed.
    """
    if isinstance(command, commands.InEpoch):
        region.require_epoch(command.epoch)
        return decide(region, now, command.command)
    if isinstance(command, commands.FromProcess):
        return decide(region.of_process(command.member, command.token), now, command.command)
    region = RULES[type(command)](retention.by_itself(region, now), now, command)
    region = reconciliation.reconcile(region, now)
    answer = ANSWERS.get(type(command))
    return region, None if answer is None else answer(region, now, command)


def retire(region: Region, now: datetime) -> tuple[Region, bool]:
    """Return the region without some of the checkpoints that are due to be retired, and whether there were any."""
    after = retention.retire(region, now)
    return reconciliation.reconcile(after, now), after.counter != region.counter


RULES: Final[Mapping[type[commands.Command[object]], Rule]] = {
    commands.Register: membership.register,
    commands.Reconcile: lambda region, now, command: region,
    commands.Leave: membership.leave,
    commands.KeepSlot: membership.keep_slot,
    commands.ReportLater: restored.seen_later,
    commands.ReportNoted: restored.noted_later,
    commands.ClaimPartitions: claims.claim,
    commands.ReportPartitions: unowned.report_partitions,
    commands.AnswerEntries: resets.answer,
    commands.Acknowledge: resets.acknowledge,
    commands.RequestReset: resets.request,
    commands.ReportOutOfRange: lost_logs.report_out_of_range,
    commands.DiscardBatch: batches.discard,
    commands.StoreBoundaryOffsets: boundaries.store,
    commands.Contribute: completion.contribute,
    commands.ReportPublished: publication.publish,
    commands.ReportReadBack: publication.read_back,
    commands.ReportSeekCommit: resets.seek_committed,
    commands.ChangeSpec: specs.change,
    commands.ReportClusters: lost_logs.report_clusters,
    commands.ReportStartFailures: specs.failed_to_start,
    commands.ChangeDesiredState: lifecycle.change_desired_state,
    commands.KillRegion: lifecycle.kill,
    commands.ReportGroups: membership.report_foreign_consumers,
    commands.RequestCheckpoint: requests.ask,
    commands.Run: runs.start,
    commands.CompleteAtRest: runs.complete_at_rest,
    commands.PublishCheckpoint: publication.publish,
    commands.PinCheckpoint: retention.pin,
    commands.StartRecomputation: recomputations.start,
    commands.RenewRecomputation: recomputations.renew,
    commands.FinishRecomputation: recomputations.finish,
    commands.FailRecomputation: recomputations.fail,
    commands.RecordResetAnswer: person_resets.answered,
    commands.ApplyReset: person_resets.apply,
}
"""One row a command; a new one needs its value in `commands`, its rule, and its row here."""


def _begun(region: Region, now: datetime, command: commands.StartRecomputation) -> Recomputation | None:
    row = region.checkpoint_of(command.sequence)
    return None if row is None else recomputations.newest(row, command.request_id)


ANSWERS: Final[Mapping[type[commands.Command[object]], Answer]] = {
    commands.Register: lambda region, now, command: region.members[command.member].incarnation,
    commands.ClaimPartitions: claims.shown,
    commands.ReportPartitions: unowned.advice,
    commands.Acknowledge: claims.shown,
    commands.Contribute: claims.shown,
    commands.ReportPublished: claims.shown,
    commands.RequestCheckpoint: lambda region, now, command: region.request_of(command.request_id),
    commands.Run: lambda region, now, command: region.request_of(command.request_id),
    commands.CompleteAtRest: lambda region, now, command: runs.is_complete(region, command.run.request_id),
    commands.StartRecomputation: _begun,
    commands.FinishRecomputation: lambda region, now, c: recomputations.of_number(region, c.sequence, c.number),
    commands.FailRecomputation: lambda region, now, c: recomputations.of_number(region, c.sequence, c.number),
    commands.ApplyReset: lambda region, now, command: region.person_reset_of(command.reset.request_id),
}
"""What answers a command, seen once everything due with it is done; the others are answered with the region."""
