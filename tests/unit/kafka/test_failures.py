from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_kcr.kafka import failures
from airflow_kcr.kafka.failures import Kind


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._TRANSPORT, Kind.RETRIABLE),
        (KafkaError._WAIT_COORD, Kind.RETRIABLE),
        (KafkaError.NOT_COORDINATOR, Kind.RETRIABLE),
        (KafkaError.UNKNOWN_MEMBER_ID, Kind.REJOIN),
        (KafkaError.ILLEGAL_GENERATION, Kind.REJOIN),
        (KafkaError.REBALANCE_IN_PROGRESS, Kind.REJOIN),
        (KafkaError._FATAL, Kind.FENCED),
        (KafkaError.FENCED_INSTANCE_ID, Kind.FENCED),
        (KafkaError._AUTHENTICATION, Kind.REFUSED),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, Kind.REFUSED),
        (KafkaError._UNKNOWN_PARTITION, Kind.ABSENT),
        (KafkaError.OFFSET_METADATA_TOO_LARGE, Kind.FINAL),
        (KafkaError.INVALID_SESSION_TIMEOUT, Kind.FINAL),
    ],
)
def test_the_code_alone_decides_what_can_be_done(code: int, kind: Kind) -> None:
    # The client's own flags say the opposite on purpose.
    error = KafkaError(code, "…", kind is not Kind.FENCED, kind is not Kind.RETRIABLE)
    assert failures.kind(error) is kind


def test_an_exception_without_an_error_is_one_all_the_same() -> None:
    assert failures.of(KafkaException("odd")).code() == KafkaError.UNKNOWN
    assert failures.of(KafkaException()).code() == KafkaError.UNKNOWN


def test_an_error_is_told_with_its_name_and_without_secrets() -> None:
    error = KafkaError(KafkaError._TRANSPORT, "user:hunter2@host failed")
    assert failures.described(error, {"sasl.password": "hunter2"}) == "_TRANSPORT (user:…@host failed)"


@pytest.mark.parametrize(
    ("text", "about_token", "refused"),
    [
        ('Failed to acquire SASL OAUTHBEARER token: {"error": "invalid_client"}', True, True),
        ('Failed to acquire SASL OAUTHBEARER token: {"error":"unauthorized_client"}', True, True),
        ("Failed to acquire SASL OAUTHBEARER token: Failed to connect to 127.0.0.1:1", True, False),
        ('Failed to acquire SASL OAUTHBEARER token: {"error": "temporarily_unavailable"}', True, False),
        ("SASL authentication error: invalid_client", False, False),
    ],
)
def test_no_token_is_a_refusal_only_where_the_endpoint_says_so(text: str, about_token: bool, refused: bool) -> None:
    error = KafkaError(KafkaError._AUTHENTICATION, text)
    assert (failures.is_about_token(error), failures.is_token_refused(error)) == (about_token, refused)
