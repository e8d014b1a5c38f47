"""What the brokers say about logs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NoReturn, TypeVar

import pytest
from confluent_kafka.admin import AdminClient

from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import BrokerUnavailable
from airflow_kcr.kafka import questions
from airflow_kcr.kafka.admin_process import AdminProcess
from airflow_kcr.kafka.logs import BrokerLogs
from airflow_kcr.protocol.observations import TimeAnswer
from airflow_kcr.protocol.values import GroupId, GroupPartition, Offset, TopicName
from tests.conftest import StartKafka
from tests.contract.kafka.members import WITHIN, log, logs_of
from tests.support.kafka import Kafka, KafkaSet, Record, groups_at, logs_at

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
MS = timedelta(milliseconds=1)
A = TypeVar("A")


def test_brokers_are_asked_without_an_admin_client_in_this_process(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group = kafka.topic(1), GroupId(kafka.group_id())
    asked = logs_of("g", topic, 0, 1)

    def made(*_: object, **__: object) -> NoReturn:
        raise AssertionError("an admin client, where members may live")

    monkeypatch.setattr(AdminClient, "__init__", made)
    with logs_at(kafka.settings) as logs, groups_at(kafka.settings) as groups:
        assert logs.bounds(asked).keys() == logs.stable_ends(asked).keys() == logs_of("g", topic, 0)
        assert logs.high_watermarks(asked) == {log("g", topic): 0}
        assert logs.first_at_or_after(dict.fromkeys(asked, NOON)) == {log("g", topic): TimeAnswer(offset=None)}
        assert logs.topics().keys() >= logs.topics([TopicName(topic)]).keys() == {topic}
        assert logs.cluster_id()
        assert groups.describe(group).state == "dead"
        assert groups.committed(group) == {}


def test_boundaries_are_start_and_end_with_topic_id_and_leader_epoch(kafka: Kafka, logs: BrokerLogs) -> None:
    topic = kafka.topic(2)
    kafka.fill(topic, {0: 10})
    kafka.delete_records(topic, {0: 4})
    found = logs.bounds(logs_of("g", topic, 0, 1))
    assert {p.partition: (b.start, b.end) for p, b in found.items()} == {0: (4, 10), 1: (0, 0)}
    assert {b.topic_id for b in found.values()} == {kafka.topic_id(topic)}
    assert found[log("g", topic)].leader_epoch >= 0


def test_the_end_is_the_last_stable_offset(kafka: Kafka, logs: BrokerLogs) -> None:
    topic = kafka.topic(1)
    kafka.fill(topic, {0: 3})
    transaction = kafka.begin_transaction(topic, [b"open"])
    kafka.fill(topic, {0: 2})
    assert logs.bounds(logs_of("g", topic, 0))[log("g", topic)].end == 3
    transaction.commit()
    # Three records, one in the transaction, its marker, two after it.
    # The broker says yes to a commit before its markers are written.
    assert happened(lambda: logs.bounds(logs_of("g", topic, 0))[log("g", topic)].end == 7, within=WITHIN)


def test_the_high_watermark_counts_an_open_transaction(kafka: Kafka, logs: BrokerLogs) -> None:
    topic = kafka.topic(2)
    kafka.fill(topic, {0: 3, 1: 3})
    transaction = kafka.begin_transaction(topic, [Record(value=b"open", partition=0)])
    kafka.fill(topic, {0: 2})
    asked = logs_of("g", topic, 0, 1) | logs_of("g", "no-such-topic", 0)
    assert logs.high_watermarks(asked) == {log("g", topic, 0): 6, log("g", topic, 1): 3}
    assert logs.high_watermarks([]) == {}
    transaction.abort()
    assert happened(lambda: logs.bounds(logs_of("g", topic, 0))[log("g", topic)].end == 7, within=WITHIN)
    assert logs.high_watermarks(logs_of("g", topic, 0)) == {log("g", topic, 0): 7}


def test_a_log_that_the_cluster_does_not_have_is_absent(kafka: Kafka, logs: BrokerLogs) -> None:
    topic = kafka.topic(1)
    asked = logs_of("g", topic, 0, 1) | logs_of("g", "no-such-topic", 0)
    assert logs.bounds(asked).keys() == logs_of("g", topic, 0)
    assert logs.first_at_or_after(dict.fromkeys(asked, NOON)).keys() == logs_of("g", topic, 0)
    assert logs.bounds([]) == {}


def test_a_topic_that_is_gone_does_not_have_all_topics_listed_each_time(
    kafka: Kafka, logs: BrokerLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.topic(1)
    asked = logs_of("g", topic, 0) | logs_of("g", "no-such-topic", 0)
    listed = list[None]()
    monkeypatch.setattr(logs, "_partition_counts", lambda: listed.append(None))
    for _ in range(3):
        assert logs.stable_ends(asked).keys() == logs_of("g", topic, 0)
    assert not listed


def ends_together(
    logs: BrokerLogs, *members: frozenset[GroupPartition], awaited: int
) -> list[dict[GroupPartition, Offset]]:
    """Have members ask for their ends at the same moment, and return what each was answered; nothing, if it failed.

    Args:
        logs: the cluster's.
        members: the logs of each.
        awaited: of how many logs the first waits to hear before it asks.
    """

    def gather() -> None:
        assert happened(lambda: logs._ends._open is not None and len(logs._ends._open.logs) == awaited, within=WITHIN)

    def ends(partitions: frozenset[GroupPartition]) -> dict[GroupPartition, Offset]:
        try:
            return logs.stable_ends(partitions)
        except BrokerUnavailable:
            return {}

    logs._ends._gather = gather
    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(ends, members))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of how many logs each request for ends was, in their order."""
    sizes, read = list[int](), AdminProcess.read

    def counted(process: AdminProcess, question: partial[A], within: timedelta | None = None, *, topics: int = 0) -> A:
        if question.func is questions.offsets:
            sizes.append(len(question.keywords["places"]))
        return read(process, question, within, topics=topics)

    monkeypatch.setattr(AdminProcess, "read", counted)
    return sizes


