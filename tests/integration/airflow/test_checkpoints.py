"""The checkpoints of DAG runs in a real Airflow.

Its scheduler, its triggerer and its asset events, with members simulated.

The members work in the store alone, as the real ones do, so what is shown is how Airflow and a region go together: each
run has its own checkpoint, waits without a slot, and downstream DAGs run once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from airflow_kcr.airflow_features import CHECKPOINT_KEYS
from airflow_kcr.embedded.airflow import Component
from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import KcrError
from airflow_kcr.hooks.compat import has
from airflow_kcr.protocol.region.commands import Reconcile, StoreBoundaryOffsets
from airflow_kcr.protocol.region.rows import BoundaryOffset, CheckpointState, Committed
from airflow_kcr.protocol.values import Offset
from airflow_kcr.sinks.checkpoints import CheckpointId
from tests.support.driver import Driver
from tests.support.live_airflow import LiveAirflow
from tests.support.live_region import SPEC, live_region

pytestmark = [pytest.mark.timeout(600)]

MINUTE = timedelta(minutes=1)
WIDTH = 10
"""Records of each partition in an interval."""

CHECKPOINTS = """\
from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, task

from airflow_kcr.hooks.assets import checkpoint_schedule
from airflow_kcr.hooks.checkpoints import checkpoint_of
from airflow_kcr.hooks.compat import CronDataIntervalTimetable
from airflow_kcr.operators.checkpoint import KcrCommitCheckpointOperator
from airflow_kcr.operators.checkpoint import KcrDrainOperator
from airflow_kcr.sensors.region import KcrCheckpointSensor

with DAG(
    "REGION_checkpoint",
    schedule=CronDataIntervalTimetable("* * * * *", timezone="UTC"),
    start_date=datetime.fromisoformat("SINCE"),
    catchup=True,
    max_active_runs=1,
):
    drain = KcrDrainOperator(task_id="drain", region="REGION")
    drain >> KcrCommitCheckpointOperator(task_id="commit", region="REGION", checkpoint=drain.output)
"""
"""A file of DAGs, with one that checkpoints a region each minute."""

MORE_DAGS = """
with DAG("lined_report", schedule=checkpoint_schedule("lined"), max_active_runs=1):

    @task
    def report(**context):
        return checkpoint_of(context).to_json()

    report()

with DAG("lined_manual", schedule=None):
    KcrDrainOperator(task_id="drain", region="lined")

with DAG("lined_template", schedule=None, params={"region": "lined"}):
    drain = KcrDrainOperator(task_id="drain", region="{{ params.region }}")
    drain >> KcrCommitCheckpointOperator(task_id="commit", region="{{ params.region }}", checkpoint=drain.output)

with DAG("lined_outlasting", schedule=None, params={"next": 0}, default_args={"region": "lined", "retry_delay": 1}):
    KcrDrainOperator(task_id="drain")
    KcrDrainOperator(task_id="drain_for_a_second", timeout=timedelta(seconds=1))
    KcrCheckpointSensor(task_id="next", sequence="{{ params.next }}")
    KcrCheckpointSensor(task_id="next_within_a_second", sequence="{{ params.next }}", timeout=1)
