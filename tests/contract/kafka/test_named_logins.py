"""MSK IAM and Google's login: every client of librdkafka gets in, renews its tokens, and is told why it doesn't."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from datetime import timedelta

import pytest
from confluent_kafka import KafkaError

from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import BrokerUnavailable, ConfigurationError, CredentialsRefused, KcrError, ToolMissing
from airflow_kcr.kafka.logins import MECHANISMS, Login, aws_region
from airflow_kcr.protocol.values import GroupId
from tests.contract.kafka.members import Members, log, logs_of
from tests.support.clouds import (
    ACCOUNT,
    ASSUMED,
    AUTHS,
    KEY,
    OTHER_ROLE,
    ROLE,
    Clouds,
    clouds,
    managed_broker,
    settings,
)
from tests.support.kafka import KafkaSet, groups_at, logs_at

LIFETIME = 20
WHO = {"msk_iam": KEY, "google": ACCOUNT}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clouds]:
    """Whose tokens of Google live for less time than a test of their renewal takes."""
    with clouds(tmp_path_factory.mktemp("clouds"), LIFETIME) as found:
        yield found


@pytest.fixture
def giver(served: Clouds, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clouds]:
    for name, value in served.environment().items():
        monkeypatch.setenv(name, value)
    yield served
    served.clock = timedelta()
    served.denied.clear()


@pytest.fixture(scope="module")
def managed(served: Clouds, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaSet]:
    with managed_broker(tmp_path_factory.mktemp("managed"), served) as kafka:
        yield kafka


@pytest.fixture
def members(managed: KafkaSet) -> Iterator[Members]:
    members = Members(managed.settings)
    yield members
    members.end()


@pytest.mark.parametrize("auth", AUTHS)
def test_every_client_gets_in(giver: Clouds, managed: KafkaSet, members: Members, auth: str) -> None:
    topic, group = managed.topic(1), GroupId(managed.group_id())
    own = settings(auth, managed.sasl_bootstrap_servers)
    member = members.make(group, topic=topic, settings=own).joined()
    assert member.commit({log(group, topic): 1}).failure == ""
    with logs_at(own) as logs, groups_at(own) as groups:
        assert logs.bounds(logs_of(group, topic, 0))
        assert groups.committed(group).keys() == logs_of(group, topic, 0)
    assert WHO[auth] in dict(giver.logins)


def test_a_role_is_assumed_in_the_cluster_s_region(giver: Clouds, managed: KafkaSet) -> None:
    own = settings("msk_iam", managed.sasl_bootstrap_servers)
    with logs_at({**own, "auth.role.arn": ROLE}) as logs:
        assert logs.topics() is not None
    assert giver.logins[-1][0] == ASSUMED
    with (
        logs_at({**own, "auth.role.arn": OTHER_ROLE}) as logs,
        pytest.raises(CredentialsRefused, match=r"auth: msk_iam: librdkafka.*AccessDenied: .*sts:AssumeRole"),
    ):
        logs.topics()


@pytest.mark.long
def test_tokens_are_renewed_also_of_clients_that_are_not_polled(
    giver: Clouds, managed: KafkaSet, members: Members
) -> None:
    topic, group = managed.topic(1), GroupId(managed.group_id())
    own = settings("google", managed.sasl_bootstrap_servers)
    member = members.make(group, topic=topic, settings=own).joined()
    with logs_at(own) as logs:
        assert logs.bounds(logs_of(group, topic, 0))
        asked, renewals = len(giver.given), 4
        # Meanwhile no question is asked of the admin client, whose process therefore does not poll it.
        assert happened(lambda: len(giver.given) >= asked + 2 * renewals, within=2 * renewals * LIFETIME)
        assert member.commit({log(group, topic): 2}).failure == ""
        assert logs.bounds(logs_of(group, topic, 0))
    assert not [what for what, _ in member.heard.all if what in {"revoked", "failed", "fenced"}], member.heard.all


def test_a_member_that_has_to_join_anew_waits_for_a_token(giver: Clouds, managed: KafkaSet, members: Members) -> None:
    own = settings("google", managed.sasl_bootstrap_servers)
    member = members.make(managed.group_id(), topic=managed.topic(1), settings=own, static=False).joined()
    member.consumer.close_keeping_slot()
    member.heard.wait("left")
    giver.clock = timedelta(hours=1)
    member.consumer.join()
    member.heard.wait_for(lambda: any("gets no token" in str(text) for _, text in member.heard.all))
    giver.clock = timedelta()
    member.heard.wait("assigned", 2)
    assert member.heard.count("failed") == 0


REFUSALS = {
    "denied": r"do not let the client in: .*Access denied.*auth: {auth}, by librdkafka, in this process,.*{grant}",
    "behind": r"(do not let the client in: .*Access denied|gets no token: .*reasonable timeframe).*",
}


@pytest.mark.parametrize("auth", AUTHS)
@pytest.mark.parametrize("why", ["denied", pytest.param("behind", marks=pytest.mark.long)])
def test_a_refusal_says_which_side_and_what_to_grant_and_shows_no_token(
    giver: Clouds,
    managed: KafkaSet,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    auth: str,
    why: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    giver.denied = {KEY, ACCOUNT} if why == "denied" else set()
    giver.clock = timedelta(hours=1) if why == "behind" else timedelta()
    expected = REFUSALS[why].format(auth=auth, grant=MECHANISMS[auth].grant.partition(",")[0])
    # Longer than a test may take: it is found out at once.
    with (
        logs_at(settings(auth, managed.sasl_bootstrap_servers), timedelta(minutes=30)) as logs,
        pytest.raises(CredentialsRefused, match=expected) as refused,
    ):
        logs.topics()
    out = capfd.readouterr()
    told = (str(refused.value), repr(refused.value), caplog.text, out.out, out.err)
    assert not [secret for secret in giver.secrets for text in told if secret in text]


@pytest.mark.parametrize("auth", AUTHS)
def test_a_library_that_is_missing_is_named_with_what_installs_it(auth: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("aws_msk_iam_sasl_signer", "google.auth"):
        monkeypatch.setitem(sys.modules, module, None)
    extra = MECHANISMS[auth].extra
    with pytest.raises(ToolMissing, match=rf"auth: {auth} needs .*librdkafka.*pip install 'airflow-kcr\[{extra}\]'"):
        Login(MECHANISMS[auth], settings(auth, "b:9092"))


def test_who_gives_tokens_and_is_away_is_no_refusal(giver: Clouds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1")
    giver.key_file.write_text(giver.key_file.read_text().replace(giver.address, "http://127.0.0.1:1"))
    for auth, role in (("msk_iam", {"auth.role.arn": ROLE}), ("google", {})):
        with pytest.raises(BrokerUnavailable, match=rf"auth: {auth}: librdkafka.*does not answer"):
            Login(MECHANISMS[auth], {**settings(auth, "b:9092"), **role})


def test_a_token_that_can_t_be_renewed_is_explained_where_the_client_only_says_so(
    giver: Clouds, caplog: pytest.LogCaptureFixture
) -> None:
    login = Login(MECHANISMS["google"], {})
    assert login("")[2] == ACCOUNT
    giver.clock = timedelta(hours=1)
    with pytest.raises(KcrError):
        login("")
    said = "Failed to acquire SASL OAUTHBEARER token: OAuth callback raised exception"
    explained = login.explained(KafkaError(KafkaError._AUTHENTICATION, said)).str()
    assert "gives this client no token: invalid_grant" in explained
    assert "gets no token" in caplog.text
    other = KafkaError(KafkaError._TRANSPORT, "away")
    assert login.explained(other) is other


def test_the_region_is_that_of_the_addresses_or_has_to_be_written() -> None:
    for host in (
        "b-1.f.x1.c2.kafka.us-east-1.amazonaws.com:9098",
        "boot-x.c1.kafka-serverless.us-east-1.amazonaws.com",
    ):
        assert aws_region({"bootstrap.servers": host}) == "us-east-1"
    assert aws_region({"bootstrap.servers": "b:1", "auth.region": "eu-north-1"}) == "eu-north-1"
    with pytest.raises(ConfigurationError, match=r"write auth\.region"):
        aws_region({"bootstrap.servers": "b:9098"})
