"""A region on a real topic: its members are real consumers of the group, its store knows what they would have told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from airflow_kcr.api.clusters import real_reader
from airflow_kcr.api.validation import Validation, validate
from airflow_kcr.protocol.region.commands import ChangeSpec
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.validation import Check, Question
from airflow_kcr.protocol.values import GroupId, MemberId, RegionName
from airflow_kcr.spec import RegionSpec, parse
from tests.integration.validation.foreign import Crowd
from tests.support.driver import START, Driver
from tests.support.kafka import Kafka

PARTITIONS = 4
MEMBERS = 2


@dataclass
class Scene:
    """One region, its topic, and all consumers in its group."""

    kafka: Kafka
    driver: Driver
    crowd: Crowd
    topic: str
    group: GroupId
    static: bool

    @property
    def name(self) -> RegionName:
        return self.driver.name

    def member(self, index: int) -> MemberId:
        return MemberId(self.group, index)

    def places(self, count: int = PARTITIONS) -> list[tuple[str, int]]:
        return [(self.topic, n) for n in range(count)]

    def join(self, *indexes: int) -> None:
        """Let members of the region join the group."""
        for index in indexes or range(MEMBERS):
            self.crowd.join_member(self.name, self.member(index), self.topic, static=self.static)
        self.crowd.settle(*self.places())

    def run(self) -> None:
        """Let the region run, its claims being what Kafka has assigned and its logs what the broker says."""
        self.read_logs()
        self.driver.store.handle(self.name, START)
        assigned = self.crowd.assigned()
        for index in range(MEMBERS):
            self.driver.join(self.member(index))
            own = assigned[str(self.member(index))]
            self.driver.claim(self.member(index), sorted(p for p in self.driver.logs if (p.topic, p.partition) in own))
        self.driver.finish_reset()

    def read_logs(self) -> None:
        """Let the region's members see the logs as they are."""
        with real_reader(self.spec, self.group) as cluster:
            partitions = [self.driver.partition(n, self.group, self.topic) for n in range(PARTITIONS)]
            self.driver.logs = dict(cluster.logs.bounds(partitions))

    @property
    def spec(self) -> RegionSpec:
        return RegionSpec.from_json(self.driver.region.spec.text)

    def look(self) -> Validation:
        return validate(self.driver.store, self.name, real_reader)

    def check(self, question: Question) -> Check:
        return next(c for c in self.look().checks if c.question is question)


def make(kafka: Kafka, crowd: Crowd, *, subscribe: str = "", policy: str = "fail", static: bool = True) -> Scene:
    """Return the scene of a region that has been declared."""
    topic, group = kafka.topic(PARTITIONS, prefix="validation"), GroupId(kafka.group_id("validation"))
    kafka.fill(topic, dict.fromkeys(range(PARTITIONS), 100))
    spec = parse(
        f"region: validated\nkafka: {{bootstrap.servers: '{kafka.bootstrap_servers}'}}\nforeign_consumers: {policy}\n"
        f"groups:\n  - {{group_id: {group}, {subscribe or f'topics: [{topic}]'}, members: {MEMBERS}, "
        f"assignor: range, static_membership: {str(static).lower()}, pipeline: 'jobs:process'}}\n"
    )
    driver = Driver(rules=spec.rules(), name=RegionName("validated"))
    driver.logs.clear()
    text = Spec(text=spec.to_json_text(), rules=spec.rules(), revision=2)
    driver.handle(ChangeSpec(at_once=text))
    return Scene(kafka=kafka, driver=driver, crowd=crowd, topic=topic, group=group, static=static)


@pytest.fixture
def crowd(kafka: Kafka) -> Iterator[Crowd]:
    """Consumers of the shared broker."""
    everybody = Crowd(kafka.bootstrap_servers)
    yield everybody
    everybody.close()


@pytest.fixture
def scene(kafka: Kafka, crowd: Crowd) -> Scene:
    """A region that runs, with static members, by policy `fail`."""
    made = make(kafka, crowd)
    made.join()
    made.run()
    return made
