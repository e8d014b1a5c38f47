"""Are a group's topics, partitions and offsets what its region takes them for.

Each question yields what it finds, and nothing where what it needs could not be read; see `validation`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace

from airflow_kcr.protocol import values
from airflow_kcr.protocol.evidence import CheckFindings, Evidence, failed, fine, warning
from airflow_kcr.protocol.region import coverage, lost_logs, timelines
from airflow_kcr.protocol.region.rows import CLAIM_STATES, WORKING, Committed
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import COMMITTED, GroupRules
from airflow_kcr.protocol.values import GroupPartition, Offset, few, format_instant


def topics(evidence: Evidence) -> CheckFindings:
    """Listed topics exist; a pattern may match nothing yet, and its group then waits."""
    there, rules = evidence.topics, evidence.rules
    if there is None:
        return
    if nothing := nothing_to_read(rules, there):
        yield warning(f"{nothing}; the group waits")
        return
    for topic in rules.topics:
        if topic not in there:
            yield failed(
                f"topic {topic} does not exist, or this client may not see it; create it, or take it out of the spec"
            )
    found = {t: n for t, n in sorted(there.items()) if rules.subscribes(t)}
    counted = f"{len(found)} topic(s) with {sum(found.values())} partition(s)"
    yield fine(f"{counted}: {', '.join(found)}{_open_ended(rules, found)}")


def nothing_to_read(rules: GroupRules, there: Iterable[values.TopicName]) -> str:
    """Return why a group with a pattern has no topic to read, in words; empty: it has one, or lists its topics."""
    names = sorted(there)
    if rules.pattern is None or any(rules.subscribes(topic) for topic in names):
        return ""
    matching = [topic for topic in names if replace(rules, exclude=()).subscribes(topic)]
    if matching:
        return (
            f"exclude leaves none of the topics that pattern {rules.pattern} matches ({', '.join(matching)}); take "
            "one out of exclude, or write a wider pattern"
        )
    return f"pattern {rules.pattern} matches none of the {len(names)} topics of its cluster"


def _open_ended(rules: GroupRules, found: Collection[values.TopicName]) -> str:
    """Return which topics a pattern matches by their beginning alone: often one that was not meant."""
    pattern = rules.pattern
    longer = [] if pattern is None else [t for t in found if re.fullmatch(pattern, t) is None]
    return f"; pattern {pattern} matches only the beginning of {', '.join(longer)}" if longer else ""


def topic_ids(evidence: Evidence) -> CheckFindings:
    """No topic was deleted and created again: its offsets would mean other records."""
    if evidence.bounds is None:
        return
    region = evidence.region
    again = {p.topic: p for p in sorted(timelines.recreated(region, evidence.bounds))}
    for topic, partition in again.items():
        yield failed(
            f"topic {topic} was deleted and created again (id {region.claims[partition].topic_id} became "
            f"{evidence.bounds[partition].topic_id}): its offsets mean other records now; policy beyond_end is "
            f"{region.rules.beyond_end}"
        )
    yield fine("every topic is the one that was claimed")


def claims(evidence: Evidence) -> CheckFindings:
    """Every partition is claimed once, by who owns it in Kafka; that no two claim one, the store sees to."""
    if evidence.topics is None:
        return
    region, there = evidence.region, evidence.rules.partitions(evidence.topics)
    known = {p for p in region.universe() if p.group == evidence.group}
    # One that was found since the topics were read is on the cluster.
    for partition in sorted((known & evidence.before.universe()) - there):
        yield failed(f"{partition} is in the region but not on the cluster{_absence(region, partition)}")
    if region.state in CLAIM_STATES:
        yield from _unclaimed(evidence, known, there)
    for partition in sorted(region.gone() - there):
        if partition.group == evidence.group and region.rules.subscribes(partition.group, partition.topic):
            yield warning(f"{partition}: {lost_logs.absence_text(region, region.unserved[partition])}")
    if region.state in WORKING:
        yield from _disputed(evidence)
    if region.state in CLAIM_STATES:
        yield fine(f"{len(known)} partition(s), each claimed once")
    else:
        yield fine(f"{len(known)} partition(s) known; the region is {region.state}, without claims")


def _unclaimed(evidence: Evidence, known: set[GroupPartition], there: Collection[GroupPartition]) -> CheckFindings:
    """Yield partitions that no live member has claimed; in a reset they are on their way to one."""
    region, now = evidence.region, evidence.now
    is_working = region.state in WORKING
    for partition, owner in coverage.missing(region, now).items():
        if partition.group == evidence.group:
            yield (failed if is_working else warning)(coverage.gap_text(partition, owner))
    late = coverage.overdue(region, now)
    for partition, since in late.items() if is_working else ():
        if partition in there:
            yield failed(
                f"{partition} has had no owner since {format_instant(since)}: it is not read, and checkpoints lack it. "
                "A member joins its group anew for it when every owner in the group lives; if that does not help, "
                "stop the region and start it"
            )
    for partition in sorted(set(there) - known - late.keys()):
        last = coverage.last_owner(region, partition) or "none"
        yield warning(
            f"{partition} is new and unclaimed (last owner: {last}); a member "
            f"joins its group anew for it when that has lasted {region.rules.timeouts.rejoin_after.total_seconds():g} s"
        )


def _absence(region: Region, partition: GroupPartition) -> str:
    absence = region.unserved.get(partition)
    return "" if absence is None or absence.is_there else f": {lost_logs.absence_text(region, absence)}"


def _disputed(evidence: Evidence) -> CheckFindings:
    """Yield partitions that have another owner in Kafka than in the store; during a rebalance that says nothing."""
    region, seen = evidence.region, evidence.described
    if seen is None or not seen.is_stable:
        return
    owners: dict[GroupPartition, list[str]] = {}
    for listed in seen.members:
        member = evidence.participants.member(listed, evidence.rules)
        name = f"consumer {listed.client_id} on {listed.host}" if member is None else str(member)
        for place in listed.partitions:
            owners.setdefault(GroupPartition(seen.group, place.topic, place.partition), []).append(name)
    for partition, names in sorted(owners.items()):
        claim = region.claim_of(partition)
        if len(names) > 1:
            yield failed(f"{partition} is assigned to {' and '.join(sorted(names))} at once")
        elif (
            evidence.before.claim_of(partition).owner == claim.owner
            and coverage.is_current(region, claim, evidence.now)
            and names[0] != str(claim.owner)
        ):
            yield failed(f"{partition} is claimed by {claim.owner}, Kafka has assigned it to {names[0]}")


def offsets(evidence: Evidence) -> CheckFindings:
    """Positions, restore point and committed offsets are inside their logs, and retention does not overtake it."""
    region, logs = evidence.region, evidence.bounds
    if logs is None:
        return
    lost = {t.partition: t for t in lost_logs.out_of_range_throughout(evidence.before, region, logs)}
    for trouble in lost.values():
        yield failed(f"{trouble.partition} at {trouble.position}: {trouble.why} (policy {trouble.policy})")
    for partition, offset in region.restore_point_offsets().restrict(logs).items():
        start = logs[partition].start
        if offset < start and partition not in lost:
            yield failed(
                f"{partition}: a reset to the restore point at {offset} would miss {start - offset} record(s), the "
                f"log now starts at {start}; keep records for longer, or checkpoint more often"
            )
    yield from _inheritance(evidence)
    yield from _closing_in(evidence)
    yield from _foreign_commits(evidence)
    yield fine(f"{len(logs)} log(s): positions, restore point and committed offsets are inside")


def _inheritance(evidence: Evidence) -> CheckFindings:
    """Yield the other regions whose committed offsets this one begins at; every other start looks at none of them."""
    if evidence.region.initialised or evidence.rules.start != COMMITTED:
        return
    for other in sorted(set(evidence.inherited.values())):
        found = [f"{p} at {(evidence.committed or {})[p]}" for p, of in evidence.inherited.items() if of == other]
        yield warning(
            f"start: committed begins where {other} has committed, {few(found)}, and processes nothing before; to "
            "process what the logs have, write start: earliest"
        )


def _closing_in(evidence: Evidence) -> CheckFindings:
    """Yield partitions whose restore point would be overtaken if retention went on as it did since that checkpoint."""
    region = evidence.region
    checkpoint = region.restore_checkpoint
    if checkpoint is None or evidence.bounds is None:
        return
    then = {p: log for part in region.contributions_to(checkpoint.sequence).values() for p, log in part.bounds.items()}
    for partition, offset in region.restore_point_offsets().items():
        log, before = evidence.bounds.get(partition), then.get(partition)
        if log is None or before is None or timelines.is_recreated(before.topic_id, log.topic_id):
            continue
        if before.start < log.start <= offset < log.end and offset - log.start <= log.start - before.start:
            yield warning(
                f"{partition}: retention is about to overtake the restore point: since that checkpoint the log's "
                f"start moved {log.start - before.start} to {log.start}, the restore point is at {offset}; keep "
                "records for longer, or checkpoint"
            )


def _foreign_commits(evidence: Evidence) -> CheckFindings:
    """Yield committed offsets that can't be the region's: consumers that only assign are seen by nothing else."""
    if evidence.bounds is None or evidence.committed is None:
        return
    for partition in sorted(evidence.bounds):
        held = evidence.committed.get(partition), evidence.noted.get(partition)
        why = strange_commit(evidence.region, partition, *held)
        if why and is_strange_commit(evidence.before, evidence.region, partition, *held):
            yield warning(f"{partition}: {why}")


def is_strange_commit(
    before: Region, now: Region, partition: GroupPartition, held: Offset | None, noted: values.CheckpointNumber | None
) -> bool:
    """Whether a committed offset that was read between two reads of the region is another's by both of them.

    Where the restore point moved between them, a checkpoint may have been committed and followed by the next one.
    """
    return before.restore_point == now.restore_point and all(
        strange_commit(region, partition, held, noted) for region in (before, now)
    )


def strange_commit(
    region: Region, partition: GroupPartition, held: Offset | None, noted: values.CheckpointNumber | None
) -> str:
    """Return why what Kafka holds for a partition is not what the region committed; empty: it is, or is not known.

    Args:
        region: the region.
        partition: one of its partitions.
        held: Kafka's committed offset; None: there is none.
        noted: the checkpoint or reset that it says it is of; None: the region has not written it.
    """
    restore_point = region.restore_checkpoint
    if restore_point is None:
        return ""
    own = _committable(region, partition)
    if noted is not None and noted >= region.next_sequence:
        return (
            f"Kafka's committed offset is {held}, and says that this region committed it as number {noted}, which the "
            "store has not reached: the store was restored from an older state; members that start find that out, and "
            "halt the region with what can be done"
        )
    if restore_point.committed is not Committed.YES or not own or held in own:
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
    at_restore_point, resume = region.restore_point_offsets().get(partition), region.claim_of(partition).resume
    if at_restore_point is None:
        return set()
    return {at_restore_point} if resume is None else {at_restore_point, resume}
