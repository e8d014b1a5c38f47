"""The figures of the classes below are those of Kafka's own tests of the same assignors, restated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

import pytest

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol import assignors
from airflow_kcr.protocol.assignors import assign, assignment_from_json, java_order
from airflow_kcr.protocol.rules import Assignor
from airflow_kcr.protocol.values import TopicName, TopicPartition

Owned = Mapping[str, Iterable[TopicPartition]]
RANGE, ROUNDROBIN, STICKY = Assignor.RANGE, Assignor.ROUNDROBIN, Assignor.STICKY


def tps(text: str) -> tuple[TopicPartition, ...]:
    """`t1:0 t1:2` as topic partitions."""
    pairs = (word.split(":") for word in text.split())
    return tuple(TopicPartition(TopicName(topic), int(number)) for topic, number in pairs)


def run(
    assignor: Assignor, members: Mapping[str, str], topics: Mapping[str, int], previous: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Assign, with topics and partitions written as words."""
    found = assign(
        assignor,
        {name: frozenset(map(TopicName, subscribed.split())) for name, subscribed in members.items()},
        {TopicName(topic): count for topic, count in topics.items()},
        None if previous is None else {name: tps(owned) for name, owned in previous.items()},
    )
    return {name: " ".join(f"{tp.topic}:{tp.partition}" for tp in owned) for name, owned in found.items()}


def moving(wanted: Mapping[str, str]) -> Callable[[assignors._General, Iterable[TopicPartition]], bool]:
    """Return a way of balancing that hands over what it was told to."""

    def move(general: assignors._General, partitions: Iterable[TopicPartition]) -> bool:
        found = [tp for tp in partitions if f"{tp.topic}:{tp.partition}" in wanted]
        for tp in found:
            general._hand_over(tp, wanted[f"{tp.topic}:{tp.partition}"])
        return bool(found)

    return move


class TestEveryAssignor:
    @pytest.mark.parametrize("assignor", Assignor)
    def test_no_members_own_nothing(self, assignor: Assignor) -> None:
        assert run(assignor, {}, {"t": 3}) == {}

    @pytest.mark.parametrize("assignor", Assignor)
    def test_no_topic_leaves_members_with_nothing(self, assignor: Assignor) -> None:
        assert run(assignor, {"a": "", "b": ""}, {"t": 3}) == {"a": "", "b": ""}

    @pytest.mark.parametrize("assignor", Assignor)
    def test_topics_that_do_not_exist_or_are_empty_are_left_out(self, assignor: Assignor) -> None:
        assert run(assignor, {"a": "none empty t"}, {"empty": 0, "t": 2}) == {"a": "t:0 t:1"}

    @pytest.mark.parametrize("assignor", Assignor)
    def test_one_member_owns_everything_in_order(self, assignor: Assignor) -> None:
        assert run(assignor, {"a": "t2 t1"}, {"t2": 2, "t1": 1}) == {"a": "t1:0 t2:0 t2:1"}

    @pytest.mark.parametrize("assignor", Assignor)
    def test_topics_that_nobody_subscribes_to_belong_to_nobody(self, assignor: Assignor) -> None:
        assert run(assignor, {"a": "t"}, {"t": 3, "other": 3}) == {"a": "t:0 t:1 t:2"}

    @pytest.mark.parametrize("assignor", Assignor)
    def test_more_members_than_partitions_leave_the_last_ones_idle(self, assignor: Assignor) -> None:
        assert run(assignor, {"c": "t", "a": "t", "b": "t"}, {"t": 2}) == {"a": "t:0", "b": "t:1", "c": ""}

    @pytest.mark.parametrize("assignor", Assignor)
    def test_the_order_in_which_members_are_given_does_not_matter(self, assignor: Assignor) -> None:
        members = {"c": "t u", "a": "t u", "b": "t"}
        expected = run(assignor, members, {"t": 5, "u": 4})
        assert run(assignor, dict(reversed(members.items())), {"u": 4, "t": 5}) == expected
        assert list(expected) == ["a", "b", "c"]

    @pytest.mark.parametrize("assignor", Assignor)
    def test_a_negative_partition_count_is_refused(self, assignor: Assignor) -> None:
        with pytest.raises(ConfigurationError, match="never negative, got t: -1"):
            run(assignor, {"a": "t"}, {"t": -1})

    def test_names_are_ordered_by_utf_16_as_java_does(self) -> None:
        # By code points the first is the smaller one; its surrogates are below the private use area.
        beyond, private = "\U00010000", "\ue000"
        assert sorted([private, beyond]) == [private, beyond]
        assert sorted([private, beyond], key=java_order) == [beyond, private]
        assert run(RANGE, {private: "t", beyond: "t"}, {"t": 1}) == {beyond: "t:0", private: ""}


