"""The operators of one checkpoint, and the one that cleans up what no checkpoint needs."""

from __future__ import annotations

import stat
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.operators.base import CheckpointOperator
from airflow_kcr.operators.checkpoint import (
    KcrCleanCheckpointsOperator,
    KcrCommitCheckpointOperator,
    KcrCompareCheckpointOperator,
    KcrPinCheckpointOperator,
    KcrRepairCheckpointOperator,
    KcrUnpinCheckpointOperator,
)
from airflow_kcr.protocol.region.commands import KillRegion
from tests.support.airflow_tasks import task_context
from tests.support.driver import Driver
from tests.support.kafka import Kafka
from tests.support.live_region import SPEC, live_region


@pytest.fixture
def driver(driver: Driver) -> Driver:
    driver.up()
    return driver


def test_a_checkpoint_is_pinned_with_its_label_and_unpinned(driver: Driver) -> None:
    sequence = driver.checkpoint("a")
    pin = KcrPinCheckpointOperator(
        task_id="pin", region="flights", checkpoint=sequence, pinned_as="before-upgrade", reason="the upgrade on Sunday"
    )
    assert pin.execute(task_context()) == {"region": "flights", "sequence": sequence, "pinned_as": "before-upgrade"}
    assert driver.region.checkpoints[sequence].pinned_as == "before-upgrade"
    # As a task of the same DAG hands it over.
    drained = {"region": "flights", "timeline": 1, "sequence": int(sequence), "boundary": None, "inexact": False}
    unpin = KcrUnpinCheckpointOperator(task_id="unpin", region="flights", checkpoint=drained)
    assert unpin.execute(task_context()) == {"region": "flights", "sequence": sequence, "pinned_as": ""}


@pytest.mark.parametrize(
    "made",
    [
        KcrPinCheckpointOperator,
        KcrUnpinCheckpointOperator,
        KcrCompareCheckpointOperator,
        KcrRepairCheckpointOperator,
        KcrCommitCheckpointOperator,
    ],
)
@pytest.mark.parametrize(
    ("checkpoint", "told"),
    [
        (99, "no checkpoint 99"),
        ("twelve", "give a sequence"),
        (True, "give a sequence"),
        ({"region": "flights"}, "give a sequence"),
        ({"region": "trains", "sequence": 1}, "one of region 'trains'"),
        (None, "test_dag|run"),
    ],
)
def test_a_checkpoint_that_is_none_is_not_retried(
    driver: Driver,
    made: type[CheckpointOperator | KcrCommitCheckpointOperator],
    checkpoint: Mapping[str, Any] | int | str | None,
    told: str,
) -> None:
    with pytest.raises(AirflowFailException, match=told):
        made(task_id="one", region="flights", checkpoint=checkpoint).execute(task_context())


@pytest.mark.kafka
def test_a_checkpoint_is_compared_with_what_kafka_has_and_the_restore_point_repaired(
    kafka: Kafka, store_connection: str
) -> None:
    topic = kafka.topic(4)
    spec = SPEC.replace("broker.invalid:9092", kafka.bootstrap_servers).replace("topics: [t]", f"topics: [{topic}]")
    with live_region(store_connection, spec) as driver:
        driver.up()
        sequence = driver.checkpoint("a")
        driver.handle(KillRegion())
        compare = KcrCompareCheckpointOperator(task_id="compare", region="flights", checkpoint=sequence)
        said = compare.execute(task_context())
        # The driver's topic ids are its own: to the brokers, these logs were made anew.
        assert said == {"region": "flights", "sequence": sequence, "partitions": 4, "findings": {"recreated": 4}}
        repair = KcrRepairCheckpointOperator(task_id="repair", region="flights", checkpoint=sequence)
        assert repair.execute(task_context()) == {"region": "flights", "sequence": sequence, "committed": "yes"}


# -- cleaning ----------------------------------------------------------------------------------------------------------


def stand_in(folder: Path, script: str) -> str:
    """Return a program that stands in for Python: what it is called with, it ignores."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    return str(program)


@pytest.mark.long
def test_cleaning_starts_the_command_and_returns_what_it_says(driver: Driver) -> None:
    made = KcrCleanCheckpointsOperator(
        task_id="clean", region="flights", retired=True, conf={"spark.master": "local[1]"}
    )
    assert made.execute(task_context()) == {"region": "flights", "sinks": []}


def test_a_command_that_fails_is_told_with_its_last_words(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path, "echo starting >&2; echo kcr: no folder >&2; exit 2"))
    with pytest.raises(AirflowException, match="ended with status 2: kcr: no folder"):
        KcrCleanCheckpointsOperator(task_id="clean", region="flights").execute(task_context())


def test_a_command_that_takes_too_long_is_ended_with_what_it_has_started(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child"
    script = f"sleep 600 & echo $! > {child}; wait"
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path, script))
    made = KcrCleanCheckpointsOperator(task_id="clean", region="flights", timeout=timedelta(seconds=2))
    with pytest.raises(AirflowException, match="was not done within 0:00:02"):
        made.execute(task_context())
    started = int(child.read_text())
    assert happened(lambda: not psutil.pid_exists(started) or psutil.Process(started).status() == "zombie", within=30)


def test_a_secret_in_the_settings_is_refused_when_the_dag_is_read() -> None:
    with pytest.raises(ConfigurationError, match=r"spark\.hadoop\.fs\.s3a\.secret\.key"):
        KcrCleanCheckpointsOperator(task_id="clean", region="flights", conf={"spark.hadoop.fs.s3a.secret.key": "x"})
