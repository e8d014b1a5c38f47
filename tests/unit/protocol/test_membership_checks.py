"""Membership validation, question by question: what is fine, what is wrong, and that the sentence says where."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from airflow_kcr.protocol.evidence import CheckVerdict, Evidence, Participants
from airflow_kcr.protocol.observations import SHARE_OR_STREAMS, ForeignConsumer, GroupSeen, LogBounds, MemberSeen
from airflow_kcr.protocol.region import liveness
from airflow_kcr.protocol.region.commands import KillRegion
from airflow_kcr.protocol.region.liveness import LogEnd
from airflow_kcr.protocol.region.rows import Committed, RegionState
from airflow_kcr.protocol.region.state import put
from airflow_kcr.protocol.rules import (
    COMMITTED,
    EARLIEST,
    LATEST,
    Assignor,
    ForeignConsumerPolicy,
    GroupProtocol,
    GroupRules,
    RegionRules,
    StartPosition,
)
from airflow_kcr.protocol.timeouts import BrokerLimits, BrokerTimes, ConsumerProtocolTimes
from airflow_kcr.protocol.validation import Check, Question, is_all_right, judge
from airflow_kcr.protocol.values import GroupPartition, MemberId, Offset, TopicId, TopicName, TopicPartition
from tests.support.driver import GROUP, START, TOPIC, Driver, group_rules
from tests.support.scripts import started

OK, WARNING, FAILED, UNKNOWN = CheckVerdict.OK, CheckVerdict.WARNING, CheckVerdict.FAILED, CheckVerdict.UNKNOWN


def instance(index: int) -> str:
    return f"flights.g.{index}"


def client(index: int) -> str:
    return f"kcr-flights-g-{index}"


def participants_of(*indexes: int) -> Participants:
    members = {n: MemberId(GROUP, n) for n in indexes}
    return Participants(
        instance_ids={instance(n): m for n, m in members.items()}, client_ids={client(n): m for n, m in members.items()}
    )


def member_seen(index: int, *partitions: int, static: bool = True, topic: str = "t") -> MemberSeen:
    return MemberSeen(
        member_id=f"id-{index}",
        client_id=client(index),
        host="/10.0.0.9",
        instance_id=instance(index) if static else None,
        partitions=frozenset(TopicPartition(TopicName(topic), n) for n in partitions),
    )


STRANGER = MemberSeen(member_id="x-1", client_id="console", host="/10.0.0.1")


@dataclass
class World:
    """A running region of two members with two partitions each, and a cluster that agrees with it."""

    driver: Driver
    members: list[MemberSeen] = field(default_factory=lambda: [member_seen(0, 0, 1), member_seen(1, 2, 3)])
    state: str = "stable"
    type: str = "classic"
    assignor: str = "range"
    topics: dict[TopicName, int] = field(default_factory=lambda: {TOPIC: 4, TopicName("other"): 2})

    def evidence(self, **changes: object) -> Evidence:
        region, now = self.driver.store.read(self.driver.name)
        seen = GroupSeen(
            group=GROUP,
            state=self.state,
            type=self.type,
            assignor=self.assignor,
            members=tuple(self.members),
            coordinator="kafka-2:9092",
        )
        whole = Evidence(
            rules=region.rules.groups[GROUP],
            participants=participants_of(*range(4)),
            region=region,
            now=now,
            before=region,
            described=seen,
            topics=self.topics,
            bounds=dict(self.driver.logs),
            committed=region.restore_point_offsets(),
            times=BrokerTimes(),
        )
        return replace(whole, **changes)  # type: ignore[arg-type]

    def check(self, question: Question, evidence: Evidence | None = None) -> Check:
        region, now = self.driver.store.read(self.driver.name)
        found = judge(replace(evidence or self.evidence(), region=region, now=now))
        assert [c.question for c in found] == list(Question)
        return next(c for c in found if c.question is question)

    def verdict(self, question: Question, evidence: Evidence | None = None) -> CheckVerdict:
        return self.check(question, evidence).verdict


def world(policy: ForeignConsumerPolicy = ForeignConsumerPolicy.FAIL, group: GroupRules | None = None) -> World:
    rules = RegionRules(groups={GROUP: group or group_rules()}, foreign_consumers=policy)
    return World(driver=started(Driver(rules=rules)))


def log(start: int, end: int, topic_id: str = "id-1") -> LogBounds:
    return LogBounds(start=Offset(start), end=Offset(end), topic_id=TopicId(topic_id))


# -- lines ------------------------------------------------------------------------------------------------------------


def test_a_region_that_its_cluster_agrees_with_is_fine_in_every_line() -> None:
    here = world()
    found = judge(here.evidence())
    assert [(c.question, c.detail) for c in found if c.verdict is not OK] == []
    assert all(c.detail and c.group == GROUP for c in found)
    assert is_all_right(found)


def test_what_could_not_be_read_is_unknown_with_the_reason_and_not_all_right() -> None:
    here = world()
    blind = here.evidence(
        described=None, times=None, bounds=None, silent=("describe group g: no answer from broker:9092",)
    )
    found = {c.question: c for c in judge(blind)}
    unknown = {q for q, c in found.items() if c.verdict is UNKNOWN}
    assert unknown == set(Question) - {Question.REGION, Question.TOPICS, Question.CLAIMS, Question.PROGRESS}
    assert "no answer from broker:9092" in found[Question.PARTICIPANTS].detail
    assert not is_all_right(found.values())


def test_only_failures_and_what_is_unknown_are_not_all_right() -> None:
    check = world().check(Question.TOPICS)
    verdicts = {v: is_all_right([replace(check, verdict=v)]) for v in CheckVerdict}
    assert verdicts == {OK: True, WARNING: True, FAILED: False, UNKNOWN: False}


def test_a_line_names_the_first_few_findings_and_counts_the_others() -> None:
    here = world()
    refused = tuple(f"Kafka does not allow {n}" for n in range(8))
    check = here.check(Question.RIGHTS, here.evidence(refused=refused))
    assert check.detail.startswith("Kafka does not allow 0; grant ")
    assert check.detail.endswith("; and 3 more")


# -- region and rights ------------------------------------------------------------------------------------------------


def test_the_region_of_a_group_is_shown() -> None:
    detail = world().check(Question.REGION).detail
    assert detail == "belongs to region flights alone; 2 static member(s) in its spec"


def test_a_refused_call_fails_the_rights_and_says_where_they_are_listed() -> None:
    here = world()
    check = here.check(Question.RIGHTS, here.evidence(described=None, refused=("describe group g: not authorised",)))
    assert check.verdict is FAILED
    assert "not authorised" in check.detail
    assert "docs/reference/rights.md" in check.detail


# -- topics -----------------------------------------------------------------------------------------------------------


def test_a_listed_topic_that_is_missing_fails_by_name() -> None:
    here = world()
    check = here.check(Question.TOPICS, here.evidence(topics={TopicName("other"): 2}))
    assert (check.verdict, "topic t does not exist" in check.detail) == (FAILED, True)


def test_a_pattern_that_matches_nothing_waits() -> None:
    rules = GroupRules(group_id=GROUP, pattern="^x", members=2)
    here = world()
    check = here.check(Question.TOPICS, here.evidence(rules=rules))
    assert (check.verdict, check.detail) == (
        WARNING,
        "pattern ^x matches none of the 2 topics of its cluster; the group waits",
    )
    assert here.verdict(Question.TOPICS, here.evidence(rules=replace(rules, pattern="^oth"))) is OK


def test_an_exclude_that_leaves_no_topic_is_told_with_what_to_change() -> None:
    rules = GroupRules(group_id=GROUP, pattern="^oth", exclude=(TopicName("other"),), members=2)
    here = world()
    check = here.check(Question.TOPICS, here.evidence(rules=rules))
    assert check.verdict is WARNING
    assert (
        "exclude leaves none of the topics that pattern ^oth matches (other); take one out of exclude" in check.detail
    )


def test_topics_of_which_a_pattern_matches_only_the_beginning_are_named() -> None:
    here = world()
    topics = {TopicName("other"): 2, TopicName("other_old"): 1, TopicName("mine"): 1}
    rules = GroupRules(group_id=GROUP, pattern="^other", members=2)
    assert here.check(Question.TOPICS, here.evidence(rules=rules, topics=topics)).detail == (
        "2 topic(s) with 3 partition(s): other, other_old; pattern ^other matches only the beginning of other_old"
    )
    closed = replace(rules, pattern="^other.*")
    assert "beginning" not in here.check(Question.TOPICS, here.evidence(rules=closed, topics=topics)).detail


def test_a_topic_that_was_made_again_fails_once_whatever_its_partitions() -> None:
    here = world()
    bounds = {p: replace(b, topic_id=TopicId("id-2")) for p, b in here.driver.logs.items()}
    check = here.check(Question.TOPIC_IDS, here.evidence(bounds=bounds))
    assert check.verdict is FAILED
    assert check.detail.count("deleted and created again (id id-1 became id-2)") == 1
    silent = {p: replace(b, topic_id=TopicId("")) for p, b in here.driver.logs.items()}
    assert here.verdict(Question.TOPIC_IDS, here.evidence(bounds=silent)) is OK


# -- protocol and subscription ----------------------------------------------------------------------------------------


def test_a_group_is_told_with_its_protocol_and_its_coordinator() -> None:
    assert world().check(Question.PROTOCOL).detail == "classic, assignor range, coordinated by kafka-2:9092"


def test_a_group_of_another_type_fails_and_names_who_is_not_ours() -> None:
    here = world()
    here.type = "consumer"
    here.members.append(STRANGER)
    check = here.check(Question.PROTOCOL)
    assert check.verdict is FAILED
    assert "of type consumer, assignor range, not classic: consumer console on host 10.0.0.1" in check.detail


def test_another_assignor_than_the_specs_fails_and_none_yet_is_a_warning() -> None:
    here = world()
    here.assignor = "roundrobin"
    assert here.check(Question.PROTOCOL).detail.startswith("its members agreed on roundrobin, the spec says range")
    here.assignor, here.state = "", "preparing_rebalancing"
    assert here.verdict(Question.PROTOCOL) is WARNING
    here.members, here.type = [], "consumer"
    assert here.verdict(Question.PROTOCOL) is OK


@pytest.mark.parametrize("policy", ForeignConsumerPolicy)
def test_a_group_that_no_consumer_can_join_is_a_foreign_consumer_as_a_whole_by_any_policy(
    policy: ForeignConsumerPolicy,
) -> None:
    here = world(policy)
    here.members, here.type, here.state = [], SHARE_OR_STREAMS, "unknown"
    check = here.check(Question.PROTOCOL)
    assert (check.verdict, "share or streams group, so no consumer can join it: give" in check.detail) == (FAILED, True)
    check = here.check(Question.FOREIGN_CONSUMERS)
    assert (check.verdict, "share or streams group in group g, which no member can join" in check.detail) == (
        FAILED,
        True,
    )
    (found,) = here.evidence().foreign_consumers
    assert found == ForeignConsumer(group=GROUP, what="share or streams group")
    assert found.is_group
    assert "a share or streams group has the name" in here.check(Question.PARTICIPANTS).detail


def test_a_session_is_told_with_the_brokers_limits_and_without_them_kafkas_own_are_assumed() -> None:
    here = world()
    assert here.check(Question.TIMES).detail == (
        "session 120 s; Kafka's own limits are assumed, as this client may not read the broker's"
    )
    limits = BrokerLimits(shortest_session=timedelta(seconds=6), longest_session=timedelta(seconds=300))
    check = here.check(Question.TIMES, here.evidence(times=BrokerTimes(limits=limits)))
    assert check.detail == "session 120 s, the broker accepts 6 s to 300 s"
    both = BrokerTimes(limits=limits, protocols=frozenset({"classic", "consumer"}))
    said = here.check(Question.TIMES, here.evidence(times=both)).detail
    assert said == "session 120 s, the broker accepts 6 s to 300 s; it speaks protocol: consumer, too"


def test_where_the_broker_decides_its_protocol_and_its_times_are_what_counts() -> None:
    here = world(group=replace(group_rules(), protocol=GroupProtocol.CONSUMER, assignor=Assignor.UNIFORM))
    check = here.check(Question.PROTOCOL)
    assert (check.verdict, "is of type classic, assignor range, not consumer" in check.detail) == (FAILED, True)
    here.type, here.assignor = "consumer", "uniform"
    assert here.check(Question.PROTOCOL).detail == "consumer, assignor uniform, coordinated by kafka-2:9092"
    assert here.check(Question.TIMES).verdict is WARNING
    check = here.check(Question.TIMES, here.evidence(times=BrokerTimes(consumer=ConsumerProtocolTimes())))
    assert check.detail == "session 45 s, heartbeat 5 s, by the broker"
    old = here.check(Question.TIMES, here.evidence(times=BrokerTimes(protocols=frozenset({"classic"}))))
    assert (old.verdict, "write protocol: classic" in old.detail) == (FAILED, True)
    here.type = "classic"
    for policy in ("disabled", "downgrade"):
        mixed = here.check(Question.TIMES, here.evidence(times=BrokerTimes(migration=policy)))
        assert (mixed.verdict, f"group.consumer.migration.policy is {policy}" in mixed.detail) == (FAILED, True)
    for allowed in (BrokerTimes(migration="upgrade"), BrokerTimes(migration="bidirectional"), BrokerTimes()):
        assert here.check(Question.TIMES, here.evidence(times=allowed)).verdict is WARNING
    here.type = "consumer"
    converted = BrokerTimes(migration="disabled", consumer=ConsumerProtocolTimes())
    assert here.check(Question.TIMES, here.evidence(times=converted)).verdict is OK
    late = ConsumerProtocolTimes(session=timedelta(seconds=400))
    check = here.check(Question.TIMES, here.evidence(times=BrokerTimes(consumer=late)))
    assert (check.verdict, "consumer.session.timeout.ms" in check.detail) == (FAILED, True)


def test_a_session_that_the_broker_refuses_fails_with_both_settings() -> None:
    here = world()
    limits = BrokerLimits(shortest_session=timedelta(seconds=6), longest_session=timedelta(seconds=60))
    check = here.check(Question.TIMES, here.evidence(times=BrokerTimes(limits=limits)))
    assert check.verdict is FAILED
    assert check.detail.startswith(
        "timeouts.session is 120 s (the default of static members) and the broker's group.max.session.timeout.ms is "
        "60 s"
    )


def test_members_of_different_revisions_are_a_warning() -> None:
    here = world()
    region = here.driver.region
    older = replace(region.members[here.driver.member(0)], spec_revision=7)
    region = replace(region, members=put(region.members, {here.driver.member(0): older}))
    found = {c.question: c for c in judge(here.evidence(region=region))}
    assert found[Question.SUBSCRIPTION].verdict is WARNING
    assert "g[0]: 7, g[1]: 1" in found[Question.SUBSCRIPTION].detail


def test_a_member_that_owns_what_the_spec_does_not_subscribe_fails() -> None:
    here = world()
    here.members[0] = member_seen(0, 1, topic="other")
    check = here.check(Question.SUBSCRIPTION)
    assert (check.verdict, "g[0] owns other-1" in check.detail) == (FAILED, True)


# -- participants and foreign consumers
# ---------------------------------------------------------------------------------------------


def test_a_live_member_that_kafka_does_not_list_fails_by_name_once_the_group_is_settled() -> None:
    here = world()
    here.members = [member_seen(0, 0, 1, 2, 3)]
    check = here.check(Question.PARTICIPANTS)
    assert (check.verdict, "g[1] is alive but not in the group" in check.detail) == (FAILED, True)
    here.state = "preparing_rebalancing"
    assert here.verdict(Question.PARTICIPANTS) is WARNING


def test_a_member_of_the_spec_that_does_not_run_is_a_warning() -> None:
    here = world()
    here.driver.leave(here.driver.member(1))
    here.members = [member_seen(0, 0, 1, 2, 3)]
    check = here.check(Question.PARTICIPANTS)
    assert (check.verdict, check.detail) == (WARNING, "g[1] of the spec is not running; start it")


def test_one_that_can_not_start_fails_with_the_reason_and_the_way_out() -> None:
    here = world()
    here.driver.leave(here.driver.member(1))
    here.members = [member_seen(0, 0, 1, 2, 3)]
    here.driver.fail_to_start(here.driver.member(1), refusal="there is no module 'nowhere'")
    check = here.check(Question.PARTICIPANTS)
    assert (check.verdict, check.detail) == (
        FAILED,
        "g[1] could not start with revision 1 of the spec, which is in force: there is no module 'nowhere'; put that "
        "right, or apply a corrected spec, which counts at the next checkpoint, and start the member again",
    )


def test_a_slot_without_a_lease_and_one_of_an_earlier_spec_are_warnings_and_no_foreign_consumers() -> None:
    here = world()
    here.driver.leave(here.driver.member(1))
    here.members.append(member_seen(3))
    check = here.check(Question.PARTICIPANTS)
    assert check.verdict is WARNING
    assert "g[1] is in the group without a lease" in check.detail
    assert "g[3] is of an earlier spec" in check.detail
    assert here.verdict(Question.FOREIGN_CONSUMERS) is OK


def test_an_index_that_is_there_twice_is_a_warning() -> None:
    here = world(group=replace(group_rules(), static_membership=False))
    here.members = [member_seen(0, 0, static=False), member_seen(0, 1, static=False), member_seen(1, 2, static=False)]
    check = here.check(Question.PARTICIPANTS)
    assert (check.verdict, "g[0] is in the group 2 times" in check.detail) == (WARNING, True)


@pytest.mark.parametrize(
    ("policy", "verdict", "then"),
    [
        (ForeignConsumerPolicy.FAIL, FAILED, "halts until it is gone and the region is resumed"),
        (ForeignConsumerPolicy.WARN, WARNING, "goes on"),
    ],
)
def test_a_foreign_consumer_is_named_with_host_and_client_id_and_what_follows(
    policy: ForeignConsumerPolicy, verdict: CheckVerdict, then: str
) -> None:
    here = world(policy)
    here.members.append(STRANGER)
    check = here.check(Question.FOREIGN_CONSUMERS)
    assert check.verdict is verdict
    assert check.detail.startswith("consumer console on host 10.0.0.1 in group g is not the region's")
    assert then in check.detail


def test_in_a_static_group_a_dynamic_member_is_a_foreign_consumer_whatever_its_client_id() -> None:
    here = world()
    here.members.append(member_seen(0, static=False))
    assert [o.client_id for o in here.evidence().foreign_consumers] == [client(0)]
    here.members[-1] = replace(STRANGER, instance_id="copy-0")
    assert [o.instance_id for o in here.evidence().foreign_consumers] == ["copy-0"]


def test_in_a_dynamic_group_the_client_id_counts_and_slots_of_static_times_are_no_foreign_consumers() -> None:
    here = world(group=replace(group_rules(), static_membership=False))
    here.members = [member_seen(0, static=False), member_seen(1)]
    assert here.evidence().foreign_consumers == ()
    here.members.append(STRANGER)
    assert [o.client_id for o in here.evidence().foreign_consumers] == ["console"]


def test_a_consumer_that_joins_again_is_the_same_foreign_consumer() -> None:
    here = world()
    here.members += [STRANGER, replace(STRANGER, member_id="x-2")]
    assert len(here.evidence().foreign_consumers) == 1


# -- claims -----------------------------------------------------------------------------------------------------------


def test_a_partition_that_nobody_claims_fails_with_its_last_owner() -> None:
    here = world()
    here.driver.leave(here.driver.member(1))
    check = here.check(Question.CLAIMS)
    assert check.verdict is FAILED
    assert "g:t-2 is not covered (last owner: g[1])" in check.detail


def test_a_new_partition_is_a_warning_until_it_is_claimed() -> None:
    here = world()
    here.topics[TOPIC] = 5
    check = here.check(Question.CLAIMS)
    assert (check.verdict, "g:t-4 is new and unclaimed (last owner: none)" in check.detail) == (WARNING, True)


def test_a_partition_that_has_had_no_owner_for_long_fails_with_since_when() -> None:
    here = world()
    driver = here.driver
    here.topics[TOPIC] = 5
    driver.grow(driver.partition(4), end=1_000)
    driver.report_partitions(driver.member(0))
    assert here.verdict(Question.CLAIMS) is WARNING
    driver.wait(driver.region.rules.timeouts.rejoin_after.total_seconds())
    check = here.check(Question.CLAIMS)
    assert (check.verdict, "g:t-4 has had no owner since 2026-01-01" in check.detail) == (FAILED, True)
    assert "unclaimed" not in check.detail


def test_a_partition_that_the_cluster_does_not_have_fails() -> None:
    here = world()
    here.topics[TOPIC] = 3
    assert "g:t-3 is in the region but not on the cluster" in here.check(Question.CLAIMS).detail
    assert here.verdict(Question.CLAIMS) is FAILED


def test_a_partition_that_kafka_has_with_somebody_else_fails_but_not_during_a_rebalance() -> None:
    here = world()
    here.members = [member_seen(0, 0), member_seen(1, 2, 3), replace(STRANGER, partitions=frozenset({AT_1}))]
    check = here.check(Question.CLAIMS)
    assert check.verdict is FAILED
    assert "g:t-1 is claimed by g[0], Kafka has assigned it to consumer console on /10.0.0.1" in check.detail
    here.members[1] = member_seen(1, 1, 2, 3)
    assert "g:t-1 is assigned to consumer console on /10.0.0.1 and g[1] at once" in here.check(Question.CLAIMS).detail
    here.state = "completing_rebalancing"
    assert here.verdict(Question.CLAIMS) is OK


AT_1 = TopicPartition(TOPIC, 1)


def test_while_members_come_missing_claims_are_warnings_and_a_stopped_region_has_none() -> None:
    here = world()
    here.driver.handle(KillRegion())
    assert here.check(Question.CLAIMS).detail == "4 partition(s) known; the region is stopped, without claims"
    here.driver.handle(START)
    assert here.driver.region.state in {RegionState.STARTING, RegionState.RESETTING}
    assert here.verdict(Question.CLAIMS) is WARNING


# -- offsets ----------------------------------------------------------------------------------------------------------


def checkpoint_at_ten(here: World) -> None:
    here.driver.process()
    here.driver.checkpoint("n1")


def test_a_position_that_retention_overtook_fails_with_the_policy() -> None:
    here = world()
    checkpoint_at_ten(here)
    check = here.check(Question.OFFSETS, here.evidence(bounds={here.driver.partition(0): log(20, 50)}))
    assert check.verdict is FAILED
    assert "g:t-0 at 10: retention overtook it: the log now starts at 20 (policy fail)" in check.detail


def test_an_end_that_moved_back_fails() -> None:
    here = world()
    checkpoint_at_ten(here)
    check = here.check(Question.OFFSETS, here.evidence(bounds={here.driver.partition(0): log(0, 5)}))
    assert (check.verdict, "the log's end moved back to 5" in check.detail) == (FAILED, True)


def test_a_restore_point_that_retention_overtook_fails_while_the_position_is_still_inside() -> None:
    here = world()
    checkpoint_at_ten(here)
    here.driver.process()
    check = here.check(Question.OFFSETS, here.evidence(bounds={here.driver.partition(0): log(15, 50)}))
    assert check.verdict is FAILED
    assert "a reset to the restore point at 10 would miss 5 record(s)" in check.detail


@pytest.mark.parametrize(("start", "verdict"), [(0, OK), (4, OK), (5, WARNING), (10, WARNING)])
def test_retention_that_would_overtake_the_restore_point_next_is_a_warning(start: int, verdict: CheckVerdict) -> None:
    here = world()
    checkpoint_at_ten(here)
    check = here.check(Question.OFFSETS, here.evidence(bounds={here.driver.partition(0): log(start, 50)}))
    assert check.verdict is verdict
    assert ("retention is about to overtake the restore point" in check.detail) is (verdict is WARNING)


def test_retention_behind_a_restore_point_at_the_end_of_its_log_harms_nothing() -> None:
    here = world()
    checkpoint_at_ten(here)
    assert here.verdict(Question.OFFSETS, here.evidence(bounds={here.driver.partition(0): log(10, 10)})) is OK


def own(here: World) -> dict[GroupPartition, Offset]:
    """What the region has committed."""
    return dict.fromkeys(here.evidence().bounds or (), Offset(10))


@pytest.mark.parametrize(
    ("start", "told"),
    [
        (COMMITTED, "start: committed begins where region flights (id 1) has committed, g:t-0 at 10, g:t-1 at 20, and"),
        (EARLIEST, ""),
        (LATEST, ""),
    ],
)
def test_a_start_at_what_another_region_has_committed_is_told_before_it(start: StartPosition, told: str) -> None:
    rules = replace(group_rules(), start=start)
    here = World(driver=Driver(rules=RegionRules(groups={GROUP: rules}), partitions=2))
    of, held = here.driver.partition, {0: 10, 1: 20}
    evidence = here.evidence(
        committed={of(n): Offset(offset) for n, offset in held.items()},
        inherited={of(n): "region flights (id 1)" for n in held},
    )
    check = here.check(Question.OFFSETS, evidence)
    assert (check.verdict is CheckVerdict.WARNING, told in check.detail) == (bool(told), True)


def test_a_region_that_has_begun_inherits_nothing() -> None:
    here = world(group=replace(group_rules(), start=COMMITTED))
    inherited = dict.fromkeys(here.driver.logs, "region flights (id 1)")
    assert here.verdict(Question.OFFSETS, here.evidence(inherited=inherited)) is OK


def test_a_committed_offset_that_is_not_the_regions_is_a_warning() -> None:
    here = world()
    checkpoint_at_ten(here)
    held = own(here) | {here.driver.partition(0): Offset(3)}
    region = here.driver.region
    assert region.restore_sequence is not None
    assert region.checkpoints[region.restore_sequence].committed is Committed.YES
    check = here.check(Question.OFFSETS, here.evidence(committed=held))
    assert check.verdict is WARNING
    assert "Kafka's committed offset is 3, the region committed 10: another client commits" in check.detail
    assert "or altered its offsets with a tool" in check.detail
    assert here.verdict(Question.OFFSETS, here.evidence(committed=own(here))) is OK


def test_a_group_that_was_deleted_in_kafka_is_a_warning() -> None:
    here = world()
    checkpoint_at_ten(here)
    check = here.check(Question.OFFSETS, here.evidence(committed={}))
    assert check.verdict is WARNING
    assert "Kafka holds no committed offset, the region committed 10: the group, or its offsets, were" in check.detail


def test_a_commit_of_the_regions_own_that_the_store_has_not_is_told_as_a_restored_store() -> None:
    here = world()
    checkpoint_at_ten(here)
    newer = here.driver.region.next_sequence
    held = own(here) | {here.driver.partition(0): Offset(30)}
    noted = {here.driver.partition(0): newer}
    check = here.check(Question.OFFSETS, here.evidence(committed=held, noted=noted))
    assert check.verdict is WARNING
    assert f"this region committed it as number {newer}, which the store has not reached" in check.detail
    assert "another client" not in check.detail


def test_before_the_first_checkpoint_is_committed_nothing_is_expected_of_kafka() -> None:
    here = world()
    assert here.verdict(Question.OFFSETS, here.evidence(committed={here.driver.partition(0): Offset(3)})) is OK


# -- progress ---------------------------------------------------------------------------------------------------------


def test_a_stalled_region_fails_with_the_rule_that_waits_and_since_when() -> None:
    here = world()
    assert here.check(Question.PROGRESS).detail == "progressing"
    here.driver.crash(here.driver.member(0))
    here.driver.wait(60)
    waiting = here.check(Question.PROGRESS)
    assert waiting.verdict is OK
    assert waiting.detail.startswith("waiting: partitions since 2026-01-01T00:00:10Z: g:t-0 is not covered")
    here.driver.wait(300)
    stalled = here.check(Question.PROGRESS)
    assert stalled.verdict is FAILED
    assert stalled.detail.startswith("stalled: partitions since 2026-01-01T00:00:10Z: g:t-0 is not covered")


def test_records_that_were_there_long_ago_and_that_nobody_reads_are_a_stall() -> None:
    here = world()
    here.driver.wait(300)
    region, now = here.driver.store.read(here.driver.name)
    seen = here.driver.store.seen(here.driver.name)
    before = liveness.missed_before(region, now, seen)
    assert before is not None
    place = here.driver.partition(0)
    evidence = here.evidence(earlier_ends={place: LogEnd(Offset(40), before)}, seen=seen)
    check = next(c for c in judge(evidence) if c.question is Question.PROGRESS)
    assert check.verdict is FAILED
    assert "40 of g:t-0 can be read, and no batch reads them" in check.detail


def test_a_partition_that_the_region_gave_up_is_told_and_fails_nothing() -> None:
    here = world()
    driver = here.driver
    here.topics[TOPIC] = 3
    del driver.logs[driver.partition(3)]
    driver.report_partitions(driver.member(0))
    check = here.check(Question.CLAIMS)
    assert (check.verdict, "once that has lasted 20 s the region goes on without it" in check.detail) == (FAILED, True)
    driver.wait(driver.region.rules.timeouts.rejoin_after.total_seconds())
    driver.report_partitions(driver.member(0))
    check = here.check(Question.CLAIMS)
    assert (check.verdict, "g:t-3: the brokers have not had it since" in check.detail) == (WARNING, True)
