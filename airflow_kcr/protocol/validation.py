"""Membership validation: is every group what its region takes it for (docs/how-to/validate-a-group.md)?

What was read of the world is `Evidence`; the answer is one `Check` a group and question, a sentence that says what is
wrong, where, and what to do. What could not be read is `unknown`, never fine.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from airflow_kcr.errors import UnknownTopics
from airflow_kcr.protocol.observations import OTHER_GROUP, ForeignConsumer, GroupSeen, LogBounds, MemberSeen
from airflow_kcr.protocol.region import coverage, liveness, lost_logs, specs, timelines
from airflow_kcr.protocol.region.liveness import NOTHING_SEEN, Liveness, LogEnd, Seen
from airflow_kcr.protocol.region.rows import RESET_STATES, Committed, RegionState
from airflow_kcr.protocol.region.state import Region, contributions_to, live_members, restore_point_offsets, universe
from airflow_kcr.protocol.rules import (
    CommittedOrEarliest,
    ForeignConsumerPolicy,
    GroupProtocol,
    GroupRules,
    RegionRules,
)
from airflow_kcr.protocol.timeouts import BROKER_DEFAULTS, BrokerTimes, Timeouts, check, check_consumer_protocol
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    GroupId,
    GroupPartition,
    MemberId,
    Offset,
    TopicName,
    few,
    format_instant,
)


class Question(StrEnum):
    """What is checked, in the order in which it is shown."""

    REGION = "region"
    """The group is in one region."""

    RIGHTS = "rights"
    """The calls that members and executors make are allowed."""

    TOPICS = "topics"
    """Listed topics exist, the pattern matches something."""

    TOPIC_IDS = "topic_ids"
    """No topic was deleted and created again."""

    PROTOCOL = "protocol"
    """The group is of the spec's protocol, and all members agree on the spec's assignor."""

    TIMES = "times"
    """The brokers accept the members' session, and it suits the region's other times."""

    SUBSCRIPTION = "subscription"
    """All members work by one revision of the spec, and own only what it subscribes."""

    PARTICIPANTS = "participants"
    """Kafka lists every member that the store knows to live, each once."""

    FOREIGN_CONSUMERS = "foreign_consumers"
    """Kafka lists no other consumer."""

    CLAIMS = "claims"
    """Every partition is claimed once, by who owns it in Kafka."""

    OFFSETS = "offsets"
    """Positions, restore point and committed offsets are inside their logs."""

    PROGRESS = "progress"
    """The region works, or waits for something and no longer than it may."""


class CheckVerdict(StrEnum):
    """What a check came to."""

    OK = "ok"
    WARNING = "warning"
    """It may heal by itself, or harm later; the region goes on."""

    FAILED = "failed"
    UNKNOWN = "unknown"
    """What it needs could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question about one group, answered."""

    group: GroupId
    question: Question
    verdict: CheckVerdict
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Participants:
    """By which names Kafka knows a group's members, those of earlier specs too."""

    instance_ids: Mapping[str, MemberId] = field(default_factory=dict)
    client_ids: Mapping[str, MemberId] = field(default_factory=dict)

    def member(self, seen: MemberSeen, rules: GroupRules) -> MemberId | None:
        """Return whose entry in the member list this is; None: it is not one of the region's.

        A static member is known by its instance id. In a dynamic group the client id has to do.
        """
        if seen.instance_id is not None:
            return self.instance_ids.get(seen.instance_id)
        return None if rules.static_membership else self.client_ids.get(seen.client_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was read of one group and its logs, one call after the other; what is None could not be read."""

    rules: GroupRules
    participants: Participants
    before: Region | None = None
    """The region as it was before Kafka was asked; None: it has not changed.

    Work goes on between the reads, so that logs end beyond the positions of before, and positions may be beyond the
    ends by now. A fault is one only where both what was before and what is now show it.
    """

    described: GroupSeen | None = None
    topics: Mapping[TopicName, int] | None = None
    """How many partitions each topic of the cluster has."""

    bounds: Mapping[GroupPartition, LogBounds] | None = None
    committed: Mapping[GroupPartition, Offset] | None = None
    earlier_ends: Mapping[GroupPartition, LogEnd] = field(default_factory=dict)
    """How far logs could be read some time ago, of partitions that are behind in a region where no batch runs."""

    noted: Mapping[GroupPartition, CheckpointNumber] = field(default_factory=dict)
    """The checkpoint or reset that a committed offset says it is of; absent: the region has not written it."""

    inherited: Mapping[GroupPartition, str] = field(default_factory=dict)
    """The other region that a committed offset says it is of: one that was deleted, or one of another store."""

    times: BrokerTimes | None = None
    """What the brokers say of sessions."""

    unreadable: tuple[str, ...] = ()
    """What these credentials may describe but not read, in words: the group, topics."""

    refused: tuple[str, ...] = ()
    """Calls that Kafka did not allow, each with its reason."""

    silent: tuple[str, ...] = ()
    """Calls that had no answer, each with its reason."""

    @property
    def group(self) -> GroupId:
        """The group."""
        return self.rules.group_id


@dataclass(frozen=True, slots=True)
class Findings:
    """What one question found, before it is put into a line."""

    failed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    fine: str = ""
    """The sentence where nothing was found."""


def answer(evidence: Evidence, question: Question, findings: Findings | None) -> Check:
    """Return the line of one question; `findings` None: what it needs could not be read."""
    if findings is None:
        why = "; ".join((*evidence.refused, *evidence.silent)) or "it was not asked for"
        verdict, detail = CheckVerdict.UNKNOWN, f"could not be read: {why}"
    elif findings.failed:
        verdict, detail = CheckVerdict.FAILED, few((*findings.failed, *findings.warnings), separator="; ")
    elif findings.warnings:
        verdict, detail = CheckVerdict.WARNING, few(findings.warnings, separator="; ")
    else:
        verdict, detail = CheckVerdict.OK, findings.fine
    return Check(group=evidence.group, question=question, verdict=verdict, detail=detail)


def check_topics(rules: RegionRules, topics: Mapping[GroupId, Collection[TopicName]]) -> dict[GroupId, str]:
    """Return the groups that wait for a first topic, each with a sentence that says so.

    Args:
        rules: the region's rules.
        topics: for each group, the topics that exist on its cluster.

    Raises:
        UnknownTopics: a listed topic does not exist.
        KeyError: a group's cluster was not asked.
    """
    missing: list[str] = []
    waiting: dict[GroupId, str] = {}
    for group, group_rules in sorted(rules.groups.items()):
        there = topics[group]
        missing += [f"{topic} (group {group})" for topic in sorted(group_rules.topics) if topic not in there]
        if nothing := _nothing_to_read(group_rules, there):
            waiting[group] = f"group {group} waits: {nothing}"
    if missing:
        raise UnknownTopics(
            f"{'a topic does' if len(missing) == 1 else f'{len(missing)} topics do'} not exist: {', '.join(missing)}; "
            "create them, or take them out of the spec"
        )
    return waiting


def _nothing_to_read(rules: GroupRules, there: Iterable[TopicName]) -> str:
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


_CALLED: Final = frozenset({RegionState.RUNNING, RegionState.DRAINING})
"""States in which every live member has had time to join its group."""

_POLICY: Final = {
    ForeignConsumerPolicy.FAIL: "the region halts until it is gone and the region is resumed",
    ForeignConsumerPolicy.WARN: (
        "the region goes on without what it owns; checkpoints hold that where it stands, and say so"
    ),
}


def one_region(region: Region, evidence: Evidence) -> Findings:
    """The group is in one region: the store allows no other, so this only shows which."""
    rules = evidence.rules
    kind = "static" if rules.static_membership else "dynamic"
    return Findings(fine=f"belongs to region {region.name} alone; {rules.members} {kind} member(s) in its spec")


def rights(evidence: Evidence) -> Findings | None:
    """The calls that were made for this validation are among those that members and executors make."""
    if evidence.refused:
        return Findings(failed=tuple(f"{call}; grant what docs/reference/rights.md lists" for call in evidence.refused))
    if evidence.silent:
        return None
    if evidence.unreadable:
        text = f"no right to read {', '.join(evidence.unreadable)}: enough to look, but a member can't consume with it"
        return Findings(warnings=(f"{text}; grant READ, see docs/reference/rights.md",))
    return Findings(fine="describing and reading the group and its topics is allowed")


def protocol(evidence: Evidence) -> Findings | None:
    """The group is of the spec's protocol and uses the spec's assignor."""
    seen, ours = evidence.described, evidence.rules.protocol
    if seen is None:
        return None
    if not seen.admits_consumers:
        return Findings(failed=(f"the group is a {seen.type} group, so no consumer can join it: {OTHER_GROUP}",))
    if not seen.members:
        return Findings(fine="the group is empty, so it has no protocol yet")
    if seen.type != ours:
        who = ", ".join(str(o) for o in foreign_consumers_in(evidence)) or "a member"
        text = f"the group is of type {seen.type}, assignor {seen.assignor or 'none yet'}, not {ours}"
        return Findings(failed=(f"{text}: {who} uses another protocol; stop it",))
    wanted = evidence.rules.assignor
    if not seen.assignor:
        return Findings(warnings=(f"the group is {seen.state}; its members have not agreed on an assignor yet",))
    if seen.assignor != wanted:
        text = f"its members agreed on {seen.assignor}, the spec says {wanted}: restart them with one spec"
        return Findings(failed=(text,))
    by = f", coordinated by {seen.coordinator}" if seen.coordinator else ""
    return Findings(fine=f"{ours}, assignor {wanted}{by}")


def times(region: Region, evidence: Evidence) -> Findings | None:
    """The brokers accept the members' session, and it suits the region's other times."""
    if evidence.times is None:
        return None
    timeouts, static = region.rules.timeouts, evidence.rules.static_membership
    if evidence.rules.protocol is GroupProtocol.CONSUMER:
        return _brokers_times(timeouts, evidence.times, evidence.described)
    limits = evidence.times.limits
    clashes = check(timeouts, static=static, limits=limits or BROKER_DEFAULTS)
    session = f"session {_seconds(timeouts.session_timeout(static=static))}"
    fine = (
        f"{session}; Kafka's own limits are assumed, as this client may not read the broker's"
        if limits is None
        else f"{session}, the broker accepts {_seconds(limits.shortest_session)} to {_seconds(limits.longest_session)}"
    )
    return Findings(failed=tuple(map(str, clashes)), fine=fine)


_UPGRADES: Final = frozenset({"upgrade", "bidirectional"})
"""The policies by which a member of the consumer protocol may join a group that has classic ones."""


def _brokers_times(timeouts: Timeouts, times: BrokerTimes, seen: GroupSeen | None) -> Findings:
    if times.protocols is not None and GroupProtocol.CONSUMER not in times.protocols:
        spoken = ", ".join(sorted(times.protocols))
        return Findings(
            failed=(
                f"the brokers speak {spoken} (group.coordinator.rebalance.protocols) and not consumer, which Kafka 4.0 "
                "has; write protocol: classic",
            )
        )
    is_classic = seen is not None and seen.type == GroupProtocol.CLASSIC and bool(seen.members)
    if is_classic and times.migration is not None and times.migration not in _UPGRADES:
        return Findings(
            failed=(
                "the group has members of the classic protocol, and the brokers convert no such group "
                f"(group.consumer.migration.policy is {times.migration}): stop them and wait until Kafka lists none "
                "of them, let the policy be bidirectional, or write protocol: classic",
            )
        )
    if times.consumer is None:
        return Findings(
            warnings=("the group's session and heartbeat are the broker's, and this client may not read them",)
        )
    clashes = check_consumer_protocol(timeouts, times.consumer)
    fine = f"session {_seconds(times.consumer.session)}, heartbeat {_seconds(times.consumer.heartbeat)}, by the broker"
    return Findings(failed=tuple(map(str, clashes)), fine=fine)


def _seconds(time: timedelta) -> str:
    return f"{time.total_seconds():g} s"


def subscription(region: Region, now: datetime, evidence: Evidence) -> Findings | None:
    """All members work by one revision of the spec, and own only topics that it subscribes."""
    rows = {m: region.members[m].spec_revision for m in live_members(region, now) if m.group == evidence.group}
    findings: list[str] = []
    if len(set(rows.values())) > 1:
        by = ", ".join(f"{m}: {revision}" for m, revision in rows.items())
        findings.append(f"members were started with different revisions of the spec ({by}); restart the older ones")
    seen = evidence.described
    if seen is None:
        return Findings(warnings=tuple(findings)) if findings else None
    foreign = [
        f"{member} owns {place}, which the spec does not subscribe; restart it"
        for listed in seen.members
        if (member := evidence.participants.member(listed, evidence.rules)) is not None
        for place in sorted(listed.partitions)
        if not evidence.rules.subscribes(place.topic)
    ]
    rules = evidence.rules
    what = ", ".join(rules.topics) if rules.pattern is None else " without ".join([rules.pattern, *rules.exclude])
    return Findings(failed=tuple(foreign), warnings=tuple(findings), fine=f"{what}, revision {region.spec.revision}")


def participants(region: Region, now: datetime, evidence: Evidence) -> Findings | None:
    """Kafka lists every member that the store knows to live, each once."""
    seen = evidence.described
    if seen is None:
        return None
    listed = Counter(member for _, member in _ours(evidence, seen))
    live = {m for m in live_members(region, now) if m.group == evidence.group}
    before = live if evidence.before is None else evidence.before.members.keys()
    called = region.state in _CALLED and seen.is_stable
    why = "it may be joining, or see another cluster" if seen.admits_consumers else f"a {seen.type} group has the name"
    unlisted = sorted((live & before) - listed.keys())
    absent = tuple(f"{m} is alive but not in the group (state {seen.state}); {why}" for m in unlisted)
    failures = {
        c.member: specs.told_start_failure(region, now, c)
        for c in specs.start_failures(region, now)
        if c.member.group == evidence.group
    }
    warnings = [*_twice(listed), *_lingering(evidence, listed, live), *(() if called else absent)]
    if region.state is not RegionState.STOPPED:
        expected = {MemberId(evidence.group, n) for n in range(evidence.rules.members)} - failures.keys()
        warnings += [f"{m} of the spec is not running; start it" for m in sorted(expected - live - listed.keys())]
    fine = f"{len(live)} of {evidence.rules.members} member(s) run, and Kafka lists the same"
    failed = (*failures.values(), *(absent if called else ()))
    return Findings(failed=failed, warnings=tuple(warnings), fine=fine)


def _twice(listed: Counter[MemberId]) -> Iterator[str]:
    for member, times in sorted(listed.items()):
        if times > 1:
            yield (
                f"{member} is in the group {times} times: an earlier process whose session is not over yet, "
                "or a second one with its client id"
            )


def _lingering(evidence: Evidence, listed: Counter[MemberId], live: set[MemberId]) -> Iterator[str]:
    for member in sorted(listed.keys() - live):
        if member.index >= evidence.rules.members:
            yield f"{member} is of an earlier spec; Kafka keeps its partitions until its session is over"
        else:
            yield f"{member} is in the group without a lease: it ended, or can't reach the store; its session decides"


def foreign_consumers(region: Region, evidence: Evidence) -> Findings | None:
    """Kafka lists no other consumer. Consumers that only assign themselves partitions are in no list."""
    if evidence.described is None:
        return None
    policy, found = region.rules.foreign_consumers, foreign_consumers_in(evidence)
    if not evidence.described.admits_consumers:
        return Findings(failed=tuple(f"{o}, which no member can join: {OTHER_GROUP}" for o in found))
    named = tuple(f"{o} is not the region's; stop it ({_POLICY[policy]})" for o in found)
    fine = "the group has no foreign consumer"
    return (
        Findings(warnings=named, fine=fine)
        if policy is ForeignConsumerPolicy.WARN
        else Findings(failed=named, fine=fine)
    )


def foreign_consumers_in(evidence: Evidence) -> tuple[ForeignConsumer, ...]:
    """Return the foreign consumers of the group, in order; none if the group could not be described."""
    seen = evidence.described
    if seen is None:
        return ()
    found = {
        ForeignConsumer(group=seen.group, client_id=m.client_id, host=m.host, instance_id=m.instance_id or "")
        for m in seen.members
        if evidence.participants.member(m, evidence.rules) is None
    }
    if not seen.admits_consumers:
        found = {ForeignConsumer(group=seen.group, what=f"{seen.type} group")}
    return tuple(sorted(found))


def _ours(evidence: Evidence, seen: GroupSeen) -> Iterator[tuple[MemberSeen, MemberId]]:
    for listed in seen.members:
        member = evidence.participants.member(listed, evidence.rules)
        if member is not None:
            yield listed, member


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
    if nothing := _nothing_to_read(rules, there):
        return Findings(warnings=(f"{nothing}; the group waits",))
    found = {t: n for t, n in sorted(there.items()) if rules.subscribes(t)}
    fine = (
        f"{len(found)} topic(s) with {sum(found.values())} partition(s): {', '.join(found)}{_open_ended(rules, found)}"
    )
    return Findings(failed=missing, fine=fine)


def _open_ended(rules: GroupRules, found: Collection[TopicName]) -> str:
    """Return which topics a pattern matches by their beginning alone: often one that was not meant."""
    pattern = rules.pattern
    longer = [] if pattern is None else [t for t in found if re.fullmatch(pattern, t) is None]
    return f"; pattern {pattern} matches only the beginning of {', '.join(longer)}" if longer else ""


def topic_ids(region: Region, evidence: Evidence) -> Findings | None:
    """No topic was deleted and created again: its offsets would mean other records."""
    if evidence.bounds is None:
        return None
    again = {
        p.topic: f"topic {p.topic} was deleted and created again (id {region.claims[p].topic_id} became "
        f"{evidence.bounds[p].topic_id}): its offsets mean other records now; policy beyond_end is "
        f"{region.rules.beyond_end}"
        for p in sorted(timelines.recreated(region, evidence.bounds))
    }
    return Findings(failed=tuple(again.values()), fine="every topic is the one that was claimed")


def claims(region: Region, now: datetime, evidence: Evidence) -> Findings | None:
    """Every partition is claimed once, by who owns it in Kafka; that no two claim one, the store sees to."""
    if evidence.topics is None:
        return None
    group = evidence.group
    uncovered = tuple(str(gap) for gap in coverage.missing(region, now) if gap.partition.group == group)
    known = {p for p in universe(region) if p.group == group}
    # One that was found since the topics were read is on the cluster.
    known_before = known & universe(evidence.before or region)
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
    away = sorted(known_before - there)
    gone = tuple(f"{p} is in the region but not on the cluster{_absence(region, p)}" for p in away)
    left = tuple(
        f"{p}: {lost_logs.absence_text(region, region.absent[p])}"
        for p in sorted(lost_logs.gone(region) - there)
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
    return "" if absence is None else f": {lost_logs.absence_text(region, absence)}"


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
        elif (
            claim is not None
            and _had_owner(evidence.before or region, partition, claim.owner)
            and coverage.is_current(region, claim, now)
            and names[0] != str(claim.owner)
        ):
            yield f"{partition} is claimed by {claim.owner}, Kafka has assigned it to {names[0]}"


def _had_owner(before: Region, partition: GroupPartition, owner: MemberId | None) -> bool:
    claim = before.claims.get(partition)
    return claim is not None and claim.owner == owner


def offsets(region: Region, evidence: Evidence) -> Findings | None:
    """Positions, restore point and committed offsets are inside their logs, and retention does not overtake it."""
    logs = evidence.bounds
    if logs is None:
        return None
    lost = {t.partition: t for t in lost_logs.out_of_range_throughout(evidence.before or region, region, logs)}
    outside = [f"{t.partition} at {t.position}: {t.why} (policy {t.policy})" for t in lost.values()]
    restore_point = restore_point_offsets(region).restrict(logs)
    overtaken = [
        f"{p}: a reset to the restore point at {offset} would miss {logs[p].start - offset} record(s), the "
        "log now starts at "
        f"{logs[p].start}; keep records for longer, or checkpoint more often"
        for p, offset in restore_point.items()
        if offset < logs[p].start and p not in lost
    ]
    warnings = [*_inheritance(region, evidence), *_closing_in(region, evidence), *_foreign_commits(region, evidence)]
    fine = f"{len(logs)} log(s): positions, restore point and committed offsets are inside"
    return Findings(failed=(*outside, *overtaken), warnings=tuple(warnings), fine=fine)


def _inheritance(region: Region, evidence: Evidence) -> Iterator[str]:
    """Yield the other regions whose committed offsets this one begins at; every other start looks at none of them."""
    if region.initialised or not isinstance(evidence.rules.start, CommittedOrEarliest):
        return
    for other in sorted(set(evidence.inherited.values())):
        found = [f"{p} at {(evidence.committed or {})[p]}" for p, of in evidence.inherited.items() if of == other]
        yield (
            f"start: committed begins where {other} has committed, {few(found)}, and processes nothing before; to "
            "process what the logs have, write start: earliest"
        )


def _closing_in(region: Region, evidence: Evidence) -> Iterator[str]:
    """Yield partitions whose restore point would be overtaken if retention went on as it did since that checkpoint."""
    if region.restore_point is None or region.restore_point_epoch is not None or evidence.bounds is None:
        return
    then = {
        p: log for part in contributions_to(region, region.restore_point).values() for p, log in part.bounds.items()
    }
    for partition, offset in restore_point_offsets(region).items():
        log, before = evidence.bounds.get(partition), then.get(partition)
        if log is None or before is None or timelines.is_recreated(before.topic_id, log.topic_id):
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
        held = evidence.committed.get(partition), evidence.noted.get(partition)
        why = strange_commit(region, partition, *held)
        if why and is_strange_commit(evidence.before or region, region, partition, *held):
            yield f"{partition}: {why}"


def is_strange_commit(
    before: Region, now: Region, partition: GroupPartition, held: Offset | None, noted: CheckpointNumber | None
) -> bool:
    """Whether a committed offset that was read between two reads of the region is another's by both of them.

    Where the restore point moved between them, a checkpoint may have been committed and followed by the next one.
    """
    return before.restore_point == now.restore_point and all(
        strange_commit(region, partition, held, noted) for region in (before, now)
    )


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


def judge(region: Region, now: datetime, evidence: Evidence, seen: Seen = NOTHING_SEEN) -> tuple[Check, ...]:
    """Return every check of one group, one line a question.

    Args:
        region: as the store has it.
        now: the store's clock.
        evidence: what Kafka said of the group, which is one of the region's.
        seen: what the store and the spec say beside the region's rows; the ends of logs come from the evidence.
    """
    answers = {
        Question.REGION: one_region(region, evidence),
        Question.RIGHTS: rights(evidence),
        Question.TOPICS: topics(evidence),
        Question.TOPIC_IDS: topic_ids(region, evidence),
        Question.PROTOCOL: protocol(evidence),
        Question.TIMES: times(region, evidence),
        Question.SUBSCRIPTION: subscription(region, now, evidence),
        Question.PARTICIPANTS: participants(region, now, evidence),
        Question.FOREIGN_CONSUMERS: foreign_consumers(region, evidence),
        Question.CLAIMS: claims(region, now, evidence),
        Question.OFFSETS: offsets(region, evidence),
        Question.PROGRESS: progress(region, now, evidence, seen),
    }
    return tuple(answer(evidence, question, answers[question]) for question in Question)


def progress(region: Region, now: datetime, evidence: Evidence, seen: Seen) -> Findings:
    """The region works, or waits for something and no longer than it may; other groups' own waits are left out."""
    found = liveness.judge(region, now, replace(seen, ends=evidence.earlier_ends))
    own = Liveness(waits=tuple(w for w in found.waits if w.group in {None, evidence.group}), now=now)
    failed = tuple(f"{own.verdict}: {wait.text()}" for wait in own.stalled)
    return Findings(failed=failed, fine=own.text())


def is_all_right(checks: Iterable[Check]) -> bool:
    """Whether nothing failed and nothing remained unknown; a warning is all right."""
    return all(c.verdict in {CheckVerdict.OK, CheckVerdict.WARNING} for c in checks)
