"""What a group's subscription comes to on its cluster: topics that are not there, patterns that match nothing.

A listed topic that doesn't exist is an error, not zero partitions: otherwise it would go unnoticed that it is never
read. A pattern may match nothing yet; its group waits, and says so (scenario C39). So does a region whose groups
all wait: it has no partition that could be covered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_kcr.errors import UnknownTopics
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.values import GroupId, TopicName


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
        if group_rules.pattern is not None and not any(group_rules.subscribes(topic) for topic in there):
            waiting[group] = (
                f"group {group} waits: its pattern {group_rules.pattern} matches none of the {len(there)} topics "
                "that exist on its cluster"
            )
    if missing:
        raise UnknownTopics(
            f"{'a topic does' if len(missing) == 1 else f'{len(missing)} topics do'} not exist: {', '.join(missing)}; "
            "create them, or take them out of the spec"
        )
    return waiting