class TestRange:
    def test_each_topic_is_divided_by_itself(self) -> None:
        # The example of Kafka's class documentation.
        assert run(RANGE, {"C0": "t0 t1", "C1": "t0 t1"}, {"t0": 3, "t1": 3}) == {
            "C0": "t0:0 t0:1 t1:0 t1:1",
            "C1": "t0:2 t1:2",
        }

    def test_mixed_subscriptions(self) -> None:
        members = {"consumer1": "topic1", "consumer2": "topic1 topic2", "consumer3": "topic1"}
        assert run(RANGE, members, {"topic1": 3, "topic2": 2}) == {
            "consumer1": "topic1:0",
            "consumer2": "topic1:1 topic2:0 topic2:1",
            "consumer3": "topic1:2",
        }

    def test_the_first_members_get_one_more(self) -> None:
        members = dict.fromkeys(("consumer1", "consumer2", "consumer3", "consumer4"), "topic1 topic2")
        assert run(RANGE, members, {"topic1": 5, "topic2": 4}) == {
            "consumer1": "topic1:0 topic1:1 topic2:0",
            "consumer2": "topic1:2 topic2:1",
            "consumer3": "topic1:3 topic2:2",
            "consumer4": "topic1:4 topic2:3",
        }

    def test_members_are_ordered_as_texts_and_not_as_numbers(self) -> None:
        assert run(RANGE, {"m2": "t", "m10": "t"}, {"t": 1}) == {"m10": "t:0", "m2": ""}


class TestRoundrobin:
    def test_partitions_of_all_topics_go_around(self) -> None:
        assert run(
            ROUNDROBIN, {"consumer1": "topic1 topic2", "consumer2": "topic1 topic2"}, {"topic1": 3, "topic2": 3}
        ) == {
            "consumer1": "topic1:0 topic1:2 topic2:1",
            "consumer2": "topic1:1 topic2:0 topic2:2",
        }

    def test_three_members_and_two_topics_of_five(self) -> None:
        members = dict.fromkeys(("instance1", "instance2", "instance3"), "topic1 topic2")
        assert run(ROUNDROBIN, members, {"topic1": 5, "topic2": 5}) == {
            "instance1": "topic1:0 topic1:3 topic2:1 topic2:4",
            "instance2": "topic1:1 topic1:4 topic2:2",
            "instance3": "topic1:2 topic2:0 topic2:3",
        }

    def test_members_that_are_not_subscribed_are_stepped_over(self) -> None:
        members = {"consumer1": "topic1", "consumer2": "topic1 topic2", "consumer3": "topic1"}
        assert run(ROUNDROBIN, members, {"topic1": 3, "topic2": 2}) == {
            "consumer1": "topic1:0",
            "consumer2": "topic1:1 topic2:0 topic2:1",
            "consumer3": "topic1:2",
        }

    def test_the_example_of_kafkas_documentation_with_different_subscriptions(self) -> None:
        members = {"C0": "t0", "C1": "t0 t1", "C2": "t0 t1 t2"}
        assert run(ROUNDROBIN, members, {"t0": 1, "t1": 2, "t2": 3}) == {
            "C0": "t0:0",
            "C1": "t1:0",
            "C2": "t1:1 t2:0 t2:1 t2:2",
        }


