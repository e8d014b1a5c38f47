"""What membership validation asks Kafka, and the form of the answers.

What was read of the world is `Evidence`; the answer is one `Check` a group and question, a sentence that says what is
wrong, where, and what to do. What could not be read is `unknown`, never fine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from airflow_kcr.protocol.group_members import GroupSeen, MemberSeen
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.region.liveness import LogEnd
from airflow_kcr.protocol.rules import GroupRules
from airflow_kcr.protocol.values import CheckpointNumber, GroupId, GroupPartition, MemberId, Offset, TopicName

SHOWN: Final = 5
"""How many findings one line names; the others are counted."""


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
    """The group is of the classic protocol, and all members agree on the spec's assignor."""

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


class CheckVerdict(StrEnum):
    """What a check came to."""

    OK = "ok"
    WARNING = "warning"
    """It may heal by itself, or harm later; the region goes on."""

    FAILED = "failed"
    UNKNOWN = "unknown"
    """What it needs could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question about one group, answered."""

    group: GroupId
    question: Question
    verdict: CheckVerdict
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Participants:
    """By which names Kafka knows a group's members, those of earlier specs too."""

    instance_ids: Mapping[str, MemberId] = field(default_factory=dict)
    client_ids: Mapping[str, MemberId] = field(default_factory=dict)

    def member(self, seen: MemberSeen, rules: GroupRules) -> MemberId | None:
        """Return whose entry in the member list this is; None: it is not one of the region's.

        A static member is known by its instance id. In a dynamic group the client id has to do.
        """
        if seen.instance_id is not None:
            return self.instance_ids.get(seen.instance_id)
        return None if rules.static_membership else self.client_ids.get(seen.client_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was read of one group and its logs, all at about one moment; what is None could not be read."""

    rules: GroupRules
    participants: Participants
    described: GroupSeen | None = None
    topics: Mapping[TopicName, int] | None = None
    """How many partitions each topic of the cluster has."""

    bounds: Mapping[GroupPartition, LogBounds] | None = None
    committed: Mapping[GroupPartition, Offset] | None = None
    earlier_ends: Mapping[GroupPartition, LogEnd] = field(default_factory=dict)
    """How far logs could be read some time ago, of partitions that are behind in a region where no batch runs."""

    noted: Mapping[GroupPartition, CheckpointNumber] = field(default_factory=dict)
    """The checkpoint or reset that a committed offset says it is of; absent: the region has not written it."""

    refused: tuple[str, ...] = ()
    """Calls that Kafka did not allow, each with its reason."""

    silent: tuple[str, ...] = ()
    """Calls that had no answer, each with its reason."""

    @property
    def group(self) -> GroupId:
        """The group."""
        return self.rules.group_id


@dataclass(frozen=True, slots=True)
class Findings:
    """What one question found, before it is put into a line."""

    failed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    fine: str = ""
    """The sentence where nothing was found."""


def answer(evidence: Evidence, question: Question, findings: Findings | None) -> Check:
    """Return the line of one question; `findings` None: what it needs could not be read."""
    if findings is None:
        why = "; ".join((*evidence.refused, *evidence.silent)) or "it was not asked for"
        verdict, detail = CheckVerdict.UNKNOWN, f"could not be read: {why}"
    elif findings.failed:
        verdict, detail = CheckVerdict.FAILED, listed((*findings.failed, *findings.warnings))
    elif findings.warnings:
        verdict, detail = CheckVerdict.WARNING, listed(findings.warnings)
    else:
        verdict, detail = CheckVerdict.OK, findings.fine
    return Check(group=evidence.group, question=question, verdict=verdict, detail=detail)


def listed(findings: Iterable[str]) -> str:
    """Return findings as one sentence, the first few by name."""
    found = tuple(findings)
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(found[:SHOWN]) + more
