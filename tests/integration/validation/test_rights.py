"""The rights that docs/reference/rights.md lists, on a broker with an authorizer: enough, and none too many.

A client without a password is the broker's administrator here; `flights` has what a test grants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from airflow_kcr.api.validation import Validation, preflight, real_reader, validate
from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import BrokerUnavailable, CredentialsRefused, KcrError, UnknownTopics
from airflow_kcr.kafka import settings as kafka_names
from airflow_kcr.kafka.groups import Groups
from airflow_kcr.protocol.commands import DeclareRegion
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.validation import CheckVerdict, Question
from airflow_kcr.protocol.values import GroupId, GroupPartition, MemberId, Offset, RegionName, TopicName
from airflow_kcr.spec import parse
from airflow_kcr.store.memory import MemoryTransactions
from airflow_kcr.store.regions import RegionStore
from tests.conftest import StartKafka
from tests.support.driver import Clock
from tests.support.kafka import WITHIN, KafkaSet

NAME, GROUP, TOPIC = RegionName("flights"), GroupId("flights-etl"), "flights"
MEMBER = MemberId(GROUP, 0)
PASSWORD = "correct-horse"
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}

CLIENT = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "flights",
    "sasl.password": PASSWORD,
}

READ, DESCRIBE = AclOperation.READ, AclOperation.DESCRIBE
ON_TOPIC, ON_GROUP, ON_CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.BROKER


@dataclass
class Guarded:
    """A broker with an authorizer, and a region on it."""

    kafka: KafkaSet
    store: RegionStore

    @property
    def servers(self) -> dict[str, str]:
        return {"bootstrap.servers": self.kafka.sasl_bootstrap_servers}

    def grant(self, *rights: tuple[ResourceType, AclOperation]) -> None:
        """Give the region's client these rights on its topic and group, and no others."""
        anybody: Any = None
        everything = AclBindingFilter(
            ResourceType.ANY,
            anybody,
            ResourcePatternType.ANY,
            anybody,
            anybody,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for deleted in self.kafka.admin.delete_acls([everything]).values():
            deleted.result(WITHIN)
        wanted = [self._binding(*right) for right in rights]
        for made in self.kafka.admin.create_acls(wanted).values() if wanted else ():
            made.result(WITHIN)

    @staticmethod
    def _binding(resource: ResourceType, operation: AclOperation) -> AclBinding:
        name = {ON_TOPIC: TOPIC, ON_GROUP: str(GROUP), ON_CLUSTER: "kafka-cluster"}[resource]
        return AclBinding(
            resource,
            name,
            ResourcePatternType.LITERAL,
            "User:flights",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )

    def declare(self, servers: str | None = None) -> None:
        """Declare the region, whose password comes from the environment."""
        spec = parse(
            "region: flights\n"
            f"kafka: {{bootstrap.servers: '{servers or self.kafka.sasl_bootstrap_servers}', "
            "security.protocol: SASL_PLAINTEXT, sasl.mechanism: PLAIN, sasl.username: flights, "
            "sasl.password: '${FLIGHTS_PASSWORD}'}\n"
            f"groups: [{{group_id: {GROUP}, topics: [{TOPIC}], pipeline: 'jobs:process'}}]\n"
        )
        self.store.handle(NAME, DeclareRegion(spec=Spec(text=spec.to_json_text(), rules=spec.rules())))

    def look(self) -> Validation:
        return validate(self.store, NAME, real_reader, kafka_names)

    def verdicts(self) -> dict[Question, CheckVerdict]:
        return {c.question: c.verdict for c in self.look().checks}

    def detail(self, question: Question) -> str:
        return next(c.detail for c in self.look().checks if c.question is question)

    def fly(self) -> None:
        preflight(self.store, NAME, [MEMBER], real_reader, kafka_names)


@pytest.fixture
def guarded(kafka_set: StartKafka, monkeypatch: pytest.MonkeyPatch) -> Guarded:
    """A broker that lets `flights` in and allows nothing yet."""
    monkeypatch.setenv("FLIGHTS_PASSWORD", PASSWORD)
    kafka = kafka_set(settings=AUTHORIZER, sasl_users={"flights": PASSWORD})
    kafka.topic(2, name=TOPIC)
    kafka.fill(TOPIC, {0: 10, 1: 10})
    return Guarded(kafka, RegionStore(MemoryTransactions(Clock())))


@pytest.fixture
def member(guarded: Guarded) -> Iterator[Callable[[], Consumer]]:
    """Makes consumers with the rights of `flights`."""
    made: list[Consumer] = []

    def make() -> Consumer:
        consumer = Consumer(
            {
                **CLIENT,
                **guarded.servers,
                "group.id": GROUP,
                "group.instance.id": kafka_names.instance_id(NAME, MEMBER),
                "partition.assignment.strategy": "range",
                "session.timeout.ms": 10_000,
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        made.append(consumer)
        return consumer

    yield make
    for consumer in made:
        consumer.close()


def soon(condition: Callable[[], bool]) -> bool:
    """Rights reach the authorizer a moment after they were granted."""
    return happened(condition, within=WITHIN)


def test_a_look_needs_describe_on_topic_and_group_and_says_what_is_missing(guarded: Guarded) -> None:
    guarded.declare()
    guarded.grant((ON_TOPIC, DESCRIBE), (ON_GROUP, DESCRIBE))
    assert soon(lambda: set(guarded.verdicts().values()) == {CheckVerdict.OK})
    guarded.fly()

    assert "Kafka's own limits are assumed" in guarded.detail(Question.TIMES)

    guarded.grant((ON_TOPIC, DESCRIBE), (ON_GROUP, DESCRIBE), (ON_CLUSTER, AclOperation.DESCRIBE_CONFIGS))
    assert soon(lambda: "the broker accepts 1 s to 1800 s" in guarded.detail(Question.TIMES))

    guarded.grant((ON_TOPIC, DESCRIBE))
    assert soon(lambda: guarded.verdicts()[Question.RIGHTS] is CheckVerdict.FAILED)
    found = {c.question: c for c in guarded.look().checks}
    assert f"describe group {GROUP}" in found[Question.RIGHTS].detail
    assert found[Question.FOREIGN_CONSUMERS].verdict is CheckVerdict.UNKNOWN
    assert found[Question.TOPICS].verdict is CheckVerdict.OK
    with pytest.raises(CredentialsRefused, match=f"describe group {GROUP}"):
        guarded.fly()

    guarded.grant((ON_GROUP, DESCRIBE))
    assert soon(lambda: guarded.verdicts()[Question.TOPICS] is CheckVerdict.FAILED)
    with pytest.raises(UnknownTopics, match=f"topic {TOPIC} does not exist, or this client may not see it"):
        guarded.fly()


def test_a_member_needs_read_on_topic_and_group_to_join_and_commit(
    guarded: Guarded, member: Callable[[], Consumer]
) -> None:
    guarded.declare()
    guarded.grant((ON_TOPIC, READ), (ON_GROUP, READ))
    consumer = member()
    consumer.subscribe([TOPIC])
    assert soon(lambda: consumer.poll(0.1) is not None or len(consumer.assignment()) == 2)
    place = [TopicPartition(TOPIC, 0, 5)]
    consumer.commit(offsets=place, asynchronous=False)
    assert consumer.committed(place, WITHIN)[0].offset == 5
    assert soon(lambda: CheckVerdict.FAILED not in guarded.verdicts().values())

    guarded.grant((ON_TOPIC, DESCRIBE), (ON_GROUP, READ))
    assert soon(lambda: guarded.verdicts()[Question.RIGHTS] is CheckVerdict.OK)
    with pytest.raises(KafkaException) as refused:
        consumer.commit(offsets=place, asynchronous=False)
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_altering_an_empty_group_needs_read_of_group_and_topic(guarded: Guarded) -> None:
    offsets = OffsetMap({GroupPartition(GROUP, TopicName(TOPIC), 0): Offset(3)})
    guarded.declare()
    with Groups(kafka_names.admin_settings({**CLIENT, **guarded.servers})) as groups:
        guarded.grant((ON_TOPIC, READ), (ON_GROUP, READ))
        assert soon(lambda: guarded.verdicts()[Question.RIGHTS] is CheckVerdict.OK)
        groups.alter(GROUP, offsets)
        assert [row.offset for row in groups.committed(GROUP).values()] == [3]
        for rights in (((ON_TOPIC, READ), (ON_GROUP, DESCRIBE)), ((ON_TOPIC, DESCRIBE), (ON_GROUP, READ))):
            guarded.grant(*rights)
            assert soon(lambda: guarded.verdicts()[Question.RIGHTS] is CheckVerdict.OK)
            with pytest.raises(KcrError, match="AUTHORIZATION_FAILED"):
                groups.alter(GROUP, offsets)


def test_a_wrong_password_and_a_broker_that_is_away_are_told_by_address_and_without_the_password(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded.declare()
    monkeypatch.setenv("FLIGHTS_PASSWORD", "wrong-horse")
    with pytest.raises(CredentialsRefused) as unknown:
        guarded.fly()
    assert guarded.kafka.sasl_bootstrap_servers in unknown.value.message
    assert "horse" not in unknown.value.message
    guarded.kafka.brokers[0].stop()
    with pytest.raises(BrokerUnavailable, match=r"tried .* for \d+\.\d s") as away:
        guarded.fly()
    assert guarded.kafka.sasl_bootstrap_servers in away.value.message
