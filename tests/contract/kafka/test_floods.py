"""What a broker that is away for some seconds leaves in the log."""

from __future__ import annotations

import logging
import os
from datetime import timedelta

import pytest

from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import BrokerUnavailable
from airflow_kcr.kafka.admin_process import AdminProcess
from airflow_kcr.kafka.logs import BrokerLogs
from airflow_kcr.kafka.settings import admin_settings
from tests.contract.kafka.members import WITHIN, Members, logs_of
from tests.support.kafka import KafkaSet

LINES = 60
"""What the client has to say within some seconds."""


@pytest.mark.long
def test_an_outage_is_a_few_lines_of_the_client_and_it_is_heard_again(
    broken: KafkaSet, endangered: Members, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, made = logging.getLogger("airflow_kcr.kafka.librdkafka"), list[str]()

    def counted(record: logging.LogRecord) -> bool:
        made.append(record.getMessage())
        return True

    monkeypatch.setattr(client, "filters", [counted, *client.filters])
    topic = broken.topic(2)
    member = endangered.make(broken.group_id(), topic=topic).joined()
    before = len(made)
    broken.broker(1).stop()
    assert happened(lambda: len(made) - before >= LINES, within=WITHIN)
    said = [record.getMessage() for record in caplog.records if record.name == client.name]
    assert 1 <= len(said) <= LINES // 4, said
    broken.broker(1).start()
    assert member.commit({}) is not None


def test_the_process_for_admin_calls_writes_nothing_of_an_outage() -> None:
    with AdminProcess(admin_settings({"bootstrap.servers": "127.0.0.1:1"}), timedelta(seconds=1)) as process:
        with pytest.raises(BrokerUnavailable, match="Connection refused"):
            BrokerLogs(process).stable_ends(logs_of("g", "t", 0))
        child = process._child
        assert child is not None
        assert os.fstat(child._errors.fileno()).st_size == 0
