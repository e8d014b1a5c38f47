"""One checkpoint of the flights for each data interval, a report of each, and what runs once a checkpoint is there.

The region checkpoints itself at every boundary, and a run finds the checkpoint of its interval: nothing stands still
while a scheduler is late. `catchup=True` gives every interval its run, and `max_active_runs=1` gives them their order.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, get_current_context, task

from airflow_kcr.hooks.assets import checkpoint_schedule
from airflow_kcr.hooks.checkpoints import checkpoint_of
from airflow_kcr.hooks.compat import DeltaDataIntervalTimetable  # in airflow.sdk from Airflow 3.2 on
from airflow_kcr.hooks.kcr import KcrHook
from airflow_kcr.operators.checkpoint import KcrCommitCheckpointOperator, KcrDrainOperator
from airflow_kcr.operators.region import KcrValidateGroupOperator
from airflow_kcr.spec import load

# When the region goes live, at a boundary: its first data interval begins here, and each one since then gets a run.
LIVE_SINCE = datetime(2026, 11, 1, tzinfo=UTC)

SPEC = load(Path(__file__).with_name("flights.yaml"))
REGION = SPEC.region


@task
def report(checkpoint: dict[str, object]) -> dict[str, object]:
    """Say how many flights are in the checkpoint of this run, and how many came since the one before it."""
    with KcrHook().region(REGION) as region:
        offsets = region.checkpoints.show(int(str(checkpoint["sequence"]))).offsets
    flights = sum(offsets.values())
    return {"sequence": checkpoint["sequence"], "boundary": checkpoint["boundary"], "flights": flights}


@task
def build() -> dict[str, object]:
    """Build something on one checkpoint: the one that the event, which started this run, tells of."""
    checkpoint = checkpoint_of(get_current_context())
    return {"timeline": checkpoint.timeline, "sequence": checkpoint.sequence, "boundary": checkpoint.boundary}


with DAG(
    "flights_checkpoint",
    description="One checkpoint of the flights for each data interval",
    schedule=DeltaDataIntervalTimetable(SPEC.checkpoint.every),
    start_date=LIVE_SINCE,
    catchup=True,
    max_active_runs=1,
    # A consumer that is being started again is missing for a while.
    default_args={"retries": 20, "retry_delay": timedelta(seconds=5)},
    tags=["kcr", "flights"],
):
    validate = KcrValidateGroupOperator(task_id="validate", region=REGION)
    drain = KcrDrainOperator(task_id="drain", region=REGION)
    commit = KcrCommitCheckpointOperator(task_id="commit", region=REGION)
    validate >> drain >> commit
    report(commit.output)

with DAG(
    "flights_build",
    description="Runs once for each checkpoint of the flights, in their order",
    schedule=checkpoint_schedule(REGION),
    start_date=LIVE_SINCE,
    max_active_runs=1,
    tags=["kcr", "flights"],
):
    build()