class TestStickyWithEqualSubscriptions:
    def test_nothing_owned_is_dealt_around(self) -> None:
        members = dict.fromkeys(("consumer1", "consumer2"), "topic1 topic2")
        assert run(STICKY, members, {"topic1": 3, "topic2": 3}) == {
            "consumer1": "topic1:0 topic1:2 topic2:1",
            "consumer2": "topic1:1 topic2:0 topic2:2",
        }

    def test_owners_of_the_even_share_get_the_odd_one_on_top(self) -> None:
        members = dict.fromkeys(("consumer1", "consumer2"), "topic1 topic2")
        previous = {"consumer1": "topic1:0 topic2:1", "consumer2": "topic1:1 topic2:2"}
        assert run(STICKY, members, {"topic1": 2, "topic2": 3}, previous) == {
            "consumer1": "topic1:0 topic2:1 topic2:0",
            "consumer2": "topic1:1 topic2:2",
        }

    def test_all_below_their_share_keep_what_they_have(self) -> None:
        members = dict.fromkeys(("consumer1", "consumer2", "consumer3"), "topic1 topic2")
        previous = {"consumer1": "topic1:0", "consumer2": "topic1:1", "consumer3": ""}
        assert run(STICKY, members, {"topic1": 2, "topic2": 3}, previous) == {
            "consumer1": "topic1:0 topic2:1",
            "consumer2": "topic1:1 topic2:2",
            "consumer3": "topic2:0",
        }

    def test_only_as_many_as_needed_keep_one_more_than_the_share(self) -> None:
        # Kafka's hash order lets consumer2 keep two; with members in their order it is consumer1.
        members = dict.fromkeys(("consumer1", "consumer2", "consumer3"), "topic1 topic2")
        previous = {"consumer1": "topic1:0 topic2:0", "consumer2": "topic1:1 topic2:1"}
        assert run(STICKY, members, {"topic1": 2, "topic2": 2}, previous) == {
            "consumer1": "topic1:0 topic2:0",
            "consumer2": "topic1:1",
            "consumer3": "topic2:1",
        }

    def test_a_new_member_takes_the_high_partitions(self) -> None:
        previous = {"consumer1": "topic:0 topic:1 topic:2"}
        assert run(STICKY, {"consumer1": "topic", "consumer2": "topic"}, {"topic": 3}, previous) == {
            "consumer1": "topic:0 topic:1",
            "consumer2": "topic:2",
        }

    def test_two_members_more_and_then_the_first_two_less(self) -> None:
        topics = {"topic1": 3, "topic2": 4}
        two = run(STICKY, dict.fromkeys(("consumer1", "consumer2"), "topic1 topic2"), topics)
        assert two == {
            "consumer1": "topic1:0 topic1:2 topic2:1 topic2:3",
            "consumer2": "topic1:1 topic2:0 topic2:2",
        }
        four = run(
            STICKY, dict.fromkeys(("consumer1", "consumer2", "consumer3", "consumer4"), "topic1 topic2"), topics, two
        )
        assert four == {
            "consumer1": "topic1:0 topic2:1",
            "consumer2": "topic2:0 topic1:1",
            "consumer3": "topic1:2 topic2:3",
            "consumer4": "topic2:2",
        }
        left = run(STICKY, dict.fromkeys(("consumer3", "consumer4"), "topic1 topic2"), topics, four)
        assert left == {
            "consumer3": "topic1:2 topic2:3 topic1:0 topic2:1",
            "consumer4": "topic2:2 topic1:1 topic2:0",
        }

    def test_topics_stay_balanced_while_members_come_and_go(self) -> None:
        topics, subscribed = {"topic1": 12, "topic2": 12}, "topic1 topic2"
        assignment: dict[str, str] | None = None
        for names, each in (("1", 12), ("12", 6), ("1234", 3), ("34", 6)):
            members = {f"consumer{number}": subscribed for number in names}
            assignment = run(STICKY, members, topics, assignment)
            assert {(owned.count("topic1:"), owned.count("topic2:")) for owned in assignment.values()} == {(each, each)}

    def test_a_member_that_leaves_costs_the_others_nothing(self) -> None:
        members = dict.fromkeys(("consumer1", "consumer2", "consumer3", "consumer4"), "topic1")
        before = run(STICKY, members, {"topic1": 3})
        after = run(STICKY, dict.fromkeys(("consumer2", "consumer3", "consumer4"), "topic1"), {"topic1": 3}, before)
        assert after == {"consumer2": before["consumer2"], "consumer3": before["consumer3"], "consumer4": "topic1:0"}

    def test_a_partition_that_two_claim_belongs_to_neither(self) -> None:
        previous = {"a": "t:0 t:2", "b": "t:2"}
        assert run(STICKY, {"a": "t", "b": "t"}, {"t": 4}, previous) == {"a": "t:0 t:1", "b": "t:2 t:3"}

    def test_what_no_longer_exists_is_not_kept(self) -> None:
        assert run(STICKY, {"a": "t"}, {"t": 1}, {"a": "t:0 t:5 gone:0", "left": "t:0"}) == {"a": "t:0"}


