"""Membership validation: is every group what its region takes it for (docs/how-to/validate-a-group.md)?

What was read of the world is `Evidence`; the answer is one `Check` a group and question, a sentence that says what is
wrong, where, and what to do. What could not be read is `unknown`, never fine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from airflow_kcr.errors import UnknownTopics
from airflow_kcr.protocol import group_checks, log_checks
from airflow_kcr.protocol.evidence import CheckFindings, CheckVerdict, Evidence
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.values import GroupId, TopicName, few


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question about one group, answered."""

    group: GroupId
    question: Question
    verdict: CheckVerdict
    detail: str


_ASKED: Final[Mapping[Question, Callable[[Evidence], CheckFindings]]] = {
    Question.REGION: group_checks.one_region,
    Question.RIGHTS: group_checks.rights,
    Question.TOPICS: log_checks.topics,
    Question.TOPIC_IDS: log_checks.topic_ids,
    Question.PROTOCOL: group_checks.protocol,
    Question.TIMES: group_checks.times,
    Question.SUBSCRIPTION: group_checks.subscription,
    Question.PARTICIPANTS: group_checks.participants,
    Question.FOREIGN_CONSUMERS: group_checks.foreign_consumers,
    Question.CLAIMS: log_checks.claims,
    Question.OFFSETS: log_checks.offsets,
    Question.PROGRESS: group_checks.progress,
}


def judge(evidence: Evidence) -> tuple[Check, ...]:
    """Return every check of one group, one line a question."""
    return tuple(_answer(evidence, question, asked(evidence)) for question, asked in _ASKED.items())


def _answer(evidence: Evidence, question: Question, findings: CheckFindings) -> Check:
    found: dict[CheckVerdict, list[str]] = {}
    for verdict, text in findings:
        found.setdefault(verdict, []).append(text)
    wrong, warnings = found.get(CheckVerdict.FAILED, []), found.get(CheckVerdict.WARNING, [])
    if wrong:
        verdict, detail = CheckVerdict.FAILED, few([*wrong, *warnings], separator="; ")
    elif warnings:
        verdict, detail = CheckVerdict.WARNING, few(warnings, separator="; ")
    elif CheckVerdict.OK in found:
        verdict, detail = CheckVerdict.OK, found[CheckVerdict.OK][0]
    else:
        why = "; ".join((*evidence.refused, *evidence.silent)) or "it was not asked for"
        verdict, detail = CheckVerdict.UNKNOWN, f"could not be read: {why}"
    return Check(group=evidence.group, question=question, verdict=verdict, detail=detail)


def is_all_right(checks: Iterable[Check]) -> bool:
    """Whether nothing failed and nothing remained unknown; a warning is all right."""
    return all(c.verdict in {CheckVerdict.OK, CheckVerdict.WARNING} for c in checks)


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
        if nothing := log_checks.nothing_to_read(group_rules, there):
            waiting[group] = f"group {group} waits: {nothing}"
    if missing:
        raise UnknownTopics(
            f"{'a topic does' if len(missing) == 1 else f'{len(missing)} topics do'} not exist: {', '.join(missing)}; "
            "create them, or take them out of the spec"
        )
    return waiting
