"""A member's place in its group, while brokers and processes fail."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import BrokerUnavailable
from airflow_kcr.kafka.groups import Groups
from airflow_kcr.protocol.rules import GroupProtocol
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import GroupId
from tests.contract.kafka.members import Members, log, logs_of, timed
from tests.support.kafka import Kafka, KafkaSet, groups_at, logs_at

TOP = Path(__file__).parents[3]


@contextmanager
def member_process(
    kafka: Kafka, group: str, topic: str, index: int, protocol: GroupProtocol
) -> Iterator[subprocess.Popen[str]]:
    arguments = [kafka.bootstrap_servers, group, topic, str(index), protocol]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.contract.kafka.zombie", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=TOP,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.long
def test_a_zombie_neither_commits_what_it_lost_nor_fences_itself(
    kafka: Kafka, members: Members, protocol: GroupProtocol
) -> None:
    topic, group = kafka.topic(4), kafka.group_id()
    with member_process(kafka, group, topic, 1, protocol) as zombie:
        assert zombie.stdin is not None
        assert zombie.stdout is not None
        assert zombie.stdout.readline().startswith("assigned")
        other = members.make(group, 0, topic=topic).joined()
        zombie.send_signal(signal.SIGSTOP)
        other.heard.wait_for(lambda: len(other.heard.holds) == 4, within=20)
        assert other.commit(dict.fromkeys(other.heard.holds, 50)).failure == ""
        zombie.stdin.write("commit\n")
        zombie.stdin.flush()
        zombie.send_signal(signal.SIGCONT)
        outcome, again, fenced, *why = zombie.stdout.readline().split(maxsplit=3)
    # It held all four, and gets two of them back: nothing of the late commit may be written.
    assert (outcome, fenced) == ("failed", "0"), why
    assert kafka.committed(group) == {(topic, n): 50 for n in range(4)}
    assert int(again) <= 1


@pytest.mark.parametrize("protocol", [GroupProtocol.CLASSIC])
def test_a_commit_between_revoke_and_assignment_waits_for_the_assignment(
    kafka: Kafka, members: Members, protocol: GroupProtocol
) -> None:
    topic, group = kafka.topic(4), kafka.group_id()
    first = members.make(group, 0, topic=topic).joined()
    with member_process(kafka, group, topic, 1, protocol) as silent:
        assert silent.stdout is not None
        silent.stdout.readline()
        first.heard.wait_for(lambda: len(first.heard.holds) == 2)
        # A rebalance that can't end before the silent member's session does.
        silent.send_signal(signal.SIGSTOP)
        third = members.make(group, 2, topic=topic)
        third.consumer.join()
        first.heard.wait_for(lambda: not first.heard.holds)
        assigned = first.heard.count("assigned")
        result = first.begin_commit({log(group, topic, 0): 5})
        answer = result()
    assert answer.failure == ""
    # Sent before, it would have waited behind the rebalance and been refused, or have fenced the member.
    assert first.heard.count("assigned") > assigned
    assert first.heard.count("fenced") == 0
    assert kafka.committed(group) == {(topic, 0): 5}


def test_a_client_that_closes_while_its_assignment_is_on_its_way_does_not_hang(
    kafka: Kafka, groups: Groups, protocol: GroupProtocol
) -> None:
    # Seen once on a busy machine. It hangs with the interpreter's lock, so no time limit of its process would end it.
    topic, group = kafka.topic(2), kafka.group_id()
    closing = subprocess.Popen(
        [sys.executable, "-m", "tests.contract.kafka.closing", kafka.bootstrap_servers, group, topic, protocol],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=TOP,
    )
    try:
        assert closing.stdout is not None
        assert closing.stdout.readline() == "subscribed\n"
        # The broker has given the assignment out, and no consumer has polled for it.
        assert happened(lambda: groups.describe(GroupId(group)).state == "stable", within=30)
        told, _ = closing.communicate("close\n", timeout=500)
        assert told == "taken in MainThread\nclosed: True\n", "the client's own close must not meet it"
        assert closing.returncode == 0
    finally:
        closing.kill()
        closing.communicate()


@pytest.mark.long
def test_a_restart_of_the_broker_leaves_no_commit_and_no_question_unanswered(
    broken: KafkaSet, endangered: Members
) -> None:
    topic, group = broken.topic(2), broken.group_id()
    broken.fill(topic, {0: 3})
    # Its session outlasts the restart: what becomes of a fenced client is another question.
    member = endangered.make(group, topic=topic, timeouts=Timeouts(session=timedelta(seconds=60))).joined()
    assert member.commit(dict.fromkeys(member.heard.holds, 1)).failure == ""
    broken.broker(1).kill()
    result = member.begin_commit(dict.fromkeys(logs_of(group, topic, 0, 1), 2), timeout=timedelta(seconds=30))
    with logs_at(broken.settings, timedelta(seconds=60)) as logs, ThreadPoolExecutor(1) as asking:
        bounds = asking.submit(logs.bounds, logs_of(group, topic, 0))
        broken.broker(1).start()
        assert bounds.result()[log(group, topic)].end == 3
    answer = result()
    held = {row.offset for row in answer.held.values()}
    assert held == {2} if not answer.failure else held <= {1, 2}
    # Whatever became of it, the next one goes through.
    member.heard.wait_for(lambda: bool(member.heard.holds))
    assert member.commit(dict.fromkeys(logs_of(group, topic, 0, 1), 3)).failure == ""
    assert broken.committed(group) == {(topic, 0): 3, (topic, 1): 3}
    complaints = [str(text) for what, text in member.heard.all if what == "troubled"]
    assert any("Connection refused" in text or "Disconnected" in text for text in complaints)


def test_a_broker_that_hangs_delays_nobody_beyond_the_deadline(broken: KafkaSet, endangered: Members) -> None:
    topic, group = broken.topic(1), broken.group_id()
    member = endangered.make(group, topic=topic).joined()
    broken.broker(1).suspend()
    with timed() as took:
        answer = member.commit({log(group, topic): 1}, timeout=timedelta(seconds=2))
        assert answer.held == {}
        assert "did not answer within" in answer.failure
        with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1"):
            member.consumer.committed(logs_of(group, topic, 0), timedelta(seconds=1))
        # A commit is still on its way: closing would take as long as the broker hangs.
        member.consumer.end(timedelta(seconds=2))
    # Not how fast it is, but that none of the three waited for the broker: the sum of their deadlines, and some air.
    assert took() < 5 + 3
    heard = len(member.heard.all)
    broken.broker(1).resume()
    assert happened(lambda: not member.consumer._thread.is_alive(), within=30)
    assert len(member.heard.all) == heard


def test_leaving_a_broker_that_hangs_is_bounded(broken: KafkaSet, endangered: Members) -> None:
    topic, group = broken.topic(1), broken.group_id()
    member = endangered.make(group, topic=topic, static=False).joined()
    broken.broker(1).suspend()
    member.consumer.leave()
    member.heard.wait("left", within=15)
    broken.broker(1).resume()
    with groups_at(broken.settings) as groups:
        assert groups.describe(GroupId(group)).state in ("empty", "stable")
