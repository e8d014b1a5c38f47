"""Membership validation: is every group what its region takes it for (docs/how-to/validate-a-group.md)?

Pure: from what was read (`evidence`) and the region as stored. Checks decide nothing: foreign consumers are reported to
the store, whose policy does (`region.foreign_consumers`), and positions outside their logs are found again by the
members.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from airflow_kcr.protocol import group_checks, log_checks
from airflow_kcr.protocol.evidence import Check, CheckVerdict, Evidence, Findings, Question, answer
from airflow_kcr.protocol.region import liveness
from airflow_kcr.protocol.region.liveness import NOTHING_SEEN, Liveness, Seen
from airflow_kcr.protocol.region.state import Region


def judge(region: Region, now: datetime, evidence: Evidence, seen: Seen = NOTHING_SEEN) -> tuple[Check, ...]:
    """Return every check of one group, one line a question.

    Args:
        region: as the store has it.
        now: the store's clock.
        evidence: what Kafka said of the group, which is one of the region's.
        seen: what the store and the spec say beside the region's rows; the ends of logs come from `evidence`.
    """
    answers = {
        Question.REGION: group_checks.one_region(region, evidence),
        Question.RIGHTS: group_checks.rights(evidence),
        Question.TOPICS: log_checks.topics(evidence),
        Question.TOPIC_IDS: log_checks.topic_ids(region, evidence),
        Question.PROTOCOL: group_checks.protocol(evidence),
        Question.SUBSCRIPTION: group_checks.subscription(region, now, evidence),
        Question.PARTICIPANTS: group_checks.participants(region, now, evidence),
        Question.FOREIGN_CONSUMERS: group_checks.foreign_consumers(region, evidence),
        Question.CLAIMS: log_checks.claims(region, now, evidence),
        Question.OFFSETS: log_checks.offsets(region, evidence),
        Question.PROGRESS: progress(region, now, evidence, seen),
    }
    return tuple(answer(evidence, question, answers[question]) for question in Question)


def progress(region: Region, now: datetime, evidence: Evidence, seen: Seen) -> Findings:
    """The region works, or waits for something and no longer than it may; other groups' own waits are left out."""
    found = liveness.judge(region, now, replace(seen, ends=evidence.earlier_ends))
    own = Liveness(waits=tuple(w for w in found.waits if w.group in {None, evidence.group}), now=now)
    failed = tuple(f"{own.verdict}: {wait.text(now)}" for wait in own.stalled)
    return Findings(failed=failed, fine=own.text())


def is_all_right(checks: Iterable[Check]) -> bool:
    """Whether nothing failed and nothing remained unknown; a warning is all right."""
    return all(c.verdict in {CheckVerdict.OK, CheckVerdict.WARNING} for c in checks)
