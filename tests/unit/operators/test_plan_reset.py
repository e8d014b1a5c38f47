from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowSkipException
from airflow.sdk import DAG, BaseOperator

from airflow_kcr.operators.reset import KcrPlanResetOperator
from airflow_kcr.protocol.region.rows import ResetCause
from tests.support.airflow_tasks import FakeTask, task_context
from tests.support.driver import Driver
from tests.support.reset_tasks import DAG as DAG_ID
from tests.support.reset_tasks import RUN, World, with_two_checkpoints


@pytest.fixture
def driver(driver: Driver) -> Driver:
    with_two_checkpoints(driver)
    return driver


def task(**changed: Any) -> FakeTask:  # noqa: ANN401
    return FakeTask(**{"task_id": "plan", "dag_id": DAG_ID, "run_id": RUN, **changed})


def planned(**arguments: Any) -> dict[str, Any]:  # noqa: ANN401
    operator = KcrPlanResetOperator(task_id="plan", region="flights", **arguments)
    found: dict[str, Any] = json.loads(json.dumps(operator.execute(task_context(task()))))
    return found


@pytest.mark.parametrize(
    ("target", "goes_to"),
    [
        ("to-earliest", 0),
        ("to_earliest", 0),
        ({"to-checkpoint": 2}, 100),
        ({"to_checkpoint": "2"}, 100),
        ({"to-run": "flights_checkpoint/monday"}, 100),
        ({"shift-by": -50}, 250),
        ({"by-duration": "PT1H"}, 150),
        ({"from-file": "t,0,7\nt,1,7\nt,2,7\nt,3,7\n"}, 7),
    ],
    ids=str,
)
def test_a_target_is_an_option_of_the_command(driver: Driver, world: World, target: object, goes_to: int) -> None:
    world.cluster.found = dict.fromkeys(range(4), 150)
    plan = planned(target=target)
    assert {entry["target"] for entry in plan["entries"]} == {goes_to}
    assert (plan["region"], plan["epoch"]) == ("flights", 1)


def test_a_plan_is_named_after_run_task_and_try(driver: Driver, world: World) -> None:
    assert planned(target="to-earliest")["plan"] == f"{DAG_ID}/{RUN}/plan/-1/try 1"
    again = KcrPlanResetOperator(task_id="plan", region="flights", target="to-earliest")
    assert again.execute(task_context(task(try_number=2)))["plan"] == f"{DAG_ID}/{RUN}/plan/-1/try 2"


def test_scope_and_records_to_skip_are_those_of_the_command(driver: Driver, world: World) -> None:
    plan = planned(target="to-current", groups=["g"], topics=["t:0,1"], skip=["t:1:300"])
    assert plan["scope"] == "--group g --topic t:0,1"
    assert plan["request"]["skip"] == {"g": {"t": {"1": 300}}}


@pytest.mark.parametrize(
    ("chosen", "target", "requester"),
    [
        (
            {"target": "to-checkpoint", "value": "3", "by": "ada", "reason": "wrong rates"},
            "to-checkpoint 3",
            {"who": "ada", "reason": "wrong rates"},
        ),
        ({"target": "to-earliest", "value": None, "by": "ada", "reason": ""}, "to-earliest", {"who": "ada"}),
    ],
    ids=["chosen", "named by the run"],
)
def test_without_a_target_it_is_the_one_that_was_chosen_or_that_the_run_has_named(
    driver: Driver, world: World, chosen: dict[str, object], target: str, requester: dict[str, str]
) -> None:
    with DAG("d", schedule=None):
        plan = KcrPlanResetOperator(task_id="plan", region="flights")
        BaseOperator(task_id="choose") >> plan
    found = plan.execute(task_context(task(results={"choose": chosen})))
    assert (found["target"], found["requester"]) == (target, requester)


def again(answered: dict[str, Any]) -> dict[str, Any]:
    """Return what the task behind an approval plans."""
    with DAG("d", schedule=None):
        plan = KcrPlanResetOperator(task_id="plan_again", region="flights")
        BaseOperator(task_id="approve") >> plan
    return plan.execute(task_context(task(task_id="plan_again", results={"approve": answered})))


def test_a_stale_plan_is_made_again_for_the_same_request_and_who_chose_it(driver: Driver, world: World) -> None:
    first = planned(target={"to-checkpoint": 2}, topics=["t:0,1"], forward=True)
    first["requester"] = {"who": "ada", "reason": "wrong rates"}
    driver.request_reset(driver.member(0), ResetCause.CLAIM, "a test")
    driver.finish_reset()
    found = again({"plan": first, "stale": "the plan was made in epoch 1"})
    assert (found["request"], found["requester"]) == (first["request"], first["requester"])
    assert (found["epoch"], found["plan"] != first["plan"]) == (first["epoch"] + 1, True)


def test_a_plan_that_was_not_stale_is_not_made_again(driver: Driver, world: World) -> None:
    with pytest.raises(AirflowSkipException):
        again({"plan": planned(target="to-earliest"), "approved": True})


def test_answers_of_a_form_may_be_missing_or_texts(driver: Driver, world: World) -> None:
    plan = planned(
        target="to-current", groups=None, topics=None, skip=None, forward="True", allow_partial="False", forced=None
    )
    assert (plan["scope"], plan["request"]) == ("everything", {"target": "to-current", "forward": True})


def test_what_the_plan_is_applied_with_is_part_of_it(driver: Driver, world: World) -> None:
    plan = planned(target="to-earliest", forced=True, consent_upsert=True)
    assert plan["request"] == {"target": "to-earliest", "forced": True, "consent_upsert": True}


def test_a_list_is_no_text(driver: Driver, world: World) -> None:
    with pytest.raises(AirflowFailException, match="topics is a list of texts, not 't:0'"):
        planned(target="to-earliest", topics="t:0")


def test_alone_and_without_a_target_it_says_what_is_missing(driver: Driver, world: World) -> None:
    with pytest.raises(AirflowFailException, match="say where its target comes from"):
        planned()


def test_what_retention_has_overtaken_is_no_plan(driver: Driver, world: World) -> None:
    world.cluster.starts = {2: 150}
    with pytest.raises(AirflowFailException, match="such as g:t-2 would resume at 100, its log has 150 to 1000"):
        planned(target={"to-checkpoint": 2})


@pytest.mark.parametrize(
    ("target", "what"),
    [
        ("to-nowhere", "is not a target"),
        ({"to-checkpoint": 77}, "no checkpoint 77"),
        ({"to-checkpoint": 2, "to-earliest": None}, "one option with its value"),
        (7, "text or a mapping"),
    ],
    ids=str,
)
def test_what_can_not_be_fails_for_good(driver: Driver, world: World, target: object, what: str) -> None:
    with pytest.raises(AirflowFailException, match=what):
        planned(target=target)


def test_brokers_that_are_away_are_worth_a_retry(driver: Driver, world: World) -> None:
    world.cluster.is_away = True
    with pytest.raises(AirflowException, match="no broker") as raised:
        planned(target="to-earliest")
    assert not isinstance(raised.value, AirflowFailException)
