"""A static client that lost its session with a commit on its way, against clients that do what the test says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from airflow_kcr.kafka import group_consumer
from airflow_kcr.kafka.control import ControlConsumer
from airflow_kcr.ports import CommitAnswer
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.values import GroupId, GroupPartition, Offset, TopicName
from airflow_kcr.settings import KafkaSettings
from tests.contract.kafka.members import Heard

G = GroupId("g")
P0 = GroupPartition(G, TopicName("t"), 0)
SOON = timedelta(seconds=4)


@dataclass
class Client:
    """As much of a client as a group consumer uses.

    What happens to it is put into `next`, for the thread that polls.
    """

    callbacks: dict[str, Callable[..., None]] = field(default_factory=dict)
    next: list[str] = field(default_factory=list)
    held: int | None = None
    commits: int = 0
    polled: int = 0
    closed: threading.Event = field(default_factory=threading.Event)

    def subscribe(self, topics: list[str], **callbacks: Callable[..., None]) -> None:
        self.callbacks = callbacks
        self.next.append("on_assign")

    def poll(self, wait: float) -> Message | None:
        self.polled += 1
        if self.next:
            self.callbacks[self.next.pop(0)](self, [TopicPartition("t", 0)])
        return None

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> None:
        self.commits += 1

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [TopicPartition("t", 0, 5, metadata="m")]

    def close(self) -> None:
        self.closed.set()

    def assign(self, partitions: list[TopicPartition]) -> None: ...

    def pause(self, partitions: list[TopicPartition]) -> None: ...

    def unassign(self) -> None: ...


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """The clients that were made, in order."""
    made: list[Client] = []

    def make(
        settings: KafkaSettings,
        on_error: Callable[[KafkaError], None],
        on_commit: Callable[[KafkaError | None, list[TopicPartition]], None],
    ) -> Client | Consumer:
        made.append(Client())
        return made[-1]

    monkeypatch.setattr(group_consumer, "make_consumer", make)
    return made


def committing(settings: dict[str, str], heard: Heard, answers: list[CommitAnswer]) -> ControlConsumer:
    """A consumer that has sent a commit which is not answered."""
    consumer = ControlConsumer(KafkaSettings(settings), group=G, topics=["t"], listener=heard)
    consumer.join()
    heard.wait("assigned")

    def answered(answer: CommitAnswer) -> None:
        with heard.changed:
            answers.append(answer)
            heard.changed.notify_all()

    consumer.commit(OffsetMap({P0: Offset(5)}), "m", SOON, answered)
    return consumer


def until(condition: Callable[[], bool], heard: Heard) -> None:
    """Wait for what the event thread does without telling."""
    with heard.changed:
        for _ in range(1000):
            if condition():
                return
            heard.changed.wait(0.01)
    raise TimeoutError


def test_a_static_client_that_lost_its_session_with_a_commit_on_its_way_is_exchanged_and_the_commit_read(
    clients: list[Client],
) -> None:
    heard, answers = Heard(), list[CommitAnswer]()
    consumer = committing({"group.instance.id": "i"}, heard, answers)
    until(lambda: clients[0].commits == 1, heard)
    clients[0].next.append("on_lost")
    heard.wait("assigned", 2)
    polled = clients[0].polled
    heard.wait_for(lambda: bool(answers))
    assert len(clients) == 2
    # Neither polled nor closed: it joins again by itself, and an assignment that comes while it closes would hang it.
    assert (clients[0].polled, clients[0].closed.is_set()) == (polled, False)
    # The second client has not sent it again; what Kafka holds is what counts.
    assert (clients[1].commits, answers[0].failure, answers[0].held[P0].offset) == (0, "", 5)
    assert heard.count("fenced") == 0
    consumer.end(SOON)


def test_a_dynamic_one_and_one_without_a_commit_on_its_way_join_again_by_themselves(clients: list[Client]) -> None:
    heard, answers = Heard(), list[CommitAnswer]()
    dynamic = committing({}, heard, answers)
    until(lambda: clients[0].commits == 1, heard)
    clients[0].next += ["on_lost", "on_assign"]
    heard.wait("assigned", 2)
    idle_heard = Heard()
    idle = ControlConsumer(KafkaSettings({"group.instance.id": "i"}), group=G, topics=["t"], listener=idle_heard)
    idle.join()
    idle_heard.wait("assigned")
    clients[1].next += ["on_lost", "on_assign"]
    idle_heard.wait("assigned", 2)
    assert len(clients) == 2
    assert not any(client.closed.is_set() for client in clients)
    dynamic.end(SOON)
    idle.end(SOON)


def test_a_client_is_closed_after_the_assignment_that_is_on_its_way_and_not_before_it(clients: list[Client]) -> None:
    taken = group_consumer.GroupConsumer(KafkaSettings({}), G)
    taken.subscribe(["t"])
    assert taken.close(SOON)
    assert (clients[0].next, taken.assigned) == ([], frozenset({P0}))
    assert clients[0].closed.is_set()


def test_a_client_whose_assignment_does_not_come_in_time_is_left_behind_open(clients: list[Client]) -> None:
    waiting = group_consumer.GroupConsumer(KafkaSettings({}), G)
    waiting.subscribe(["t"])
    clients[0].next.clear()
    assert not waiting.close(timedelta(milliseconds=50))
    assert not clients[0].closed.is_set()


def test_a_client_that_was_never_in_a_group_or_is_fenced_is_closed_at_once(clients: list[Client]) -> None:
    assert group_consumer.GroupConsumer(KafkaSettings({}), G).close(SOON)
    fenced = group_consumer.GroupConsumer(KafkaSettings({}), G)
    fenced.subscribe(["t"])
    clients[1].next.clear()
    fenced.fatal = True
    assert fenced.close(SOON)
    assert [client.closed.is_set() for client in clients] == [True, True]
