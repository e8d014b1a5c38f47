"""Members of real groups for the contract tests: what a listener heard, and waiting for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from airflow_kcr.kafka.control import ControlConsumer
from airflow_kcr.kafka.settings import member_settings, subscription
from airflow_kcr.ports import CommitAnswer
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.rules import Assignor, GroupProtocol, GroupRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import GroupId, GroupPartition, MemberId, Offset, RegionName, TopicName

REGION = RegionName("region")
WITHIN = 30.0
# The test brokers allow it; no less, or a busy machine throws members out.
SHORT = Timeouts(session=timedelta(seconds=4))
LONG_ENOUGH = timedelta(seconds=20)


ASSIGNORS = {GroupProtocol.CLASSIC: Assignor.RANGE, GroupProtocol.CONSUMER: Assignor.UNIFORM}


class Heard:
    """A listener that keeps everything, and waits."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.all: list[tuple[str, object]] = []
        self.releases = True
        self.release: Callable[[], None] = lambda: None

    def _note(self, what: str, detail: object = None) -> None:
        with self.changed:
            self.all.append((what, detail))
            self.changed.notify_all()

    def assigned(self, partitions: frozenset[GroupPartition]) -> None:
        self._note("assigned", partitions)

    def revoking(self, partitions: frozenset[GroupPartition], released: Callable[[], None]) -> None:
        self.release = released
        self._note("revoking", partitions)
        if self.releases:
            released()

    def revoked(self) -> None:
        self._note("revoked")

    def left(self) -> None:
        self._note("left")

    def fenced(self, why: str) -> None:
        self._note("fenced", why)

    def failed(self, error: Exception) -> None:
        self._note("failed", error)

    def troubled(self, why: str) -> None:
        self._note("troubled", why)

    def count(self, what: str) -> int:
        return sum(1 for kind, _ in self.all if kind == what)

    def wait(self, what: str, times: int = 1, within: float = WITHIN) -> object:
        """Wait until something was heard so often, and return what came with it the last time."""
        with self.changed:
            if not self.changed.wait_for(lambda: self.count(what) >= times, within):
                raise TimeoutError(f"{what} was not heard {times} time(s); heard: {self.all}")
            return [detail for kind, detail in self.all if kind == what][-1]

    def wait_for(self, condition: Callable[[], bool], within: float = WITHIN) -> None:
        with self.changed:
            if not self.changed.wait_for(condition, within):
                raise TimeoutError(f"heard: {self.all}")

    @property
    def holds(self) -> frozenset[GroupPartition]:
        """The partitions of the newest assignment; none after a revoke."""
        newest: frozenset[GroupPartition] = frozenset()
        for kind, detail in self.all:
            if kind == "assigned" and isinstance(detail, frozenset):
                newest = detail
            elif kind in ("revoked", "left", "fenced"):
                newest = frozenset()
        return newest


@dataclass(slots=True)
class Member:
    """A control consumer and what it told."""

    consumer: ControlConsumer
    heard: Heard
    group: GroupId

    def joined(self, times: int = 1) -> Member:
        self.consumer.join()
        self.heard.wait("assigned", times)
        return self

    def commit(
        self, offsets: Mapping[GroupPartition, int], *, metadata: str = "test", timeout: timedelta = LONG_ENOUGH
    ) -> CommitAnswer:
        """Commit and wait for the answer."""
        return self.begin_commit(offsets, metadata=metadata, timeout=timeout)()

    def begin_commit(
        self, offsets: Mapping[GroupPartition, int], *, metadata: str = "test", timeout: timedelta = LONG_ENOUGH
    ) -> Callable[[], CommitAnswer]:
        """Begin a commit; the result waits for its answer, and for its being the only one."""
        answers: list[CommitAnswer] = []
        there = threading.Event()

        def answered(answer: CommitAnswer) -> None:
            answers.append(answer)
            there.set()

        concrete = OffsetMap({p: Offset(o) for p, o in offsets.items()})
        self.consumer.commit(concrete, metadata, timeout, answered)

        def result() -> CommitAnswer:
            if not there.wait(timeout.total_seconds() + 5):
                raise TimeoutError("the commit was never answered")
            (answer,) = answers
            return answer

        return result

    def held(self, partitions: frozenset[GroupPartition]) -> dict[GroupPartition, int]:
        return {p: row.offset for p, row in self.consumer.committed(partitions, LONG_ENOUGH).items()}


def needs_kafka_4() -> None:
    """Skip the test of what brokers speak from Kafka 4.0 on, the consumer protocol and share groups, if these don't."""
    if ":3." in os.environ.get("KCR_KAFKA_JARS", ""):
        pytest.skip("the brokers speak it from Kafka 4.0 on")


@dataclass(slots=True)
class Members:
    """Makes members and ends them."""

    settings: Mapping[str, str]
    protocol: GroupProtocol = GroupProtocol.CLASSIC
    made: list[Member] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.protocol is GroupProtocol.CONSUMER:
            needs_kafka_4()

    def make(
        self,
        group: str,
        index: int = 0,
        *,
        topic: str | None = None,
        topics: tuple[str, ...] = (),
        pattern: str | None = None,
        exclude: tuple[str, ...] = (),
        assignor: Assignor | None = None,
        static: bool = True,
        settings: Mapping[str, str] | None = None,
        timeouts: Timeouts = SHORT,
    ) -> Member:
        rules = GroupRules(
            group_id=GroupId(group),
            topics=tuple(map(TopicName, topics or ((topic,) if topic else ()))),
            pattern=pattern,
            exclude=tuple(map(TopicName, exclude)),
            members=2,
            protocol=self.protocol,
            assignor=assignor or ASSIGNORS[self.protocol],
            static_membership=static,
        )
        built = member_settings(
            settings or self.settings,
            region=REGION,
            member=MemberId(rules.group_id, index),
            rules=rules,
            timeouts=timeouts,
        )
        heard = Heard()
        consumer = ControlConsumer(built, group=rules.group_id, topics=subscription(rules), listener=heard)
        member = Member(consumer, heard, rules.group_id)
        self.made.append(member)
        return member

    def end(self) -> None:
        for member in self.made:
            member.consumer.end(timedelta(seconds=10))


def logs_of(group: str, topic: str, *numbers: int) -> frozenset[GroupPartition]:
    return frozenset(GroupPartition(GroupId(group), TopicName(topic), number) for number in numbers)


def log(group: str, topic: str, number: int = 0) -> GroupPartition:
    return GroupPartition(GroupId(group), TopicName(topic), number)


@contextmanager
def timed() -> Iterator[Callable[[], float]]:
    """Measure; the result is the time so far, or at the end of the block."""
    began, ended = time.monotonic(), [0.0]
    yield lambda: (ended[0] or time.monotonic()) - began
    ended[0] = time.monotonic()
