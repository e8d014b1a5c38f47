"""Members on other networks: idle connections are forgotten, names move, brokers and certificates are replaced.

Real brokers, real store, members in processes of their own with an engine without Spark.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from airflow_kcr.embedded.processes import happened
from airflow_kcr.protocol.values import GroupId
from tests.conftest import StartKafka
from tests.contract.kafka.members import logs_of
from tests.integration.members.conftest import in_both_protocols
from tests.support.certificates import Authority, authority, broker_settings
from tests.support.faults import Note, finished, judged, passed, resets, up
from tests.support.kafka import KafkaSet, groups_at, logs_at
from tests.support.kafka_cluster import ClusterBroker
from tests.support.load import steadily
from tests.support.members import PATIENT, Lend, Live
from tests.support.networks import Forgetting, Names, advertise, box_before, rewrite, settings_of

pytestmark = [pytest.mark.timeout(400), pytest.mark.long]

USER, PASSWORD = "flights", "pass-word-1"
NAME = "broker.flights.test"
IDLE = 2.0
"""Seconds after which the box forgets a connection: less than any client's own, which are minutes."""


def login(address: str, more: str = "") -> str:
    """Return the fields of a group whose members go to this address with a password."""
    return (
        f", kafka: {{bootstrap.servers: '{address}', security.protocol: {'SASL_SSL' if more else 'SASL_PLAINTEXT'}, "
        f"sasl.mechanism: PLAIN, sasl.username: {USER}, sasl.password: '${{FLIGHTS_PASSWORD}}'{more}}}"
    )


def admin(address: str) -> dict[str, str]:
    """Return the settings of the same client."""
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLIGHTS_PASSWORD", PASSWORD)


@pytest.fixture
def guarded(kafka_set: StartKafka) -> KafkaSet:
    """A broker with a second listener, for which a test may have it say another address."""
    return kafka_set(sasl_users={USER: PASSWORD})


# -- idle connections --------------------------------------------------------------------------------------------------


def test_who_asks_through_a_box_that_has_closed_the_connection_has_an_answer_all_the_same(guarded: KafkaSet) -> None:
    topic = guarded.topic(1)
    with box_before(guarded.broker(1), Forgetting.CLOSED, IDLE) as box:
        settings = admin(f"127.0.0.1:{box.port}")
        with logs_at(settings) as logs, groups_at(settings) as groups:
            for _ in range(3):
                forgot = box.forgot
                assert logs.bounds(logs_of("g", topic, 0))
                assert groups.describe(GroupId("g")) is not None
                assert happened(lambda forgot=forgot: box.forgot > forgot, within=30)  # type: ignore[misc]


def test_a_client_that_closes_its_idle_connections_first_is_never_forgotten(guarded: KafkaSet) -> None:
    topic = guarded.topic(1)
    with box_before(guarded.broker(1), Forgetting.SILENT, 10 * IDLE) as box:
        settings = {**admin(f"127.0.0.1:{box.port}"), "connections.max.idle.ms": "1000"}
        with logs_at(settings) as logs, groups_at(settings) as groups:
            for _ in range(2):
                assert logs.bounds(logs_of("g", topic, 0))
                assert groups.describe(GroupId("g")) is not None
                assert happened(lambda: box.passing == 0, within=30)
        assert box.forgot == 0


# -- names -------------------------------------------------------------------------------------------------------------


def can_mount() -> bool:
    """Whether this user may give a process names of hosts of its own."""
    return subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="a file of hosts of their own takes the right to mount")
def test_members_follow_a_name_that_moves_to_another_address(
    lend: Lend, guarded: KafkaSet, tmp_path: Path, record_property: Note
) -> None:
    names, broker = Names(file=tmp_path / "hosts"), guarded.broker(1)
    names.move(NAME, "127.0.0.1")
    address = f"{NAME}:{broker.sasl_port}"
    advertise(broker, SASL=address)
    with lend(kafka=guarded, members=2, partitions=2, spec=PATIENT, group=login(address)) as region:
        region.before = names.command
        members = up(region, (0,), (1,), each=100)
        counter = region.region().counter
        # The name first means an address without any listener, then the one at which the broker is now.
        names.move(NAME, "127.0.0.3")
        broker.stop()
        region.until(passed(1), "a broker that is nowhere")
        names.move(NAME, "127.0.0.2")
        listen_at(broker, "127.0.0.2")
        region.fill(100)
        finished(region, 120)
        assert resets(region, counter) == []
        assert all(member.running for member in members)
        judged(region, record_property)