"""


@dataclass(slots=True)
class Members:
    """Members of a region that do what the store asks of them, in a thread."""

    driver: Driver
    at_work: threading.Event = field(default_factory=threading.Event)
    _ending: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.at_work.set()

    def end(self) -> None:
        """Let them go home."""
        self._ending.set()
        self._thread.join(20)

    def _run(self) -> None:
        while not self._ending.wait(0.1):
            with suppress(KcrError):
                self.driver.heartbeat()
                if self.at_work.is_set():
                    self._work()

    def _work(self) -> None:
        driver, region = self.driver, self.driver.region
        checkpoint = region.checkpoint
        if (
            checkpoint is not None
            and checkpoint.boundary is not None
            and checkpoint.state is CheckpointState.APPROACHING
        ):
            for member in sorted(driver.processes):
                place = {p: (c.position or 0) + WIDTH for p, c in driver.claims(member).items()}
                found = {p: BoundaryOffset(offset=Offset(offset)) for p, offset in place.items()}
                driver.handle(
                    StoreBoundaryOffsets(caller=driver.caller(member), boundary=checkpoint.boundary, found=found)
                )
                driver.process(member, width=WIDTH)
            driver.handle(Reconcile())
        elif checkpoint is not None and checkpoint.state is CheckpointState.DRAINING:
            driver.complete()
        driver.publish()
        restore_point = region.checkpoints.get(region.restore_sequence) if region.restore_sequence is not None else None
        if (
            restore_point is not None
            and restore_point.committed is Committed.PENDING
            and restore_point.published_at is not None
        ):
            for member in sorted(driver.processes):
                driver.read_back(member)


@pytest.fixture(scope="module")
def members(airflow: LiveAirflow) -> Iterator[Members]:
    """A running region, and the DAGs that checkpoint it, whose first data interval ended three minutes ago."""
    spec = SPEC.replace("region: flights", "region: lined").replace("group_id: g,", "group_id: lined,")
    with live_region(airflow.store_url, spec + "checkpoint: {every: 1m, request: dag_run}\n") as driver:
        for partition, bounds in list(driver.logs.items()):
            driver.grow(partition, end=100_000, start=bounds.start)
        driver.up()
        members = Members(driver)
        since = datetime.now(UTC).replace(second=0, microsecond=0) - 4 * MINUTE
        airflow.add_dags(
            "lined",
            CHECKPOINTS.replace("REGION", "lined").replace("SINCE", since.isoformat()) + MORE_DAGS,
            "lined_report",
            "lined_manual",
            "lined_template",
            "lined_outlasting",
            "lined_checkpoint",
        )
        yield members
        airflow.editor.pause("lined_checkpoint")
        members.end()


def ended(airflow: LiveAirflow, dag: str, count: int) -> list[str]:
    """Wait for the first runs of a DAG, and return their ids."""
    runs = airflow.editor.runs
    assert happened(lambda: len(runs(dag)) >= count, within=240, pause=0.5), runs(dag)
    ids = [run.run_id for run in runs(dag)[:count]]
    for run_id in ids:
        assert airflow.editor.wait_for_run(dag, run_id, within=120).state == "success", run_id
    return ids


def test_each_run_has_its_own_checkpoint_and_whoever_builds_on_it_runs_once(
    airflow: LiveAirflow, members: Members
) -> None:
    ids = ended(airflow, "lined_checkpoint", 3)
    runs = airflow.editor.runs("lined_checkpoint")[:3]
    answers = [airflow.editor.result("lined_checkpoint", run_id, "commit") for run_id in ids]
    assert answers == [airflow.editor.result("lined_checkpoint", run_id, "drain") for run_id in ids]
    found = [dict(answer) for answer in answers if isinstance(answer, dict)]
    ends = [run.interval_end for run in runs]
    assert [datetime.fromisoformat(str(answer["boundary"])) for answer in found] == ends
    offsets = [members.driver.region.offsets[answer["sequence"]] for answer in found]
    assert [set(o.values()) for o in offsets] == [{WIDTH}, {2 * WIDTH}, {3 * WIDTH}]
    boundaries = {answer["sequence"]: answer["boundary"] for answer in found}
    assert happened(lambda: max(boundaries) in reported(airflow), within=240, pause=0.5), reported(airflow)
    reports = {sequence: boundary for sequence, boundary in reported(airflow).items() if sequence in boundaries}
    # Without keys, checkpoints that come at once share the run of the newest.
    assert reports == boundaries if has(CHECKPOINT_KEYS) else reports.items() <= boundaries.items()
    if has(CHECKPOINT_KEYS):
        keys = [run.partition_key for run in airflow.editor.runs("lined_report")[:3]]
        assert keys == [str(CheckpointId(answer["timeline"], answer["sequence"])) for answer in found]


def reported(airflow: LiveAirflow) -> dict[int, object]:
    """The boundaries of the checkpoints that a DAG downstream has run for, by their sequences."""
    runs = [run.run_id for run in airflow.editor.runs("lined_report") if run.state == "success"]
    told = [airflow.editor.result("lined_report", run_id, "report") for run_id in runs]
    found = [answer for answer in told if isinstance(answer, dict)]
    assert len({answer["sequence"] for answer in found}) == len(found)
    return {int(answer["sequence"]): answer["boundary"] for answer in found}


def test_a_region_whose_name_is_a_template_has_its_event_too(airflow: LiveAirflow, members: Members) -> None:
    run = airflow.editor.trigger("lined_template").run_id
    assert airflow.editor.wait_for_run("lined_template", run).state == "success"
    answer = airflow.editor.result("lined_template", run, "commit")
    assert isinstance(answer, dict)

    def is_reported() -> bool:
        found = reported(airflow)
        return answer["sequence"] in found or (not has(CHECKPOINT_KEYS) and max(found, default=0) > answer["sequence"])

    assert happened(is_reported, within=120, pause=0.5), reported(airflow)


def test_a_checkpoint_is_made_without_the_scheduler_and_found_when_it_is_back(
    airflow: LiveAirflow, members: Members
) -> None:
    members.at_work.clear()
    try:
        run = airflow.editor.trigger("lined_manual")
        airflow.editor.wait_for_task("lined_manual", run.run_id, "drain", {"deferred"})
        airflow.kill(Component.SCHEDULER)
    finally:
        members.at_work.set()
    try:
        with airflow.region("lined") as region:
            checkpoint = region.wait_for_checkpoint(f"lined_manual/{run.run_id}/drain/-1", timedelta(seconds=60))
    finally:
        airflow.restart(Component.SCHEDULER)
    assert airflow.editor.wait_for_run("lined_manual", run.run_id, within=180).state == "success"
    answer = airflow.editor.result("lined_manual", run.run_id, "drain")
    assert isinstance(answer, dict)
    assert answer["sequence"] == checkpoint.request.sequence


OUTLASTING = ("drain", "drain_for_a_second", "next", "next_within_a_second")


@pytest.mark.long
def test_a_task_that_is_deferred_ends_right_though_no_triggerer_runs_for_longer_than_it_may_wait(
    airflow: LiveAirflow, members: Members
) -> None:
    dag, editor = "lined_outlasting", airflow.editor
    # Before any of them waits: it would end the two that may for a second only, however soon it were killed then.
    airflow.kill(Component.TRIGGERER)
    try:
        members.at_work.clear()
        try:
            # Two more than there are: one may just be in the making.
            wanted = max(members.driver.region.checkpoints, default=0) + 2
            run = editor.trigger(dag, {"next": wanted}).run_id
            for task in OUTLASTING:
                editor.wait_for_task(dag, run, task, {"deferred"})
        finally:
            members.at_work.set()
        with airflow.region("lined") as region:
            for number in range(2):
                region.request_checkpoint(request_id=f"{dag}/{number}")
                region.wait_for_checkpoint(f"{dag}/{number}", timedelta(seconds=60))
            drained = {
                task: region.wait_for_checkpoint(f"{dag}/{run}/{task}/-1", timedelta(seconds=60)).request.sequence
                for task in ("drain", "drain_for_a_second")
            }
        # A minute after their own time, Airflow ends those that may wait for a second only.
        late = editor.wait_for_task(dag, run, "next_within_a_second", within=180)
        again = editor.wait_for_task(dag, run, "drain_for_a_second", within=180)
        assert {editor.wait_for_task(dag, run, task, {"deferred"}).try_number for task in ("drain", "next")} == {1}
    finally:
        airflow.restart(Component.TRIGGERER)
    # A sensor's time is over with that; an operator finds what it has asked for when it is tried again.
    assert (late.state, late.try_number) == ("failed", 1)
    assert (again.state, again.try_number) == ("success", 2)
    for task in ("drain", "next"):
        found = editor.wait_for_task(dag, run, task, within=180)
        assert (found.state, found.try_number) == ("success", 1), editor.log(dag, run, task)
    for task, sequence in drained.items():
        answer = editor.result(dag, run, task)
        assert isinstance(answer, dict)
        assert answer["sequence"] == sequence
