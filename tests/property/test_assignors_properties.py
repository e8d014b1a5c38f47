from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from hypothesis import given
from hypothesis import strategies as st

from airflow_kcr.protocol.assignors import Assignment, assign
from airflow_kcr.protocol.rules import Assignor
from airflow_kcr.protocol.values import TopicName, TopicPartition

TOPICS = [TopicName(f"t{number}") for number in range(4)]
NAMES = [f"m{number}" for number in range(6)]

Members = Mapping[str, frozenset[TopicName]]
Counts = Mapping[TopicName, int]

counts_ = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 6))
subscriptions = st.dictionaries(st.sampled_from(NAMES), st.frozensets(st.sampled_from(TOPICS)))
equal_subscriptions = st.builds(
    dict.fromkeys,
    st.sets(st.sampled_from(NAMES), min_size=1),
    st.frozensets(st.sampled_from(TOPICS), min_size=1),
)


def partitions(members: Members, counts: Counts) -> set[TopicPartition]:
    """What there is to assign."""
    return {TopicPartition(t, n) for t, c in counts.items() for n in range(c) if any(t in s for s in members.values())}


def loads(assignment: Assignment) -> list[int]:
    return [len(owned) for owned in assignment.values()]


def owners(assignment: Assignment) -> dict[TopicPartition, str]:
    return {tp: name for name, owned in assignment.items() for tp in owned}


def improvements(assignment: Assignment, members: Members) -> Iterator[tuple[TopicPartition, str]]:
    """Single moves that would bring two members closer together."""
    for tp, owner in owners(assignment).items():
        for name, topics in members.items():
            if tp.topic in topics and len(assignment[owner]) > len(assignment[name]) + 1:
                yield tp, name


@given(st.sampled_from(Assignor), subscriptions, counts_)
def test_every_partition_belongs_to_exactly_one_member_that_is_subscribed(
    assignor: Assignor, members: Members, counts: Counts
) -> None:
    assignment = assign(assignor, members, counts)
    assert list(assignment) == sorted(members)
    given_out = Counter(tp for owned in assignment.values() for tp in owned)
    assert given_out == Counter(partitions(members, counts))
    assert all(tp.topic in members[name] for name, owned in assignment.items() for tp in owned)


@given(subscriptions, counts_)
def test_range_balances_every_topic_and_gives_contiguous_ranges(members: Members, counts: Counts) -> None:
    assignment = assign(Assignor.RANGE, members, counts)
    for topic in counts:
        subscribers = [name for name in sorted(members) if topic in members[name]]
        shares = [[tp.partition for tp in assignment[name] if tp.topic == topic] for name in subscribers]
        sizes = list(map(len, shares))
        assert not sizes or max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes, reverse=True)
        assert [number for share in shares for number in share] == list(range(sum(sizes)))


@given(equal_subscriptions, counts_)
def test_roundrobin_balances_all_topics_together(members: Members, counts: Counts) -> None:
    sizes = loads(assign(Assignor.ROUNDROBIN, members, counts))
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(subscriptions, counts_, subscriptions, counts_)
def test_sticky_is_balanced_whatever_was_before(
    members: Members, counts: Counts, former: Members, before: Counts
) -> None:
    previous = assign(Assignor.ROUNDROBIN, former, before)
    assignment = assign(Assignor.STICKY, members, counts, previous)
    assert not list(improvements(assignment, members))
    assert owners(assignment).keys() == partitions(members, counts)


@given(subscriptions, counts_)
def test_sticky_changes_nothing_where_nothing_has_changed(members: Members, counts: Counts) -> None:
    before = assign(Assignor.STICKY, members, counts)
    after = assign(Assignor.STICKY, members, counts, before)
    assert owners(after) == owners(before)


@given(equal_subscriptions, counts_, st.sampled_from(NAMES))
def test_sticky_takes_from_nobody_when_a_member_leaves(members: Members, counts: Counts, leaver: str) -> None:
    before = assign(Assignor.STICKY, members, counts)
    after = assign(Assignor.STICKY, {n: t for n, t in members.items() if n != leaver}, counts, before)
    assert all(set(before[name]) <= set(after[name]) for name in after)


@given(equal_subscriptions, counts_)
def test_sticky_moves_no_more_than_the_newcomers_share(members: Members, counts: Counts) -> None:
    before = assign(Assignor.STICKY, members, counts)
    after = assign(Assignor.STICKY, {**members, "newcomer": next(iter(members.values()))}, counts, before)
    moved = {tp for tp, name in owners(after).items() if owners(before)[tp] != name}
    assert moved == set(after["newcomer"])


@given(subscriptions, counts_, st.data())
def test_sticky_never_swaps_partitions_of_a_topic_between_two_members(
    members: Members, counts: Counts, data: st.DataObject
) -> None:
    previous: dict[str, list[TopicPartition]] = {name: [] for name in members}
    for tp in sorted(partitions(members, counts)):
        subscribers = sorted(name for name in members if tp.topic in members[name])
        owner = data.draw(st.sampled_from(subscribers) | st.none())
        if owner is not None:
            previous[owner].append(tp)
    after = owners(assign(Assignor.STICKY, members, counts, previous))
    moves = {(tp.topic, name, after[tp]) for name, owned in previous.items() for tp in owned if after[tp] != name}
    if len(set(members.values())) > 1:
        assert not {(topic, to, from_) for topic, from_, to in moves} & moves
