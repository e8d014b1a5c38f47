"""Recomputations in Airflow on a real store, with a stand-in for Spark's command that does what it would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred
from airflow.sdk.api.datamodels._generated import DagRunType

from airflow_kcr.airflow_features import CHECKPOINT_KEYS
from airflow_kcr.api import Region
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.hooks import compat
from airflow_kcr.hooks.assets import region_asset
from airflow_kcr.hooks.compat import has
from airflow_kcr.operators.interval import KcrIntervalOperator
from airflow_kcr.operators.recompute import KcrRecomputeOperator
from airflow_kcr.protocol.region import commands, rows
from airflow_kcr.protocol.region.commands import Run
from airflow_kcr.protocol.values import CheckpointNumber, GroupId, Offset, Range, RequestId
from tests.support.airflow_tasks import REACHED, FakeTask, keys_of, task_context
from tests.support.driver import Driver
from tests.support.live_region import SPEC, live_region
from tests.support.scripts import carried_out
from tests.unit.operators.conftest import Submitted

END = datetime(2026, 3, 1, 12, 5, tzinfo=UTC)
TASK = FakeTask(task_id="again", dag_id="flights_again", run_id="run-1")
REQUEST = "flights_again/run-1/again/-1/0"
ASSET = region_asset("flights")


@pytest.fixture
def driver(store_connection: str) -> Iterator[Driver]:
    """A region whose group has a sink, with the checkpoint of a run of an interval."""
    sinks = "sinks: {out: {kind: custom, factory: 'jobs.lake:make'}}"
    with live_region(store_connection, SPEC.replace("process'}", f"process', {sinks}}}")) as driver:
        driver.clock.advance((END - driver.clock()).total_seconds() + 3600)
        requester = rows.Requester(who="airflow", dag_id="flights_interval", run_id="r")
        name = RequestId("flights_interval/r/run/-1")
        carried_out(driver, Run(request_id=name, boundary=END, requester=requester), 10)
        yield driver


def recomputed(driver: Driver, request_id: str = REQUEST, fails: str = "", into: tuple[str, ...] = ()) -> None:
    """Do what the application does, or fail."""
    ranges = {p: (Range(Offset(0), Offset(10)),) for p in driver.region.claims}
    begun = driver.store.handle(
        driver.name,
        commands.StartRecomputation(
            sequence=CheckpointNumber(2),
            request_id=RequestId(request_id),
            token="one",
            groups=(GroupId("g"),),
            ranges=ranges,
            purpose=rows.RecomputationPurpose.INTO if into else rows.RecomputationPurpose.REPLACE,
            into=into,
            lease=timedelta(seconds=60),
        ),
    )
    if fails:
        driver.handle(commands.FailRecomputation(sequence=CheckpointNumber(2), number=begun.number, why=fails))
        return
    read = ({p: held for p, (held,) in ranges.items()},)
    driver.handle(commands.FinishRecomputation(sequence=CheckpointNumber(2), number=begun.number, batches=read))


def context(task: FakeTask = TASK, end: datetime | None = None, run_type: DagRunType = DagRunType.SCHEDULED) -> Any:  # noqa: ANN401
    interval = None if end is None else (end - timedelta(minutes=5), end)
    return task_context(task, interval=interval, run_type=run_type)


def operator(**changed: Any) -> KcrRecomputeOperator:  # noqa: ANN401
    return KcrRecomputeOperator(**{"task_id": "again", "region": "flights", "checkpoint": 2, **changed})


def execute(one: KcrRecomputeOperator | KcrIntervalOperator, made: Any) -> dict[str, Any]:  # noqa: ANN401
    found: dict[str, Any] = one.execute.__wrapped__(one, made)  # type: ignore[attr-defined]
    return found


def test_a_checkpoint_is_recomputed_and_its_event_told_again(driver: Driver, submitted: Submitted) -> None:
    submitted.does = lambda: recomputed(driver)
    made = context()
    answer = execute(operator(groups=["g"]), made)
    assert submitted.arguments == [
        *("recompute", "flights", "--checkpoint", "2", "--request-id", REQUEST),
        *("--dag-run", "flights_again/run-1", "--group", "g"),
    ]
    assert (answer["sequence"], answer["revision"]) == (2, 1)
    event = made["outlet_events"][ASSET]
    assert (event.extra["sequence"], event.extra["revision"]) == (2, 1)
    assert keys_of(event) == {"000001.0000000002"}
    # Another try finds it.
    submitted.arguments = []
    assert execute(operator(groups=["g"]), context(replace(TASK, try_number=2)))["revision"] == 1
    assert submitted.arguments == []


def test_each_consent_reaches_the_command(driver: Driver, submitted: Submitted) -> None:
    submitted.does = lambda: recomputed(driver)
    execute(operator(consent_upsert=True, consent_compacted=True), context())
    assert submitted.arguments[-2:] == ["--consent-upsert", "--consent-compacted"]


@pytest.mark.skipif(not has(CHECKPOINT_KEYS), reason="without keys each event has the DAGs downstream run")
def test_downstream_is_only_told(driver: Driver, submitted: Submitted) -> None:
    submitted.does = lambda: recomputed(driver)
    made = context()
    execute(operator(downstream="tell"), made)
    event = made["outlet_events"][ASSET]
    assert event.extra["revision"] == 1
    assert not event.partition_keys


def test_where_events_have_no_keys_a_dag_that_would_only_tell_is_refused_as_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(compat.HAS, CHECKPOINT_KEYS, False)
    with pytest.raises(ConfigurationError, match=r"^downstream='tell': partition keys of .* need Airflow 3\.3: "):
        operator(downstream="tell")


def test_the_checkpoint_is_that_of_a_run_or_of_the_interval(driver: Driver, submitted: Submitted) -> None:
    submitted.does = lambda: recomputed(driver)
    assert execute(operator(checkpoint=None, run="flights_interval/r"), context())["sequence"] == 2
    assert execute(operator(checkpoint="2"), context())["sequence"] == 2
    assert execute(operator(checkpoint=None), context(end=END))["sequence"] == 2
    with pytest.raises(AirflowFailException, match="no checkpoint of a boundary"):
        execute(operator(checkpoint=None), context(end=END + timedelta(minutes=5)))
    with pytest.raises(AirflowFailException, match="no data interval whose checkpoint"):
        execute(operator(checkpoint=None), context())
    with pytest.raises(AirflowFailException, match="write the number of one"):
        execute(operator(checkpoint="first"), context())
    with pytest.raises(ConfigurationError, match="checkpoint or run"):
        operator(run="a/b")
    with pytest.raises(ConfigurationError, match="downstream is 'x'; write one of rerun, tell"):
        operator(downstream="x")


def test_in_a_cluster_the_task_waits_without_a_slot(driver: Driver, submitted: Submitted) -> None:
    submitted.is_cluster = True
    one = operator()
    kept: dict[str, Any] = {"sequence": 2, "request_id": REQUEST}
    with pytest.raises(TaskDeferred) as deferred:
        execute(one, context())
    assert deferred.value.trigger.serialize()[1]["waiting_for"]["kind"] == "recomputation_done"
    assert (deferred.value.method_name, deferred.value.kwargs) == ("resume_recomputed", kept)
    recomputed(driver)
    assert one.resume_recomputed(context(), REACHED, **kept)["revision"] == 1
    with pytest.raises(AirflowException, match="came to nothing"):
        one.resume_recomputed(context(), {"status": "timed_out", "detail": "it came to nothing"}, **kept)


INTO = {"g": {"out": {"kind": "custom", "factory": "jobs.lake:make", "options": {"path": "tried"}}}}


def test_what_goes_elsewhere_emits_no_event(driver: Driver, submitted: Submitted) -> None:
    submitted.does = lambda: recomputed(driver, into=("g/out: custom jobs.lake:make",))
    made, one = context(), operator(into=INTO)
    assert ASSET not in one.outlets
    answer = execute(one, made)
    assert (answer["purpose"], answer["state"], answer["revision"]) == ("into", "done", 0)
    assert json.loads(submitted.arguments[submitted.arguments.index("--into") + 1]) == INTO
    submitted.arguments = []
    assert execute(operator(into=INTO), context(replace(TASK, try_number=2))) == answer
    assert submitted.arguments == []
    with pytest.raises(AirflowFailException, match=r"into\.strange: region flights has no such group"):
        execute(operator(into={"strange": INTO["g"]}), context())


def test_a_comparison_is_what_the_task_returns(driver: Driver, submitted: Submitted) -> None:
    submitted.compared = [{"sequence": 2, "sink": "out", "different": 3}]
    one = operator(compare=["k", "l"])
    assert ASSET not in one.outlets
    assert execute(one, context()) == {"region": "flights", "sequence": 2, "comparisons": submitted.compared}
    assert submitted.arguments[-2:] == ["--compare", "k,l"]
    submitted.compared = None
    with pytest.raises(AirflowException, match="did not say how checkpoint 2 compares"):
        execute(one, context())
    assert operator(compare="k").compare == ("k",)
    submitted.is_cluster = True
    with pytest.raises(AirflowFailException, match="use deploy mode client, or write into other sinks"):
        execute(one, context())
    with pytest.raises(ConfigurationError, match="give one of into, compare and consent_"):
        operator(compare=["k"], into=INTO)


def test_a_run_of_an_interval_that_is_cleared_recomputes_it(driver: Driver, submitted: Submitted) -> None:
    task = FakeTask(task_id="run", dag_id="flights_interval", run_id="r", max_tries=1)
    submitted.does = lambda: recomputed(driver, "flights_interval/r/run/-1/1")
    one = KcrIntervalOperator(task_id="run", region="flights")
    made = context(task, END)
    assert execute(one, made)["revision"] == 1
    assert submitted.arguments[:4] == ["recompute", "flights", "--checkpoint", "2"]
    assert made["outlet_events"][ASSET].extra["revision"] == 1
    # Its next try finds that; cleared once more, it does it once more.
    submitted.arguments = []
    assert execute(one, context(replace(task, try_number=3), END))["revision"] == 1
    assert submitted.arguments == []
    submitted.does = lambda: recomputed(driver, "flights_interval/r/run/-1/2")
    assert execute(one, context(replace(task, max_tries=2), END))["revision"] == 2


def test_a_run_of_a_backfill_recomputes_what_another_run_has_made(driver: Driver, submitted: Submitted) -> None:
    task = FakeTask(task_id="run", dag_id="flights_interval", run_id="backfill")
    submitted.does = lambda: recomputed(driver, "flights_interval/backfill/run/-1/0")
    one, past = KcrIntervalOperator(task_id="run", region="flights"), DagRunType.BACKFILL
    assert execute(one, context(task, END, past))["revision"] == 1
    assert submitted.arguments[:4] == ["recompute", "flights", "--checkpoint", "2"]
    # Its next try finds that, and so does each run of the clock, and each that only finds.
    submitted.arguments = []
    assert execute(one, context(replace(task, try_number=2), END, past))["revision"] == 1
    finding = KcrIntervalOperator(task_id="run", region="flights", on_clear="find")
    assert finding._to_recompute(context(task, END, past), Region("flights", driver.store)) is None
    assert one._to_recompute(context(task, END), Region("flights", driver.store)) is None
    # What it has made itself, it does not make again; and there is nothing where no checkpoint is.
    own = replace(task, run_id="r")
    assert one._to_recompute(context(own, END, past), Region("flights", driver.store)) is None
    later = context(task, END + timedelta(minutes=5), past)
    assert one._to_recompute(later, Region("flights", driver.store)) is None
    assert submitted.arguments == []


def test_what_can_not_be_recomputed_fails_for_good_and_starts_nothing(driver: Driver, submitted: Submitted) -> None:
    with pytest.raises(AirflowFailException, match="no checkpoint 7"):
        execute(operator(checkpoint=7), context())
    with pytest.raises(AirflowFailException, match="has no group strange"):
        execute(operator(groups=["strange"]), context())
    assert submitted.arguments == []


def test_a_task_that_is_killed_tells_its_application(driver: Driver, submitted: Submitted) -> None:
    one = operator()
    one.on_kill()
    assert not submitted.was_told
    submitted.does = one.on_kill
    with pytest.raises(AirflowException, match="has ended, and checkpoint 2 was not recomputed"):
        execute(one, context())
    assert submitted.was_told
