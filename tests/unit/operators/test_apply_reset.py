from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred
from airflow.sdk import DAG, BaseOperator

from airflow_kcr.api import Plan, Region, ResetRequest
from airflow_kcr.hooks import stats
from airflow_kcr.operators.reset import KcrApplyResetOperator, KcrApproveResetOperator
from airflow_kcr.operators.reset_texts import markdown
from airflow_kcr.protocol.evidence import CheckVerdict
from airflow_kcr.protocol.region.commands import RecordResetAnswer, RequestReset
from airflow_kcr.protocol.region.rows import RegionState, ResetAnswer, ResetCause
from airflow_kcr.protocol.targets import ToCheckpoint, ToInitial
from airflow_kcr.protocol.validation import Check, Question
from airflow_kcr.protocol.values import CheckpointNumber, GroupId, RequestId
from airflow_kcr.triggers.payloads import Status, TriggerAnswer
from tests.support import airflow_tasks
from tests.support.airflow_tasks import NOON, FakeTask, task_context
from tests.support.driver import Driver
from tests.support.live_region import SPEC, FakeCluster, live_region
from tests.support.reset_tasks import DAG as DAG_ID
from tests.support.reset_tasks import RUN, World, with_two_checkpoints


@pytest.fixture
def driver(driver: Driver) -> Driver:
    with_two_checkpoints(driver)
    return driver


@pytest.fixture
def plan(driver: Driver) -> dict[str, Any]:
    region = Region(driver.name, driver.store, clusters=FakeCluster().clusters)
    return region.resets.plan(ResetRequest(target=ToCheckpoint(sequence=CheckpointNumber(2)))).summary()


@pytest.fixture
def approval(plan: dict[str, Any]) -> dict[str, Any]:
    """What the task of the approval has returned."""
    return {"plan": plan, "approved": True, "by": "ada", "at": "2026-01-01T12:05:00+00:00", "reason": "wrong rates"}


def apply(plan: object = None, **changed: Any) -> KcrApplyResetOperator:  # noqa: ANN401
    return KcrApplyResetOperator(**{"task_id": "apply", "region": "flights", "plan": plan, **changed})


def behind_an_approval(plan: object, **changed: Any) -> KcrApplyResetOperator:  # noqa: ANN401
    with DAG("d", schedule=None):
        operator = apply(plan, **changed)
        KcrApproveResetOperator(task_id="approve", region="flights") >> BaseOperator(task_id="between") >> operator
    return operator


def approve(driver: Driver, plan: dict[str, Any], who: str = "ada") -> None:
    """Record an approval as the task of it does."""
    digest = Plan.from_json(plan).digest
    found = ResetAnswer(
        request_id=RequestId(plan["plan"]), who=who, answered_at=NOON, reason="wrong rates", digest=digest
    )
    driver.handle(RecordResetAnswer(answer=found))


def context(**changed: Any) -> Any:  # noqa: ANN401
    return task_context(FakeTask(**{"task_id": "apply", "dag_id": DAG_ID, "run_id": RUN, **changed}))


def deferred(operator: KcrApplyResetOperator) -> TaskDeferred:
    return airflow_tasks.deferred(operator, context())


def resumed(waits: TaskDeferred, plan: object, status: Status = Status.REACHED, detail: str = "") -> dict[str, Any]:
    event = TriggerAnswer(status=status, detail=detail).to_json()
    found: dict[str, Any] = airflow_tasks.resumed(apply(plan), waits, context(), event)
    return found


def test_an_approved_plan_is_applied_and_waited_for_without_a_slot_and_how_far_it_went_back_is_a_metric(
    driver: Driver, world: World, approval: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, dict[str, object]]] = []
    monkeypatch.setattr(stats, "send", lambda region, **known: sent.append((region, known)))
    approve(driver, approval["plan"])
    waits = deferred(behind_an_approval({**approval, "by": "mallory", "reason": "forged"}))
    driver.complete()
    driver.finish_reset()
    found = resumed(waits, approval)
    assert found == {
        "region": "flights",
        "id": "flights/5",
        "plan": approval["plan"]["plan"],
        "state": "done",
        "target": "to-checkpoint 2",
        "epoch": 2,
        "timeline": 2,
        "undone": [3, 4],
        "who": "ada",
        "reason": "wrong rates",
    }
    [reset] = [r for r in Region(driver.name, driver.store).resets.list() if r.plan]
    assert (reset.requester.dag_id, reset.requester.run_id) == (DAG_ID, RUN)
    assert reset.counted is not None
    assert sent == [("flights", {"rewound": reset.counted.rewound})]
    assert reset.counted.rewound > 0