class TestStickyWithDifferentSubscriptions:
    def test_the_scarcest_topics_are_dealt_first(self) -> None:
        members = {"consumer1": "topic1", "consumer2": "topic1 topic2", "consumer3": "topic1"}
        assert run(STICKY, members, {"topic1": 3, "topic2": 2}) == {
            "consumer1": "topic1:0 topic1:2",
            "consumer2": "topic2:0 topic2:1",
            "consumer3": "topic1:1",
        }

    def test_the_case_that_roundrobin_handles_poorly(self) -> None:
        members = {
            "consumer1": "topic1 topic2 topic3 topic4 topic5",
            "consumer2": "topic1 topic3 topic5",
            "consumer3": "topic1 topic3 topic5",
            "consumer4": "topic1 topic2 topic3 topic4 topic5",
        }
        topics = {"topic1": 2, "topic2": 1, "topic3": 2, "topic4": 1, "topic5": 2}
        assert run(ROUNDROBIN, members, topics) == {
            "consumer1": "topic1:0 topic3:0 topic5:0",
            "consumer2": "topic1:1 topic3:1 topic5:1",
            "consumer3": "",
            "consumer4": "topic2:0 topic4:0",
        }
        assert run(STICKY, members, topics) == {
            "consumer1": "topic2:0 topic3:0",
            "consumer2": "topic1:0 topic3:1",
            "consumer3": "topic1:1 topic5:0",
            "consumer4": "topic4:0 topic5:1",
        }

    def test_what_no_single_move_can_improve_stays(self) -> None:
        members = {
            "consumer1": "topic1 topic2",
            "consumer2": "topic1 topic2 topic3 topic4",
            "consumer3": "topic2 topic3 topic4 topic5 topic6",
        }
        previous = {
            "consumer1": "topic1:0",
            "consumer2": "topic2:0 topic3:0",
            "consumer3": "topic4:0 topic5:0 topic6:0",
        }
        assert run(STICKY, members, {f"topic{number}": 1 for number in range(1, 7)}, previous) == previous

    def test_a_loaded_member_gives_up_what_another_can_take(self) -> None:
        members = {"a": "t u", "b": "t"}
        found = run(STICKY, members, {"t": 3, "u": 1}, {"a": "t:0 t:1 t:2 u:0"})
        assert found == {"a": "t:2 u:0", "b": "t:0 t:1"}

    def test_two_members_never_swap_partitions_of_a_topic(self) -> None:
        # m2 and m3 both hand partitions on while the balance is sought; each gets its own of t0 back.
        members = {"m0": "t2", "m1": "t1", "m2": "t0 t1 t2", "m3": "t0 t1 t2"}
        previous = {"m2": "t0:2 t1:0 t1:1 t2:0", "m3": "t0:0 t0:1"}
        assert run(STICKY, members, {"t0": 3, "t1": 2, "t2": 1}, previous) == {
            "m0": "t2:0",
            "m1": "t1:0",
            "m2": "t1:1 t0:2",
            "m3": "t0:0 t0:1",
        }

    def test_a_partition_that_came_back_counts_as_never_moved(self) -> None:
        members = {"m0": "t0 t1 t2 t3", "m1": "t0 t1 t2 t3", "m2": "t0 t1 t2 t3", "m3": "t1"}
        previous = {
            "m0": "t0:0 t0:2 t0:3 t1:0 t1:1 t1:2 t1:3 t3:1",
            "m1": "t2:0 t2:2",
            "m2": "t3:0",
            "m3": "t0:1 t3:2 t3:3",
        }
        found = run(STICKY, members, {"t0": 4, "t1": 4, "t2": 3, "t3": 4}, previous)
        assert found["m1"].startswith("t2:0 t2:2 ")
        assert {name: len(owned.split()) for name, owned in found.items()} == {"m0": 4, "m1": 4, "m2": 4, "m3": 3}

    def test_moves_that_did_not_improve_the_balance_are_undone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        members, previous = {"a": "t u", "b": "t"}, {"a": "t:0", "b": "t:1"}
        monkeypatch.setattr(assignors._General, "_move", moving({"t:0": "b", "t:1": "b"}))
        assert run(STICKY, members, {"t": 2}, previous) == previous
        # Where nothing was owned there is nothing to go back to.
        assert run(STICKY, members, {"t": 2}) == {"a": "", "b": "t:0 t:1"}

    def test_members_that_share_no_topic_have_no_say_in_that(self, monkeypatch: pytest.MonkeyPatch) -> None:
        members = {"fixed": "own", "x": "t", "y": "t", "z": "t"}
        previous = {"fixed": "own:0", "x": "t:0", "y": "t:1", "z": "t:2 t:3 t:4 t:5 t:6 t:7 t:8"}
        # Among x, y and z 1, 1, 7 becomes 0, 4, 5: better. With the 1 of the fixed member it would be as bad as before.
        monkeypatch.setattr(assignors._General, "_move", moving({"t:0": "y", "t:2": "y", "t:3": "y"}))
        found = run(STICKY, members, {"own": 1, "t": 9}, previous)
        assert found == {"fixed": "own:0", "x": "", "y": "t:1 t:0 t:2 t:3", "z": "t:4 t:5 t:6 t:7 t:8"}

    def test_new_partitions_move_before_owned_ones(self) -> None:
        members = {"a": "t u", "b": "t", "c": "t u"}
        previous = {"a": "t:0 t:1", "b": "t:2 t:3"}
        found = run(STICKY, members, {"t": 4, "u": 2}, previous)
        assert found == {"a": "t:0 t:1", "b": "t:2 t:3", "c": "u:0 u:1"}

    def test_where_something_is_taken_away_new_and_owned_partitions_move_alike(self) -> None:
        members = {"m0": "t2", "m1": "t1 t2", "m2": "t1"}
        previous = {"m0": "t1:0 t2:1 t2:2", "m2": "t2:0 t2:3"}
        assert run(STICKY, members, {"t1": 1, "t2": 4}, previous) == {
            "m0": "t2:2 t2:3",
            "m1": "t2:0 t2:1",
            "m2": "t1:0",
        }

    def test_what_is_no_longer_subscribed_to_is_given_up(self) -> None:
        members = {"a": "u", "b": "t u"}
        assert run(STICKY, members, {"t": 1, "u": 1}, {"a": "t:0 u:0"}) == {"a": "u:0", "b": "t:0"}

    def test_an_assignment_that_is_balanced_already_does_not_move(self) -> None:
        members = {"a": "t u", "b": "t", "c": "u"}
        previous = {"a": "t:1 u:1", "b": "t:0 t:2", "c": "u:0 u:2"}
        assert run(STICKY, members, {"t": 3, "u": 3}, previous) == previous

    def test_a_member_with_a_topic_of_its_own_keeps_it_all(self) -> None:
        members = {"a": "big", "b": "t", "c": "t"}
        found = run(STICKY, members, {"big": 5, "t": 4}, {"b": "t:0 t:1 t:2 t:3"})
        assert found["a"] == "big:0 big:1 big:2 big:3 big:4"
        assert (len(found["b"].split()), len(found["c"].split())) == (2, 2)


