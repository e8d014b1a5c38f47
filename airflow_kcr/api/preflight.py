"""Preflight: what has to be true before a member joins its group. Nothing is consumed, nothing is committed yet.

Whatever can't work is said here, with the error that says it best, instead of showing later as a region that waits.
"""

from __future__ import annotations

from collections.abc import Collection

from airflow_kcr.api.validation import GroupReaders, Names, Validation, report, validate
from airflow_kcr.errors import CredentialsRefused, ForeignConsumerInGroup, UnknownTopics
from airflow_kcr.protocol.evidence import Check, Question, Verdict
from airflow_kcr.protocol.region.membership import require_place
from airflow_kcr.protocol.rules import ForeignConsumerPolicy
from airflow_kcr.protocol.values import MemberId, RegionName
from airflow_kcr.store.regions import RegionStore


def preflight(
    store: RegionStore,
    name: RegionName,
    members: Collection[MemberId],
    readers: GroupReaders,
    names: Names,
) -> Validation:
    """Check what members are about to join, and tell the store who else is in their groups.

    What is found and raises nothing is for the caller to show: it may heal, or the region decides it when it runs.

    Args:
        store: where the region is.
        name: the region's.
        members: those that this process is going to host.
        readers: how Kafka is reached.
        names: how Kafka knows the region's members.

    Raises:
        StoreError: the store can't be reached, or serves another schema.
        UnknownRegion, UnknownMember: the store has no such region, or its spec no such member.
        BrokerUnavailable: Kafka can't be reached.
        CredentialsRefused: it does not let the client in, or not do what it needs.
        UnknownTopics: a listed topic does not exist.
        ForeignConsumerInGroup: somebody else is in a group, and the policy is `fail`.
    """
    region, _ = store.read(name)
    for member in sorted(members):
        require_place(region, member)
    found = validate(store, name, readers, names, {member.group for member in members})
    for question, error in ((Question.RIGHTS, CredentialsRefused), (Question.TOPICS, UnknownTopics)):
        failed = _failed(found, question)
        if failed:
            raise error("; ".join(f"group {check.group}: {check.detail}" for check in failed))
    region = report(store, name, found)
    failed = _failed(found, Question.FOREIGN_CONSUMERS)
    if failed and region.rules.foreign_consumers is ForeignConsumerPolicy.FAIL:
        raise ForeignConsumerInGroup("; ".join(check.detail for check in failed))
    return found


def _failed(found: Validation, question: Question) -> tuple[Check, ...]:
    return tuple(c for c in found.checks if c.question is question and c.verdict is Verdict.FAILED)
