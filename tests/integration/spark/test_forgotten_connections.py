"""A member on Spark behind a box that forgets idle connections without a word, as NAT gateways do.

The clients close what is idle before the box forgets it, here after a second, else after three minutes.
"""

from __future__ import annotations

import pytest

from tests.conftest import StartKafka
from tests.support.faults import finished, passed, resets
from tests.support.members import Lend
from tests.support.networks import Forgetting, box_before

PASSWORD = "pass-word-1"
RECORDS, MORE, WITHIN = 100, 20, 240.0

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.postgres]


def test_a_member_on_spark_reads_on_after_its_idle_connections_would_have_been_forgotten(
    lend_on_spark: Lend, kafka_set: StartKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLIGHTS_PASSWORD", PASSWORD)
    kafka = kafka_set(sasl_users={"flights": PASSWORD})
    with box_before(kafka.broker(1), Forgetting.SILENT, 10.0) as box:
        login = (
            f", kafka: {{bootstrap.servers: '127.0.0.1:{box.port}', security.protocol: SASL_PLAINTEXT, "
            "sasl.mechanism: PLAIN, sasl.username: flights, sasl.password: '${FLIGHTS_PASSWORD}', "
            "connections.max.idle.ms: 1000}"
        )
        with lend_on_spark(kafka=kafka, group=login) as one:
            member = one.start(0)
            one.fill(RECORDS)
            finished(one, WITHIN)
            counter = one.region().counter
            for _ in range(2):
                one.until(passed(12), "longer than the box remembers")
                one.fill(MORE)
                finished(one, WITHIN)
            assert resets(one, counter) == []
            assert sorted((row.partition, row.offset) for row in one.written()) == [
                (number, offset) for number in range(2) for offset in range(RECORDS + 2 * MORE)
            ]
            assert "no answer" not in member.said()
