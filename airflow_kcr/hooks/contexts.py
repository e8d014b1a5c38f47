"""What a task says to a region, who asks and for which interval; and how errors of a region end a task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Final

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_kcr.errors import (
    ConfigurationError,
    KcrError,
    RefusedError,
    ResetFailed,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
    SinkRefused,
    StoreRefused,
    StoreRestored,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kcr.protocol.region.rows import Requester


def requester(context: Context, reason: str = "") -> Requester:
    """Return who asks: the person who triggered the run, if one did, else "airflow"; with DAG and run.

    Args:
        context: the task's.
        reason: why, for the history.
    """
    # The rows of a region are half of what an operator would import, and parsing a DAG reads no store.
    from airflow_kcr.protocol.region.rows import Requester

    run = context["dag_run"]
    return Requester(
        who=getattr(run, "triggering_user_name", None) or "airflow",
        dag_id=run.dag_id,
        run_id=run.run_id,
        reason=reason,
    )


def request_id(context: Context) -> str:
    """Return the name of this task's request: the same for every try, another for every run and mapped task."""
    task = context["ti"]
    map_index = -1 if task.map_index is None else task.map_index
    return f"{task.dag_id}/{task.run_id}/{task.task_id}/{map_index}"


def interval_of(context: Context) -> tuple[datetime, datetime] | None:
    """Return the run's data interval, begin and end; None where the run has none.

    Raises:
        ConfigurationError: it is of no length, as a plain cron string or timedelta gives it in Airflow 3.
    """
    # Of the run, not of the context, which has no such key if there is no interval.
    run = context["dag_run"]
    start, end = run.data_interval_start, run.data_interval_end
    if start is None or end is None:
        return None
    if start >= end:
        raise ConfigurationError(
            f"run {run.run_id} of DAG {run.dag_id} has a data interval of no length, {start.isoformat()}, so nothing "
            "is in it: give the DAG schedule=CronDataIntervalTimetable(…) or DeltaDataIntervalTimetable(…) of "
            "airflow.sdk; a plain cron string or timedelta makes no intervals in Airflow 3"
        )
    return start, end


# This project's errors as Airflow's: those that a retry can't help end the task at once.

FINAL: Final = (
    ConfigurationError,
    RefusedError,
    ResetFailed,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
    SinkRefused,
    StoreRefused,
    StoreRestored,
)
"""Asking again gets the same answer until a person has done something."""


@contextmanager
def translated() -> Iterator[None]:
    """Run the body; what it raises of this project becomes an error of Airflow, with the same sentence and its cause.

    Raises:
        AirflowFailException: a retry can't help: the configuration, or the region's state, forbids it.
        AirflowException: it may be well the next time: the store or a broker was away, something was not in time.
    """
    try:
        yield
    except FINAL as error:
        raise AirflowFailException(error.message) from error
    except KcrError as error:
        raise AirflowException(error.message) from error
