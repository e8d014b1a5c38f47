"""SCRAM and OAuth tokens: every client of ours gets in with them, and is told why it doesn't."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta

import pytest

from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import CredentialsRefused, KcrError
from airflow_kcr.protocol.values import GroupId
from tests.contract.kafka.conftest import USERS
from tests.contract.kafka.members import WITHIN, Members, log, logs_of
from tests.support.kafka import KafkaSet, groups_at, logs_at
from tests.support.tokens import MECHANISMS, SCRAM, SECRET, Tokens, guarded_broker, login, token_endpoint

WRONG = "not-the-pass-word"
(USER,) = USERS


@pytest.fixture(scope="module")
def tokens() -> Iterator[Tokens]:
    """An endpoint whose tokens live for less time than a test of their renewal takes."""
    with token_endpoint(lifetime=20.0) as tokens:
        yield tokens


@pytest.fixture(scope="module")
def guarded(tokens: Tokens, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaSet]:
    with guarded_broker(tmp_path_factory.mktemp("kafka"), tokens, USERS) as kafka:
        yield kafka


@pytest.fixture
def members(guarded: KafkaSet) -> Iterator[Members]:
    members = Members(guarded.settings)
    yield members
    members.end()


def entitled(guarded: KafkaSet, tokens: Tokens, mechanism: str, secret: str = "") -> dict[str, str]:
    """Return the settings of a client that is let in, or of one with another secret."""
    return login(guarded, tokens, mechanism, USER, secret or (USERS[USER] if mechanism in SCRAM else SECRET))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_client_gets_in(guarded: KafkaSet, tokens: Tokens, members: Members, mechanism: str) -> None:
    topic, group = guarded.topic(1), GroupId(guarded.group_id())
    settings = entitled(guarded, tokens, mechanism)
    member = members.make(group, topic=topic, settings=settings).joined()
    assert member.commit({log(group, topic): 1}).failure == ""
    with logs_at(settings) as logs, groups_at(settings) as groups:
        assert logs.bounds(logs_of(group, topic, 0))
        assert groups.committed(group).keys() == logs_of(group, topic, 0)


@pytest.mark.long
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_secret_is_told_at_once_and_never_shown(
    guarded: KafkaSet,
    tokens: Tokens,
    members: Members,
    mechanism: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    settings = entitled(guarded, tokens, mechanism, WRONG)
    member = members.make(guarded.group_id(), topic="t", settings=settings)
    member.consumer.join()
    member.heard.wait_for(lambda: any("_AUTHENTICATION" in str(text) for _, text in member.heard.all))
    told = [str(text) for _, text in member.heard.all]
    # Longer than a test may take: each finds out, and does not wait until its time is over.
    patient = timedelta(minutes=30)
    with logs_at(settings, patient) as logs, groups_at(settings, patient) as groups:
        for ask in (lambda: logs.bounds(logs_of("g", "t", 0)), logs.topics, lambda: groups.describe(GroupId("g"))):
            with pytest.raises(CredentialsRefused, match=r"do not let the client in.*sasl and ssl settings") as refused:
                ask()
            told += [str(refused.value), repr(refused.value)]
    reason = "invalid_client" if mechanism == "OAUTHBEARER" else "invalid credentials"
    assert all(reason in text for text in told if "do not let the client in" in text), told
    out = capfd.readouterr()
    assert not [text for text in (*told, caplog.text, out.out, out.err) if WRONG in text]


@pytest.mark.long
def test_tokens_are_renewed_and_every_client_stays_in_for_longer_than_one_lives(
    guarded: KafkaSet, tokens: Tokens, members: Members
) -> None:
    topic, group = guarded.topic(1), GroupId(guarded.group_id())
    settings = entitled(guarded, tokens, "OAUTHBEARER")
    member = members.make(group, topic=topic, settings=settings).joined()
    with logs_at(settings) as logs, groups_at(settings) as groups:
        given, offset = len(tokens.asked), 0
        while len(tokens.asked) < given + 9:
            offset += 1
            assert member.commit({log(group, topic): offset}).failure == ""
            assert logs.bounds(logs_of(group, topic, 0))
            assert [row.offset for row in groups.committed(group).values()] == [offset]
            renewed = len(tokens.asked)
            assert happened(lambda: len(tokens.asked) > renewed, within=WITHIN)  # noqa: B023 - called here
    assert not [what for what, _ in member.heard.all if what in {"revoked", "failed", "fenced"}], member.heard.all


@pytest.mark.long
def test_a_token_endpoint_that_is_away_is_named(guarded: KafkaSet, tokens: Tokens) -> None:
    settings = entitled(guarded, tokens, "OAUTHBEARER")
    settings["sasl.oauthbearer.token.endpoint.url"] = "http://127.0.0.1:1/token"
    with logs_at(settings, timedelta(seconds=10)) as logs, pytest.raises(KcrError, match=r"(?i)token") as refused:
        logs.topics()
    assert settings["sasl.oauthbearer.client.secret"] not in str(refused.value)
