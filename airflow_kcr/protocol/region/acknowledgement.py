"""What a member does for a running reset: answer open seek entries, then acknowledge (docs/explanation/what-if.md).

The order is the safety: quiesced first, then the sinks' fences are raised, then progress is read and rolled back, then
positions are set; only then does the member say so. A sink's progress read before its fence could be overtaken by a
zombie's transaction (scenario C47).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from airflow_kcr.errors import BatchRefused, NotClaimed
from airflow_kcr.protocol.commands import Caller, Found
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.region import automatic_resets, batches, coverage, events, recreated_topics, resets
from airflow_kcr.protocol.region.rows import RESET_STATES, OpenTarget, Outcome, RegionState, ResetCause
from airflow_kcr.protocol.region.state import Region, put, record, require_epoch, require_member, require_state
from airflow_kcr.protocol.seek_map import SeekEntry, SeekSource
from airflow_kcr.protocol.values import GroupPartition, MemberId


def open_targets(region: Region, member: MemberId) -> dict[GroupPartition, OpenTarget]:
    """Return the open entries of the partitions that a member holds: what it has to answer before it acknowledges."""
    found: dict[GroupPartition, OpenTarget] = {}
    for partition, entry in region.seek.items():
        claim = region.claims.get(partition)
        if entry.offset is None and claim is not None and claim.owner == member:
            fallback = automatic_resets.without_progress(region, partition) if entry.current is None else entry.current
            found[partition] = OpenTarget(source=entry.source, fallback=fallback)
    return found


def answer(region: Region, now: datetime, caller: Caller, found: Mapping[GroupPartition, Found]) -> Region:
    """Return the region with open seek entries written by the owner of their partitions; the first writer wins.

    A place that was looked up in the log of a topic that was made anew takes the partition over to that topic.

    Raises:
        StaleEpoch, StaleIncarnation, LeaseExpired: the member may not act, or not in this epoch.
        NotClaimed: it does not hold a partition that it answers for.
    """
    require_member(region, caller.member, caller.incarnation, now, epoch=caller.epoch)
    entries: dict[GroupPartition, SeekEntry] = {}
    logs: dict[GroupPartition, LogBounds] = {}
    for partition, answered in found.items():
        claim = region.claims.get(partition)
        if claim is None or claim.owner != caller.member or not coverage.is_current(region, claim, now):
            raise NotClaimed(f"{caller.member} does not hold {partition} now; it can't say where that resumes")
        entry = region.seek.get(partition)
        if entry is None or entry.offset is not None:
            continue
        offset = answered.offset
        if offset is None and entry.source is SeekSource.SINK_PROGRESS:
            offset = automatic_resets.without_progress(region, partition)
        entries[partition] = replace(entry, offset=offset, clamped_from=answered.clamped_from)
        if answered.log is not None:
            logs[partition] = answered.log
    if not entries:
        return region
    seek = recreated_topics.told(region, entries, logs)
    return resets.write_seek(recreated_topics.followed(region, now, logs), now, seek)


def acknowledge(region: Region, now: datetime, caller: Caller) -> Region:
    """Return the region with a member's acknowledgement, and its reset done if that was the last thing missing.

    Whatever this incarnation left running is discarded with it: the member says that nothing of it runs any more. Said
    twice in one epoch, it changes nothing.

    Raises:
        StaleEpoch, StaleIncarnation, LeaseExpired: the member may not act, or not in this epoch.
        RegionInState: no reset runs.
        NotClaimed: it has not claimed in this epoch.
        BatchRefused: an open entry of its partitions is unanswered.
    """
    row = require_member(region, caller.member, caller.incarnation, now, epoch=caller.epoch)
    if row.acknowledged == region.epoch:
        return region
    require_state(region, RESET_STATES, "an acknowledgement")
    if row.claimed != region.epoch:
        raise NotClaimed(f"{caller.member} has not claimed in epoch {region.epoch}; claim first, then acknowledge")
    unanswered = open_targets(region, caller.member)
    if unanswered:
        raise BatchRefused(f"{caller.member} has open seek entries: {', '.join(map(str, sorted(unanswered)[:5]))}")
    for batch in tuple(region.running.values()):
        if batch.member == caller.member and batch.incarnation == caller.incarnation:
            region = batches.closed(region, now, batch, Outcome.DISCARDED)
    region = replace(region, members=put(region.members, {caller.member: replace(row, acknowledged=region.epoch)}))
    body = events.Acknowledged(member=caller.member, incarnation=caller.incarnation, epoch=region.epoch)
    return resets.progress(record(region, now, body), now)


def request(region: Region, now: datetime, caller: Caller, cause: ResetCause, detail: str) -> Region:
    """Return the region after an automatic request, which carries the epoch it was made in.

    Lower than the region's: it is already answered. Equal: it begins, or halts where failures are used up. So a
    requested reset is never swallowed and never doubled.

    Raises:
        StaleIncarnation, LeaseExpired, UnknownMember: the member may not act; its next incarnation's claim decides.
        StaleEpoch: it names an epoch that the store has not reached: the store was restored, the member will say so.
    """
    require_member(region, caller.member, caller.incarnation, now)
    if caller.epoch > region.epoch:
        require_epoch(region, caller.epoch)
    body = events.ResetRequested(member=caller.member, epoch=caller.epoch, cause=cause, detail=detail)
    region = record(region, now, body)
    if caller.epoch < region.epoch or region.state in {RegionState.HALTED, RegionState.STOPPED}:
        return region
    return resets.demand(region, now, cause, f"{caller.member}: {detail}" if detail else str(caller.member))
