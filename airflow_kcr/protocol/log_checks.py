"""What the logs of a group say, held against the region: topics, claims and offsets."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from airflow_kcr.protocol.evidence import Evidence, Findings
from airflow_kcr.protocol.instants import format_instant
from airflow_kcr.protocol.region import absent_partitions, coverage, out_of_range, recreated_topics
from airflow_kcr.protocol.region.rows import RESET_STATES, Committed, RegionState
from airflow_kcr.protocol.region.state import Region, contributions_to, restore_point_offsets, universe
from airflow_kcr.protocol.values import CheckpointNumber, GroupPartition, MemberId, Offset

_WORKING: Final = frozenset({RegionState.RUNNING, RegionState.DRAINING})


def topics(evidence: Evidence) -> Findings | None:
    """Listed topics exist; a pattern may match nothing yet, and its group then waits."""
    there, rules = evidence.topics, evidence.rules
    if there is None:
        return None
    missing = tuple(
        f"topic {t} does not exist, or this client may not see it; create it, or take it out of the spec"
        for t in rules.topics
        if t not in there
    )
    if rules.pattern is not None and not any(rules.subscribes(t) for t in there):
        text = f"pattern {rules.pattern} matches none of the {len(there)} topics of the cluster; the group waits"
        return Findings(warnings=(text,))
    found = {t: n for t, n in sorted(there.items()) if rules.subscribes(t)}
    fine = f"{len(found)} topic(s) with {sum(found.values())} partition(s): {', '.join(found)}"
    return Findings(failed=missing, fine=fine)


def topic_ids(region: Region, evidence: Evidence) -> Findings | None:
    """No topic was deleted and created again: its offsets would mean other records."""
    if evidence.bounds is None:
        return None
    again = {
        p.topic: f"topic {p.topic} was deleted and created again (id {region.claims[p].topic_id} became "
        f"{evidence.bounds[p].topic_id}): its offsets mean other records now; policy beyond_end is "
        f"{region.rules.beyond_end}"
        for p in sorted(recreated_topics.found(region, evidence.bounds))
    }
    return Findings(failed=tuple(again.values()), fine="every topic is the one that was claimed")


def claims(region: Region, now: datetime, evidence: Evidence) -> Findings | None:
    """Every partition is claimed once, by who owns it in Kafka; that no two claim one, the store sees to."""
    if evidence.topics is None:
        return None
    group = evidence.group
    uncovered = tuple(
        f"{gap.partition} is claimed by no live member (last owner: {gap.last_owner or 'none'})"
        for gap in coverage.missing(region, now)
        if gap.partition.group == group
    )
    known = {p for p in universe(region) if p.group == group}
    there = evidence.rules.partitions(evidence.topics)
    late = coverage.overdue(region, now)
    unread = tuple(
        f"{p} has had no owner since {format_instant(since)}: it is not read, and checkpoints lack it. A "
        "member joins its "
        "group anew for it when every owner in the group lives; if that does not help, stop the region and start it"
        for p, since in late.items()
        if p in there
    )
    fresh = tuple(
        f"{p} is new and unclaimed (last owner: {_last_owner(region, p) or 'none'}); a member joins its group anew for "
        f"it when that has lasted {region.rules.timeouts.rejoin_after.total_seconds():g} s"
        for p in sorted(there - known - late.keys())
    )
    gone = tuple(f"{p} is in the region but not on the cluster{_absence(region, p)}" for p in sorted(known - there))
    left = tuple(
        f"{p}: {absent_partitions.told(region, region.absent[p])}"
        for p in sorted(absent_partitions.gone(region) - there)
        if p.group == group and region.rules.subscribes(group, p.topic)
    )
    fresh = (*fresh, *left)
    fine = f"{len(known)} partition(s), each claimed once"
    if region.state in _WORKING:
        failed = (*gone, *uncovered, *unread, *_disputed(region, now, evidence))
        return Findings(failed=failed, warnings=fresh, fine=fine)
    if region.state in RESET_STATES:
        return Findings(failed=gone, warnings=(*uncovered, *fresh), fine=fine)
    return Findings(
        failed=gone,
        warnings=left,
        fine=f"{len(known)} partition(s) known; the region is {region.state}, without claims",
    )


def _absence(region: Region, partition: GroupPartition) -> str:
    absence = region.absent.get(partition)
    return "" if absence is None else f": {absent_partitions.told(region, absence)}"


def _last_owner(region: Region, partition: GroupPartition) -> MemberId | None:
    claim = region.claims.get(partition)
    return None if claim is None else claim.owner or claim.last_owner


def _disputed(region: Region, now: datetime, evidence: Evidence) -> Iterator[str]:
    """Yield partitions that have another owner in Kafka than in the store; during a rebalance that says nothing."""
    seen = evidence.described
    if seen is None or not seen.is_stable:
        return
    owners: dict[GroupPartition, list[str]] = {}
    for listed in seen.members:
        member = evidence.participants.member(listed, evidence.rules)
        name = f"consumer {listed.client_id} on {listed.host}" if member is None else str(member)
        for place in listed.partitions:
            owners.setdefault(GroupPartition(seen.group, place.topic, place.partition), []).append(name)
    for partition, names in sorted(owners.items()):
        claim = region.claims.get(partition)
        if len(names) > 1:
            yield f"{partition} is assigned to {' and '.join(sorted(names))} at once"
        elif claim is not None and coverage.is_current(region, claim, now) and names[0] != str(claim.owner):
            yield f"{partition} is claimed by {claim.owner}, Kafka has assigned it to {names[0]}"


def offsets(region: Region, evidence: Evidence) -> Findings | None:
    """Positions, restore point and committed offsets are inside their logs, and retention does not overtake it."""
    logs = evidence.bounds
    if logs is None:
        return None
    outside = [f"{t.partition} at {t.position}: {t.why} (policy {t.policy})" for t in out_of_range.found(region, logs)]
    lost = {t.partition for t in out_of_range.found(region, logs)}
    restore_point = restore_point_offsets(region).restrict(logs)
    overtaken = [
        f"{p}: a reset to the restore point at {offset} would miss {logs[p].start - offset} record(s), the "
        "log now starts at "
        f"{logs[p].start}; keep records for longer, or checkpoint more often"
        for p, offset in restore_point.items()
        if offset < logs[p].start and p not in lost
    ]
    warnings = [*_closing_in(region, evidence), *_foreign_commits(region, evidence)]
    fine = f"{len(logs)} log(s): positions, restore point and committed offsets are inside"
    return Findings(failed=(*outside, *overtaken), warnings=tuple(warnings), fine=fine)


def _closing_in(region: Region, evidence: Evidence) -> Iterator[str]:
    """Yield partitions whose restore point would be overtaken if retention went on as it did since that checkpoint."""
    if region.restore_point is None or region.restore_point_epoch is not None or evidence.bounds is None:
        return
    then = {
        p: log for part in contributions_to(region, region.restore_point).values() for p, log in part.bounds.items()
    }
    for partition, offset in restore_point_offsets(region).items():
        log, before = evidence.bounds.get(partition), then.get(partition)
        if log is None or before is None or recreated_topics.is_another(before.topic_id, log.topic_id):
            continue
        if before.start < log.start <= offset < log.end and offset - log.start <= log.start - before.start:
            yield (
                f"{partition}: retention is about to overtake the restore point: since that checkpoint the log's "
                "start moved "
                f"{log.start - before.start} to {log.start}, the restore point is at {offset}; keep records for "
                "longer, or checkpoint"
            )


def _foreign_commits(region: Region, evidence: Evidence) -> Iterator[str]:
    """Yield committed offsets that can't be the region's: consumers that only assign are seen by nothing else."""
    if evidence.bounds is None or evidence.committed is None:
        return
    for partition in sorted(evidence.bounds):
        why = strange_commit(region, partition, evidence.committed.get(partition), evidence.noted.get(partition))
        if why:
            yield f"{partition}: {why}"


def strange_commit(
    region: Region, partition: GroupPartition, held: Offset | None, noted: CheckpointNumber | None
) -> str:
    """Return why what Kafka holds for a partition is not what the region committed; empty: it is, or is not known.

    Args:
        region: the region.
        partition: one of its partitions.
        held: Kafka's committed offset; None: there is none.
        noted: the checkpoint or reset that it says it is of; None: the region has not written it.
    """
    if region.restore_point is None or region.restore_point_epoch is not None:
        return ""
    own = _committable(region, partition)
    if noted is not None and noted >= region.next_sequence:
        return (
            f"Kafka's committed offset is {held}, and says that this region committed it as number {noted}, which the "
            "store has not reached: the store was restored from an older state; members that start find that out, and "
            "halt the region with what can be done"
        )
    if region.checkpoints[region.restore_point].committed is not Committed.YES or not own or held in own:
        return ""
    if held is None:
        return (
            f"Kafka holds no committed offset, the region committed {min(own)}: the group, or its offsets, were "
            "deleted in Kafka; the region stays where it is, the next checkpoint commits again"
        )
    return (
        f"Kafka's committed offset is {held}, the region committed {min(own)}: another client commits to this group "
        "or altered its offsets with a tool; find out who, the region stays where it is and the next checkpoint "
        "commits again"
    )


def _committable(region: Region, partition: GroupPartition) -> set[Offset]:
    claim = region.claims.get(partition)
    at_restore_point = restore_point_offsets(region).get(partition)
    if at_restore_point is None:
        return set()
    return {at_restore_point} if claim is None or claim.resume is None else {at_restore_point, claim.resume}
