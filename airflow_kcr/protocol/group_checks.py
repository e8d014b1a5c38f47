"""Is a group what its region takes it for: the questions about the group itself, its members, and how they agree.

Each yields what it finds, and nothing where what it needs could not be read; see `validation`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Final

from airflow_kcr.protocol.evidence import CheckFindings, Evidence, failed, fine, warning
from airflow_kcr.protocol.observations import OTHER_GROUP, GroupSeen
from airflow_kcr.protocol.region import liveness, specs
from airflow_kcr.protocol.region.liveness import Liveness
from airflow_kcr.protocol.region.rows import WORKING, RegionState
from airflow_kcr.protocol.rules import ForeignConsumerPolicy, GroupProtocol
from airflow_kcr.protocol.timeouts import BROKER_DEFAULTS, BrokerTimes, Timeouts, check, check_consumer_protocol
from airflow_kcr.protocol.values import MemberId

_POLICY: Final = {
    ForeignConsumerPolicy.FAIL: "the region halts until it is gone and the region is resumed",
    ForeignConsumerPolicy.WARN: (
        "the region goes on without what it owns; checkpoints hold that where it stands, and say so"
    ),
}


def one_region(evidence: Evidence) -> CheckFindings:
    """The group is in one region: the store allows no other, so this only shows which."""
    rules = evidence.rules
    kind = "static" if rules.static_membership else "dynamic"
    yield fine(f"belongs to region {evidence.region.name} alone; {rules.members} {kind} member(s) in its spec")


def rights(evidence: Evidence) -> CheckFindings:
    """The calls that were made for this validation are among those that members and executors make."""
    for call in evidence.refused:
        yield failed(f"{call}; grant what docs/reference/rights.md lists")
    if evidence.refused or evidence.silent:
        return
    if evidence.unreadable:
        text = f"no right to read {', '.join(evidence.unreadable)}: enough to look, but a member can't consume with it"
        yield warning(f"{text}; grant READ, see docs/reference/rights.md")
    yield fine("describing and reading the group and its topics is allowed")


def protocol(evidence: Evidence) -> CheckFindings:
    """The group is of the spec's protocol and uses the spec's assignor."""
    seen, ours, wanted = evidence.described, evidence.rules.protocol, evidence.rules.assignor
    if seen is None:
        return
    if not seen.admits_consumers:
        yield failed(f"the group is a {seen.type} group, so no consumer can join it: {OTHER_GROUP}")
    elif not seen.members:
        yield fine("the group is empty, so it has no protocol yet")
    elif seen.type != ours:
        who = ", ".join(map(str, evidence.foreign_consumers)) or "a member"
        text = f"the group is of type {seen.type}, assignor {seen.assignor or 'none yet'}, not {ours}"
        yield failed(f"{text}: {who} uses another protocol; stop it")
    elif not seen.assignor:
        yield warning(f"the group is {seen.state}; its members have not agreed on an assignor yet")
    elif seen.assignor != wanted:
        yield failed(f"its members agreed on {seen.assignor}, the spec says {wanted}: restart them with one spec")
    else:
        by = f", coordinated by {seen.coordinator}" if seen.coordinator else ""
        yield fine(f"{ours}, assignor {wanted}{by}")


def times(evidence: Evidence) -> CheckFindings:
    """The brokers accept the members' session, and it suits the region's other times."""
    if evidence.times is None:
        return
    timeouts, static = evidence.region.rules.timeouts, evidence.rules.static_membership
    if evidence.rules.protocol is GroupProtocol.CONSUMER:
        yield from _brokers_times(timeouts, evidence.times, evidence.described)
        return
    limits = evidence.times.limits
    for clash in check(timeouts, static=static, limits=limits or BROKER_DEFAULTS):
        yield failed(str(clash))
    session = f"session {_seconds(timeouts.session_timeout(static=static))}"
    also = "; it speaks protocol: consumer, too" if GroupProtocol.CONSUMER in (evidence.times.protocols or ()) else ""
    yield fine(
        f"{session}; Kafka's own limits are assumed, as this client may not read the broker's"
        if limits is None
        else f"{session}, the broker accepts {_seconds(limits.shortest_session)} to "
        f"{_seconds(limits.longest_session)}{also}"
    )


_UPGRADES: Final = frozenset({"upgrade", "bidirectional"})
"""The policies by which a member of the consumer protocol may join a group that has classic ones."""


def _brokers_times(timeouts: Timeouts, times: BrokerTimes, seen: GroupSeen | None) -> CheckFindings:
    if times.protocols is not None and GroupProtocol.CONSUMER not in times.protocols:
        spoken = ", ".join(sorted(times.protocols))
        yield failed(
            f"the brokers speak {spoken} (group.coordinator.rebalance.protocols) and not consumer, which Kafka 4.0 "
            "has; write protocol: classic"
        )
        return
    is_classic = seen is not None and seen.type == GroupProtocol.CLASSIC and bool(seen.members)
    if is_classic and times.migration is not None and times.migration not in _UPGRADES:
        yield failed(
            "the group has members of the classic protocol, and the brokers convert no such group "
            f"(group.consumer.migration.policy is {times.migration}): stop them and wait until Kafka lists none "
            "of them, let the policy be bidirectional, or write protocol: classic"
        )
    elif times.consumer is None:
        yield warning("the group's session and heartbeat are the broker's, and this client may not read them")
    else:
        for clash in check_consumer_protocol(timeouts, times.consumer):
            yield failed(str(clash))
        session, heartbeat = _seconds(times.consumer.session), _seconds(times.consumer.heartbeat)
        yield fine(f"session {session}, heartbeat {heartbeat}, by the broker")


def _seconds(time: timedelta) -> str:
    return f"{time.total_seconds():g} s"


def subscription(evidence: Evidence) -> CheckFindings:
    """All members work by one revision of the spec, and own only topics that it subscribes."""
    region, rules = evidence.region, evidence.rules
    rows = {m: region.members[m].spec_revision for m in region.live_members(evidence.now) if m.group == evidence.group}
    if len(set(rows.values())) > 1:
        by = ", ".join(f"{m}: {revision}" for m, revision in rows.items())
        yield warning(f"members were started with different revisions of the spec ({by}); restart the older ones")
    if evidence.described is None:
        return
    for listed, member in evidence.own_members():
        for place in sorted(listed.partitions):
            if not rules.subscribes(place.topic):
                yield failed(f"{member} owns {place}, which the spec does not subscribe; restart it")
    what = ", ".join(rules.topics) if rules.pattern is None else " without ".join([rules.pattern, *rules.exclude])
    yield fine(f"{what}, revision {region.spec.revision}")


def participants(evidence: Evidence) -> CheckFindings:
    """Kafka lists every member that the store knows to live, each once."""
    region, now, seen = evidence.region, evidence.now, evidence.described
    if seen is None:
        return
    listed = Counter(member for _, member in evidence.own_members())
    live = {m for m in region.live_members(now) if m.group == evidence.group}
    failures = {c.member: c for c in specs.start_failures(region, now) if c.member.group == evidence.group}
    for failure in failures.values():
        yield failed(specs.describe_start_failure(region, now, failure))
    yield from _twice(listed)
    yield from _lingering(evidence, listed, live)
    said = failed if region.state in WORKING and seen.is_stable else warning
    why = "it may be joining, or see another cluster" if seen.admits_consumers else f"a {seen.type} group has the name"
    for member in sorted((live & evidence.before.members.keys()) - listed.keys()):
        yield said(f"{member} is alive but not in the group (state {seen.state}); {why}")
    if region.state is not RegionState.STOPPED:
        expected = {MemberId(evidence.group, n) for n in range(evidence.rules.members)} - failures.keys()
        for member in sorted(expected - live - listed.keys()):
            yield warning(f"{member} of the spec is not running; start it")
    yield fine(f"{len(live)} of {evidence.rules.members} member(s) run, and Kafka lists the same")


def _twice(listed: Counter[MemberId]) -> CheckFindings:
    for member, times in sorted(listed.items()):
        if times > 1:
            yield warning(
                f"{member} is in the group {times} times: an earlier process whose session is not over yet, "
                "or a second one with its client id"
            )


def _lingering(evidence: Evidence, listed: Counter[MemberId], live: set[MemberId]) -> CheckFindings:
    for member in sorted(listed.keys() - live):
        if member.index >= evidence.rules.members:
            yield warning(f"{member} is of an earlier spec; Kafka keeps its partitions until its session is over")
        else:
            yield warning(
                f"{member} is in the group without a lease: it ended, or can't reach the store; its session decides"
            )


def foreign_consumers(evidence: Evidence) -> CheckFindings:
    """Kafka lists no other consumer. Consumers that only assign themselves partitions are in no list."""
    if evidence.described is None:
        return
    policy = evidence.region.rules.foreign_consumers
    said = warning if policy is ForeignConsumerPolicy.WARN else failed
    for one in evidence.foreign_consumers:
        if evidence.described.admits_consumers:
            yield said(f"{one} is not the region's; stop it ({_POLICY[policy]})")
        else:
            yield failed(f"{one}, which no member can join: {OTHER_GROUP}")
    yield fine("the group has no foreign consumer")


def progress(evidence: Evidence) -> CheckFindings:
    """The region works, or waits for something and no longer than it may; other groups' own waits are left out."""
    found = liveness.judge(evidence.region, evidence.now, replace(evidence.seen, ends=evidence.earlier_ends))
    own = Liveness(waits=tuple(w for w in found.waits if w.group in {None, evidence.group}), now=evidence.now)
    for wait in own.stalled:
        yield failed(f"{own.verdict}: {wait.text()}")
    yield fine(own.text())
