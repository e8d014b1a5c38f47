"""The first record beyond a place: markers, aborted records and gaps are none."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow_kcr.embedded.processes import happened
from airflow_kcr.kafka import first_records
from airflow_kcr.protocol.observations import TimeAnswer
from airflow_kcr.protocol.values import GroupPartition, Offset
from tests.contract.kafka.members import log
from tests.support.kafka import Kafka, Record

if TYPE_CHECKING:
    import pytest

WITHIN = 30.0
NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)


def record(number: int, partition: int = 0) -> Record:
    at = NOON + timedelta(seconds=number)
    return Record(value=f"{number}".encode(), partition=partition, timestamp=at)


def asked(kafka: Kafka, places: Mapping[GroupPartition, int]) -> dict[GroupPartition, TimeAnswer]:
    return first_records.first_records(kafka.settings, {p: Offset(o) for p, o in places.items()})


def test_the_first_record_of_each_log_is_found_with_its_own_time(kafka: Kafka) -> None:
    topic = kafka.topic(2)
    kafka.produce(topic, [record(n, p) for n in range(50) for p in (0, 1)])
    assert asked(kafka, {log("g", topic, 0): 7, log("g", topic, 1): 49}) == {
        log("g", topic, 0): TimeAnswer(offset=Offset(7), found=NOON + timedelta(seconds=7)),
        log("g", topic, 1): TimeAnswer(offset=Offset(49), found=NOON + timedelta(seconds=49)),
    }


def test_an_idle_log_that_is_read_up_has_none(kafka: Kafka) -> None:
    topic = kafka.topic(2)
    kafka.produce(topic, [record(n) for n in range(3)])
    assert asked(kafka, {log("g", topic, 0): 3, log("g", topic, 1): 0}) == {
        log("g", topic, 0): TimeAnswer(offset=None),
        log("g", topic, 1): TimeAnswer(offset=None),
    }


def test_the_marker_of_a_transaction_and_what_was_aborted_are_no_records(kafka: Kafka) -> None:
    topic = kafka.topic(1)
    kafka.begin_transaction(topic, [record(0)]).commit()
    kafka.begin_transaction(topic, [record(n) for n in range(5)]).abort()
    # A record and its marker, five records and theirs: the broker writes markers after it has answered.
    assert happened(lambda: kafka.ends(topic)[0] == 8, within=WITHIN)
    assert asked(kafka, {log("g", topic): 1}) == {log("g", topic): TimeAnswer(offset=None)}
    assert asked(kafka, {log("g", topic): 0}) == {log("g", topic): TimeAnswer(offset=Offset(0), found=NOON)}


def test_what_is_open_is_not_there_yet(kafka: Kafka) -> None:
    topic = kafka.topic(1)
    open_ = kafka.begin_transaction(topic, [record(4)])
    assert asked(kafka, {log("g", topic): 0}) == {log("g", topic): TimeAnswer(offset=None)}
    open_.commit()
    assert happened(lambda: asked(kafka, {log("g", topic): 0})[log("g", topic)].offset == 0, within=WITHIN)


def test_a_gap_is_stepped_over(kafka: Kafka) -> None:
    """As compaction leaves them, an aborted transaction does: offsets that no reader gets."""
    topic = kafka.topic(1)
    kafka.begin_transaction(topic, [record(n) for n in range(5)]).abort()
    kafka.produce(topic, [record(60)])
    assert happened(lambda: kafka.ends(topic)[0] == 7, within=WITHIN)
    assert asked(kafka, {log("g", topic): 0}) == {
        log("g", topic): TimeAnswer(offset=Offset(6), found=NOON + timedelta(seconds=60))
    }


def test_a_log_that_is_not_there_is_not_known(kafka: Kafka) -> None:
    topic = kafka.topic(1)
    kafka.produce(topic, [record(0)])
    found = asked(kafka, {log("g", topic, 0): 0, log("g", topic, 7): 0, log("g", "no-such-topic"): 0})
    assert found.keys() == {log("g", topic, 0)}


def test_a_broker_that_is_away_answers_nothing_in_time() -> None:
    places = {log("g", "t"): Offset(0)}
    nowhere = {"bootstrap.servers": "127.0.0.1:9"}
    assert first_records.first_records(nowhere, places, timedelta(seconds=1)) == {}


def test_a_reader_of_one_record_is_in_no_group_and_commits_nothing(kafka: Kafka) -> None:
    topic = kafka.topic(1)
    kafka.produce(topic, [record(0)])
    asked(kafka, {log("g", topic): 0})
    assert kafka.committed("kcr-first-records") == {}
    assert not kafka.group("kcr-first-records").members


def test_of_more_logs_than_the_docs_say_the_first_are_read(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_records, "MOST", 1)
    topic = kafka.topic(2)
    assert asked(kafka, {log("g", topic, 1): 0, log("g", topic, 0): 0}).keys() == {log("g", topic, 1)}
