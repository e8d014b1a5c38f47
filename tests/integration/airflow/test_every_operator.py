"""The operators and sensors of a region's whole life in one run of a real Airflow, with real members and a real broker.

Those that wait are deferred before the members start, and the triggerer is started anew meanwhile; those that wait in
their slot are killed there, and tried again. One is marked failed in the middle of its wait, and cleared; in the end
those that can be asked again are, and answer as before.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_kcr.embedded.airflow import Component
from airflow_kcr.protocol.region.rows import RegionState
from tests.support.faults import Note, judged
from tests.support.live_airflow import LiveAirflow
from tests.support.members import Live, live

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

WITHIN = 400.0
"""Seconds for some twenty tasks, one after the other, on whatever machine."""

SPEC = """\
batch: {target: 500ms, min_records: 50, max_records: 500, timeout: 20s}
timeouts: {lease: 10s, renew: 2s, session: 25s, relaunch: 20s, reset: 160s, drain: 120s, commit: 20s, close: 4s}
"""

DAG = """\
import os
from pathlib import Path

from airflow.sdk import DAG

from airflow_kcr.operators.checkpoint import (
    KcrCleanCheckpointsOperator,
    KcrCommitCheckpointOperator,
    KcrCompareCheckpointOperator,
    KcrDrainOperator,
    KcrPinCheckpointOperator,
    KcrRepairCheckpointOperator,
    KcrUnpinCheckpointOperator,
)
from airflow_kcr.operators.region import (
    KcrKillOperator,
    KcrPauseOperator,
    KcrResumeOperator,
    KcrRetireOperator,
    KcrStartOperator,
    KcrStopOperator,
    KcrVerifyOperator,
)
from airflow_kcr.sensors.region import (
    KcrCheckpointSensor,
    KcrLagSensor,
    KcrMembershipSensor,
    KcrProgressSensor,
    KcrRegionStateSensor,
)


def note(context):
    # Whole at once: who waits for the file reads it then.
    written = Path("FOLDER") / "writing"
    written.write_text(str(os.getpid()))
    written.rename(Path("FOLDER") / f"{context['ti'].task_id}-{context['ti'].try_number}")


in_its_slot = {"deferrable": False, "retries": 2, "retry_delay": 1, "on_execute_callback": note}

with DAG("NAME", schedule=None, max_active_tasks=16, default_args={"region": "NAME"}):
    waiting = [
        KcrStartOperator(task_id="start", wait_for_completion=True),
        KcrMembershipSensor(task_id="members"),
        KcrRegionStateSensor(task_id="runs"),
        KcrProgressSensor(task_id="progresses"),
        KcrLagSensor(task_id="caught_up", below=1),
        KcrRegionStateSensor(task_id="rescheduled", deferrable=False, mode="reschedule", poke_interval=20),
        KcrRegionStateSensor(task_id="poked", poke_interval=2, **in_its_slot),
        KcrStartOperator(task_id="held", wait_for_completion=True, **in_its_slot),
    ]
    seen = KcrCheckpointSensor(task_id="seen", sequence=1)
    drain = KcrDrainOperator(task_id="drain")
    commit = KcrCommitCheckpointOperator(task_id="commit", checkpoint=drain.output)
    pause = KcrPauseOperator(task_id="pause")
    stop = KcrStopOperator(task_id="stop")
    stopped = "{{ ti.xcom_pull(task_ids='stop')['sequence'] }}"

    waiting >> drain >> commit
    kept = [
        KcrCompareCheckpointOperator(task_id="compare"),
        KcrRetireOperator(task_id="retire"),
        KcrVerifyOperator(task_id="verify"),
        KcrCleanCheckpointsOperator(task_id="clean", conf={"spark.master": "local[1]"}),
    ]
    pin = KcrPinCheckpointOperator(task_id="pin", pinned_as="before {{ run_id }}", reason="to see")
    commit >> [pin, *kept]
    [pin >> KcrUnpinCheckpointOperator(task_id="unpin"), *kept, seen] >> pause
    pause >> KcrRegionStateSensor(task_id="paused", state="paused") >> KcrResumeOperator(task_id="resume") >> stop
    stop >> KcrRegionStateSensor(task_id="stopped", state="stopped") >> KcrRepairCheckpointOperator(
        task_id="repair", checkpoint=stopped
    ) >> KcrStartOperator(task_id="again") >> KcrKillOperator(task_id="kill")