class TestJson:
    def test_the_example_of_the_interface(self) -> None:
        document = json.loads('{"members": {"C0": ["t0", "t1"], "C1": ["t0"]}, "topics": {"t0": 3, "t1": 1}}')
        assert json.dumps(assignment_from_json(document, RANGE)) == (
            '{"C0": [["t0", 0], ["t0", 1], ["t1", 0]], "C1": [["t0", 2]]}'
        )

    def test_an_answer_is_the_next_previous_assignment(self) -> None:
        document: dict[str, object] = {"members": {"a": ["t"], "b": ["t"]}, "topics": {"t": 4}}
        before = assignment_from_json(document, STICKY)
        document["members"] = {"a": ["t"], "b": ["t"], "c": ["t"]}
        after = assignment_from_json({**document, "previous": before}, STICKY)
        assert after == {"a": [["t", 0], ["t", 2]], "b": [["t", 1]], "c": [["t", 3]]}

    @pytest.mark.parametrize(
        ("document", "field"),
        [
            (None, "the input must be"),
            ({"members": {}}, "the input must be"),
            ({"members": {}, "topics": {}, "more": 1}, "the input must be"),
            ({"members": [], "topics": {}}, "members must be"),
            ({"members": {1: []}, "topics": {}}, "members must be"),
            ({"members": {"a": "t"}, "topics": {}}, "members must be"),
            ({"members": {"a": [1]}, "topics": {}}, "members must be"),
            ({"members": {}, "topics": []}, "topics must be"),
            ({"members": {}, "topics": {"t": "3"}}, "topics must be"),
            ({"members": {}, "topics": {"t": True}}, "topics must be"),
            ({"members": {}, "topics": {"t": -1}}, "never negative, got t: -1"),
            ({"members": {}, "topics": {}, "previous": {"a": [["t"]]}}, "previous must be"),
            ({"members": {}, "topics": {}, "previous": {"a": [["t", True]]}}, "previous must be"),
        ],
    )
    def test_a_document_of_another_form_is_refused_with_the_field(self, document: object, field: str) -> None:
        with pytest.raises(ConfigurationError, match=field):
            assignment_from_json(document, RANGE)