def test_ends_that_are_asked_for_at_the_same_moment_are_read_once_and_each_asker_gets_its_own(
    kafka: Kafka, logs: BrokerLogs, asked: list[int]
) -> None:
    topics = [kafka.topic(1) for _ in range(3)]
    for number, topic in enumerate(topics):
        kafka.fill(topic, {0: number})
    members = [logs_of("g", topic, 0) for topic in topics]
    found = ends_together(logs, *members, awaited=3)
    assert found == [{log("g", topic): number} for number, topic in enumerate(topics)]
    assert asked == [3]
    # One of a topic that is gone: the others are answered all the same, and from then on without it.
    members[0] = logs_of("g", "no-such-topic", 0)
    assert ends_together(logs, *members, awaited=3) == [{}, *found[1:]]
    asked.clear()
    assert ends_together(logs, *members, awaited=2) == [{}, *found[1:]]
    assert sorted(asked) == [1, 2]


@pytest.mark.long
def test_a_log_without_a_leader_keeps_only_its_own_member_waiting(kafka_set: StartKafka, asked: list[int]) -> None:
    two = kafka_set(2, settings={"default.replication.factor": "1"})
    topic = two.topic(4)
    two.fill(topic, dict.fromkeys(range(4), 3))
    of_leader = {n: [p for p in range(4) if two.leader(topic, p).node_id == n] for n in (1, 2)}
    (first, second), dead = of_leader[1], of_leader[2]
    members = [logs_of("g", topic, *dead), logs_of("g", topic, first), logs_of("g", topic, second)]
    with logs_at(two.settings, timedelta(seconds=5)) as logs:
        assert ends_together(logs, *members, awaited=4) == [dict.fromkeys(one, 3) for one in members]
        two.broker(2).kill()
        for awaited in (4, 2):
            asked.clear()
            found = ends_together(logs, *members, awaited=awaited)
            # Of the dead broker's logs nothing is known, by an error or, once that is in the metadata, without one.
            assert found == [{}, *(dict.fromkeys(one, 3) for one in members[1:])]
        # By now the others are not asked for together with those.
        assert set(asked) == {2}


def test_the_same_log_of_two_groups_is_answered_for_both(kafka: Kafka, logs: BrokerLogs) -> None:
    topic = kafka.topic(1)
    assert logs.bounds(logs_of("a", topic, 0) | logs_of("b", topic, 0)).keys() == {log("a", topic), log("b", topic)}


