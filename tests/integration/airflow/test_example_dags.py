"""The example DAGs in a real Airflow: parsed, seen, refused, and run on real flights."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from airflow_kcr.airflow_features import CHECKPOINT_KEYS
from airflow_kcr.api import Region
from airflow_kcr.embedded.airflow import Component
from airflow_kcr.embedded.flights import producer
from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import RefusedError, UnknownRegion
from airflow_kcr.goals import RUNNING, STOPPED
from airflow_kcr.hooks.compat import has
from airflow_kcr.schedules import Every
from tests.support.live_airflow import EVERY, LiveAirflow

pytestmark = pytest.mark.timeout(1_200)

EXAMPLES = {"flights_consumers", "flights_checkpoint", "flights_build", "flights_reset", "flights_once"} | {
    f"minimal_{name}" for name in ("consumers", "checkpoint", "reset", "intervals_interval", "intervals_reset")
}
FLIGHTS = 6_000
PATIENCE = timedelta(minutes=5)


def test_every_example_is_parsed_without_an_error(airflow: LiveAirflow) -> None:
    airflow.editor.wait_for_dags(EXAMPLES, within=120)
    assert airflow.editor.import_errors() == {}
    assert airflow.viewer.dag_ids() >= EXAMPLES


@pytest.mark.parametrize("dag", ["flights_reset", "flights_consumers", "minimal_checkpoint"])
def test_a_viewer_may_look_and_start_nothing(airflow: LiveAirflow, dag: str) -> None:
    airflow.viewer.wait_for_dags([dag], within=120)
    with pytest.raises(RefusedError, match="403"):
        airflow.viewer.trigger(dag)
    with pytest.raises(RefusedError, match="403"):
        airflow.viewer.unpause(dag)


def test_flights_are_consumed_each_interval_is_checkpointed_by_its_run_and_each_checkpoint_built_upon_once(
    airflow: LiveAirflow,
) -> None:
    editor = airflow.editor
    producer.ensure_topic(airflow.kafka.settings, producer.TOPIC)
    producer.produce(airflow.kafka.settings, first=FLIGHTS)
    editor.wait_for_dags(EXAMPLES, within=120)
    airflow.start_examples()
    for dag in ("flights_consumers", "flights_build"):
        editor.unpause(dag)
    consuming = editor.trigger("flights_consumers")
    with airflow.region("flights") as region:
        editor.wait_for_task("flights_consumers", consuming.run_id, "apply", {"success"})
        first = region.start().next_boundary
        region.wait_for(RUNNING, PATIENCE)
        assert first is not None
        editor.unpause("flights_checkpoint")
        wanted = Every(EVERY).after(datetime.now(UTC))
        assert happened(
            lambda: any(r.interval_end == wanted and r.state == "success" for r in editor.runs("flights_checkpoint")),
            within=PATIENCE.total_seconds(),
            pause=1,
        ), editor.runs("flights_checkpoint")
        editor.pause("flights_checkpoint")

        runs = [
            run for run in editor.runs("flights_checkpoint") if run.interval_end and first <= run.interval_end <= wanted
        ]
        assert {run.state for run in runs} == {"success"}
        checkpoints = {
            one.checkpoint.boundary: one.checkpoint for one in region.checkpoints.list() if one.checkpoint.is_current
        }
        for run in runs:
            answer = editor.result("flights_checkpoint", run.run_id, "commit")
            assert isinstance(answer, dict)
            assert answer["sequence"] == checkpoints[run.interval_end].sequence
            told = editor.result("flights_checkpoint", run.run_id, "report")
            assert isinstance(told, dict)
            assert told["flights"] == FLIGHTS

        consumers_work_on_without_the_api_server(airflow, region, consuming.run_id)
        a_consumer_is_marked_failed_and_cleared(airflow, region, consuming.run_id)
        region.stop()
        region.wait_for(STOPPED, PATIENCE)
        assert region.verify().violations == ()
    ended = editor.wait_for_run("flights_consumers", consuming.run_id, within=PATIENCE.total_seconds())
    assert ended.state == "success"
    # Runs of intervals from before the region's start were answered by its first checkpoint, which has one event for
    # them all.
    later = {checkpoints[run.interval_end].sequence for run in runs if run.interval_end and run.interval_end > first}
    if not has(CHECKPOINT_KEYS):  # of several that come at once, the newest
        later = {max(later)}
    assert happened(lambda: later <= built(airflow).keys(), within=240, pause=1), built(airflow)
    assert {sequence: count for sequence, count in built(airflow).items() if sequence in later} == dict.fromkeys(
        later, 1
    )


def test_a_copied_example_consumes_with_the_pipeline_beside_it(airflow: LiveAirflow) -> None:
    editor = airflow.editor
    producer.ensure_topic(airflow.kafka.settings, producer.TOPIC)
    producer.produce(airflow.kafka.settings, first=FLIGHTS)
    editor.wait_for_dags(EXAMPLES, within=120)
    editor.unpause("minimal_consumers")  # it runs once by itself
    with airflow.region("minimal") as region:
        assert happened(lambda: consumed(region) > 0, within=PATIENCE.total_seconds(), pause=1), editor.runs(
            "minimal_consumers"
        )
        region.stop()
        region.wait_for(STOPPED, PATIENCE)
    (run,) = editor.runs("minimal_consumers")
    assert editor.wait_for_run("minimal_consumers", run.run_id, within=PATIENCE.total_seconds()).state == "success"


def consumed(region: Region) -> int:
    """How many offsets of its topic a region has consumed; none where it was not declared yet."""
    try:
        return sum(one.position or 0 for one in region.lag())
    except UnknownRegion:
        return 0


def built(airflow: LiveAirflow) -> Counter[int]:
    """How often something was built on each checkpoint, by its sequence."""
    runs = [run.run_id for run in airflow.editor.runs("flights_build") if run.state == "success"]
    return Counter(
        int(str(told["sequence"]))
        for told in (airflow.editor.result("flights_build", run_id, "build") for run_id in runs)
        if isinstance(told, dict)
    )


def consumers_work_on_without_the_api_server(airflow: LiveAirflow, region: Region, run_id: str) -> None:
    """Consume flights and make a checkpoint while no task can reach Airflow; each application outlives that."""
    before = incarnations(region)
    airflow.kill(Component.API_SERVER)
    try:
        producer.produce(airflow.kafka.settings, first=FLIGHTS)
        assert happened(lambda: sum(one.lag or 0 for one in region.lag()) == 0, within=120, pause=1), region.lag()
        asked = region.drain()
        region.wait_for_checkpoint(asked.request.request_id, timedelta(seconds=60))
    finally:
        airflow.restart(Component.API_SERVER)
    assert [one.state for one in airflow.editor.tasks("flights_consumers", run_id) if one.task_id == "consume"] == [
        "running",
        "running",
    ]
    assert incarnations(region) == before


def incarnations(region: Region) -> dict[int, int]:
    """By the members' indexes; one more is a process more that was started."""
    return {one.member.index: one.incarnation for group in region.show().groups for one in group.members}


def a_consumer_is_marked_failed_and_cleared(airflow: LiveAirflow, region: Region, run_id: str) -> None:
    """End one of the applications from outside, have its next try take the member over, and let it consume."""
    dag, task, index = "flights_consumers", "consume", 1

    before = incarnations(region)[index]
    airflow.editor.mark(dag, run_id, task, "failed", map_index=index)
    assert happened(lambda: not is_alive(region, index), within=120, pause=0.5), "the application goes on"
    airflow.editor.clear(dag, run_id, [(task, index)])
    assert happened(lambda: incarnations(region)[index] > before and is_alive(region, index), within=240, pause=0.5)
    region.wait_for(RUNNING, PATIENCE)
    producer.produce(airflow.kafka.settings, first=FLIGHTS)
    assert happened(lambda: sum(one.lag or 0 for one in region.lag()) == 0, within=120, pause=1), region.lag()


def is_alive(region: Region, index: int) -> bool:
    return any(one.alive for group in region.show().groups for one in group.members if one.member.index == index)
