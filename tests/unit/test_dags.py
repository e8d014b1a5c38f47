"""The standard DAGs of a region, as they are built; nothing runs."""

from __future__ import annotations

import json
import re
import warnings
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow import sdk
from airflow.sdk import Asset, Param
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.serialization.serialized_objects import LazyDeserializedDAG

from airflow_kcr.airflow_features import PARTITION_DATES
from airflow_kcr.dags import Application, all_together, one_each, region_dags
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.hooks import compat
from airflow_kcr.hooks.compat import CronDataIntervalTimetable, CronPartitionTimetable, DeltaDataIntervalTimetable
from airflow_kcr.operators.reset import ASKED_AGAIN
from airflow_kcr.operators.reset_form import VALUED
from airflow_kcr.spec import RegionSpec, parse

if TYPE_CHECKING:
    from airflow.sdk import Context

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def spec(checkpoint: str = "{every: 5m}", members: int = 2) -> RegionSpec:
    return parse(f"""
region: tills
kafka: {{bootstrap.servers: 'broker.example:9092'}}
groups:
  - {{group_id: tills-etl, topics: [sales], members: {members}, pipeline: 'jobs.tills:process'}}
checkpoint: {checkpoint}
""")


def test_a_region_has_three_dags() -> None:
    dags = region_dags(spec(), start_date=START)
    assert [dag.dag_id for dag in dags] == ["tills_consumers", "tills_checkpoint", "tills_reset"]
    assert list(dags.consumers.task_dict) == ["apply", "consume"]
    assert list(dags.checkpoint.task_dict) == ["validate", "drain", "commit"]
    assert list(dags.reset.task_dict) == ["choose", "plan", "approve", "plan_again", "approve_again", "apply"]


@pytest.mark.parametrize("number", [0, 1])
def test_the_tasks_of_each_come_one_after_the_other(number: int) -> None:
    dag = region_dags(spec(), start_date=START)[number]
    for one, following in pairwise(dag.task_dict):
        assert dag.task_dict[one].downstream_task_ids == {following}


def test_every_interval_is_checkpointed_and_one_run_at_a_time() -> None:
    checkpoint = region_dags(spec(), start_date=START).checkpoint
    assert (checkpoint.catchup, checkpoint.max_active_runs) == (True, 1)
    assert not any(task.depends_on_past or task.wait_for_downstream for task in checkpoint.tasks)


def test_a_region_that_is_checkpointed_every_so_often_has_intervals_of_that_length_which_begin_at_a_boundary() -> None:
    checkpoint = region_dags(spec(), start_date=START + timedelta(seconds=30)).checkpoint
    assert isinstance(checkpoint.timetable, DeltaDataIntervalTimetable)
    assert compat.delta_of(checkpoint.timetable) == timedelta(minutes=5)
    assert checkpoint.start_date == START + timedelta(minutes=5)


def test_a_region_that_is_checkpointed_by_cron_has_its_intervals_on_the_same_clock() -> None:
    checkpoint = region_dags(spec("{cron: '30 6 * * *', timezone: Europe/Berlin}"), start_date=START).checkpoint
    assert isinstance(checkpoint.timetable, CronDataIntervalTimetable)
    assert compat.cron_of(checkpoint.timetable) == ("30 6 * * *", "Europe/Berlin")


def test_a_region_without_a_schedule_is_checkpointed_by_hand() -> None:
    assert region_dags(spec("{}"), start_date=START).checkpoint.timetable.can_be_scheduled is False


def test_or_by_the_dag_alone() -> None:
    checkpoint = region_dags(spec("{}"), start_date=START, schedule="0 * * * *").checkpoint
    assert isinstance(checkpoint.timetable, CronDataIntervalTimetable)