@pytest.mark.parametrize("reason", ["nightly replay", ""])
def test_a_plan_alone_is_applied_in_the_name_of_the_run_which_is_a_reason_too(
    driver: Driver, world: World, plan: dict[str, Any], reason: str
) -> None:
    deferred(apply(plan, reason=reason))
    [reset] = [r for r in Region(driver.name, driver.store).resets.list() if r.plan]
    assert reset.requester.who == "airflow"
    assert reset.requester.reason == (reason or f"run {RUN} of DAG {DAG_ID}")


def test_the_plan_is_that_of_the_task_before(driver: Driver, world: World, approval: dict[str, Any]) -> None:
    with DAG("d", schedule=None):
        operator = apply()
        BaseOperator(task_id="approve") >> operator
    airflow_tasks.deferred(operator, context(results={"approve": approval}))


@pytest.mark.parametrize("first", [None, {"stale": "in epoch 2"}])
def test_of_two_approvals_it_is_the_one_whose_plan_was_not_stale(
    driver: Driver, world: World, approval: dict[str, Any], first: dict[str, Any] | None
) -> None:
    with DAG("d", schedule=None):
        operator = apply()
        [BaseOperator(task_id="approve"), BaseOperator(task_id="approve_again")] >> operator
    results = {"approve": first and {**approval, **first}, "approve_again": {**approval, "reason": "seen again"}}
    with pytest.raises(TaskDeferred):
        operator.execute(context(results=results))
    (reset,) = driver.region.person_resets.values()
    assert reset.requester.reason == "seen again"


def test_of_two_approvals_with_a_plan_none_is_taken(driver: Driver, world: World, approval: dict[str, Any]) -> None:
    with DAG("d", schedule=None):
        operator = apply()
        [BaseOperator(task_id="approve"), BaseOperator(task_id="approve_again")] >> operator
    with pytest.raises(AirflowFailException, match=r"say where its plan comes from.*there are 2"):
        operator.execute(context(results={"approve": approval, "approve_again": approval}))
    assert driver.region.person_resets == {}


def test_a_plan_of_another_epoch_is_refused(driver: Driver, world: World, approval: dict[str, Any]) -> None:
    driver.request_reset(driver.member(0), ResetCause.CLAIM, "a test")
    with pytest.raises(AirflowFailException, match=r"made in epoch 1.*Nothing was reset; trigger the DAG again"):
        apply(approval).execute(context())


def test_a_plan_without_an_added_partition_is_refused(driver: Driver, world: World, approval: dict[str, Any]) -> None:
    new = driver.partition(4)
    driver.grow(new, end=10)
    driver.claim(driver.member(0), [driver.partition(0), driver.partition(1), new])
    with pytest.raises(AirflowFailException, match=r"of 4 partition\(s\), region flights has 5.*trigger the DAG again"):
        apply(approval).execute(context())
    assert driver.region.person_resets == {}


def test_a_foreign_consumer_goes_before_the_reset(driver: Driver, world: World, approval: dict[str, Any]) -> None:
    detail = "zombie on 10.0.0.9"
    world.checks = (
        Check(group=GroupId("g"), question=Question.FOREIGN_CONSUMERS, verdict=CheckVerdict.FAILED, detail=detail),
        Check(group=GroupId("g"), question=Question.PARTICIPANTS, verdict=CheckVerdict.WARNING, detail="one is away"),
    )
    with pytest.raises(AirflowFailException, match=r"1 check\(s\).*zombie on 10\.0\.0\.9.*Nothing was reset"):
        apply(approval).execute(context())
    assert driver.region.person_resets == {}


def test_what_the_log_has_lost_since_the_approval_is_refused(
    driver: Driver, world: World, approval: dict[str, Any]
) -> None:
    world.cluster.starts = {1: 101}
    with pytest.raises(AirflowFailException, match="can't go there"):
        apply(approval).execute(context())


def test_a_rejected_plan_is_not_applied(driver: Driver, world: World, approval: dict[str, Any]) -> None:
    with pytest.raises(AirflowFailException, match="rejected by ada"):
        apply({**approval, "approved": False}).execute(context())


def test_a_reset_that_fails_is_no_matter_of_retries(driver: Driver, world: World, approval: dict[str, Any]) -> None:
    waits = deferred(apply(approval))
    driver.request_reset(driver.member(0), ResetCause.CLAIM, "a test")
    driver.finish_reset()
    with pytest.raises(AirflowFailException, match="a reset began"):
        resumed(waits, approval, Status.REFUSED, "the reset failed: a reset began")
    with pytest.raises(AirflowFailException, match="failed"):
        apply(approval).execute(context(try_number=2))


