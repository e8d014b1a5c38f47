"""What the coordinator says of a group, held against the region: who is in it, by which protocol, with which rights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from airflow_kcr.protocol.evidence import Evidence, Findings
from airflow_kcr.protocol.group_members import ForeignConsumer, GroupSeen, MemberSeen
from airflow_kcr.protocol.region import specs
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.region.state import Region, live_members
from airflow_kcr.protocol.rules import ForeignConsumerPolicy
from airflow_kcr.protocol.values import MemberId

_CLASSIC: Final = "classic"
_FOREIGN_KINDS: Final = frozenset({"share", "streams"})
"""Groups that no consumer can be in: they are foreign as a whole."""

_CALLED: Final = frozenset({RegionState.RUNNING, RegionState.DRAINING})
"""States in which every live member has had time to join its group."""

_POLICY: Final = {
    ForeignConsumerPolicy.FAIL: "the region halts until it is gone and the region is resumed",
    ForeignConsumerPolicy.HOLD: "the region holds until it is gone",
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
    return None if evidence.silent else Findings(fine="describing the group, its offsets and its logs is allowed")


def protocol(evidence: Evidence) -> Findings | None:
    """The group is of the classic protocol and uses the spec's assignor."""
    seen = evidence.described
    if seen is None:
        return None
    if not seen.members and seen.type not in _FOREIGN_KINDS:
        return Findings(fine="the group is empty, so it has no protocol yet")
    if seen.type != _CLASSIC:
        who = ", ".join(str(o) for o in foreign_consumers_in(evidence)) or "a member"
        return Findings(
            failed=(f"the group is of type {seen.type}, not classic: {who} uses another protocol; stop it",)
        )
    wanted = evidence.rules.assignor
    if not seen.assignor:
        return Findings(warnings=(f"the group is {seen.state}; its members have not agreed on an assignor yet",))
    if seen.assignor != wanted:
        text = f"its members agreed on {seen.assignor}, the spec says {wanted}: restart them with one spec"
        return Findings(failed=(text,))
    by = f", coordinated by {seen.coordinator}" if seen.coordinator else ""
    return Findings(fine=f"classic, assignor {wanted}{by}")


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
    what = evidence.rules.pattern or ", ".join(evidence.rules.topics)
    return Findings(failed=tuple(foreign), warnings=tuple(findings), fine=f"{what}, revision {region.spec.revision}")


def participants(region: Region, now: datetime, evidence: Evidence) -> Findings | None:
    """Kafka lists every member that the store knows to live, each once."""
    seen = evidence.described
    if seen is None:
        return None
    listed = Counter(member for _, member in _ours(evidence, seen))
    live = {m for m in live_members(region, now) if m.group == evidence.group}
    called = region.state in _CALLED and seen.is_stable
    # A share or streams group isn't shown to clients that ask for consumers; all there is to see is that no member can
    # join.
    why = "it may be joining, see another cluster, or be kept out by a share or streams group of that name"
    absent = tuple(
        f"{m} is alive but not in the group (state {seen.state}); {why}" for m in sorted(live - listed.keys())
    )
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
    policy = region.rules.foreign_consumers
    named = tuple(f"{o} is not the region's; stop it ({_POLICY[policy]})" for o in foreign_consumers_in(evidence))
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
        ForeignConsumer(
            group=seen.group, client_id=m.client_id, host=m.host, instance_id=m.instance_id or "", what=_what(seen, m)
        )
        for m in seen.members
        if evidence.participants.member(m, evidence.rules) is None
    }
    if seen.type in _FOREIGN_KINDS and not found:
        found = {ForeignConsumer(group=seen.group, what=f"{seen.type} group")}
    return tuple(sorted(found))


def _what(seen: GroupSeen, member: MemberSeen) -> str:
    return "consumer" if seen.type not in _FOREIGN_KINDS else f"{seen.type} member"


def _ours(evidence: Evidence, seen: GroupSeen) -> Iterator[tuple[MemberSeen, MemberId]]:
    for listed in seen.members:
        member = evidence.participants.member(listed, evidence.rules)
        if member is not None:
            yield listed, member
