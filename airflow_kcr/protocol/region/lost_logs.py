"""Logs that a region loses: partitions that are gone, positions out of range, groups on another cluster.

**Clusters.** Who starts members tells the cluster's id before they join, and members tell it with every claim. The
first one to tell reserves the group in that cluster for the region. Offsets of another cluster mean other records,
however similar its topics: members are not started there, and a region whose members live is halted. Nothing is carried
over.

**Absent partitions.** No member can claim them, so a region that waited for them would wait for ever. A broker that
does not answer says nothing, and one that lags may deny for a moment what is there. So a partition is **gone** only
once the brokers have been asked at least twice, two leases apart, and said each time that they do not have it. From
then on it is no part of the region: checkpoints and resets go without it. What was known of it stays. If the brokers
have it again and it is claimed, it is the same topic and continues where it was, or another one and the policy for that
decides.

**Positions out of range.** Declared only from log bounds that were re-read, decided by two policies, never silent:
`fail` halts at once with the choices; `earliest` and `latest` are a reset with that cause, a seek map of its own and a
new timeline (scenario C38).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from airflow_kcr.errors import GroupInOtherRegion, OtherCluster
from airflow_kcr.protocol import values
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import SeekEntry, SeekSource
from airflow_kcr.protocol.region import checkpoints, events, resets, rows, timelines
from airflow_kcr.protocol.region.commands import ReportClusters, ReportOutOfRange
from airflow_kcr.protocol.region.state import Region, put, without
from airflow_kcr.protocol.rules import OutOfRangePolicy
from airflow_kcr.protocol.values import GroupPartition, Offset, few, format_instant, replace

# Clusters


def is_another_cluster(region: Region, group: values.GroupId, cluster: values.ClusterId) -> bool:
    """Whether a group was found on another cluster than before; an unknown id says nothing."""
    known = region.clusters.get(group)
    return bool(known and cluster) and known != cluster


def cluster_found(region: Region, now: datetime, group: values.GroupId, cluster: values.ClusterId) -> Region:
    """Return the region knowing which cluster a group of it is on; the first one to tell counts, for ever.

    Raises:
        OtherCluster: it is another one than the region knows.
    """
    if is_another_cluster(region, group, cluster):
        raise OtherCluster(
            f"{_cluster_text(region, group, cluster)}; {'; or '.join(_cluster_choices(region, group, cluster))}"
        )
    if not cluster or region.clusters.get(group) == cluster:
        return region
    region = replace(region, clusters=put(region.clusters, {group: cluster}))
    return region.record(now, events.ClusterFound(group=group, cluster=cluster))


def report_clusters(region: Region, now: datetime, told: ReportClusters) -> Region:
    """Return the region knowing which clusters its groups are on; reports about other groups are ignored.

    Raises:
        OtherCluster: one is another than the region knows.
    """
    for group, cluster in sorted(told.found.items()):
        if group in region.own_groups:
            region = cluster_found(region, now, group, cluster)
    return region


def halted_on_cluster(region: Region, now: datetime, group: values.GroupId, cluster: values.ClusterId) -> Region:
    """Return the region halted because a live member finds itself on another cluster; a halted or stopped one stays."""
    if region.state in rows.RESTING:
        return region
    text, choices = _cluster_text(region, group, cluster), _cluster_choices(region, group, cluster)
    return resets.halt(region, now, rows.Halt(reason=rows.HaltReason.OTHER_CLUSTER, text=text, choices=choices))


def group_taken(group: values.GroupId, cluster: values.ClusterId, other: values.RegionName) -> GroupInOtherRegion:
    """Return the refusal of a group that another region has, with what to change."""
    where = f", by either address the group of that name on cluster {cluster}" if cluster else ""
    return GroupInOtherRegion(
        f"group {group} belongs to region {other}{where}; one group of one cluster is in exactly one region. Give this "
        "region another group; or, where it is meant to be on another cluster, that one's address, and apply the spec "
        "while both clusters answer"
    )


def _cluster_text(region: Region, group: values.GroupId, cluster: values.ClusterId) -> str:
    return (
        f"the address of group {group} leads to Kafka cluster {cluster}; region {region.name} has consumed it from "
        f"cluster {region.clusters[group]}"
    )


def _cluster_choices(region: Region, group: values.GroupId, cluster: values.ClusterId) -> tuple[str, ...]:
    return (
        f"let the address lead to cluster {region.clusters[group]} again, then start the region "
        f"(kcr region start {region.name})",
        f"consume from cluster {cluster} from now on: stop the region, delete it and declare it anew; nothing that is "
        "stored of the one cluster holds on the other",
    )


# Absent partitions


def partitions_seen(region: Region, now: datetime, group: values.GroupId, there: Collection[GroupPartition]) -> Region:
    """Return the region knowing which partitions of one group the brokers do not have.

    Args:
        region: the region.
        now: the store's clock.
        group: the group.
        there: every partition that the brokers have of what the group subscribes to.
    """
    known = {p for p in (*region.universe(), *region.gone()) if p.group == group}
    others = {p: row for p, row in region.unserved.items() if row.is_there or p.group != group}
    absent = {p: _seen_again(region, now, region.unserved.get(p)) for p in known.difference(there)}
    return _told(region, now, others | absent)


def _seen_again(region: Region, now: datetime, earlier: rows.Unserved | None) -> rows.Unserved:
    if earlier is None or earlier.is_there:
        return rows.Unserved(since=now, is_there=False)
    is_gone = earlier.is_gone or now - earlier.since >= region.rules.timeouts.rejoin_after
    return replace(earlier, is_gone=is_gone)


def _told(region: Region, now: datetime, unserved: dict[GroupPartition, rows.Unserved]) -> Region:
    if unserved == region.unserved:
        return region
    before, after = region.gone(), frozenset(p for p, row in unserved.items() if row.is_gone)
    fresh = sorted(after - before)
    given_back = {p: _given_back(region, p, claim) for p in fresh if (claim := region.claims.get(p)) is not None}
    region = replace(region, unserved=unserved, claims=put(region.claims, given_back))
    if after == before:
        return region
    region = region.record(now, events.PartitionsGone(partitions=tuple(sorted(after))))
    checkpoint = region.checkpoint
    if checkpoint is not None and not region.frozen[checkpoint.sequence].isdisjoint(fresh):
        region = checkpoints.abort(region, now, f"the brokers do not have {fresh[0]} any more")
    begun = [p for p in fresh if region.claim_of(p).is_in_flight]
    if begun and region.state in rows.WORKING:
        # The batch of a member that died: the claim of the partition's next owner would have reset the region.
        return resets.demand(
            region, now, rows.ResetCause.LEASE_LOST, f"{begun[0]} has a batch that no member finishes, and is gone"
        )
    return region


def _given_back(region: Region, partition: GroupPartition, claim: rows.Claim) -> rows.Claim:
    """Return the claim without its owner; no member is asked any more where it goes, so it is where that would be."""
    if claim.resume is None:
        entry = region.seek.get(partition)
        claim = claim.at(resets.without_progress(region, partition, None if entry is None else entry.current))
    return claim if claim.owner is None else replace(claim, owner=None, last_owner=claim.owner)


def partitions_claimed(region: Region, partitions: Collection[GroupPartition]) -> Region:
    """Return the region after partitions were claimed, whose logs were read for that: they are there, and owned."""
    if region.unserved.keys().isdisjoint(partitions):
        return region
    return replace(region, unserved=without(region.unserved, frozenset(partitions)))


def absence_text(region: Region, absence: rows.Unserved) -> str:
    """Return what a person should know of a partition that the brokers do not have."""
    since = f"the brokers have not had it since {format_instant(absence.since)}"
    if absence.is_gone:
        return f"{since}; it is no part of the region any more"
    boundary = region.rules.timeouts.rejoin_after.total_seconds()
    return f"{since}; once that has lasted {boundary:g} s the region goes on without it"


# Positions out of range


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfRange:
    """One partition whose position its log does not have."""

    partition: GroupPartition
    position: Offset
    bounds: LogBounds
    policy: OutOfRangePolicy
    why: str


def out_of_range(region: Region, bounds: Mapping[GroupPartition, LogBounds]) -> tuple[OutOfRange, ...]:
    """Return the partitions whose position is not inside the log as it was just read, with the policy that applies."""
    troubles = []
    for partition, log in sorted(bounds.items()):
        claim = region.claim_of(partition)
        if (position := claim.position) is None:
            continue
        if timelines.is_recreated(claim.topic_id, log.topic_id):
            why = f"the topic was deleted and created again (id {claim.topic_id} became {log.topic_id})"
            policy = region.rules.beyond_end
        elif position < log.start:
            why = f"retention overtook it: the log now starts at {log.start}"
            policy = region.rules.out_of_range
        elif position > region.past_skips(partition, log.end):
            why = f"the log's end moved back to {log.end}"
            policy = region.rules.beyond_end
        else:
            continue
        troubles.append(OutOfRange(partition=partition, position=position, bounds=log, policy=policy, why=why))
    return tuple(troubles)


def out_of_range_throughout(
    before: Region, now: Region, bounds: Mapping[GroupPartition, LogBounds]
) -> tuple[OutOfRange, ...]:
    """Return the partitions out of logs that were read between two reads of the region, in the same way by both.

    Work goes on meanwhile: by the positions of before, retention has overtaken what was processed since; by those of
    now, logs that grow have shrunk.
    """
    first = {(t.partition, t.why) for t in out_of_range(before, bounds)}
    return tuple(t for t in out_of_range(now, bounds) if (t.partition, t.why) in first)


def report_out_of_range(region: Region, now: datetime, told: ReportOutOfRange) -> Region:
    """Return the region after a member reported its logs, re-read.

    A halted or stopped region is left alone: its resume finds out again. No policy decides about logs of
    another cluster.

    Raises:
        StaleEpoch, StaleIncarnation, LeaseExpired, UnknownMember: the member may not act, or not in this epoch.
    """
    caller = told.caller
    region.require_member(caller.member, caller.incarnation, now, epoch=caller.epoch)
    if is_another_cluster(region, caller.member.group, told.cluster):
        return halted_on_cluster(region, now, caller.member.group, told.cluster)
    troubles = out_of_range(region, told.observed)
    if not troubles or region.state in rows.RESTING:
        return region
    return moved_into_logs(region, now, troubles)


def moved_into_logs(region: Region, now: datetime, troubles: tuple[OutOfRange, ...]) -> Region:
    """Return the region halted, or in a reset to where the policy says; the other partitions go where they would."""
    if _must_halt(troubles):
        return _halted_out_of_range(region, now, troubles)
    done = _done_by_sinks(region)
    back = resets.gone_back_for_output(region, now, rows.ResetCause.OUT_OF_RANGE)
    left = troubles if back is region else _left(back, troubles)
    if not left:
        return back
    return _halted_out_of_range(back, now, left) if _must_halt(left) else _opened(back, now, left, done)


def _must_halt(troubles: tuple[OutOfRange, ...]) -> bool:
    return any(t.policy is OutOfRangePolicy.FAIL for t in troubles)


def _halted_out_of_range(region: Region, now: datetime, troubles: tuple[OutOfRange, ...]) -> Region:
    choices = (
        "set out_of_range (retention) or beyond_end (truncated or recreated) to earliest or latest, then resume",
        "apply a forced reset to a place that is in the log",
        "for a recreated topic, stop the region, delete it and declare it anew",
    )
    return resets.halt(
        region, now, rows.Halt(reason=rows.HaltReason.OUT_OF_RANGE, text=_positions_text(troubles), choices=choices)
    )


def _positions_text(troubles: tuple[OutOfRange, ...]) -> str:
    return few((f"{t.partition} at {t.position}: {t.why}" for t in troubles), 10, "; ")


def _left(back: Region, troubles: tuple[OutOfRange, ...]) -> tuple[OutOfRange, ...]:
    """Return what is out of its log after the region has gone back for output.

    A position may be in its log now, or be out of it in another way. Where a sink has yet to say it, the partition
    didn't go back, and is out of its log as before: left to the next report, which may come only when other groups have
    processed again, the region would go back for their output for ever.
    """
    unsaid = (t for t in troubles if back.claims[t.partition].position is None)
    return (*out_of_range(back, {t.partition: t.bounds for t in troubles}), *unsaid)


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
    region = timelines.followed_topics(before, now, logs)
    entries: dict[GroupPartition, SeekEntry] = {**resets.target(region), **done}
    for trouble in troubles:
        log = trouble.bounds
        offset = log.start if trouble.policy is OutOfRangePolicy.EARLIEST else log.end
        entries[trouble.partition] = SeekEntry(
            offset=offset, source=SeekSource.OUT_OF_RANGE, current=trouble.position, clamped_from=trouble.position
        )
    opening = timelines.with_recreated(before, entries, logs)
    return resets.open_timeline(region, now, rows.ResetCause.OUT_OF_RANGE, opening, _positions_text(troubles))