def test_a_halted_region_is_forced(driver: Driver, world: World, plan: dict[str, Any]) -> None:
    while driver.region.state is not RegionState.HALTED:
        caller = driver.caller(driver.member(0))
        driver.handle(RequestReset(caller=caller, cause=ResetCause.BATCH_FAILED, detail="a record can't be processed"))
        driver.finish_reset()
    region = Region(driver.name, driver.store, clusters=FakeCluster().clusters)
    request = ResetRequest(target=ToCheckpoint(sequence=CheckpointNumber(2)))
    again = region.resets.plan(request).summary()
    with pytest.raises(AirflowFailException, match="forced"):
        apply(again).execute(context())
    again = region.resets.plan(replace(request, forced=True)).summary()
    waits = deferred(apply(again))
    driver.finish_reset()
    assert resumed(waits, again)["state"] == "done"


def test_a_table_that_can_not_be_restored_needs_the_consent_of_the_dags_author(
    store_connection: str, world: World
) -> None:
    spec = SPEC.replace(
        "process'}", "process', sinks: {r: {kind: postgres, url: '${U}', table: r, mode: upsert, key: [k]}}}"
    )
    with live_region(store_connection, spec) as driver:
        with_two_checkpoints(driver)
        region = Region(driver.name, driver.store, clusters=FakeCluster().clusters)
        found = region.resets.plan(ResetRequest(target=ToCheckpoint(sequence=CheckpointNumber(2))))
        assert "| Not restored, as mode upsert keeps no history | sink r of group g (table r) |" in markdown(found)
        with pytest.raises(AirflowFailException, match="mode upsert keeps no history"):
            apply(found.summary()).execute(context())
        assert driver.region.person_resets == {}
        waits = deferred(apply(found.summary(), consent_upsert=True))
        driver.complete()
        driver.finish_reset()
        assert resumed(waits, found.summary())["state"] == "done"


# -- what users of Airflow can write ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_bare", [True, False])
def test_without_an_approval_in_the_store_nothing_is_applied_whatever_the_xcom_says(
    driver: Driver, world: World, approval: dict[str, Any], is_bare: bool
) -> None:
    with pytest.raises(AirflowFailException, match=r"has no approval of plan .*Nothing was reset; trigger the DAG"):
        behind_an_approval(approval["plan"] if is_bare else approval).execute(context())
    assert (driver.region.person_resets, driver.region.epoch) == ({}, 1)


def test_an_approval_is_of_one_plan_and_not_of_another_one_under_its_name(
    driver: Driver, world: World, approval: dict[str, Any], plan: dict[str, Any]
) -> None:
    approve(driver, plan)
    region = Region(driver.name, driver.store, clusters=FakeCluster().clusters)
    other = region.resets.plan(ResetRequest(target=ToInitial()), request_id=plan["plan"]).summary()
    with pytest.raises(AirflowFailException, match=r"ada has approved plan .*, but it is another one since"):
        behind_an_approval({**approval, "plan": other}).execute(context())
    forced = {**plan, "request": {**plan["request"], "forced": True}}
    with pytest.raises(AirflowFailException, match=r"ada has approved plan .*, but it is another one since"):
        behind_an_approval({**approval, "plan": forced}).execute(context())
    another = region.resets.plan(ResetRequest(target=ToCheckpoint(sequence=CheckpointNumber(2)))).summary()
    with pytest.raises(AirflowFailException, match="has no approval of plan"):
        behind_an_approval({**approval, "plan": another}).execute(context())
    assert driver.region.person_resets == {}


def test_an_approval_of_an_earlier_epoch_is_void(
    driver: Driver, world: World, approval: dict[str, Any], plan: dict[str, Any]
) -> None:
    approve(driver, plan)
    driver.request_reset(driver.member(0), ResetCause.CLAIM, "a test")
    driver.finish_reset()
    with pytest.raises(AirflowFailException, match="made in epoch 1"):
        behind_an_approval(approval).execute(context())
    with pytest.raises(AirflowFailException, match="another one since"):
        behind_an_approval({**approval, "plan": {**plan, "epoch": 2}}).execute(context())


def test_an_approval_is_used_once(driver: Driver, world: World, approval: dict[str, Any], plan: dict[str, Any]) -> None:
    approve(driver, plan)
    operator = behind_an_approval(approval)
    deferred(operator)
    assert driver.held.reset_answers == ()
    driver.complete()
    driver.finish_reset()
    assert operator.execute(context(try_number=2))["state"] == "done"
    assert driver.region.epoch == 2, "the same reset was found"


def test_a_plan_that_needs_no_approval_is_not_applied_in_the_name_that_an_xcom_says(
    driver: Driver, world: World, approval: dict[str, Any]
) -> None:
    deferred(apply({**approval, "by": "mallory"}))
    [reset] = [r for r in Region(driver.name, driver.store).resets.list() if r.plan]
    assert reset.requester.who == "airflow"
