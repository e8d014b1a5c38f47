"""How often a start opens its cluster: each time is an interpreter, and connections to every broker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow_kcr.api import group_watch
from airflow_kcr.driver import application
from airflow_kcr.driver.application import MemberRun, hosting, preparing
from airflow_kcr.driver.parts import StartFailures
from airflow_kcr.driver.task import RunningApplication
from airflow_kcr.kafka import admin_process, questions
from airflow_kcr.kafka.admin_process import Child
from airflow_kcr.protocol.region.commands import KillRegion
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.values import GroupId, MemberId
from airflow_kcr.settings import KafkaSettings
from airflow_kcr.spark.pulse import Pulse
from airflow_kcr.spark.session import SparkSettings
from tests.support.members import Lend

if TYPE_CHECKING:
    import pytest

POLLS = 3


def fail(why: str) -> None:
    raise AssertionError(why)


def test_a_start_opens_its_cluster_once_for_the_logs_and_once_for_the_group(
    lend: Lend, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    described: list[str] = []

    class Counted(Child):
        def __init__(self, settings: KafkaSettings) -> None:
            made.append("once")
            super().__init__(settings)

        def ask(self, question: object, seconds: float, grace: float = admin_process.GRACE) -> object:
            is_describe = isinstance(question, partial) and question.func is questions.describe
            described.extend(["once"] if is_describe else [])
            return super().ask(question, seconds, grace)

    monkeypatch.setattr(admin_process, "Child", Counted)
    for name in ("DEBOUNCE", "PERIOD"):
        monkeypatch.setattr(group_watch, name, 0.1)
    without_spark: dict[str, Callable[..., Any]] = {
        "session_for": lambda settings, clusters: None,
        "stop_session": lambda spark: None,
        "executor_memory": lambda spark: 2**30,
        "warm_up": lambda *_: 100,
        "SparkEngine": lambda *_: SimpleNamespace(slowed=str),
        "application_of": lambda spark: RunningApplication(application="none"),
    }
    for name, instead in without_spark.items():
        monkeypatch.setattr(application, name, instead)

    pipeline = "tests.support.spark_gated_pipeline:process"
    with lend(members=1, partitions=2, pipeline=pipeline) as one, ExitStack() as stack:
        run = MemberRun(
            region=one.name, members=(MemberId(GroupId(one.group), 0),), spark=SparkSettings(app_name="counted")
        )
        failures = StartFailures(one.store, run.region, run.members)
        prepared = stack.enter_context(preparing(one.store, run, failures))
        _, pool = stack.enter_context(hosting(one.store, prepared, failures, Pulse({}), fail))
        one.until(lambda: one.region().state is RegionState.RUNNING, "running")
        one.until(lambda: len(described) > POLLS, "groups watched")
        assert len(made) == 2
        one.handle(KillRegion())
        assert pool.wait(30)
