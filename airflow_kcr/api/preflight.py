"""What has to be true before a member joins its group. Nothing is consumed, nothing is committed yet.

Whatever can't work is said here, with the error that says it best, instead of showing later as a region that waits.
"""

from __future__ import annotations

from collections.abc import Collection

from airflow_kcr.api.clusters import Clusters
from airflow_kcr.api.validation import Validation, report, validate
from airflow_kcr.errors import ConfigurationError, CredentialsRefused, ForeignConsumerInGroup, UnknownTopics
from airflow_kcr.protocol.evidence import CheckVerdict
from airflow_kcr.protocol.region.membership import require_place
from airflow_kcr.protocol.rules import ForeignConsumerPolicy, GroupProtocol
from airflow_kcr.protocol.validation import Check, Question
from airflow_kcr.protocol.values import MemberId, RegionName
from airflow_kcr.store.regions import RegionStore


def preflight(
    store: RegionStore,
    name: RegionName,
    members: Collection[MemberId],
    readers: Clusters,
) -> Validation:
    """Check what members are about to join, and tell the store who else is in their groups.

    What is found and raises nothing is for the caller to show: it may heal, or the region decides it when it runs.

    Args:
        store: where the region is.
        name: the region's.
        members: those that this process is going to host.
        readers: how Kafka is reached.

    Raises:
        StoreError: the store can't be reached, or serves another schema.
        UnknownRegion, UnknownMember: the store has no such region, or its spec no such member.
        BrokerUnavailable: Kafka can't be reached.
        CredentialsRefused: it does not let the client in, or not do what it needs.
        UnknownTopics: a listed topic does not exist.
        ConfigurationError: the spec says `protocol: consumer`, and the brokers don't speak it, or their times
            contradict the region's.
        ForeignConsumerInGroup: a foreign consumer is in a group, and the policy is `fail`; or Kafka lets no consumer
            join the group, by any policy.
    """
    region, _ = store.read(name)
    for member in sorted(members):
        require_place(region, member)
    found = validate(store, name, readers, {member.group for member in members})
    for question, error, verdicts in (
        # Who only looks is warned of rights that are enough for that. A member with them would wait for ever.
        (Question.RIGHTS, CredentialsRefused, {CheckVerdict.FAILED, CheckVerdict.WARNING}),
        (Question.TOPICS, UnknownTopics, {CheckVerdict.FAILED}),
    ):
        lines = [check for check in found.checks if check.question is question and check.verdict in verdicts]
        if lines:
            raise error("; ".join(f"group {check.group}: {check.detail}" for check in lines))
    # A member of the classic protocol is told by the broker as it joins; with the other one it would wait for ever.
    by_the_broker = {group for group, rules in region.rules.groups.items() if rules.protocol is GroupProtocol.CONSUMER}
    times = [check for check in _failed(found, Question.TIMES) if check.group in by_the_broker]
    if times:
        raise ConfigurationError("; ".join(f"group {check.group}: {check.detail}" for check in times))
    region = report(store, name, found)
    failed = _failed(found, Question.FOREIGN_CONSUMERS)
    closed = any(o.is_group for group in found.foreign_consumers.values() for o in group)
    if failed and (closed or region.rules.foreign_consumers is ForeignConsumerPolicy.FAIL):
        raise ForeignConsumerInGroup("; ".join(check.detail for check in failed))
    return found


def _failed(found: Validation, question: Question) -> tuple[Check, ...]:
    return tuple(c for c in found.checks if c.question is question and c.verdict is CheckVerdict.FAILED)