"""

KILLED = ("poked", "held")
DEFERRED = ("start", "members", "runs", "progresses", "caught_up", "seen")
OPERATORS = (
    *("start", "held", "drain", "commit", "pin", "unpin", "compare", "retire", "verify", "clean"),
    *("pause", "resume", "stop", "repair", "again", "kill"),
)
AFTER_STOP = ("stop", "stopped", "repair", "again", "kill")
ASKED_AGAIN = ("seen", "drain", "commit", "compare", "retire", "clean", "repair")
"""What answers as before: nothing of it has changed since."""


def results(airflow: LiveAirflow, dag: str, run: str, tasks: Sequence[str]) -> dict[str, Any]:
    """What these tasks have returned; sensors return nothing."""
    return {task: airflow.editor.result(dag, run, task) for task in tasks if task in OPERATORS}


def told(airflow: LiveAirflow, dag: str, run: str) -> str:
    """The state of each task, and the end of the log of each that failed, for a message."""
    tasks = airflow.editor.tasks(dag, run)
    logs = [
        airflow.editor.log(dag, run, one.task_id)[-2000:] for one in tasks if one.state in {"failed", "up_for_retry"}
    ]
    return "\n".join([str({one.task_id: one.state for one in tasks}), *logs])


def is_done(airflow: LiveAirflow, dag: str, run: str) -> None:
    """Wait until a run has succeeded."""
    found = airflow.editor.wait_for_run(dag, run, {"success", "failed"}, within=WITHIN)
    assert found.state == "success", told(airflow, dag, run)


def checked(one: Live, found: dict[str, Any]) -> None:
    """Look at what the operators say that they have done."""
    sequence = found["drain"]["sequence"]
    assert found["commit"] == found["drain"]
    assert found["compare"] == {
        "region": one.name, "sequence": sequence, "partitions": 2, "findings": {"equal": 2}
    }  # fmt: skip
    assert (found["pin"]["sequence"], found["pin"]["pinned_as"][:7]) == (sequence, "before ")
    assert found["unpin"]["pinned_as"] == ""
    assert found["retire"]["retired"] == []
    assert found["verify"]["checked_batches"] > 0
    assert found["clean"] == {"region": one.name, "sinks": []}
    states = {task: found[task]["state"] for task in ("start", "held", "pause", "stop", "kill")}
    assert states == {"start": "running", "held": "running", "pause": "running", "stop": "stopped", "kill": "stopped"}
    assert found["pause"]["desired_state"] == "paused"
    assert found["repair"] == {"region": one.name, "sequence": found["stop"]["sequence"], "committed": "yes"}


def test_every_operator_and_sensor_of_a_region_in_one_run(
    airflow: LiveAirflow, tmp_path: Path, record_property: Note
) -> None:
    with live(airflow.kafka, airflow.store_url, tmp_path, members=2, partitions=2, spec=SPEC) as one:
        dag, editor = str(one.name), airflow.editor
        pids = tmp_path / "pids"
        pids.mkdir()
        airflow.add_dags(dag, DAG.replace("NAME", dag).replace("FOLDER", str(pids)), dag)
        run = editor.trigger(dag).run_id
        for task in DEFERRED:
            editor.wait_for_task(dag, run, task, {"deferred"}, within=WITHIN)
        editor.wait_for_task(dag, run, "rescheduled", {"up_for_reschedule"}, within=WITHIN)
        for task in KILLED:
            one.until((pids / f"{task}-1").exists, f"{task} waits in its slot", WITHIN)
            os.kill(int((pids / f"{task}-1").read_text()), signal.SIGKILL)
        airflow.restart(Component.TRIGGERER)
        one.fill(100)
        process = one.start(0, 1)

        editor.wait_for_task(dag, run, "commit", within=WITHIN)
        tries = {task.task_id: task.try_number for task in editor.tasks(dag, run)}
        # Airflow tries a rescheduled task again, too, if it loses what the task has reported.
        assert {task: tries[task] for task in (*KILLED, *DEFERRED)} == {
            **dict.fromkeys(KILLED, 2),
            **dict.fromkeys(DEFERRED, 1),
        }
        process.gate("contributing")
        editor.wait_for_task(dag, run, "stop", {"deferred"}, within=WITHIN)
        editor.mark(dag, run, "stop", "failed")
        editor.wait_for_run(dag, run, {"failed"}, within=WITHIN)
        process.open("contributing")
        one.until(lambda: one.region().state is RegionState.STOPPED, "what was asked for happens all the same", WITHIN)
        editor.clear(dag, run, AFTER_STOP)
        is_done(airflow, dag, run)
        checked(one, results(airflow, dag, run, OPERATORS))

        before = results(airflow, dag, run, ASKED_AGAIN)
        tries = {task.task_id: task.try_number for task in editor.tasks(dag, run)}
        editor.clear(dag, run, ASKED_AGAIN)
        is_done(airflow, dag, run)
        again = {task.task_id: task.try_number for task in editor.tasks(dag, run)}
        assert {task for task in again if again[task] > tries[task]} == set(ASKED_AGAIN)
        assert results(airflow, dag, run, ASKED_AGAIN) == before
        judged(one, record_property)