def listen_at(broker: ClusterBroker, host: str) -> None:
    """Have clients reach a broker with their passwords at another address of this machine alone."""
    (now,) = (line for line in settings_of(broker).read_text().splitlines() if line.startswith("listeners="))
    listeners = now.removeprefix("listeners=").replace(
        f"SASL://127.0.0.1:{broker.sasl_port}", f"SASL://{host}:{broker.sasl_port}"
    )
    rewrite(broker, {"listeners": listeners})


# -- brokers and certificates that are replaced ------------------------------------------------------------------------


@in_both_protocols
def test_brokers_that_are_restarted_one_after_the_other_cost_no_reset_and_no_record(
    lend: Lend, kafka_set: StartKafka, record_property: Note
) -> None:
    kafka = kafka_set(3, settings={"group.consumer.session.timeout.ms": "25000"})
    with lend(kafka=kafka, members=2, spec=PATIENT) as region:
        members = up(region, (0,), (1,), each=50)
        counter = region.region().counter
        with steadily(kafka, region.topic, 6, 0.02):
            for broker in kafka.brokers:
                broker.restart()
                ends = kafka.ends(region.topic)
                region.until(lambda ends=ends: beyond(region, ends), "processed beyond where it was")  # type: ignore[misc]
        finished(region, 120)
        assert resets(region, counter) == []
        assert all(member.running for member in members)
        judged(region, record_property)


def beyond(region: Live, ends: dict[int, int]) -> bool:
    """Whether every partition was processed beyond these offsets."""
    claims = region.region().claims
    return all((c.position or 0) > ends[p.partition] for p, c in claims.items())


def test_certificates_of_another_authority_come_into_use_member_by_member_without_a_reset(
    lend: Lend, kafka_set: StartKafka, tmp_path: Path, record_property: Note, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = authority("the old authority"), authority("the new authority")
    folder = tmp_path / "certificates"
    kafka = kafka_set(settings=broker_settings(folder, old), sasl_users={USER: PASSWORD})
    broker = kafka.broker(1)

    def own(of: Authority) -> None:
        """Have who starts from now on show a certificate of this authority, and trust both."""
        certificate = of.sign("flights")
        monkeypatch.setenv("TRUSTED", old.pem + new.pem)
        monkeypatch.setenv("OWN_CERTIFICATE", certificate.certificate)
        monkeypatch.setenv("OWN_KEY", certificate.key)

    own(old)
    more = ", ssl.ca.pem: '${TRUSTED}', ssl.certificate.pem: '${OWN_CERTIFICATE}', ssl.key.pem: '${OWN_KEY}'"
    group = login(kafka.sasl_bootstrap_servers, more)
    with lend(kafka=kafka, members=2, partitions=2, spec=PATIENT, group=group) as region:
        members = up(region, (0,), (1,), each=100)
        counter = region.region().counter
        # First all trust both, then each shows its new one, then the old one is trusted no more.
        (folder / "trusted.pem").write_text(old.pem + new.pem)
        broker.restart()
        own(new)
        for index, member in enumerate(members):
            member.terminate()
            assert member.wait(60) == 0
            members[index] = region.start(index)
            region.shared(0, 1)
            region.fill(20)
        renewed = new.sign("broker")
        (folder / "broker.pem").write_text(renewed.key + renewed.certificate)
        (folder / "trusted.pem").write_text(new.pem)
        broker.restart()
        region.fill(100)
        finished(region, 120)
        assert resets(region, counter) == []
        assert all(member.running for member in members)
        judged(region, record_property)