@pytest.mark.parametrize(
    "schedule",
    [
        timedelta(minutes=5),
        "*/5 * * * *",
        DeltaDataIntervalTimetable(timedelta(minutes=5)),
        CronDataIntervalTimetable("*/5 * * * *", timezone="UTC"),
    ],
)
def test_a_schedule_that_says_the_same_is_taken(
    schedule: str | timedelta | DeltaDataIntervalTimetable | CronDataIntervalTimetable,
) -> None:
    assert region_dags(spec(), start_date=START, schedule=schedule).checkpoint.start_date == START


def test_every_dag_is_stored_as_plain_json() -> None:
    made = (*region_dags(spec(), start_date=START), *region_dags(spec(), mode="interval", start_date=START))
    for dag in made:
        json.dumps(LazyDeserializedDAG.from_dag(dag).data)


def partitions(run_offset: int = 0) -> CronPartitionTimetable:
    if not hasattr(sdk, "CronPartitionTimetable"):
        pytest.skip("this Airflow has no runs of partitions")
    return CronPartitionTimetable("0 * * * *", timezone="UTC", run_offset=run_offset)


def test_runs_of_partitions_are_refused_where_airflow_tells_tasks_no_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compat.HAS, PARTITION_DATES, False)
    with pytest.raises(ConfigurationError, match=r"^schedule: runs of partitions .*; use CronDataIntervalTimetable"):
        region_dags(spec("{cron: '0 * * * *'}"), mode="interval", start_date=START, schedule=partitions(-1))


@pytest.mark.skipif(not compat.has(PARTITION_DATES), reason="refused, as the test before says")
def test_runs_of_partitions_come_when_their_partition_ends() -> None:
    hourly = partitions(-1)
    interval = region_dags(spec("{cron: '0 * * * *'}"), mode="interval", start_date=START, schedule=hourly).interval
    assert isinstance(interval.timetable, CronPartitionTimetable)
    assert interval.start_date == START + timedelta(hours=1)
    with pytest.raises(ConfigurationError, match="before there is a record of it; give it run_offset=-1"):
        region_dags(spec("{}"), start_date=START, schedule=partitions())
    with pytest.raises(ConfigurationError, match=r"contradicts checkpoint\.every"):
        region_dags(spec(), start_date=START, schedule=hourly)


@pytest.mark.parametrize(
    ("checkpoint", "schedule", "field"),
    [
        pytest.param("{every: 5m}", timedelta(minutes=10), "checkpoint.every", id="another length"),
        pytest.param("{every: 5m}", "0 * * * *", "checkpoint.every", id="another kind"),
        pytest.param("{cron: '0 6 * * *'}", "30 6 * * *", "checkpoint.cron", id="another phase"),
        pytest.param(
            "{cron: '0 6 * * *', timezone: Europe/Berlin}",
            CronDataIntervalTimetable("0 6 * * *", timezone="UTC"),
            "checkpoint.cron",
            id="another zone",
        ),
    ],
)
def test_a_schedule_that_says_something_else_names_the_field(
    checkpoint: str, schedule: str | timedelta | CronDataIntervalTimetable, field: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"schedule: .* contradicts {field} of region tills"):
        region_dags(spec(checkpoint), start_date=START, schedule=schedule)


def test_a_time_between_two_checkpoints_counts_from_the_start_date() -> None:
    with pytest.raises(ConfigurationError, match="counts from start_date"):
        region_dags(spec(), start_date=START + timedelta(seconds=7), schedule=timedelta(minutes=5))


def test_a_start_date_has_a_zone() -> None:
    with pytest.raises(ConfigurationError, match="start_date is 2026-03-01T12:00:00, which has no time zone"):
        region_dags(spec(), start_date=START.replace(tzinfo=None))


def test_each_member_has_an_application_unless_somebody_says_otherwise() -> None:
    assert one_each(spec()) == (Application("tills-etl", (0,)), Application("tills-etl", (1,)))
    assert all_together(spec(members=3)) == (Application("tills-etl", (0, 1, 2)),)


