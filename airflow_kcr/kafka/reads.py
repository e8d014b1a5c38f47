"""Looks at a group's committed offsets that other threads wait for: each in slices, so that the member stays polled."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from confluent_kafka import KafkaException

from airflow_kcr.errors import BrokerUnavailable, CredentialsRefused, KcrError
from airflow_kcr.kafka import failures
from airflow_kcr.kafka.commits import READ_SLICE, Committing
from airflow_kcr.kafka.failures import Kind
from airflow_kcr.kafka.settings import bootstrap_servers, without_secrets
from airflow_kcr.kafka_settings import KafkaSettings
from airflow_kcr.ports import CommittedOffset
from airflow_kcr.protocol.values import GroupId, GroupPartition


@dataclass(frozen=True, slots=True)
class Read:
    """One look, wanted until `by` (monotonic seconds)."""

    partitions: frozenset[GroupPartition]
    by: float
    result: Future[Mapping[GroupPartition, CommittedOffset]] = field(default_factory=Future)


class Reads:
    """The looks that are wanted, oldest first; used by the event thread, but for `unavailable`.

    Args:
        settings: for the addresses in messages.
        group: whose offsets.
    """

    def __init__(self, settings: KafkaSettings, group: GroupId) -> None:
        self._settings, self._group = settings, group
        self._queue: deque[Read] = deque()

    @property
    def busy(self) -> bool:
        """Whether somebody waits."""
        return bool(self._queue)

    def add(self, read: Read) -> None:
        """Take a look that is wanted."""
        self._queue.append(read)

    def give_up(self, why: str) -> None:
        """Tell everybody who waits that there will be no answer."""
        while self._queue:
            _settle(self._queue.popleft(), self.unavailable(why))

    def step(self, group_consumer: Committing) -> None:
        """Look once, for the oldest."""
        if self._queue:
            outcome = self._look(group_consumer, self._queue[0])
            if outcome is not None:
                _settle(self._queue.popleft(), outcome)

    def unavailable(self, why: str) -> BrokerUnavailable:
        """Return the error for a look without an answer."""
        return BrokerUnavailable(
            f"the brokers at {bootstrap_servers(self._settings)} did not tell the committed offsets of group "
            f"{self._group}: {why}"
        )

    def _look(
        self, group_consumer: Committing, read: Read
    ) -> Mapping[GroupPartition, CommittedOffset] | KcrError | None:
        """Return the answer, or an error that does not heal, or None: look again."""
        left = read.by - time.monotonic()
        if left <= 0:
            return self.unavailable("no answer in time")
        try:
            return group_consumer.committed(read.partitions, min(READ_SLICE, timedelta(seconds=left)))
        except KafkaException as exception:
            error = failures.of(exception)
        told = failures.told(error, lambda text: without_secrets(text, self._settings))
        match failures.kind(error):
            case Kind.RETRIABLE:
                return None
            case Kind.REFUSED:
                return CredentialsRefused(f"reading the committed offsets of group {self._group}: {told}")
            case _:
                return self.unavailable(told)


def _settle(read: Read, outcome: Mapping[GroupPartition, CommittedOffset] | KcrError) -> None:
    # Whoever waited may have given up in this very moment.
    with suppress(InvalidStateError):
        if isinstance(outcome, KcrError):
            read.result.set_exception(outcome)
        else:
            read.result.set_result(outcome)
