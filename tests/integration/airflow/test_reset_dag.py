"""A reset by a person in a real Airflow, with members that stay in their group: choose, plan, approve, apply."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from airflow_kcr.embedded.airflow_client import AirflowClient
from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import RefusedError
from airflow_kcr.protocol.commands import RequestCheckpoint
from airflow_kcr.protocol.values import RequestId
from tests.support.live_airflow import LiveAirflow
from tests.support.members import BRISK, live

pytestmark = [pytest.mark.timeout(600)]

WITHIN = 240.0
HUMAN = 10.0
"""Seconds before which nobody has read a question and pressed a button."""

DAGS = """\
from __future__ import annotations

from airflow.sdk import DAG

from airflow_kcr.operators.reset import KcrApplyResetOperator
from airflow_kcr.operators.reset import KcrApproveResetOperator
from airflow_kcr.operators.reset import KcrChooseCheckpointOperator
from airflow_kcr.operators.reset import KcrPlanResetOperator

with DAG("NAME_reset", schedule=None):
    (
        KcrChooseCheckpointOperator(task_id="choose", region="NAME")
        >> KcrPlanResetOperator(task_id="plan", region="NAME")
        >> KcrApproveResetOperator(task_id="approve", region="NAME")
        >> KcrApplyResetOperator(task_id="apply", region="NAME")
    )
"""


def asked(client: AirflowClient, dag: str, run: str, task: str) -> Any:  # noqa: ANN401
    found = client.wait_for_task(dag, run, task, {"awaiting_input", "upstream_failed", "failed"}, within=WITHIN)
    if found.state != "awaiting_input":
        failed = [one for one in client.tasks(dag, run) if one.state == "failed"]
        raise AssertionError("\n".join(client.log(dag, run, one.task_id, attempt=one.try_number) for one in failed))
    # Until the scheduler has heard that the asking process ended, Airflow takes a task that is answered for lost.
    seen = monotonic()
    happened(lambda: monotonic() - seen > HUMAN, within=2 * HUMAN)
    return client.question(dag, run, task)


def test_a_person_chooses_approves_and_is_named(airflow: LiveAirflow, tmp_path: Path) -> None:
    with live(airflow.kafka, airflow.store_url, tmp_path, members=2, partitions=2, spec=BRISK) as one:
        one.fill(200)
        one.start(0, 1)
        one.until(one.consumed, "the first records")
        one.handle(RequestCheckpoint(request_id=RequestId("checkpoint")))
        one.until(lambda: one.is_committed(RequestId("checkpoint")), "the checkpoint")
        sequence = one.region().requests[RequestId("checkpoint")].sequence
        one.fill(100)
        one.until(one.consumed, "all records")
        dag = f"{one.name}_reset"
        airflow.add_dags(dag, DAGS.replace("NAME", one.name), dag)
        run = airflow.editor.trigger(dag).run_id

        choice = asked(airflow.editor, dag, run, "choose")
        assert choice.params["checkpoint"]["schema"]["enum"] == [sequence]
        with pytest.raises(RefusedError):
            airflow.viewer.answer(dag, run, "choose", ["Choose"], {"checkpoint": sequence, "reason": None})
        airflow.editor.answer(dag, run, "choose", ["Choose"], {"checkpoint": sequence, "reason": "wrong rates"})

        shown = asked(airflow.editor, dag, run, "approve")
        assert f"to-checkpoint {sequence}" in shown.subject
        assert "| Records processed again | 200 |" in shown.body
        assert "| Reason | wrong rates |" in shown.body
        one.reset()
        one.until_running()
        airflow.editor.answer(dag, run, "approve", ["Approve"], {"reason": "wrong rates"})
        # A run that is cleared while the scheduler writes down that it has failed stays failed, with nothing to run.
        assert airflow.editor.wait_for_run(dag, run, within=WITHIN).state == "failed"
        assert {task.task_id: task.state for task in airflow.editor.tasks(dag, run)}["apply"] == "failed"
        assert one.region().person_resets == {}, "nothing was reset"

        one.until(one.consumed, "all records again")
        airflow.editor.clear(dag, run, ["plan", "approve", "apply"])
        asked(airflow.editor, dag, run, "approve")
        airflow.editor.answer(dag, run, "approve", ["Approve"], {"reason": "looked at again"})
        airflow.editor.wait_for_run(dag, run, within=WITHIN)
        result: Any = airflow.editor.result(dag, run, "apply")
        assert (result["state"], result["who"], result["reason"]) == ("done", "editor", "looked at again")

        one.until(one.consumed, "everything since the checkpoint once more")
        one.checkpoint()
        account = one.account()
        assert account.is_sound, account
