"""Tasks that send lineage through Airflow's provider."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.openlineage import conf
from airflow.providers.openlineage.plugins.listener import get_openlineage_listener

from airflow_kcr.hooks.kcr import KcrHook
from airflow_kcr.operators.checkpoint import KcrCommitCheckpointOperator
from airflow_kcr.protocol.region.rows import Requester
from tests.support.airflow_tasks import NOON, FakeTask, task_context
from tests.support.driver import Driver
from tests.support.lineage_receiver import LineageReceiver

if TYPE_CHECKING:
    from airflow.sdk import Context


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[LineageReceiver]:
    """An endpoint that Airflow's provider is configured to send to."""
    with LineageReceiver() as server:
        monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps({"type": "http", "url": server.url}))
        monkeypatch.setenv("AIRFLOW__OPENLINEAGE__NAMESPACE", "here")
        forget_configuration()
        listener = get_openlineage_listener()
        monkeypatch.setattr(listener.adapter, "_client", None)
        yield server
    forget_configuration()


def forget_configuration() -> None:
    """Have the provider read its configuration again."""
    for one in vars(conf).values():
        getattr(one, "cache_clear", lambda: None)()


@dataclass
class RunningTask(FakeTask):
    """A task instance that has what the provider reads of one."""

    dag_run: Any = None

    def get_template_context(self) -> Any:  # noqa: ANN401 (Airflow's context)
        """Return what the provider reads."""
        return {"dag_run": self.dag_run}


def context(try_number: int = 1, run_id: str = "run-1") -> Context:
    task = RunningTask(task_id="commit", run_id=run_id, try_number=try_number)
    made = task_context(task, interval=(NOON, NOON + timedelta(minutes=5)))
    task.dag_run = made["dag_run"]
    return made


@pytest.fixture
def sequence(driver: Driver) -> int:
    """A committed checkpoint of the run."""
    driver.up()
    driver.process()
    run = Requester(who="airflow", dag_id="flights_checkpoint", run_id="run-1")
    return driver.checkpoint("one", requester=run)


def commit(made: Context) -> None:
    KcrCommitCheckpointOperator(task_id="commit", region="flights").execute(made)


def test_a_checkpoint_has_one_run_whichever_try_sends_it(receiver: LineageReceiver, sequence: int) -> None:
    commit(context())
    commit(context(try_number=2))
    first, again = receiver.received
    assert receiver.refused == []
    assert (first["run"]["runId"], first["eventTime"]) == (again["run"]["runId"], again["eventTime"])
    assert first["run"]["facets"]["kcr_checkpoint"]["sequence"] == sequence
    parent = first["run"]["facets"]["parent"]
    assert parent["job"] == {"namespace": "here", "name": "flights_checkpoint.commit", "facets": {}}
    assert parent["root"]["job"]["name"] == "flights_checkpoint"
    assert parent["run"]["runId"] != again["run"]["facets"]["parent"]["run"]["runId"]


def test_lineage_that_can_not_be_made_costs_no_task(
    receiver: LineageReceiver, sequence: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> dict[str, str]:
        raise LookupError("no such connection: hunter2")

    monkeypatch.setattr(KcrHook, "environment", fail)
    commit(context())
    assert receiver.received == []
    assert "the lineage of checkpoint 2 of region flights was not sent: LookupError" in caplog.text


def test_where_the_provider_is_off_nothing_is_sent(
    receiver: LineageReceiver, sequence: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__DISABLED", "true")
    forget_configuration()
    commit(context())
    assert receiver.received == []
