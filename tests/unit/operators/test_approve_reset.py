from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, DownstreamTasksSkipped
from airflow.sdk import DAG, BaseOperator, Param
from airflow.sdk.definitions.param import ParamsDict

from airflow_kcr.api import Plan, Region, ResetRequest
from airflow_kcr.hooks.links import region_path
from airflow_kcr.operators.reset import (
    SHOWN,
    KcrApproveResetOperator,
    KcrChooseCheckpointOperator,
    KcrPlanResetOperator,
)
from airflow_kcr.operators.reset_texts import markdown
from airflow_kcr.protocol.region.rows import ResetCause
from airflow_kcr.protocol.targets import ByDuration, ToCheckpoint, ToOffset
from airflow_kcr.protocol.values import CheckpointNumber, Offset, TopicName
from tests.support.airflow_tasks import FakeTask, task_context
from tests.support.driver import Driver
from tests.support.live_region import FakeCluster, live_region
from tests.support.reset_tasks import World, answer, asked, with_two_checkpoints


@pytest.fixture
def driver(driver: Driver) -> Driver:
    with_two_checkpoints(driver)
    return driver


@pytest.fixture
def plan(driver: Driver) -> dict[str, Any]:
    """What the task of a plan has returned."""
    region = Region(driver.name, driver.store, clusters=FakeCluster().clusters)
    found = region.resets.plan(ResetRequest(target=ToCheckpoint(sequence=CheckpointNumber(2))))
    return {**found.summary(), "requester": {"who": "bob", "reason": "wrong rates"}}


def accepted(world: World, by: str | None = "ada", **fields: object) -> dict[str, Any]:
    """Return the approval of what is shown, as the form sends it."""
    shown = {name: field["value"] for name, field in world.shown["params"].items()}
    return answer("Approve", by=by, **{**shown, **fields})


def approve(plan: object = None) -> KcrApproveResetOperator:
    return KcrApproveResetOperator(task_id="approve", region="flights", plan=plan)  # type: ignore[arg-type]


@pytest.fixture
def task(plan: dict[str, Any], world: World) -> FakeTask:
    """The task of the approval, which has asked and waits."""
    task = FakeTask(task_id="approve")
    asked(approve(plan), task_context(task))
    return task


def test_sums_come_first_then_the_partitions_and_the_region_s_page_is_a_click_away(
    world: World, task: FakeTask
) -> None:
    assert world.shown["subject"] == "Reset region flights: to-checkpoint 2?"
    assert (world.shown["options"], world.shown["defaults"]) == (["Approve", "Reject"], None)
    lines = world.shown["body"].splitlines()
    assert lines[0] == "| Reset of region | flights |"
    for line in (
        "| Moves | 4 of 4 partition(s) |",
        "| Records processed again | 800 |",
        "| Checkpoints undone | 3 |",
        "| Chosen by | bob |",
        "| Reason | wrong rates |",
    ):
        assert line in lines
    assert lines.index("| Records processed again | 800 |") < lines.index("| g | t | 0 | 300 | 100 | 200 | 0 |  |")
    assert world.shown["params"]["reason"]["value"] == "wrong rates"
    assert task.xcoms["_link_RegionLink"] == region_path("flights")


def test_a_plan_that_moves_nothing_says_so(driver: Driver, world: World) -> None:
    driver.checkpoint("third")
    region = Region(driver.name, driver.store, clusters=FakeCluster().clusters)
    plan = region.resets.plan(ResetRequest(target=ToCheckpoint(sequence=CheckpointNumber(4))))
    asked(approve(plan.summary()), task_context(FakeTask(task_id="approve")))
    said = "| Moves | nothing: all 4 partition(s) are at their targets already |"
    assert said in world.shown["body"].splitlines()
    assert world.shown["subject"] == "Reset region flights: to-checkpoint 4? It moves nothing"


def test_big_plans_show_the_worst_twenty(store_connection: str, world: World) -> None:
    with live_region(store_connection, partitions=60) as driver:
        driver.up()
        driver.process(width=10)
        cluster = FakeCluster(counts={TopicName("t"): 60}, starts={59: 3})
        region = Region(driver.name, driver.store, clusters=cluster.clusters)
        found = region.resets.plan(ResetRequest(target=ToOffset(offset=Offset(0))))
        text = markdown(Plan.from_json(found.summary()))
    rows = [line for line in text.splitlines() if line.startswith("| g |")]
    assert len(rows) == 20
    assert rows[0] == "| g | t | 59 | 10 | 3 | 7 | 0 | clamped, asked for 0 |"
    assert text.endswith("Shown: the worst 20 of 60 partitions that move.")


def test_a_partition_without_a_record_since_the_time_is_marked(store_connection: str, world: World) -> None:
    with live_region(store_connection) as driver:
        driver.up()
        driver.process(width=10)
        region = Region(driver.name, driver.store, clusters=FakeCluster().clusters)
        found = region.resets.plan(ResetRequest(target=ByDuration(back=timedelta(hours=1))))
        text = markdown(Plan.from_json(found.summary()))
    row = next(line for line in text.splitlines() if line.startswith("| g |"))
    assert row.endswith("| no record since then, the log's end |")


