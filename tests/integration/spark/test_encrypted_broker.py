"""A member on Spark and a broker that speaks TLS: the same settings let Kafka's two clients in, librdkafka and Java's.

The control consumer is librdkafka, what Spark reads with is Java. Both get their certificates, key and password out of
the environment, by the spec's references.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_kcr.api import Region
from tests.conftest import StartKafka
from tests.support.certificates import authority, broker_settings
from tests.support.faults import finished
from tests.support.members import Lend

SECRETS = {"FLIGHTS_PASSWORD": "pass-word-1", "STORE_PASSWORD": "store-word-1"}
RECORDS, WITHIN = 100, 240.0

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.postgres]

TEXT = "ssl.ca.pem: '${TRUSTED}', ssl.certificate.pem: '${OWN_CERTIFICATE}', ssl.key.pem: '${OWN_KEY}'"
FILES = (
    "ssl.ca.location: 'FOLDER/trusted.pem', ssl.keystore.location: 'FOLDER/own.p12', "
    "ssl.keystore.password: '${STORE_PASSWORD}'"
)


@pytest.mark.parametrize("certificates", [pytest.param(TEXT, id="text"), pytest.param(FILES, id="files")])
def test_a_member_on_spark_reads_over_tls_with_a_certificate_of_its_own(
    certificates: str, lend_on_spark: Lend, kafka_set: StartKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = authority("an authority of ours")
    both = authority("the one before it").pem + trusted.pem
    own = trusted.sign("flights")
    secrets = SECRETS | {"OWN_KEY": own.key}
    for name, value in (secrets | {"TRUSTED": both, "OWN_CERTIFICATE": own.certificate}).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "own.p12").write_bytes(own.key_store(SECRETS["STORE_PASSWORD"]))
    (tmp_path / "trusted.pem").write_text(both)
    broker = kafka_set(
        settings=broker_settings(tmp_path / "certificates", trusted),
        sasl_users={"flights": SECRETS["FLIGHTS_PASSWORD"]},
    )
    login = (
        f", kafka: {{bootstrap.servers: '{broker.sasl_bootstrap_servers}', security.protocol: SASL_SSL, "
        "sasl.mechanism: PLAIN, sasl.username: flights, sasl.password: '${FLIGHTS_PASSWORD}', "
        f"{certificates.replace('FOLDER', str(tmp_path))}}}"
    )
    with lend_on_spark(kafka=broker, group=login) as one:
        member = one.start(0)
        one.fill(RECORDS)
        finished(one, WITHIN)
        assert sorted((row.partition, row.offset) for row in one.written()) == [
            (number, offset) for number in range(2) for offset in range(RECORDS)
        ]
        with Region(one.name, one.store) as region:
            assert {lag.lag for lag in region.lag()} == {0}
            assert not region.verify().violations
        shown = one.region().spec.text + member.said()
    assert not [name for name, value in secrets.items() if value.splitlines()[-1] in shown or value in shown]
