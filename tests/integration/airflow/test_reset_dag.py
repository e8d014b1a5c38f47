"""A reset by a person in a real Airflow, with members that stay in their group: choose, plan, approve, apply."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from airflow_kcr.api import ResetRequest
from airflow_kcr.embedded.airflow import client_of
from airflow_kcr.errors import RefusedError, ServiceFailed
from airflow_kcr.protocol.region.commands import RequestCheckpoint
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import RequestId
from tests.support.live_airflow import LiveAirflow
from tests.support.members import BRISK, Live, live

pytestmark = [pytest.mark.timeout(600)]

WITHIN = 240.0

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


FORM = """\
from datetime import UTC, datetime

from airflow.sdk import DAG

from airflow_kcr.dags import region_dags
from airflow_kcr.spec import parse

dags = region_dags(parse(SPEC), start_date=datetime(2026, 1, 1, tzinfo=UTC), second_person=SECOND)
"""


@contextmanager
def with_form(
    airflow: LiveAirflow, folder: Path, *, members: int, second_person: bool = True
) -> Iterator[tuple[Live, str]]:
    """Lend a region that has processed a hundred records of each partition, and the DAG with its form."""
    with live(airflow.kafka, airflow.store_url, folder, members=members, partitions=members, spec=BRISK) as one:
        one.fill(100 * members)
        one.start(*range(members))
        one.until(one.consumed, "the records")
        dag = f"{one.name}_reset"
        with airflow.region(one.name) as region:
            text = FORM.replace("SPEC", repr(region.spec().to_json_text()))
        airflow.add_dags(dag, text.replace("SECOND", str(second_person)), dag)
        yield one, dag


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

        choice = airflow.question(dag, run, "choose")
        assert choice.params["checkpoint"]["schema"]["enum"] == [sequence]
        with pytest.raises(RefusedError):
            airflow.viewer.answer(dag, run, "choose", ["Choose"], {"checkpoint": sequence, "reason": None})
        airflow.editor.answer(dag, run, "choose", ["Choose"], {"checkpoint": sequence, "reason": "wrong rates"})

        shown = airflow.question(dag, run, "approve")
        assert f"to-checkpoint {sequence}" in shown.subject
        assert "| Records processed again | 200 |" in shown.body
        assert "| Reason | wrong rates |" in shown.body
        one.reset()
        one.until_running()
        airflow.editor.answer(dag, run, "approve", ["Approve"], {"reason": "wrong rates"})
        assert airflow.editor.wait_for_run(dag, run, within=WITHIN).state == "failed"
        assert {task.task_id: task.state for task in airflow.editor.tasks(dag, run)}["approve"] == "failed"
        assert one.region().person_resets == {}, "nothing was reset"

        one.until(one.consumed, "all records again")
        run = airflow.editor.trigger(dag).run_id
        airflow.question(dag, run, "choose")
        airflow.editor.answer(dag, run, "choose", ["Choose"], {"checkpoint": sequence, "reason": "wrong rates"})
        airflow.question(dag, run, "approve")
        airflow.editor.answer(dag, run, "approve", ["Approve"], {"reason": "looked at again"})
        airflow.editor.wait_for_run(dag, run, within=WITHIN)
        result: Any = airflow.editor.result(dag, run, "apply")
        assert (result["state"], result["who"], result["reason"]) == ("done", "editor", "looked at again")

        one.until(one.consumed, "everything since the checkpoint once more")
        one.checkpoint()
        one.require_sound()


def test_an_approval_that_an_editor_forges_resets_nothing(airflow: LiveAirflow, tmp_path: Path) -> None:
    editor = airflow.editor
    with with_form(airflow, tmp_path, members=1) as (one, dag):
        form = {"target": "to-offset", "offset": 50, "reason": "wrong rates"}
        run = editor.trigger(dag, form).run_id
        airflow.question(dag, run, "approve")
        plan: Any = editor.result(dag, run, "plan")
        forged = {"plan": plan, "approved": True, "by": "admin", "at": "2026-01-01T00:00:00Z", "reason": "forged"}

        approve = f"dags/{dag}/dagRuns/{quote(run, safe='')}/taskInstances/approve"
        editor.request("POST", f"{approve}/xcomEntries", {"key": "return_value", "value": forged})
        editor.request("PATCH", approve, {"new_state": "success"})
        assert editor.wait_for_run(dag, run, within=WITHIN).state == "failed"
        assert "has no approval of plan" in editor.log(dag, run, "apply")
        assert (one.region().person_resets, one.region().epoch) == ({}, 1)

        # To clear it with the XCom of the forger there brings no more than a new question.
        editor.clear(dag, run, ["approve", "apply"])
        airflow.question(dag, run, "approve")
        with client_of(airflow.airflow.folder, "admin") as admin:
            admin.answer(dag, run, "approve", ["Approve"], {"reason": "seen"})
        assert editor.wait_for_run(dag, run, within=WITHIN).state == "success"
        result: Any = editor.result(dag, run, "apply")
        assert (result["state"], result["who"], result["reason"]) == ("done", "admin", "seen")


def test_an_undone_checkpoint_is_not_chosen_and_a_new_run_asks_with_a_new_list(
    airflow: LiveAirflow, tmp_path: Path
) -> None:
    with live(airflow.kafka, airflow.store_url, tmp_path, members=2, partitions=2, spec=BRISK) as one:
        one.start(0, 1)
        made = []
        for _ in range(2):
            one.fill(100)
            one.until(one.consumed, "the records")
            made.append(one.checkpoint().sequence)
        first, second = made
        assert first is not None
        dag, editor = f"{one.name}_reset", airflow.editor
        airflow.add_dags(dag, DAGS.replace("NAME", one.name), dag)
        run = editor.trigger(dag).run_id
        old = airflow.question(dag, run, "choose")
        assert old.params["checkpoint"]["schema"]["enum"] == [second, first]
        with airflow.region(one.name) as region:
            view = region.resets.apply(
                region.resets.plan(ResetRequest(target=ToCheckpoint(sequence=first))), "elsewhere"
            )
        one.until(lambda: one.region().timeline == 2, "the other reset")
        one.until_running()

        editor.answer(dag, run, "choose", ["Choose"], {"checkpoint": second, "reason": None})
        assert editor.wait_for_run(dag, run, within=WITHIN).state == "failed"
        choose = editor.task(dag, run, "choose")
        assert choose is not None
        said = editor.log(dag, run, "choose")
        assert f"checkpoint {second} is not on the current timeline any more" in said
        assert "Nothing was reset; trigger the DAG again" in said
        # To clear the task is no way: Airflow shows the old list again. Should it not any more, the text may say so.
        editor.clear(dag, run, ["choose"])
        assert airflow.question(dag, run, "choose", after=choose.try_number).params == old.params
        editor.answer(dag, run, "choose", ["Cancel"])
        editor.wait_for_run(dag, run, within=WITHIN)

        run = editor.trigger(dag).run_id
        listed = airflow.question(dag, run, "choose").params["checkpoint"]["schema"]["enum"]
        assert (first in listed, second in listed) == (True, False)
        editor.answer(dag, run, "choose", ["Choose"], {"checkpoint": first, "reason": "wrong rates"})
        airflow.question(dag, run, "approve")
        editor.answer(dag, run, "approve", ["Approve"], {"reason": "wrong rates"})
        assert editor.wait_for_run(dag, run, within=WITHIN).state == "success"
        result: Any = editor.result(dag, run, "apply")
        assert (result["state"], result["target"]) == ("done", f"to-checkpoint {first}")
        assert result["id"] != view.reset_id


def test_a_target_is_asked_for_with_the_form_and_approved_by_a_second_person(
    airflow: LiveAirflow, tmp_path: Path
) -> None:
    editor = airflow.editor
    with with_form(airflow, tmp_path, members=2) as (one, dag):
        with pytest.raises(ServiceFailed, match=r"(?s)400 .*topics.*does not match"):
            editor.trigger(dag, {"target": "to-offset", "offset": 50, "topics": [f"{one.topic}:zero"]})
        with pytest.raises(ServiceFailed, match=r"(?s)400 .*offset: '6h' is not of type 'integer'"):
            editor.trigger(dag, {"target": "to-offset", "offset": "6h"})
        assert editor.runs(dag) == ()
        wrong = editor.trigger(dag, {"target": "to-latest", "offset": 50}).run_id
        assert editor.wait_for_run(dag, wrong, within=WITHIN).state == "failed"
        assert "to-latest does not take offset" in editor.log(dag, wrong, "choose")

        form = {"target": "to-offset", "topics": [f"{one.topic}:0"], "reason": "wrong rates"}
        run = editor.trigger(dag, form).run_id
        assert airflow.question(dag, run, "choose").params.keys() == {"offset", "reason"}
        editor.answer(dag, run, "choose", ["Choose"], {"offset": 50, "reason": "wrong rates"})
        shown = airflow.question(dag, run, "approve")
        assert shown.subject == f"Reset region {one.name}: to-offset 50?"
        assert shown.body.startswith("Has to be approved by another user than editor.")
        assert f"| Scope | --topic {one.topic}:0 |" in shown.body
        assert "| Moves | 1 of 2 partition(s) |" in shown.body
        first = editor.task(dag, run, "approve")
        assert first is not None
        editor.answer(dag, run, "approve", ["Approve"], {"reason": "wrong rates"})
        airflow.question(dag, run, "approve", after=first.try_number)
        assert one.region().person_resets == {}, "who asked can't approve"
        with client_of(airflow.airflow.folder, "admin") as admin:
            admin.answer(dag, run, "approve", ["Approve"], {"reason": "wrong rates, seen"})
        assert editor.wait_for_run(dag, run, within=WITHIN).state == "success"
        result: Any = editor.result(dag, run, "apply")
        assert (result["state"], result["target"]) == ("done", "to-offset 50")
        assert (result["who"], result["reason"]) == ("admin", "wrong rates, seen")
        one.until(one.consumed, "what was processed again")
        one.checkpoint()
        one.require_sound()


def test_a_plan_that_became_stale_is_made_and_approved_again(airflow: LiveAirflow, tmp_path: Path) -> None:
    editor = airflow.editor
    with with_form(airflow, tmp_path, members=1, second_person=False) as (one, dag):
        run = editor.trigger(dag, {"target": "to-offset", "offset": 50, "reason": "wrong rates"}).run_id
        first = airflow.question(dag, run, "approve")
        one.reset()
        one.until_running()
        one.until(one.consumed, "all records again")
        editor.answer(dag, run, "approve", ["Approve"], {"reason": "wrong rates"})
        again = airflow.question(dag, run, "approve_again")
        assert (again.subject, again.body != first.body) == (first.subject, True)
        assert one.region().person_resets == {}, "what was approved is applied, and nothing else"
        editor.answer(dag, run, "approve_again", ["Approve"], {"reason": "seen again"})
        assert editor.wait_for_run(dag, run, within=WITHIN).state == "success"
        result: Any = editor.result(dag, run, "apply")
        assert (result["state"], result["target"], result["reason"]) == ("done", "to-offset 50", "seen again")
        one.until(one.consumed, "what was processed again")
        one.checkpoint()
        one.require_sound()