def test_a_topic_that_was_made_again_has_another_id(kafka: Kafka, logs: BrokerLogs) -> None:
    topic = kafka.topic(1)
    kafka.fill(topic, {0: 3})
    before = logs.bounds(logs_of("g", topic, 0))[log("g", topic)]
    kafka.delete_topic(topic)
    kafka.topic(1, name=topic)
    after = logs.bounds(logs_of("g", topic, 0))[log("g", topic)]
    assert before.topic_id != after.topic_id
    assert (before.end, after.end) == (3, 0)


@pytest.mark.parametrize("known", [True, False])
def test_offsets_and_id_are_of_one_topic_however_it_is_made_again_in_between(
    kafka: Kafka, process: AdminProcess, logs: BrokerLogs, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    topic = kafka.topic(1)
    kafka.fill(topic, {0: 3})
    old = kafka.topic_id(topic)
    if known:
        logs.bounds(logs_of("g", topic, 0))
    read, made = process.read, list[str]()

    def remade(question: partial[A], within: timedelta | None = None, *, topics: int = 0) -> A:
        if question.func is questions.topics and not made:
            # What was found of the old log is here by now.
            kafka.delete_topic(topic)
            kafka.topic(1, name=topic)
            kafka.fill(topic, {0: 5})
            made.append(kafka.topic_id(topic))
        return read(question, within, topics=topics)

    monkeypatch.setattr(process, "read", remade)
    found = logs.bounds(logs_of("g", topic, 0))[log("g", topic)]
    assert (found.topic_id, found.end) == (made[0], 5)
    assert found.topic_id != old


def test_added_partitions_are_seen_at_once(kafka: Kafka, logs: BrokerLogs) -> None:
    topic = kafka.topic(1)
    logs.bounds(logs_of("g", topic, 0))
    kafka.add_partitions(topic, 2)
    # The client remembers one partition for minutes.
    assert logs.bounds(logs_of("g", topic, 0, 1, 2)).keys() == logs_of("g", topic, 0, 1)
    kafka.add_partitions(topic, 3)
    assert logs.first_at_or_after({log("g", topic, 2): NOON}).keys() == logs_of("g", topic, 2)


def test_a_time_finds_the_first_record_at_or_after_it_with_its_own_timestamp(kafka: Kafka, logs: BrokerLogs) -> None:
    topic = kafka.topic(1)
    stamps = [NOON, NOON + 5 * MS, NOON + 3 * MS, NOON + 9 * MS]
    kafka.produce(topic, [Record(value=b"x", timestamp=stamp) for stamp in stamps])
    at = log("g", topic)

    def ask(instant: datetime) -> TimeAnswer:
        return logs.first_at_or_after({at: instant})[at]

    assert ask(NOON) == TimeAnswer(offset=0, found=NOON)  # type: ignore[arg-type]
    # In log order: the later record that is closer comes after it.
    assert ask(NOON + 2 * MS) == TimeAnswer(offset=1, found=NOON + 5 * MS)  # type: ignore[arg-type]
    # Between two milliseconds, the later one counts: a record just before the instant is not after it.
    assert ask(NOON + timedelta(microseconds=1)) == TimeAnswer(offset=1, found=NOON + 5 * MS)  # type: ignore[arg-type]
    assert ask(NOON + 10 * MS) == TimeAnswer(offset=None)
    # Kafka reads negative times as words.
    assert ask(datetime(1969, 12, 31, tzinfo=UTC)) == TimeAnswer(offset=0, found=NOON)  # type: ignore[arg-type]


def test_a_time_in_an_empty_log_finds_nothing(kafka: Kafka, logs: BrokerLogs) -> None:
    topic = kafka.topic(1)
    assert logs.first_at_or_after({log("g", topic): NOON}) == {log("g", topic): TimeAnswer(offset=None)}


def test_a_time_within_an_open_transaction_finds_nothing_yet(kafka: Kafka, logs: BrokerLogs) -> None:
    topic = kafka.topic(1)
    transaction = kafka.begin_transaction(topic, [Record(value=b"open", timestamp=NOON)])
    assert logs.first_at_or_after({log("g", topic): NOON}) == {log("g", topic): TimeAnswer(offset=None)}
    transaction.commit()
    at = log("g", topic)
    assert happened(lambda: logs.first_at_or_after({at: NOON})[at].found == NOON, within=WITHIN)


def test_every_partition_may_have_its_own_instant(kafka: Kafka, logs: BrokerLogs) -> None:
    topic = kafka.topic(2)
    kafka.produce(topic, [Record(value=b"x", partition=p, timestamp=NOON + p * MS) for p in (0, 1) for _ in range(2)])
    answers = logs.first_at_or_after({log("g", topic, 0): NOON + MS, log("g", topic, 1): NOON + MS})
    assert [answers[log("g", topic, n)].offset for n in (0, 1)] == [None, 0]
    answers = logs.first_at_or_after({log("g", topic, 0): NOON, log("g", topic, 1): NOON + 2 * MS})
    assert [answers[log("g", topic, n)].offset for n in (0, 1)] == [0, None]


def test_topics_are_listed_without_the_brokers_own(kafka: Kafka, logs: BrokerLogs) -> None:
    topic = kafka.topic(3)
    found = logs.topics()
    assert found[topic] == 3  # type: ignore[index]
    assert not [name for name in found if name.startswith("__consumer")]


def test_topics_are_counted_by_name_as_they_are_now(kafka: Kafka, logs: BrokerLogs) -> None:
    topic, other = kafka.topic(2), kafka.topic(1)
    asked = (TopicName(topic), TopicName("no-such-topic"))
    assert logs.topics(asked) == {topic: 2}
    kafka.add_partitions(topic, 4)
    assert logs.topics(asked) == {topic: 4}
    assert logs.topics((TopicName(topic), TopicName(other))) == {topic: 4, other: 1}


def test_the_cluster_says_what_it_is(kafka: Kafka, logs: BrokerLogs) -> None:
    assert logs.cluster_id() == kafka.admin.list_topics(timeout=10).cluster_id


@pytest.mark.parametrize(
    "ask",
    [
        lambda logs: logs.bounds(logs_of("g", "t", 0)),
        lambda logs: logs.topics(),
        lambda logs: logs.topics((TopicName("t"),)),
    ],
    ids=["bounds", "all topics", "a topic"],
)
def test_an_unreachable_broker_is_named_with_how_long_it_was_tried(ask: Callable[[BrokerLogs], object]) -> None:
    # A busy machine may not hear in that second that no server listens there.
    reason = r"_TRANSPORT .*Connection refused|REQUEST_TIMED_OUT"
    with (
        logs_at({"bootstrap.servers": "127.0.0.1:1"}, timedelta(seconds=1)) as logs,
        pytest.raises(BrokerUnavailable, match=rf"tried 127\.0\.0\.1:1 for 1\.0 s; ({reason})"),
    ):
        ask(logs)


def test_a_broker_that_hangs_is_given_up_in_time_and_answers_when_it_is_back(broken: KafkaSet) -> None:
    topic = broken.topic(1)
    with logs_at(broken.settings, timedelta(seconds=2)) as logs:
        assert logs.bounds(logs_of("g", topic, 0))
        broken.broker(1).suspend()
        with pytest.raises(BrokerUnavailable, match=r"for 2\.0 s"):
            logs.bounds(logs_of("g", topic, 0))
        broken.broker(1).resume()
    with logs_at(broken.settings, timedelta(seconds=20)) as patient:
        assert patient.bounds(logs_of("g", topic, 0))


@pytest.mark.long
def test_logs_whose_leader_died_are_answered_by_the_next_one(kafka_set: StartKafka) -> None:
    # The client goes on asking whom it knows; and what it then hands out as a result is no offset.
    two = kafka_set(2)
    topic = two.topic(4)
    two.fill(topic, dict.fromkeys(range(4), 3))
    asked = logs_of("g", topic, 0, 1, 2, 3)
    with logs_at(two.settings, timedelta(seconds=60)) as logs:
        assert {b.end for b in logs.bounds(asked).values()} == {3}
        assert {two.leader(topic, number).node_id for number in range(4)} == {1, 2}
        two.broker(2).kill()
        found = logs.bounds(asked)
    assert {p: (b.start, b.end) for p, b in found.items()} == dict.fromkeys(asked, (0, 3))
    assert {b.leader_epoch > 0 for b in found.values()} == {True, False}
