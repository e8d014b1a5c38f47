"""Credentials: wrong ones are told as such, at once and without being shown; right ones work in every client."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_kcr.errors import ConfigurationError, KcrError
from tests.contract.kafka.conftest import USERS
from tests.contract.kafka.members import Members, logs_of
from tests.support.kafka import KafkaSet

WRONG = "not-the-pass-word"
(USER,) = USERS


def credentials(broker: KafkaSet, password: str) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.sasl_bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": password,
    }


def test_committed_offsets_with_wrong_credentials_are_given_up_in_time(broken: KafkaSet, endangered: Members) -> None:
    member = endangered.make(broken.group_id(), topic="t", settings=credentials(broken, WRONG))
    with pytest.raises(KcrError) as failed:
        member.consumer.committed(logs_of(member.group, "t", 0), timedelta(seconds=2))
    assert WRONG not in str(failed.value)


def test_settings_that_the_client_does_not_take_are_an_error_of_the_configuration(endangered: Members) -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1", "no.such.setting": "x", "sasl.password": WRONG}
    with pytest.raises(ConfigurationError, match=r'No such configuration property: "no\.such\.setting"') as refused:
        endangered.make("g", topic="t", settings=settings)
    assert WRONG not in str(refused.value)
