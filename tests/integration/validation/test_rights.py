"""The rights that docs/reference/rights.md lists, on a broker with an authorizer: enough, and none too many.

The page's own rows are parameters: each right is taken away, and what comes of it is what the page says. Those of
executors are in `tests/integration/spark/test_clients_of_executors.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import pytest

from airflow_kcr.api.clusters import real_reader
from airflow_kcr.api.preflight import preflight
from airflow_kcr.api.validation import Validation, validate
from airflow_kcr.errors import BrokerUnavailable, CredentialsRefused, KcrError, UnknownTopics
from airflow_kcr.protocol.evidence import CheckVerdict
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.commands import DeclareRegion
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.rules import GroupProtocol
from airflow_kcr.protocol.validation import Question
from airflow_kcr.protocol.values import GroupId, MemberId, Offset, RegionName
from airflow_kcr.spec import parse
from airflow_kcr.store.regions import RegionStore
from tests.contract.kafka.members import Members, log
from tests.support.driver import Clock
from tests.support.kafka import KafkaSet, groups_at
from tests.support.kafka_cluster import start_cluster
from tests.support.members import Lend
from tests.support.memory import MemoryTransactions
from tests.support.rights import (
    AUTHORIZER,
    CONFIGS,
    DESCRIBE,
    ENOUGH,
    LOGIN,
    ON_CLUSTER,
    ON_GROUP,
    ON_TOPIC,
    PASSWORD,
    READ,
    USER,
    Right,
    Row,
    grant,
    listed,
)

NAME = RegionName("flights")
IN_SPEC = ", ".join(f"{name}: {value}" for name, value in LOGIN.items()) + ", sasl.password: '${FLIGHTS_PASSWORD}'"


@dataclass
class Guarded:
    """A broker with an authorizer, and a region on it."""

    kafka: KafkaSet
    store: RegionStore
    group: GroupId
    topic: str

    @property
    def settings(self) -> dict[str, str]:
        """Of a client that may do what was granted."""
        return {"bootstrap.servers": self.kafka.sasl_bootstrap_servers, **LOGIN, "sasl.password": PASSWORD}

    def grant(self, *rights: Right) -> None:
        """Give the region's client these rights on its topic and group, and no others."""
        grant(self.kafka, frozenset(rights), topic=self.topic, group=self.group)

    def declare(self, protocol: GroupProtocol = GroupProtocol.CLASSIC) -> None:
        """Declare the region, whose password comes from the environment."""
        spec = parse(
            f"region: {NAME}\nkafka: {{bootstrap.servers: '{self.kafka.sasl_bootstrap_servers}', {IN_SPEC}}}\n"
            f"groups: [{{group_id: {self.group}, topics: [{self.topic}], pipeline: 'jobs:process', "
            f"protocol: {protocol}}}]\n"
        )
        self.store.handle(NAME, DeclareRegion(spec=Spec(text=spec.to_json_text(), rules=spec.rules())))

    def look(self) -> Validation:
        return validate(self.store, NAME, real_reader)

    def verdicts(self) -> dict[Question, CheckVerdict]:
        return {c.question: c.verdict for c in self.look().checks}

    def detail(self, question: Question) -> str:
        return next(c.detail for c in self.look().checks if c.question is question)

    def fly(self) -> None:
        preflight(self.store, NAME, [MemberId(self.group, 0)], real_reader)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaSet]:
    with KafkaSet(
        start_cluster(tmp_path_factory.mktemp("kafka"), settings=AUTHORIZER, sasl_users={USER: PASSWORD})
    ) as kafka:
        yield kafka


@pytest.fixture
def guarded(broker: KafkaSet, monkeypatch: pytest.MonkeyPatch) -> Guarded:
    """A broker that lets `flights` in and allows nothing yet."""
    monkeypatch.setenv("FLIGHTS_PASSWORD", PASSWORD)
    topic, group = broker.topic(2), GroupId(broker.group_id())
    broker.fill(topic, {0: 10, 1: 10})
    found = Guarded(broker, MemoryTransactions(Clock()), group, topic)
    found.grant()
    return found


@pytest.fixture
def members(guarded: Guarded) -> Iterator[Members]:
    """Makes members with the rights of `flights`."""
    members = Members(guarded.settings)
    yield members
    guarded.grant(*ENOUGH)
    members.end()


# -- each right is needed ----------------------------------------------------------------------------------------------


def joining(guarded: Guarded, members: Members, rights: frozenset[Right]) -> str:
    guarded.grant(*rights)
    member = members.make(guarded.group, topic=guarded.topic)
    member.consumer.join()
    return str(member.heard.wait("troubled"))


def committing(guarded: Guarded, members: Members, rights: frozenset[Right]) -> str:
    guarded.grant(*ENOUGH)
    member = members.make(guarded.group, topic=guarded.topic).joined()
    guarded.grant(*rights)
    return member.commit({log(guarded.group, guarded.topic): 5}).failure


def starting(guarded: Guarded, _members: Members, rights: frozenset[Right]) -> str:
    guarded.declare()
    guarded.grant(*rights)
    return refused(guarded.fly)


def altering(guarded: Guarded, _members: Members, rights: frozenset[Right]) -> str:
    guarded.grant(*rights)
    with groups_at(guarded.settings) as groups:
        offsets = OffsetMap({log(guarded.group, guarded.topic): Offset(3)})
        return refused(lambda: groups.alter(guarded.group, offsets))