def test_what_people_wrote_stays_in_its_cell(plan: dict[str, Any]) -> None:
    text = markdown(Plan.from_json({**plan, "requester": {"who": "x", "reason": "a | b\n| c <img src=x>"}}))
    assert "| Reason | a \\| b \\| c &lt;img src=x> |" in text.splitlines()


def test_approved_it_returns_and_records_the_plan_as_it_was_shown_with_who_when_and_why(
    driver: Driver, plan: dict[str, Any], world: World, task: FakeTask
) -> None:
    found = approve(plan).execute_complete(task_context(task), accepted(world, reason="wrong rates, seen with bob"))
    assert found == {
        "plan": plan,
        "approved": True,
        "by": "ada",
        "at": "2026-01-01T12:05:00+00:00",
        "reason": "wrong rates, seen with bob",
    }
    [recorded] = driver.held.reset_answers
    assert (recorded.request_id, recorded.who, recorded.reason) == (plan["plan"], "ada", "wrong rates, seen with bob")
    assert (recorded.answered_at.isoformat(), recorded.digest != "") == ("2026-01-01T12:05:00+00:00", True)


def test_the_params_of_its_dag_are_no_fields_of_its_form(plan: dict[str, Any], world: World, task: FakeTask) -> None:
    # As in Airflow 3.1; later ones keep the two apart themselves.
    resumed = approve(plan)
    resumed.params = ParamsDict({"target": Param("choose"), "reason": Param(None, type=["string", "null"])})
    assert resumed.execute_complete(task_context(task), accepted(world))["approved"] is True


def test_the_plan_that_was_shown_is_the_one_that_is_approved(
    plan: dict[str, Any], world: World, task: FakeTask
) -> None:
    found = approve({**plan, "plan": "another"}).execute_complete(task_context(task), accepted(world))
    assert found["plan"] == plan


def undone(driver: Driver) -> None:
    """Let members go back by themselves, so that plans of before are stale."""
    driver.request_reset(driver.member(0), ResetCause.CLAIM, "a test")
    driver.finish_reset()


def test_a_plan_that_is_stale_is_not_shown(driver: Driver, plan: dict[str, Any], world: World) -> None:
    undone(driver)
    with pytest.raises(AirflowFailException, match=r"in epoch 2.*Nothing was reset; trigger the DAG again"):
        approve(plan).execute(task_context(FakeTask(task_id="approve")))
    assert world.shown == {}


def test_a_plan_that_became_stale_while_it_was_shown_is_not_approved(
    driver: Driver, plan: dict[str, Any], world: World, task: FakeTask
) -> None:
    undone(driver)
    with pytest.raises(AirflowFailException, match=r"in epoch 2.*Nothing was reset; trigger the DAG again"):
        approve(plan).execute_complete(task_context(task), accepted(world))
    assert approve(plan).execute_complete(task_context(task), answer("Reject"))["approved"] is False


def planned_again_behind(plan: object) -> KcrApproveResetOperator:
    with DAG("d", schedule=None):
        operator = approve(plan)
        operator >> KcrPlanResetOperator(task_id="plan_again", region="flights")
        operator >> BaseOperator(task_id="apply")
    return operator


def test_a_stale_plan_is_handed_to_the_task_that_plans_again_and_is_not_approved(
    driver: Driver, plan: dict[str, Any], world: World, task: FakeTask
) -> None:
    undone(driver)
    found = planned_again_behind(plan).execute_complete(task_context(task), accepted(world))
    assert (found["plan"], "in epoch 2" in str(found["stale"]), "approved" in found) == (plan, True, False)
    assert driver.region.reset_answers == ()
    world.shown.clear()
    early = planned_again_behind(plan).execute(task_context(FakeTask(task_id="approve")))
    assert (world.shown, "in epoch 2" in str(early)) == ({}, True)


def test_a_plan_that_is_approved_skips_what_would_plan_again(
    plan: dict[str, Any], world: World, task: FakeTask
) -> None:
    with pytest.raises(DownstreamTasksSkipped) as skipped:
        planned_again_behind(plan).execute_complete(task_context(task), accepted(world))
    assert [one[0] if isinstance(one, tuple) else one for one in skipped.value.tasks] == ["plan_again"]
    result: Any = task.xcoms["return_value"]
    assert (result["approved"], result["by"]) == (True, "ada")


def test_airflow_shows_the_question_of_the_first_try_so_another_plan_is_not_approved_by_it(
    plan: dict[str, Any], world: World, task: FakeTask
) -> None:
    assert world.shown["params"]["plan"]["value"].startswith(plan["plan"])
    first = accepted(world)
    asked(approve({**plan, "plan": "another"}), task_context(task))
    with pytest.raises(AirflowFailException, match=r"showed plan .*, and not another"):
        approve(plan).execute_complete(task_context(task), first)
    found = approve(plan).execute_complete(task_context(task), accepted(world))
    assert found["plan"] == {**plan, "plan": "another"}


