"""What a subscription comes to on the topics that exist."""

from __future__ import annotations

import pytest

from airflow_kcr.errors import ConfigurationError, UnknownTopics
from airflow_kcr.protocol.rules import GroupRules, RegionRules
from airflow_kcr.protocol.validation import check_topics
from airflow_kcr.protocol.values import GroupId, TopicName

G, H = GroupId("g"), GroupId("h")


def topics(*names: str) -> frozenset[TopicName]:
    return frozenset(map(TopicName, names))


def listing(*names: str) -> RegionRules:
    return RegionRules(groups={G: GroupRules(group_id=G, topics=tuple(map(TopicName, names)))})


def matching(pattern: str) -> RegionRules:
    return RegionRules(groups={G: GroupRules(group_id=G, pattern=pattern)})


def test_every_listed_topic_that_does_not_exist_is_named_with_its_group() -> None:
    rules = RegionRules(
        groups={
            G: GroupRules(group_id=G, topics=(TopicName("flights"), TopicName("plains"))),
            H: GroupRules(group_id=H, topics=(TopicName("wether"),)),
        }
    )
    with pytest.raises(UnknownTopics, match=r"2 topics do not exist: plains \(group g\), wether \(group h\)"):
        check_topics(rules, {G: topics("flights", "planes"), H: topics("flights", "weather")})


def test_the_error_is_one_of_the_configuration() -> None:
    with pytest.raises(ConfigurationError, match="a topic does not exist"):
        check_topics(listing("t"), {G: topics()})


def test_a_topic_of_another_groups_cluster_does_not_count() -> None:
    rules = RegionRules(groups={g: GroupRules(group_id=g, topics=(TopicName("t"),)) for g in (G, H)})
    with pytest.raises(UnknownTopics, match=r"t \(group h\)"):
        check_topics(rules, {G: topics("t"), H: topics("u")})


def test_listed_topics_that_all_exist_are_fine() -> None:
    assert check_topics(listing("t", "u"), {G: topics("t", "u", "v")}) == {}


def test_a_pattern_that_matches_nothing_waits_and_says_so() -> None:
    waiting = check_topics(matching(r"^flights\."), {G: topics("weather", "my.flights.x")})
    assert waiting == {G: r"group g waits: pattern ^flights\. matches none of the 2 topics of its cluster"}


def test_a_pattern_that_matches_something_does_not_wait() -> None:
    assert check_topics(matching(r"^flights\."), {G: topics("flights.eu")}) == {}


def test_a_waiting_group_does_not_hide_a_missing_topic_of_another() -> None:
    rules = RegionRules(
        groups={G: GroupRules(group_id=G, pattern="^x"), H: GroupRules(group_id=H, topics=(TopicName("t"),))}
    )
    with pytest.raises(UnknownTopics):
        check_topics(rules, {G: topics(), H: topics()})