def looking(guarded: Guarded, _members: Members, rights: frozenset[Right]) -> str:
    guarded.declare()
    guarded.grant(*rights)
    return guarded.detail(Question.TIMES)


def looking_at_times_of_the_broker(guarded: Guarded, _members: Members, rights: frozenset[Right]) -> str:
    guarded.declare(GroupProtocol.CONSUMER)
    guarded.grant(*rights)
    return guarded.detail(Question.TIMES)


def refused(ask: Callable[[], object]) -> str:
    with pytest.raises(KcrError) as error:
        ask()
    return f"{type(error.value).__name__}: {error.value.message}"


Use: TypeAlias = Callable[[Guarded, Members, frozenset[Right]], str]

USES: Final[dict[tuple[str, Right], Use]] = {
    ("control consumer", (ON_GROUP, READ)): joining,
    ("control consumer", (ON_TOPIC, READ)): committing,
    ("control consumer", (ON_TOPIC, DESCRIBE)): joining,
    ("admin client", (ON_TOPIC, DESCRIBE)): starting,
    ("admin client", (ON_GROUP, DESCRIBE)): starting,
    ("admin client", (ON_GROUP, READ)): altering,
    ("admin client", (ON_TOPIC, READ)): altering,
    ("admin client", (ON_CLUSTER, CONFIGS)): looking,
    ("admin client", (ON_GROUP, CONFIGS)): looking_at_times_of_the_broker,
}
"""What a client does with a right: returns what it sees without."""

ROWS: Final = [row for row in listed() if row.client != "executors"]


def test_every_row_of_the_page_is_tried() -> None:
    assert {(row.client, row.right) for row in ROWS} == USES.keys()
    assert all(row.without for row in listed())


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_without_a_right_of_the_page_the_client_sees_what_the_page_says(
    row: Row, guarded: Guarded, members: Members
) -> None:
    seen = USES[row.client, row.right](guarded, members, row.others)
    assert all(text in seen for text in row.without), seen
    assert PASSWORD not in seen


# -- and none more -----------------------------------------------------------------------------------------------------


def test_with_the_two_commands_of_the_page_a_region_consumes_commits_and_resets(
    lend: Lend, broker: KafkaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLIGHTS_PASSWORD", PASSWORD)
    login = f", kafka: {{bootstrap.servers: '{broker.sasl_bootstrap_servers}', {IN_SPEC}}}"
    with lend(kafka=broker, members=2, partitions=4, group=login) as one:
        grant(broker, ENOUGH, topic=one.topic, group=one.group)
        one.start(0, 1)
        one.fill(100)
        one.until(one.consumed, "the records processed")
        one.checkpoint()
        one.reset()
        one.fill(100)
        one.until(one.consumed, "the rest processed")
        one.checkpoint()
        assert not one.account().violations


# -- who only looks ----------------------------------------------------------------------------------------------------


def test_describe_of_topic_and_group_is_enough_to_look_and_says_that_it_is_not_enough_to_consume(
    guarded: Guarded,
) -> None:
    guarded.declare()
    guarded.grant((ON_TOPIC, DESCRIBE), (ON_GROUP, DESCRIBE))
    verdicts = guarded.verdicts()
    assert verdicts.pop(Question.RIGHTS) is CheckVerdict.WARNING
    assert set(verdicts.values()) == {CheckVerdict.OK}
    assert f"no right to read group {guarded.group}, topic {guarded.topic}" in guarded.detail(Question.RIGHTS)
    with pytest.raises(CredentialsRefused, match=f"no right to read group {guarded.group}"):
        guarded.fly()

    guarded.grant(*ENOUGH)
    assert set(guarded.verdicts().values()) == {CheckVerdict.OK}
    guarded.fly()

    guarded.grant(*ENOUGH, (ON_CLUSTER, CONFIGS))
    assert "the broker accepts 1 s to 1800 s" in guarded.detail(Question.TIMES)


def test_what_can_not_be_looked_at_is_unknown_and_the_right_for_it_is_named(guarded: Guarded) -> None:
    guarded.declare()
    guarded.grant((ON_TOPIC, DESCRIBE))
    found = {c.question: c for c in guarded.look().checks}
    assert found[Question.RIGHTS].verdict is CheckVerdict.FAILED
    assert f"describe group {guarded.group}" in found[Question.RIGHTS].detail
    assert found[Question.FOREIGN_CONSUMERS].verdict is CheckVerdict.UNKNOWN
    assert found[Question.TOPICS].verdict is CheckVerdict.OK
    with pytest.raises(CredentialsRefused, match=f"describe group {guarded.group}"):
        guarded.fly()

    guarded.grant((ON_GROUP, READ))
    assert guarded.verdicts()[Question.TOPICS] is CheckVerdict.FAILED
    with pytest.raises(UnknownTopics, match=f"topic {guarded.topic} does not exist, or this client may not see it"):
        guarded.fly()


@pytest.mark.long
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
    try:
        with pytest.raises(BrokerUnavailable, match=r"tried .* for \d+\.\d s") as away:
            guarded.fly()
    finally:
        guarded.kafka.brokers[0].start()
    assert guarded.kafka.sasl_bootstrap_servers in away.value.message
