"""A store that was restored from an older state, found out by what members remember or Kafka's commit metadata says."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from airflow_kcr.protocol.offsets import EMPTY
from airflow_kcr.protocol.region import events, membership, resets, rows, timelines
from airflow_kcr.protocol.region.commands import ReportLater, ReportNoted
from airflow_kcr.protocol.region.state import Region, put
from airflow_kcr.protocol.values import GroupPartition, Incarnation, replace

_RESTORED_CHOICES: Final = (
    "compare the newest checkpoint with Kafka's committed offsets and the sinks",
    "resume: every record since the restored restore point is processed again",
    "apply a forced reset to the place that the sinks agree on",
)


def seen_later(region: Region, now: datetime, memory: ReportLater) -> Region:
    """Return the region halted, if the store is older than what a member has already acted on (scenario C33).

    The numbers are raised above everything that was seen, so that nothing is ever used twice once a person resumes.
    """
    row = region.members.get(memory.member)
    incarnation = Incarnation(0) if row is None else row.incarnation
    later = [*timelines.noted_later(region, memory)]
    numbers = (("incarnation", memory.incarnation, incarnation), ("event", memory.counter, region.counter))
    later += [f"{what} {seen}, the store has {held}" for what, seen, held in numbers if seen > held]
    later += [f"{partition} at {offset}, which the store has not" for partition, offset in memory.positions.items()]
    # Every member tells this once; the first one is enough. A resume after a restore opens a timeline: who was frozen
    # until then has nothing to tell any more.
    is_told = region.halt is not None and region.halt.reason is rows.HaltReason.RESTORED
    if memory.event is not None and not is_told and memory.timeline >= region.timeline:
        number, at = memory.event.number, memory.event.at
        later.append(f"event {number} recorded at {at.isoformat()}, and the store has another one by this number")
    if not later:
        return region
    text = f"the store was restored from an older state: {memory.member} has seen {'; '.join(later)}"
    region = resets.give_up(region, now, "the store was restored; a resume goes to the restore point")
    region = timelines.with_numbers_above(region, memory)
    if memory.incarnation > incarnation:
        row = row or rows.Member(member=memory.member, incarnation=incarnation, left=True)
        region = membership.with_predecessor_fenced(region, memory.member)
        raised = replace(row, incarnation=memory.incarnation)
        region = replace(region, members=put(region.members, {memory.member: raised}))
    region = region.record(now, events.StoreRestoredSeen(member=memory.member, detail="; ".join(later)))
    kept = None if region.halt is None else region.halt.noted
    reason = rows.Halt(reason=rows.HaltReason.RESTORED, text=text, choices=_RESTORED_CHOICES, noted=kept)
    return resets.halt(region, now, reason)


def noted_later(region: Region, now: datetime, report: ReportNoted) -> Region:
    """Return the region halted, if Kafka's commit metadata knows later numbers than the store; none is raised yet.

    A halted or stopped region stays as it is: when it starts, its members check again.
    """
    partition, note = report.partition, report.noted
    if region.state in rows.RESTING:
        return _also_noted(region, now, note)
    later = "; ".join(timelines.noted_later(region, note))
    if not later:
        return region
    where = f"Kafka's commit metadata of {partition}, read by {note.member}, says {later}"
    region = resets.give_up(region, now, "Kafka knows later numbers than the store; a resume goes to the restore point")
    region = region.record(now, events.StoreRestoredSeen(member=note.member, detail=later))
    if timelines.is_reachable_note(region, note):
        reason = rows.Halt(
            reason=rows.HaltReason.RESTORED,
            text=f"the store was restored from an older state, or another client has written this: {where}",
            choices=(*_RESTORED_CHOICES, _overwrite(region, partition)),
            noted=note,
        )
    else:
        reason = rows.Halt(
            reason=rows.HaltReason.RESTORED,
            text=f"another client has written this, as no region gets there: {where}",
            choices=(f"find who else may commit to group {partition.group}", _overwrite(region, partition)),
        )
    return resets.halt(region, now, reason)


def _also_noted(region: Region, now: datetime, note: rows.Noted) -> Region:
    """Keep the greatest numbers of several notes, where the region was halted for one of them."""
    halt = region.halt
    if halt is None or halt.noted is None or not timelines.is_reachable_note(region, note):
        return region
    greatest = replace(
        halt.noted,
        epoch=max(halt.noted.epoch, note.epoch),
        sequence=max(halt.noted.sequence, note.sequence),
        timeline=max(halt.noted.timeline, note.timeline),
    )
    if greatest == halt.noted:
        return region
    detail = "; ".join(timelines.noted_later(region, note))
    return replace(region, halt=replace(halt, noted=greatest)).record(
        now, events.StoreRestoredSeen(member=note.member, detail=detail)
    )


def _overwrite(region: Region, partition: GroupPartition) -> str:
    """Return how to remove a note that another program has written."""
    checkpoint = region.restore_checkpoint
    if checkpoint is not None and partition in region.offsets.get(checkpoint.sequence, EMPTY):
        how = f"kcr checkpoint repair {region.name} {checkpoint.sequence}"
    else:
        how = f"kafka-consumer-groups.sh --delete-offsets --group {partition.group} --topic {partition.topic}"
    return (
        f"if the store was not restored: stop the region (kcr region stop {region.name}); once its members have left, "
        f"overwrite what was written ({how}), then start it (kcr region start {region.name})"
    )