@pytest.mark.parametrize("asker", ["ada", "bob"])
def test_who_asked_does_not_approve_where_that_is_a_second_person_s(
    plan: dict[str, Any], world: World, asker: str
) -> None:
    operator = KcrApproveResetOperator(task_id="approve", region="flights", plan=plan, second_person=True)
    task = FakeTask(task_id="approve")
    asked(operator, task_context(task, user="ada"))
    assert world.shown["body"].startswith("Has to be approved by another user than ada and bob.")
    with pytest.raises(AirflowException, match=f"{asker} approved the plan.*the question is asked again") as raised:
        operator.execute_complete(task_context(task, user="ada"), accepted(world, by=asker))
    assert not isinstance(raised.value, AirflowFailException)
    assert operator.execute_complete(task_context(task, user="ada"), answer("Reject", by=asker))["approved"] is False
    assert operator.execute_complete(task_context(task, user="ada"), accepted(world, by="eve"))["by"] == "eve"


def test_a_second_person_has_a_name(plan: dict[str, Any], world: World) -> None:
    operator = KcrApproveResetOperator(task_id="approve", region="flights", plan=plan, second_person=True)
    task = FakeTask(task_id="approve")
    asked(operator, task_context(task))
    with pytest.raises(AirflowException, match="a user that Airflow does not name approved"):
        operator.execute_complete(task_context(task), accepted(world, by=None))


def test_what_a_plan_is_applied_with_is_shown_and_kept(plan: dict[str, Any], world: World) -> None:
    with_force = {**plan, "request": {**plan["request"], "forced": True}}
    task = FakeTask(task_id="approve")
    asked(approve(with_force), task_context(task))
    assert "| Forced | yes: without a drain, from the last done positions |" in world.shown["body"].splitlines()
    found = approve(with_force).execute_complete(task_context(task), accepted(world, reason=None))
    assert found["plan"] == with_force


def test_the_plan_is_that_of_the_task_before(plan: dict[str, Any], world: World) -> None:
    with DAG("d", schedule=None):
        operator = approve()
        BaseOperator(task_id="plan") >> operator
    asked(operator, task_context(FakeTask(task_id="approve", results={"plan": plan})))
    assert "to-checkpoint 2" in world.shown["subject"]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"no": "plan"}, "not a plan"),
        ("{'plan': 1}", r"plan=OTHER_TASK\.output"),
        (None, "say where its plan comes from"),
    ],
)
def test_what_is_no_plan_is_not_shown(world: World, given: object, what: str) -> None:
    with pytest.raises(AirflowFailException, match=what):
        approve(given).execute(task_context(FakeTask(task_id="approve")))
    assert world.shown == {}


# -- what users of Airflow can write ----------------------------------------------------------------------------------


def test_a_rejection_is_no_approval(driver: Driver, plan: dict[str, Any], task: FakeTask) -> None:
    rejected = approve(plan).execute_complete(task_context(task), answer("Reject", reason=None))
    assert rejected["approved"] is False
    assert driver.held.reset_answers == ()


def test_a_plan_that_was_overwritten_while_it_was_shown_is_not_approved(
    driver: Driver, plan: dict[str, Any], world: World, task: FakeTask
) -> None:
    task.xcom_push(SHOWN, {**plan, "request": {**plan["request"], "forced": True, "consent_upsert": True}})
    with pytest.raises(AirflowFailException, match=r"Airflow showed plan .*, and not"):
        approve(plan).execute_complete(task_context(task), accepted(world))
    assert driver.held.reset_answers == ()


def test_an_answer_that_does_not_say_what_was_shown_approves_nothing(
    driver: Driver, plan: dict[str, Any], task: FakeTask
) -> None:
    with pytest.raises(AirflowFailException, match=r"its field plan is missing.*answer with the form"):
        approve(plan).execute_complete(task_context(task), answer("Approve", reason="wrong rates"))
    assert driver.held.reset_answers == ()


def test_who_chose_does_not_approve_though_the_xcom_of_the_choice_was_overwritten(
    driver: Driver, plan: dict[str, Any], world: World
) -> None:
    task = FakeTask(task_id="approve")
    chooses = KcrChooseCheckpointOperator(task_id="choose", region="flights")
    chooses.execute_complete(task_context(task, user="ada"), answer("Choose", by="bob", checkpoint=2))
    overwritten = {**plan, "requester": {"reason": "wrong rates"}}
    operator = KcrApproveResetOperator(task_id="approve", region="flights", plan=overwritten, second_person=True)
    asked(operator, task_context(task, user="ada"))
    with pytest.raises(AirflowException, match=r"bob approved the plan.*another user than ada and bob"):
        operator.execute_complete(task_context(task, user="ada"), accepted(world, by="bob"))
    assert [one.who for one in driver.held.reset_answers if one.digest] == []
