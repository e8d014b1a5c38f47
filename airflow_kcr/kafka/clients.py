"""Kafka clients, made from settings: what the client library doesn't take is an error of the configuration.

Clients must be made after forking, never before: a child process must not touch one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.kafka.settings import without_secrets
from airflow_kcr.kafka_settings import KafkaSettings

OnError: TypeAlias = Callable[[KafkaError], None]
OnCommit: TypeAlias = Callable[[KafkaError | None, list[TopicPartition]], None]
T = TypeVar("T")

_log = logging.getLogger("airflow_kcr.kafka.librdkafka")
"""The client's own log; its records are made in the thread that polls."""


def make_consumer(settings: KafkaSettings, on_error: OnError, on_commit: OnCommit) -> Consumer:
    """Return a consumer that has not subscribed to anything.

    Args:
        settings: from `settings.member_settings`.
        on_error: hears of connections and authentication; called in the thread that polls.
        on_commit: hears the answers to asynchronous commits; called in the thread that polls.

    Raises:
        ConfigurationError: the client doesn't take the settings.
    """
    return _made(lambda: Consumer({**settings, "error_cb": on_error, "on_commit": on_commit}, logger=_log), settings)


def make_admin(settings: KafkaSettings, on_error: OnError) -> AdminClient:
    """Return an admin client.

    Args:
        settings: from `settings.admin_settings`.
        on_error: as for a consumer.

    Raises:
        ConfigurationError: the client doesn't take the settings.
    """
    return _made(lambda: AdminClient({**settings, "error_cb": on_error}), settings)  # type: ignore[dict-item]


def _made(make: Callable[[], T], settings: KafkaSettings) -> T:
    try:
        return make()
    except (KafkaException, TypeError, ValueError) as error:
        # The client's exception is no cause to be shown: it may repeat a value.
        why = without_secrets(str(error), settings)
    raise ConfigurationError(f"the Kafka client does not take its settings: {why}")
