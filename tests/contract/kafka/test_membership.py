"""A member's place in its group on a real broker, while nothing is broken."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.embedded.processes import happened
from airflow_kcr.kafka.control import ControlConsumer
from airflow_kcr.kafka.groups import Groups
from airflow_kcr.protocol.rules import Assignor, GroupProtocol
from airflow_kcr.protocol.values import GroupId
from airflow_kcr.settings import KafkaSettings
from tests.contract.kafka.members import SHORT, Member, Members, log, logs_of
from tests.support.kafka import Kafka

only_classic = pytest.mark.parametrize("protocol", [GroupProtocol.CLASSIC])
only_consumer = pytest.mark.parametrize("protocol", [GroupProtocol.CONSUMER])

LONG_SESSION = replace(SHORT, session=timedelta(seconds=60))
"""A session that is never waited out."""


def test_a_commit_is_read_back_with_its_metadata(kafka: Kafka, members: Members) -> None:
    topic, group = kafka.topic(3), kafka.group_id()
    member = members.make(group, topic=topic).joined()
    assert member.heard.holds == logs_of(group, topic, 0, 1, 2)
    answer = member.commit(dict.fromkeys(member.heard.holds, 7), metadata="region 1.2.3")
    assert answer.failure == ""
    assert {p: (row.offset, row.metadata) for p, row in answer.held.items()} == dict.fromkeys(
        logs_of(group, topic, 0, 1, 2), (7, "region 1.2.3")
    )
    assert kafka.committed(group) == {(topic, n): 7 for n in range(3)}


def test_committed_offsets_are_read_before_joining_and_after_leaving(kafka: Kafka, members: Members) -> None:
    topic, group = kafka.topic(2), kafka.group_id()
    member = members.make(group, topic=topic)
    assert member.held(logs_of(group, topic, 0, 1)) == {}
    member.joined().commit({log(group, topic, 1): 5})
    member.consumer.leave()
    member.heard.wait("left")
    assert member.held(logs_of(group, topic, 0, 1)) == {log(group, topic, 1): 5}


def test_a_commit_without_a_group_consumer_says_so(kafka: Kafka, members: Members) -> None:
    topic, group = kafka.topic(1), kafka.group_id()
    member = members.make(group, topic=topic).joined()
    member.consumer.leave()
    member.heard.wait("left")
    answer = member.commit({log(group, topic): 1})
    assert (answer.held, answer.failure) == ({}, "the member is not in its group")


def test_a_commit_before_the_assignment_waits_for_it(kafka: Kafka, members: Members) -> None:
    topic, group = kafka.topic(1), kafka.group_id()
    member = members.make(group, topic=topic)
    result = member.begin_commit({log(group, topic): 3})
    member.consumer.join()
    assert result().failure == ""
    assert kafka.committed(group) == {(topic, 0): 3}


def test_one_deleted_partition_among_good_ones_is_named_and_the_others_are_held(kafka: Kafka, members: Members) -> None:
    kept, deleted, group = kafka.topic(1, prefix="mix"), kafka.topic(1, prefix="mix"), kafka.group_id()
    member = members.make(group, pattern=f"^({kept}|{deleted})$").joined()
    member.heard.wait_for(lambda: len(member.heard.holds) == 2)
    # Deleted and committed before the client hears of it: the broker stores the good one and refuses the whole.
    kafka.delete_topic(deleted)
    answer = member.commit({log(group, kept): 4, log(group, deleted): 4})
    assert deleted in answer.failure
    assert answer.held.get(log(group, deleted)) is None
    assert kafka.committed(group, kept) in ({(kept, 0): 4}, {})
    assert {p.topic for p in answer.held} == {t for t, _ in kafka.committed(group, kept)}


@only_classic
def test_a_second_live_instance_gets_the_partitions_and_fences_the_first(kafka: Kafka, members: Members) -> None:
    topic, group = kafka.topic(2), kafka.group_id()
    first = members.make(group, 0, topic=topic).joined()
    second = members.make(group, 0, topic=topic).joined()
    assert second.heard.holds == logs_of(group, topic, 0, 1)
    assert "_FATAL" in str(first.heard.wait("fenced"))
    answer = first.commit({log(group, topic): 1})
    assert "fenced" in answer.failure
    assert kafka.committed(group) == {}
    assert first.heard.count("fenced") == 1
    assert second.commit({log(group, topic): 2}).failure == ""


@only_classic
def test_a_fenced_client_joins_again_as_another_and_what_it_was_asked_to_commit_before_is_not_sent(
    kafka: Kafka, members: Members
) -> None:
    topic, group = kafka.topic(2), kafka.group_id()
    first = members.make(group, 0, topic=topic).joined()
    second = members.make(group, 0, topic=topic).joined()
    first.heard.wait("fenced")
    assert second.commit({log(group, topic): 2}).failure == ""
    first.joined(2)
    assert first.heard.holds == logs_of(group, topic, 0, 1)
    second.heard.wait("fenced")
    assert kafka.committed(group) == {(topic, 0): 2}
    assert first.commit({log(group, topic): 3}).failure == ""
    assert kafka.committed(group) == {(topic, 0): 3}


@only_consumer
def test_a_second_live_instance_waits_until_the_first_is_gone(kafka: Kafka, members: Members) -> None:
    topic, group = kafka.topic(2), kafka.group_id()
    first = members.make(group, 0, topic=topic).joined()
    second = members.make(group, 0, topic=topic)
    second.consumer.join()
    assert "still used by another member" in str(second.heard.wait("troubled"))
    assert first.commit({log(group, topic): 1}).failure == ""
    first.consumer.close_keeping_slot()
    second.heard.wait_for(lambda: second.heard.holds == logs_of(group, topic, 0, 1))
    assert second.commit({log(group, topic): 2}).failure == ""
    assert [first.heard.count("fenced"), second.heard.count("fenced")] == [0, 0]


def test_a_static_member_that_closed_returns_to_its_partitions_without_a_rebalance(
    kafka: Kafka, members: Members
) -> None:
    topic, group = kafka.topic(4), kafka.group_id()
    first, second = members.make(group, 0, topic=topic), members.make(group, 1, topic=topic)
    first.joined()
    second.joined()
    first.heard.wait_for(lambda: len(first.heard.holds) == 2)
    held, heard = first.heard.holds, second.heard.count("revoked")
    first.consumer.close_keeping_slot()
    first.heard.wait("left")
    first.consumer.join()
    first.heard.wait_for(lambda: first.heard.holds == held)
    assert second.heard.count("revoked") == heard
    assert first.commit(dict.fromkeys(held, 1)).failure == ""


def test_a_dynamic_member_that_closes_frees_its_partitions_at_once(kafka: Kafka, members: Members) -> None:
    topic, group = kafka.topic(4), kafka.group_id()
    first = members.make(group, 0, topic=topic, static=False).joined()
    second = members.make(group, 1, topic=topic, static=False).joined()
    first.heard.wait_for(lambda: len(first.heard.holds) == 2)
    first.consumer.close_keeping_slot()
    second.heard.wait_for(lambda: len(second.heard.holds) == 4, within=4)


def test_a_dynamic_member_that_leaves_frees_its_partitions_at_once(
    kafka: Kafka, members: Members, groups: Groups
) -> None:
    topic, group = kafka.topic(4), kafka.group_id()
    first, second = (members.make(group, index, topic=topic, static=False).joined() for index in (0, 1))
    first.heard.wait_for(lambda: len(first.heard.holds) == 2)
    first.consumer.leave()
    first.heard.wait("left")
    second.heard.wait_for(lambda: len(second.heard.holds) == 4, within=4)
    second.consumer.leave()
    second.heard.wait("left")
    assert happened(lambda: groups.describe(GroupId(group)).state == "empty", within=4)


@pytest.mark.long
@only_consumer
def test_a_static_member_that_leaves_frees_its_partitions_when_its_session_is_over(
    kafka: Kafka, members: Members, groups: Groups
) -> None:
    # The client says of every static member that it will come back.
    topic, group = kafka.topic(4), kafka.group_id()
    first, second = (members.make(group, index, topic=topic).joined() for index in (0, 1))
    first.heard.wait_for(lambda: len(first.heard.holds) == 2)
    second.heard.wait_for(lambda: len(second.heard.holds) == 2)
    first.consumer.leave()
    first.heard.wait("left")
    assert len(groups.describe(GroupId(group)).members) == 2
    second.heard.wait_for(lambda: len(second.heard.holds) == 4, within=20)


@only_classic
def test_a_static_member_that_leaves_frees_its_partitions_at_once(
    kafka: Kafka, members: Members, groups: Groups
) -> None:
    topic, group = kafka.topic(4), kafka.group_id()
    first, second = members.make(group, 0, topic=topic).joined(), members.make(group, 1, topic=topic).joined()
    first.heard.wait_for(lambda: len(first.heard.holds) == 2)
    first.consumer.leave()
    first.heard.wait("left")
    # Less than its session, in which the group would have kept them for it.
    second.heard.wait_for(lambda: len(second.heard.holds) == 4, within=4)
    second.consumer.leave()
    second.heard.wait("left")
    seen = groups.describe(GroupId(group))
    assert (seen.state, seen.members) == ("empty", ())


def test_an_idle_member_leaves_as_well(kafka: Kafka, members: Members, groups: Groups, protocol: GroupProtocol) -> None:
    topic, group, static = kafka.topic(1), kafka.group_id(), protocol is GroupProtocol.CLASSIC
    both = [members.make(group, index, topic=topic, static=static).joined() for index in (0, 1)]
    both[0].heard.wait_for(lambda: len(both[0].heard.holds | both[1].heard.holds) == 1)
    idle = min(both, key=lambda member: len(member.heard.holds))
    idle.consumer.leave()
    idle.heard.wait("left")
    both[idle is both[0]].consumer.leave()
    both[idle is both[0]].heard.wait("left")
    assert happened(lambda: groups.describe(GroupId(group)).state == "empty", within=4)


def test_a_member_joins_again_after_leaving(kafka: Kafka, members: Members) -> None:
    topic, group = kafka.topic(1), kafka.group_id()
    member = members.make(group, topic=topic).joined()
    member.consumer.leave()
    member.consumer.join()
    member.heard.wait("assigned", 2)
    assert member.commit({log(group, topic): 2}).failure == ""


def test_a_rebalance_moves_partitions_and_only_the_new_owner_commits_them(kafka: Kafka, members: Members) -> None:
    topic, group = kafka.topic(2), kafka.group_id()
    first = members.make(group, 0, topic=topic).joined()
    assert len(first.heard.holds) == 2
    members.make(group, 1, topic=topic).joined()
    first.heard.wait_for(lambda: len(first.heard.holds) == 1)
    answer = first.commit({log(group, topic, 0): 1, log(group, topic, 1): 1})
    assert "not assigned" in answer.failure
    assert kafka.committed(group) == {}


@only_consumer
def test_what_is_revoked_is_given_to_nobody_before_it_is_released(kafka: Kafka, members: Members) -> None:
    topic, group = kafka.topic(4), kafka.group_id()
    first = members.make(group, 0, topic=topic).joined()
    first.heard.releases = False
    second = members.make(group, 1, topic=topic).joined()
    taken = first.heard.wait("revoking")
    assert isinstance(taken, frozenset)
    assert len(taken) == 2
    # The newcomer is in, and the broker has told it what it can: nothing, as all of it has an owner.
    assert (second.heard.holds, len(first.heard.holds)) == (frozenset(), 4)
    first.heard.release()
    second.heard.wait_for(lambda: second.heard.holds == taken)
    first.heard.wait_for(lambda: first.heard.holds == logs_of(group, topic, 0, 1, 2, 3) - taken)
    # What is retained was never revoked, and is committed as if nothing had happened.
    assert first.heard.count("revoked") == 0
    assert first.commit(dict.fromkeys(first.heard.holds, 1)).failure == ""
    assert "not assigned" in first.commit(dict.fromkeys(taken, 1)).failure


@only_consumer
def test_what_is_not_released_is_taken_all_the_same(kafka: Kafka, members: Members) -> None:
    topic, group = kafka.topic(2), kafka.group_id()
    impatient = replace(SHORT, max_poll=timedelta(seconds=6))
    first = members.make(group, 0, topic=topic, timeouts=impatient).joined()
    first.heard.releases = False
    second = members.make(group, 1, topic=topic, timeouts=impatient).joined()
    second.heard.wait_for(lambda: len(second.heard.holds) == 1)
    assert "work on 1 revoked partition(s) did not end within 2 s" in str(first.heard.wait("troubled"))
    assert first.commit(dict.fromkeys(first.heard.holds, 1)).failure == ""


@only_consumer
def test_a_member_that_ends_does_not_wait_for_what_is_revoked(kafka: Kafka, members: Members) -> None:
    topic, group = kafka.topic(2), kafka.group_id()
    first = members.make(group, 0, topic=topic).joined()
    first.heard.releases = False
    second = members.make(group, 1, topic=topic).joined()
    first.heard.wait("revoking")
    assert first.consumer.end(timedelta(seconds=10))
    second.heard.wait_for(lambda: len(second.heard.holds) == 1)


def test_added_partitions_are_assigned_within_seconds(kafka: Kafka, members: Members) -> None:
    topic, group = kafka.topic(1), kafka.group_id()
    member = members.make(group, topic=topic).joined()
    kafka.add_partitions(topic, 3)
    member.heard.wait_for(lambda: member.heard.holds == logs_of(group, topic, 0, 1, 2), within=15)


@only_classic
def test_an_excluded_topic_is_never_assigned_whatever_matches(kafka: Kafka, members: Members) -> None:
    prefix, group = kafka.group_id("excluded."), kafka.group_id()
    first, *excluded = [kafka.topic(1, name=f"{prefix}-{name}") for name in ("a", "a.b", "c")]
    member = members.make(group, pattern=f"^{prefix}-", exclude=(*excluded, f"{prefix}-later")).joined()
    assert member.heard.holds == logs_of(group, first, 0)
    kafka.topic(1, name=f"{prefix}-later")
    longer = kafka.topic(1, name=f"{prefix}-later-still")
    expected = logs_of(group, first, 0) | logs_of(group, longer, 0)
    member.heard.wait_for(lambda: member.heard.holds == expected, within=15)


def test_a_pattern_that_matches_nothing_yet_waits_in_the_group(kafka: Kafka, members: Members) -> None:
    prefix, group = kafka.group_id("later"), kafka.group_id()
    member = members.make(group, pattern=f"^{prefix}-.*")
    member.consumer.join()
    topic = kafka.topic(1, name=f"{prefix}-a")
    member.heard.wait_for(lambda: member.heard.holds == logs_of(group, topic, 0), within=15)


@pytest.mark.long
def test_a_deleted_topic_is_revoked_and_complained_about(
    kafka: Kafka, members: Members, protocol: GroupProtocol
) -> None:
    topic, group = kafka.topic(1), kafka.group_id()
    member = members.make(group, topic=topic).joined()
    kafka.delete_topic(topic)
    member.heard.wait_for(lambda: not member.heard.holds, within=15)
    if protocol is GroupProtocol.CLASSIC:  # in the other one the client says no more than that
        assert topic in str(member.heard.wait("troubled"))


@only_classic
def test_a_group_whose_assignors_a_member_does_not_offer_is_told_as_trouble(kafka: Kafka, members: Members) -> None:
    topic, group = kafka.topic(1), kafka.group_id()
    # Built by hand: members of a region offer both of the client's eager assignors.
    rebuilt = [_with_assignor(members.make(group, index, topic=topic), topic, assignor) for index, assignor in OFFERED]
    for member in rebuilt:
        member.consumer.join()
        member.heard.wait("assigned" if member is rebuilt[0] else "troubled")
    assert "INCONSISTENT_GROUP_PROTOCOL" in str(rebuilt[1].heard.wait("troubled"))
    assert all(member.consumer.end(timedelta(seconds=10)) for member in rebuilt)


OFFERED = ((0, "range"), (1, "roundrobin"))


def _with_assignor(member: Member, topic: str, assignor: str) -> Member:
    made = member.consumer
    settings = KafkaSettings({**made._settings, "partition.assignment.strategy": assignor})
    consumer = ControlConsumer(settings, group=member.group, topics=(topic,), listener=member.heard)
    return Member(consumer, member.heard, member.group)


@pytest.mark.long
@only_classic
def test_static_members_that_come_back_with_another_assignor_are_assigned_within_their_session(
    kafka: Kafka, members: Members, groups: Groups
) -> None:
    # As after a spec that adds a topic: by default one topic is spread by range, several by roundrobin.
    topic, added, group = kafka.topic(2), kafka.topic(2), kafka.group_id()
    before = [members.make(group, index, topic=topic, timeouts=LONG_SESSION).joined() for index in (0, 1)]
    before[0].heard.wait_for(lambda: sum(len(member.heard.holds) for member in before) == 2)
    for member in before:
        member.consumer.close_keeping_slot()
        member.heard.wait("left")
    after = [
        members.make(group, index, topics=(topic, added), assignor=Assignor.ROUNDROBIN, timeouts=LONG_SESSION)
        for index in (0, 1)
    ]
    for member in after:
        member.consumer.join()
    all_of_them = logs_of(group, topic, 0, 1) | logs_of(group, added, 0, 1)
    after[0].heard.wait_for(lambda: after[0].heard.holds | after[1].heard.holds == all_of_them, within=15)
    assert [len(member.heard.holds) for member in after] == [2, 2]
    assert groups.describe(GroupId(group)).assignor == "roundrobin"
    assert [member.heard.count("troubled") for member in after] == [0, 0]


def test_nothing_is_heard_after_the_end(kafka: Kafka, members: Members) -> None:
    topic, group = kafka.topic(1), kafka.group_id()
    member = members.make(group, topic=topic).joined()
    assert member.consumer.end(timedelta(seconds=10))
    heard = list(member.heard.all)
    member.consumer.join()
    members.make(group, 0, topic=topic).joined()
    assert member.heard.all == heard


def test_records_never_reach_the_control_consumer(kafka: Kafka, members: Members) -> None:
    topic, group = kafka.topic(2), kafka.group_id()
    kafka.fill(topic, {0: 1000, 1: 1000})
    member = members.make(group, topic=topic).joined()
    kafka.fill(topic, {0: 1000, 1: 1000})
    assert member.commit({log(group, topic): 1}).failure == ""
    assert member.heard.count("troubled") == 0


@pytest.mark.parametrize(("before", "after"), [tuple(GroupProtocol), tuple(reversed(GroupProtocol))])
def test_a_group_is_converted_member_by_member(
    kafka: Kafka, groups: Groups, before: GroupProtocol, after: GroupProtocol
) -> None:
    topic, group = kafka.topic(4), kafka.group_id()
    old, new = Members(kafka.settings, before), Members(kafka.settings, after)
    try:
        first, second = [old.make(group, index, topic=topic).joined() for index in (0, 1)]
        first.heard.wait_for(lambda: [len(one.heard.holds) for one in (first, second)] == [2, 2])
        for index, member in enumerate((first, second)):
            member.consumer.close_keeping_slot()
            member.heard.wait("left")
            changed = new.make(group, index, topic=topic)
            changed.consumer.join()
            # At the latest when the session of the one before is over.
            changed.heard.wait_for(lambda one=changed: bool(one.heard.holds))  # type: ignore[misc]
        shared = new.made
        shared[0].heard.wait_for(lambda: [len(one.heard.holds) for one in shared] == [2, 2])
        assert [one.commit(dict.fromkeys(one.heard.holds, 3)).failure for one in shared] == ["", ""]
        assert happened(lambda: groups.describe(GroupId(group)).type == after, within=20)
    finally:
        old.end()
        new.end()
