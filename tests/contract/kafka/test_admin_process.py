"""The process that makes admin calls: killed, stopped, replaced and gone with its owner."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import BrokerUnavailable
from airflow_kcr.kafka import questions
from airflow_kcr.kafka.admin_process import AdminProcess
from airflow_kcr.kafka.groups import Groups
from airflow_kcr.kafka.logs import BrokerLogs
from airflow_kcr.kafka.settings import admin_settings
from airflow_kcr.protocol.values import GroupId, TopicName
from tests.contract.kafka.members import WITHIN, log, logs_of
from tests.contract.kafka.test_groups import at
from tests.support.kafka import Kafka


def test_a_process_that_was_killed_is_started_again(kafka: Kafka, process: AdminProcess, groups: Groups) -> None:
    group = GroupId(kafka.group_id())
    groups.describe(group)
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert groups.describe(group).state == "dead"
    assert process.pid != first


def test_a_process_that_hangs_is_ended_and_replaced(kafka: Kafka) -> None:
    group = GroupId(kafka.group_id())
    with AdminProcess(admin_settings(kafka.settings), timedelta(seconds=2)) as process:
        groups = Groups(process)
        groups.describe(group)
        first = process.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        # Asked once more in a new one, as nothing was changed.
        assert groups.describe(group).state == "dead"
        assert process.pid != first


@pytest.mark.long
def test_a_process_that_hangs_does_not_keep_who_asks_it_more_than_a_pipe_holds(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.topic(1)
    partitions = [log("g", topic, number) for number in range(5_000)]
    with AdminProcess(admin_settings(kafka.settings), timedelta(seconds=2)) as process:
        groups = Groups(process)
        groups.describe(GroupId("g"))
        first = process.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        assert groups.committed(GroupId("g"), partitions) == {}
        assert process.pid != first
        second = process.pid
        assert second is not None
        # Between the look at the group and the offsets.
        monkeypatch.setattr(groups, "require_empty", lambda group: os.kill(second, signal.SIGSTOP))
        # What changes something is not asked again; the next call has a new one, and no lock is held.
        with pytest.raises(BrokerUnavailable, match=r"did not answer within 4\.0 s"):
            groups.alter(GroupId("g"), at("g", topic, **{f"p{number}": 0 for number in range(5_000)}))
        assert groups.describe(GroupId("g")).state in {"dead", "empty"}


def test_the_process_ends_with_its_owner(kafka: Kafka) -> None:
    process = AdminProcess(admin_settings(kafka.settings))
    groups = Groups(process)
    groups.describe(GroupId("g"))
    pid = process.pid
    assert pid is not None
    process.close()
    assert happened(lambda: not Path(f"/proc/{pid}").exists(), within=10)
    with pytest.raises(BrokerUnavailable, match="closed"):
        groups.describe(GroupId("g"))


def test_settings_are_neither_in_the_arguments_nor_in_the_environment_of_the_process(kafka: Kafka) -> None:
    with AdminProcess(admin_settings({**kafka.settings, "sasl.password": "open-sesame"})) as process:
        Groups(process).describe(GroupId("g"))
        child = Path(f"/proc/{process.pid}")
        assert b"open-sesame" not in (child / "cmdline").read_bytes() + (child / "environ").read_bytes()
        assert "open-sesame" not in repr(vars(process))


def test_a_process_that_has_described_as_many_topics_as_it_may_is_replaced(kafka: Kafka) -> None:
    topics = [kafka.topic(1), kafka.topic(1)]
    asked = logs_of("g", topics[0], 0) | logs_of("g", topics[1], 0)
    with AdminProcess(admin_settings(kafka.settings), topics=5) as process:
        logs = BrokerLogs(process)
        # Twice for the first answer: no id was known before it.
        assert logs.bounds(asked).keys() == asked
        first = process.pid
        assert first is not None
        assert logs.bounds(asked).keys() == asked
        assert process.pid is None
        assert not Path(f"/proc/{first}").exists()
        assert Groups(process).unreadable(GroupId("g"), [TopicName(topic) for topic in topics]) == ()
        assert logs.bounds(asked).keys() == asked
        assert process.pid not in {None, first}


def test_a_question_waits_for_no_answer_to_another(kafka: Kafka) -> None:
    topic = kafka.topic(1)
    with AdminProcess(admin_settings(kafka.settings)) as process, ThreadPoolExecutor(1) as asking:
        logs = BrokerLogs(process)
        assert logs.stable_ends(logs_of("g", topic, 0))
        # The client has no such broker, and waits for it as long as it may.
        slow = asking.submit(
            process.read, partial(questions.times, broker=99, group=GroupId("g")), timedelta(seconds=5)
        )
        child = process._child
        assert child is not None
        assert happened(lambda: bool(child._waiting), within=WITHIN)
        assert logs.stable_ends(logs_of("g", topic, 0)) == {log("g", topic): 0}
        assert not slow.done()
        with pytest.raises(BrokerUnavailable, match=r"for 5\.0 s"):
            slow.result()
