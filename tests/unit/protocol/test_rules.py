from __future__ import annotations

import re
from datetime import timedelta

import pytest

from airflow_kcr.protocol.rules import (
    EARLIEST,
    Assignor,
    CheckpointMode,
    CheckpointRules,
    Delivery,
    ForeignConsumerPolicy,
    GroupRules,
    OutOfRangePolicy,
    RegionRules,
    RetentionRules,
)
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import GroupId, TopicName

ETL = GroupId("etl")
AUDIT = GroupId("audit")


def topic(name: str) -> TopicName:
    return TopicName(name)


def test_a_group_subscribes_to_the_topics_that_it_lists_and_no_others() -> None:
    group = GroupRules(group_id=ETL, topics=(topic("flights"), topic("weather")))
    assert group.subscribes(topic("flights"))
    assert group.subscribes(topic("weather"))
    assert not group.subscribes(topic("flights2"))


def test_a_listed_name_is_no_pattern() -> None:
    group = GroupRules(group_id=ETL, topics=(topic("flights.eu"),))
    assert not group.subscribes(topic("flights_eu"))


@pytest.mark.parametrize("pattern", [r"^flights\..*", r"^flights\..*$"])
def test_a_pattern_selects_what_matches_it_from_the_first_character(pattern: str) -> None:
    group = GroupRules(group_id=ETL, pattern=pattern)
    assert group.subscribes(topic("flights.eu"))
    assert not group.subscribes(topic("flights"))
    assert not group.subscribes(topic("old-flights.eu"))


def test_a_pattern_that_says_the_end_matches_no_longer_name() -> None:
    group = GroupRules(group_id=ETL, pattern=r"^flights\.[a-z]+$")
    assert group.subscribes(topic("flights.eu"))
    assert not group.subscribes(topic("flights.eu1"))


def test_what_a_pattern_matches_is_excluded_by_its_whole_name() -> None:
    group = GroupRules(group_id=ETL, pattern=r"^flights\.", exclude=(topic("flights.eu"),))
    assert not group.subscribes(topic("flights.eu"))
    assert group.subscribes(topic("flights.eu1"))
    assert group.subscribes(topic("flights.us"))


def test_a_pattern_that_is_no_expression_is_an_error_and_not_no_match() -> None:
    with pytest.raises(re.error):
        GroupRules(group_id=ETL, pattern="^(").subscribes(topic("flights"))


def test_a_region_answers_for_each_of_its_groups_and_for_no_other() -> None:
    region = RegionRules(
        groups={
            ETL: GroupRules(group_id=ETL, topics=(topic("flights"),)),
            AUDIT: GroupRules(group_id=AUDIT, pattern="^.*"),
        }
    )
    assert region.subscribes(ETL, topic("flights"))
    assert not region.subscribes(ETL, topic("weather"))
    assert region.subscribes(AUDIT, topic("weather"))
    assert not region.subscribes(GroupId("stranger"), topic("flights"))


def test_the_defaults_are_those_of_the_reference() -> None:
    group = GroupRules(group_id=ETL, topics=(topic("flights"),))
    assert group.members == 1
    assert group.delivery is Delivery.AT_LEAST_ONCE
    assert group.start == EARLIEST
    assert group.assignor is Assignor.RANGE
    assert group.static_membership
    region = RegionRules(groups={ETL: group})
    assert region.timeouts == Timeouts()
    assert region.max_failures == 5
    assert region.foreign_consumers is ForeignConsumerPolicy.FAIL
    assert region.out_of_range is OutOfRangePolicy.FAIL
    assert region.beyond_end is OutOfRangePolicy.FAIL
    assert region.retention == RetentionRules(keep=20, max_age=None)
    assert region.checkpoint == CheckpointRules(
        schedule=None, records=None, mode=CheckpointMode.AUTO, grace=timedelta(seconds=2)
    )
    assert not region.checkpoint.catchup
