"""A position that is no longer in its log: retention overtook it, or the end moved back.

Declared only from log bounds that were re-read, decided by two policies, never silent: `fail` halts at once with the
choices; `earliest` and `latest` are a reset with that cause, a seek map of its own and a new timeline (scenario C38).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from airflow_kcr.protocol.commands import ReportOutOfRange
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.region import clusters, recreated_topics, resets
from airflow_kcr.protocol.region.rows import Halt, HaltReason, RegionState, ResetCause
from airflow_kcr.protocol.region.state import Region, past_skips, require_member
from airflow_kcr.protocol.rules import OutOfRangePolicy
from airflow_kcr.protocol.seek_map import SeekEntry, SeekSource
from airflow_kcr.protocol.values import GroupPartition, Offset, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfRange:
    """One partition whose position its log does not have."""

    partition: GroupPartition
    position: Offset
    bounds: LogBounds
    policy: OutOfRangePolicy
    why: str


def found(region: Region, bounds: Mapping[GroupPartition, LogBounds]) -> tuple[OutOfRange, ...]:
    """Return the partitions whose position is not inside the log as it was just read, with the policy that applies."""
    troubles = []
    for partition, log in sorted(bounds.items()):
        claim = region.claims.get(partition)
        position = None if claim is None else claim.position
        if claim is None or position is None:
            continue
        if recreated_topics.is_another(claim.topic_id, log.topic_id):
            why = f"the topic was deleted and created again (id {claim.topic_id} became {log.topic_id})"
            policy = region.rules.beyond_end
        elif position < log.start:
            why = f"retention overtook it: the log now starts at {log.start}"
            policy = region.rules.out_of_range
        elif position > past_skips(region, partition, log.end):
            why = f"the log's end moved back to {log.end}"
            policy = region.rules.beyond_end
        else:
            continue
        troubles.append(OutOfRange(partition=partition, position=position, bounds=log, policy=policy, why=why))
    return tuple(troubles)


def report(region: Region, now: datetime, told: ReportOutOfRange) -> Region:
    """Return the region after a member reported its logs, re-read.

    A halted or stopped region is left alone: its resume finds out again. No policy decides about logs of
    another cluster.

    Raises:
        StaleEpoch, StaleIncarnation, LeaseExpired, UnknownMember: the member may not act, or not in this epoch.
    """
    caller = told.caller
    require_member(region, caller.member, caller.incarnation, now, epoch=caller.epoch)
    if clusters.is_another(region, caller.member.group, told.cluster):
        return clusters.halted(region, now, caller.member.group, told.cluster)
    troubles = found(region, told.observed)
    if not troubles or region.state in {RegionState.HALTED, RegionState.STOPPED}:
        return region
    return handled(region, now, troubles)


def handled(region: Region, now: datetime, troubles: tuple[OutOfRange, ...]) -> Region:
    """Return the region halted, or in a reset to where the policy says; the other partitions go where they would."""
    if _must_halt(troubles):
        return _halted(region, now, troubles)
    done = _done_by_sinks(region)
    back = resets.gone_back_for_output(region, now, ResetCause.OUT_OF_RANGE)
    left = troubles if back is region else _left(back, troubles)
    if not left:
        return back
    return _halted(back, now, left) if _must_halt(left) else _opened(back, now, left, done)


def _must_halt(troubles: tuple[OutOfRange, ...]) -> bool:
    return any(t.policy is OutOfRangePolicy.FAIL for t in troubles)


def _halted(region: Region, now: datetime, troubles: tuple[OutOfRange, ...]) -> Region:
    choices = (
        "set out_of_range (retention) or beyond_end (truncated or recreated) to earliest or latest, then resume",
        "apply a forced reset to a place that is in the log",
        "for a recreated topic, stop the region, delete it and declare it anew",
    )
    return resets.halt(region, now, Halt(reason=HaltReason.OUT_OF_RANGE, text=_text(troubles), choices=choices))


def _text(troubles: tuple[OutOfRange, ...]) -> str:
    return "; ".join(f"{t.partition} at {t.position}: {t.why}" for t in troubles[:10])


def _left(back: Region, troubles: tuple[OutOfRange, ...]) -> tuple[OutOfRange, ...]:
    """Return what is out of its log after the region has gone back for output.

    A position may be in its log now, or be out of it in another way. Where a sink has yet to say it, the partition
    didn't go back, and is out of its log as before: left to the next report, which may come only when other groups have
    processed again, the region would go back for their output for ever.
    """
    unsaid = (t for t in troubles if back.claims[t.partition].position is None)
    return (*found(back, {t.partition: t.bounds for t in troubles}), *unsaid)


def _done_by_sinks(region: Region) -> dict[GroupPartition, SeekEntry]:
    """Return, of the partitions whose sinks would be asked, the places up to which all is known to be done.

    A sink's progress of an older timeline is none, so in a new one they go there.
    """
    done = resets.last_done(region)
    return {
        p: replace(e, offset=done.get(p), source=SeekSource.BATCH_END)
        for p, e in resets.target(region).items()
        if e.source is SeekSource.SINK_PROGRESS
    }


def _opened(
    before: Region, now: datetime, troubles: tuple[OutOfRange, ...], done: Mapping[GroupPartition, SeekEntry]
) -> Region:
    logs = {t.partition: t.bounds for t in troubles}
    region = recreated_topics.followed(before, now, logs)
    entries: dict[GroupPartition, SeekEntry] = {**resets.target(region), **done}
    for trouble in troubles:
        log = trouble.bounds
        offset = log.start if trouble.policy is OutOfRangePolicy.EARLIEST else log.end
        entries[trouble.partition] = SeekEntry(
            offset=offset, source=SeekSource.OUT_OF_RANGE, current=trouble.position, clamped_from=trouble.position
        )
    opening = resets.Opening(seek=recreated_topics.told(before, entries, logs))
    return resets.begin(region, now, ResetCause.OUT_OF_RANGE, opening=opening, detail=_text(troubles))
