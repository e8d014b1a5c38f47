from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_kcr.kafka.admin_process import AdminProcess
from airflow_kcr.kafka.groups import Groups
from airflow_kcr.kafka.logs import BrokerLogs
from airflow_kcr.kafka.settings import admin_settings
from airflow_kcr.protocol.rules import GroupProtocol
from tests.contract.kafka.members import Members
from tests.support.kafka import Kafka, KafkaSet
from tests.support.kafka_cluster import start_cluster

USERS = {"somebody": 'pass"wo\\rd-1'}


@pytest.fixture(params=GroupProtocol)
def protocol(request: pytest.FixtureRequest) -> GroupProtocol:
    """Each of Kafka's two rebalance protocols; a test that is about one of them parametrizes it."""
    return GroupProtocol(request.param)


@pytest.fixture
def members(kafka: Kafka, protocol: GroupProtocol) -> Iterator[Members]:
    """Makes members of groups on the shared broker."""
    members = Members(kafka.settings, protocol)
    yield members
    members.end()


@pytest.fixture
def process(kafka: Kafka) -> Iterator[AdminProcess]:
    with AdminProcess(admin_settings(kafka.settings)) as process:
        yield process


@pytest.fixture
def logs(process: AdminProcess) -> BrokerLogs:
    return BrokerLogs(process)


@pytest.fixture
def groups(process: AdminProcess) -> Groups:
    return Groups(process)


@pytest.fixture(scope="session")
def breakable_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaSet]:
    """A broker that tests of this folder may suspend and restart, and that asks for a password on another port."""
    with KafkaSet(start_cluster(tmp_path_factory.mktemp("kafka"), sasl_users=USERS)) as kafka:
        yield kafka


@pytest.fixture
def broken(breakable_broker: KafkaSet) -> Iterator[KafkaSet]:
    """The same, whole again after the test."""
    yield breakable_broker
    breakable_broker.broker(1).resume()
    breakable_broker.broker(1).start()


@pytest.fixture
def endangered(broken: KafkaSet, protocol: GroupProtocol) -> Iterator[Members]:
    """Makes members of groups on the broker that may be broken."""
    members = Members(broken.settings, protocol)
    yield members
    broken.broker(1).resume()
    broken.broker(1).start()
    members.end()