@pytest.mark.parametrize(
    ("applications", "message"),
    [
        ([Application("tills-etl", (0,))], r"no application has tills-etl\[1\]"),
        ([Application("tills-etl", (0, 1)), Application("tills-etl", (1,))], r"tills-etl\[1\] is in two applications"),
        ([Application("tills-etl", (0, 1, 2))], r"has no member tills-etl\[2\]"),
        ([Application("others", (0, 1))], r"has no member others\[0\]"),
    ],
)
def test_every_member_is_in_one_application(applications: list[Application], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        region_dags(spec(), start_date=START, applications=applications)


def test_the_checkpoint_can_be_built_upon() -> None:
    dags = region_dags(spec(), start_date=START)
    assert dags.committed is dags.checkpoint.get_task("commit")


def test_a_region_that_rests_between_its_runs_has_one_dag_for_them_with_one_task() -> None:
    dags = region_dags(spec(), mode="interval", start_date=START, consume={"conf": {"a": "b"}}, second_person=True)
    assert [dag.dag_id for dag in dags] == ["tills_interval", "tills_reset"]
    assert list(dags.interval.task_dict) == ["run"]
    assert (dags.run.region, dags.run.conf) == ("tills", {"a": "b"})
    assert (dags.interval.catchup, dags.interval.max_active_runs) == (True, 1)
    assert isinstance(dags.interval.timetable, DeltaDataIntervalTimetable)
    assert getattr(dags.reset.get_task("approve"), "second_person", None)


def test_several_applications_of_an_interval_have_a_task_each_beside_the_run() -> None:
    other = Asset("other")
    consume, hosted = {"conf": {"a": "b"}, "outlets": [other]}, one_each(spec())
    dags = region_dags(spec(), mode="interval", start_date=START, applications=hosted, consume=consume)
    assert list(dags.interval.task_dict) == ["apply", "run", "members"]
    assert dags.interval.get_task("apply").downstream_task_ids == {"run", "members"}
    assert dags.run.downstream_task_ids == set()
    assert (dags.run.group_id, dags.run.indexes, dags.run.spec) == (hosted[0].group_id, [0], None)
    members = dags.interval.get_task("members")
    assert isinstance(members, MappedOperator)
    assert members.partial_kwargs["run_task_id"] == "run"
    assert members.partial_kwargs["conf"] == {"a": "b"}
    # One event for a run, however many applications it has.
    assert other in dags.run.outlets
    assert not members.partial_kwargs.get("outlets")
    expanded = getattr(members.expand_input, "value", None)
    assert expanded == [{"group_id": one.group_id, "indexes": list(one.indexes)} for one in hosted[1:]]
    with pytest.raises(ConfigurationError, match="without all members no checkpoint completes"):
        region_dags(spec(), mode="interval", start_date=START, applications=hosted[1:])


def test_the_dag_of_the_readme_is_a_whole_file() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    [code] = [code for code in re.findall(r"^```python run\n(.+?)^```$", readme, re.M | re.S) if "region_dags" in code]
    found: dict[str, object] = {}
    exec(code, found)
    dags = [found[name] for name in ("interval", "reset")]
    assert [getattr(dag, "dag_id", None) for dag in dags] == ["minimal_interval", "minimal_reset"]


def test_every_task_asks_the_store_that_was_named_and_says_so_in_its_link() -> None:
    dags = region_dags(spec(), start_date=START, kcr_conn_id="team_kcr")
    for dag in dags:
        for task in dag.tasks:
            own = task.partial_kwargs if isinstance(task, MappedOperator) else vars(task)
            assert own["kcr_conn_id"] == "team_kcr", (dag.dag_id, task.task_id)


def test_arguments_of_tasks_get_to_the_tasks_that_they_are_for() -> None:
    dags = region_dags(
        spec(),
        start_date=START,
        consume={"conn_id": "spark_cluster", "conf": {"spark.driver.memory": "1g"}},
        default_args={"owner": "tills", "retries": 7},
        consent_upsert=True,
    )
    consume = dags.consumers.task_dict["consume"]
    assert isinstance(consume, MappedOperator)
    assert (consume.partial_kwargs["conn_id"], consume.partial_kwargs["conf"]) == (
        "spark_cluster",
        {"spark.driver.memory": "1g"},
    )
    assert {task.owner for dag in dags for task in dag.tasks} == {"tills"}
    retries = {(dag.dag_id, task.task_id): task.retries for dag in dags for task in dag.tasks}
    asking = {("tills_reset", "choose"): 2, ("tills_reset", "approve"): ASKED_AGAIN}
    asking |= {("tills_reset", "approve_again"): ASKED_AGAIN}
    assert retries == {**dict.fromkeys(retries, 7), **asking}
    assert dags.reset.params["consent_upsert"] is True
    assert region_dags(spec(), start_date=START).reset.params["consent_upsert"] is False


def test_a_reset_asks_with_airflow_s_form() -> None:
    reset = region_dags(spec(), start_date=START, second_person=True).reset
    assert reset.params.get_param("groups").schema["examples"] == ["tills-etl"]
    assert reset.params.dump()["target"] == "to-checkpoint"
    assert vars(reset.get_task("choose"))["values"].keys() == {one.form_field for one in VALUED}
    assert vars(reset.get_task("approve"))["second_person"] is True
    assert vars(reset.get_task("approve_again"))["second_person"] is True


def test_a_stale_plan_is_planned_and_approved_again_before_it_is_applied() -> None:
    reset = region_dags(spec(), start_date=START).reset
    behind = {task.task_id: sorted(task.downstream_task_ids) for task in reset.tasks}
    assert behind == {
        "choose": ["plan"],
        "plan": ["approve"],
        "approve": ["apply", "plan_again"],
        "plan_again": ["approve_again"],
        "approve_again": ["apply"],
        "apply": [],
    }


def test_further_arguments_of_the_dags_come_beside_their_own() -> None:
    access = {"tills": {"DAGs": {"can_read"}}}

    def told(context: Context) -> None: ...

    with warnings.catch_warnings():  # Airflow's own module of permissions, which it reads an access control with
        warnings.simplefilter("ignore", DeprecationWarning)
        dags = region_dags(
            spec(),
            start_date=START,
            dag_args={"tags": ["team-tills"], "doc_md": "Owned by tills.", "on_failure_callback": told},
            dag_args_of={
                "reset": {"access_control": access, "params": {"ticket": Param(None, type=["null", "string"])}},
                "checkpoint": {"doc_md": "One for each interval."},
            },
        )
    assert all(dag.tags == {"kcr", "tills", "team-tills"} for dag in dags)
    assert [dag.doc_md for dag in dags] == ["Owned by tills.", "One for each interval.", "Owned by tills."]
    assert all(dag.on_failure_callback == told for dag in dags)
    assert [bool(dag.access_control) for dag in dags] == [False, False, True]
    assert {"ticket", "target", "checkpoint"} <= set(dags.reset.params)
    assert "target" not in dags.consumers.params


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dag_args": {"schedule": None}}, "schedule of tills_consumers is not the author's to give"),
        ({"dag_args": {"catchup": False}}, "catchup of tills_consumers"),
        ({"dag_args": {"no_such": 1}}, "tills_consumers: .*no_such"),
        ({"dag_args": {"tags": "kcr"}}, "tags is a list of texts"),
        ({"dag_args_of": {"resets": {}}}, "there is no DAG resets; use consumers, checkpoint, interval, reset"),
        ({"dag_args_of": {"reset": {"params": {"target": 1}}}}, r"params\.target of tills_reset"),
        ({"dag_args_of": {"reset": {"params": ["target"]}}}, "params is a mapping"),
    ],
)
def test_arguments_that_are_not_the_author_s_are_refused_at_parse_time(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        region_dags(spec(), start_date=START, **arguments)
