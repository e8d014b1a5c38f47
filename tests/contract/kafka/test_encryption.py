"""TLS with certificates on both sides: every client of ours gets in with them, and none without."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_kcr.errors import KcrError
from airflow_kcr.protocol.values import GroupId
from tests.contract.kafka.conftest import USERS
from tests.contract.kafka.members import Members, log, logs_of
from tests.support.certificates import Authority, authority, broker_settings
from tests.support.kafka import KafkaSet, groups_at, logs_at
from tests.support.kafka_cluster import start_cluster

(USER,) = USERS


@pytest.fixture(scope="module")
def trusted() -> Authority:
    return authority("an authority of ours")


@pytest.fixture(scope="module")
def guarded(trusted: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaSet]:
    """A broker whose second listener speaks TLS, and wants a certificate and a password."""
    folder = tmp_path_factory.mktemp("tls")
    settings = broker_settings(folder / "certificates", trusted)
    with KafkaSet(start_cluster(folder / "kafka", settings=settings, sasl_users=USERS)) as kafka:
        yield kafka


@pytest.fixture
def entitled(guarded: KafkaSet, trusted: Authority) -> dict[str, str]:
    """The settings of a client that is let in."""
    own = trusted.sign("client")
    return {
        "bootstrap.servers": guarded.sasl_bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": USERS[USER],
        "ssl.ca.pem": trusted.pem,
        "ssl.certificate.pem": own.certificate,
        "ssl.key.pem": own.key,
    }


@pytest.fixture
def members(guarded: KafkaSet) -> Iterator[Members]:
    members = Members(guarded.settings)
    yield members
    members.end()


def test_certificates_as_text_work_in_every_client(
    guarded: KafkaSet, members: Members, entitled: dict[str, str]
) -> None:
    topic, group = guarded.topic(1), GroupId(guarded.group_id())
    guarded.fill(topic, {0: 3})
    member = members.make(group, topic=topic, settings=entitled).joined()
    assert member.commit({log(group, topic): 1}).failure == ""
    with logs_at(entitled) as logs, groups_at(entitled) as groups:
        (bounds,) = logs.bounds(logs_of(group, topic, 0)).values()
        assert (bounds.start, bounds.end) == (0, 3)
        assert groups.committed(group).keys() == logs_of(group, topic, 0)


def test_so_do_files(guarded: KafkaSet, trusted: Authority, entitled: dict[str, str], tmp_path: Path) -> None:
    topic, own = guarded.topic(1), trusted.sign("client")
    files = {"ssl.ca": trusted.pem, "ssl.certificate": own.certificate, "ssl.key": own.key}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    settings = {name: value for name, value in entitled.items() if not name.endswith(".pem")}
    settings |= {f"{name}.location": str(tmp_path / name) for name in files}
    with logs_at(settings) as logs:
        assert logs.bounds(logs_of("g", topic, 0))


@pytest.mark.long
@pytest.mark.parametrize(
    "lacking",
    [
        pytest.param({"ssl.certificate.pem", "ssl.key.pem"}, id="no certificate of its own"),
        pytest.param({"ssl.ca.pem"}, id="an authority that it does not know"),
    ],
)
def test_who_is_not_let_in_is_told_why_in_time_and_no_key_is_shown(
    guarded: KafkaSet, entitled: dict[str, str], lacking: set[str]
) -> None:
    settings = {name: value for name, value in entitled.items() if name not in lacking}
    with logs_at(settings, timedelta(seconds=10)) as logs, pytest.raises(KcrError, match=r"(?i)ssl") as refused:
        logs.bounds(logs_of("g", "t", 0))
    assert entitled["ssl.key.pem"].splitlines()[1] not in str(refused.value)
    assert guarded.sasl_bootstrap_servers in str(refused.value)
