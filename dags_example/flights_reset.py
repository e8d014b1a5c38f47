"""Goes back to an earlier checkpoint of the flights: a person chooses, reads the plan, and approves; consumers stay.

Trigger it, then answer it under "Required Actions": which checkpoint, then the plan with what would be processed again.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_kcr.operators.reset import (
    KcrApplyResetOperator,
    KcrApproveResetOperator,
    KcrChooseCheckpointOperator,
    KcrPlanResetOperator,
)

REGION = "flights"

with DAG(
    "flights_reset",
    description="Resets the flights to an earlier checkpoint, after a person has seen the plan",
    schedule=None,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=5)},
    tags=["kcr", "flights"],
):
    (
        KcrChooseCheckpointOperator(task_id="choose", region=REGION)
        >> KcrPlanResetOperator(task_id="plan", region=REGION)
        >> KcrApproveResetOperator(task_id="approve", region=REGION)
        >> KcrApplyResetOperator(task_id="apply", region=REGION)
    )
