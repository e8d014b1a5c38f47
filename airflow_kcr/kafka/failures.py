"""What an error of the Kafka client means.

The client's own `retriable()` and `fatal()` are False on nearly everything that was ever seen, so they are not asked.
"""

# ruff: noqa: SLF001 - the client marks the codes of its own errors with an underscore; they are part of its interface

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from airflow_kcr.kafka.logins import NOT_GIVEN
from airflow_kcr.kafka.settings import without_secrets


class Kind(StrEnum):
    """What can be done about an error."""

    RETRIABLE = "retriable"
    """It may heal by itself; what was asked may or may not have been done."""

    REJOIN = "rejoin"
    """The member is not in the group's present generation: nothing was done, and only the next assignment helps."""

    STALE = "stale"
    """The member's epoch was an old one: nothing was done. It learns the new one with its next heartbeat."""

    FENCED = "fenced"
    """Another process has this member's place, and the client is lost for good."""

    REFUSED = "refused"
    """Kafka does not know the client, or does not let it do this."""

    ABSENT = "absent"
    """There is no such topic or partition."""

    FINAL = "final"
    """The request is wrong; asking again gives the same answer."""


_CODES: Final[Mapping[Kind, tuple[int, ...]]] = {
    Kind.RETRIABLE: (
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
        KafkaError._WAIT_CACHE,
        KafkaError._RETRY,
        KafkaError._IN_PROGRESS,
        KafkaError._PREV_IN_PROGRESS,
        KafkaError._UNKNOWN_BROKER,
        KafkaError._NODE_UPDATE,
        KafkaError._DESTROY_BROKER,
        KafkaError._OUTDATED,
        KafkaError._INTR,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.LISTENER_NOT_FOUND,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_CONTROLLER,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
        KafkaError.REBOOTSTRAP_REQUIRED,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    ),
    Kind.REJOIN: (
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.MEMBER_ID_REQUIRED,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError._ASSIGNMENT_LOST,
    ),
    Kind.STALE: (KafkaError.STALE_MEMBER_EPOCH,),
    Kind.FENCED: (
        KafkaError._FATAL,
        KafkaError._FENCED,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.UNRELEASED_INSTANCE_ID,
    ),
    Kind.REFUSED: (
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
        KafkaError.SECURITY_DISABLED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        KafkaError.DELEGATION_TOKEN_EXPIRED,
    ),
    Kind.ABSENT: (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._NOENT,
    ),
}
_KINDS: Final[Mapping[int, Kind]] = {code: kind for kind, codes in _CODES.items() for code in codes}

IMPOSTER: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED})
"""The client is not let in at all; other refusals are about one thing that it wanted to do."""


_LACKING: Final = "OAUTHBEARER token"
_NO_CLIENT: Final = re.compile(
    r"\b(invalid_(?:request|client|grant|scope)|unauthorized_client|unsupported_grant_type|access_denied)\b"
)
"""What an OAuth server answers a client that it gives no token (RFC 6749, 5.2)."""


def is_about_token(error: KafkaError) -> bool:
    """Whether the client got no OAuth token; only its text tells this from a broker's refusal."""
    return error.code() == KafkaError._AUTHENTICATION and _LACKING in error.str()


def is_token_refused(error: KafkaError) -> bool:
    """Whether the token endpoint answered, and gives this client none; else it is away, or broken."""
    return is_about_token(error) and (NOT_GIVEN in error.str() or _NO_CLIENT.search(error.str()) is not None)


def kind(error: KafkaError) -> Kind:
    """Return what can be done about an error; a code that is not known here is final."""
    return _KINDS.get(error.code(), Kind.FINAL)


def of(exception: KafkaException) -> KafkaError:
    """Return the error that an exception carries."""
    error = exception.args[0] if exception.args else None
    return error if isinstance(error, KafkaError) else KafkaError(KafkaError.UNKNOWN, str(exception))


def described(error: KafkaError, settings: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return an error as text: Kafka's name for it, by which it is found in other people's documents, and its reason.

    Args:
        error: what the client reported.
        settings: of the client, whose secrets stay out of the text.
    """
    return f"{error.name()} ({without_secrets(error.str(), settings)})"
