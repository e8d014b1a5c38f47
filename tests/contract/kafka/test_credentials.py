"""Credentials: wrong ones are told as such, at once and without being shown; right ones work in every client."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from airflow_kcr.errors import ConfigurationError, CredentialsRefused, KcrError
from airflow_kcr.protocol.values import GroupId
from tests.contract.kafka.conftest import USERS
from tests.contract.kafka.members import Members, log, logs_of
from tests.support.kafka import KafkaSet, groups_at, logs_at

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


def test_right_credentials_work_in_every_client(broken: KafkaSet, endangered: Members) -> None:
    topic, group = broken.topic(1), GroupId(broken.group_id())
    settings = credentials(broken, USERS[USER])
    member = endangered.make(group, topic=topic, settings=settings).joined()
    assert member.commit({log(group, topic): 1}).failure == ""
    with logs_at(settings) as logs, groups_at(settings) as groups:
        assert logs.bounds(logs_of(group, topic, 0))
        assert groups.committed(group).keys() == logs_of(group, topic, 0)


@pytest.mark.long
def test_wrong_credentials_are_told_at_once_and_never_shown(
    broken: KafkaSet, endangered: Members, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    settings = credentials(broken, WRONG)
    told: list[str] = []
    member = endangered.make(broken.group_id(), topic="t", settings=settings)
    member.consumer.join()
    member.heard.wait_for(lambda: any("_AUTHENTICATION" in str(text) for _, text in member.heard.all))
    told += [str(text) for _, text in member.heard.all]
    # Longer than a test may take: each of the three finds out, and does not wait until its time is over.
    patient = timedelta(minutes=30)
    with logs_at(settings, patient) as logs, groups_at(settings, patient) as groups:
        for ask in (lambda: logs.bounds(logs_of("g", "t", 0)), logs.topics, lambda: groups.describe(GroupId("g"))):
            with pytest.raises(CredentialsRefused, match=r"do not let the client in.*sasl and ssl settings") as refused:
                ask()
            told += [str(refused.value), repr(refused.value)]
    out = capfd.readouterr()
    told += [repr(member.consumer), repr(vars(member.consumer)), repr(vars(logs)), caplog.text, out.out, out.err]
    assert not [text for text in told if WRONG in text]


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
