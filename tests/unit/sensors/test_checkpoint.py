from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.goals import CheckpointExists
from airflow_kcr.protocol.region.commands import StoreBoundaryOffsets
from airflow_kcr.protocol.region.rows import BoundaryOffset
from airflow_kcr.protocol.values import Offset
from airflow_kcr.sensors.region import KcrCheckpointSensor
from tests.support.airflow_tasks import task_context
from tests.support.driver import Driver
from tests.unit.sensors.conftest import deferral, waited_for

if TYPE_CHECKING:
    from airflow.sdk import Context

BOUNDARY = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def sensor(**changed: Any) -> KcrCheckpointSensor:  # noqa: ANN401
    return KcrCheckpointSensor(**{"task_id": "wait", "region": "flights", **changed})


def of_interval(end: datetime) -> Context:
    return task_context(interval=(end - HOUR, end))


def checkpoint_at(driver: Driver, boundary: datetime) -> int:
    """Make a published checkpoint of a boundary."""
    for member in sorted(driver.processes):
        found = {p: BoundaryOffset(offset=Offset(0)) for p in driver.claims(member)}
        driver.handle(StoreBoundaryOffsets(caller=driver.caller(member), boundary=boundary, found=found))
    driver.request_checkpoint(f"n-{boundary}", boundary=boundary)
    sequence = driver.complete()
    driver.publish()
    return sequence


def test_the_checkpoint_of_the_runs_interval_is_waited_for(driver: Driver) -> None:
    with pytest.raises(TaskDeferred) as waiting:
        sensor().execute(of_interval(BOUNDARY))
    assert waited_for(waiting.value) == CheckpointExists(boundary=datetime(2026, 1, 1, 12, tzinfo=UTC))
    checkpoint_at(driver, BOUNDARY)
    sensor().execute(of_interval(BOUNDARY))


def test_a_checkpoint_beyond_the_boundary_holds_its_records_too(driver: Driver) -> None:
    checkpoint_at(driver, BOUNDARY + HOUR)
    sensor().execute(of_interval(BOUNDARY))
    sensor(boundary=BOUNDARY).execute(task_context())
    sensor(boundary="2026-01-01T13:00:00+01:00").execute(task_context())
    with pytest.raises(TaskDeferred):
        sensor().execute(of_interval(BOUNDARY + 2 * HOUR))


def test_a_checkpoint_without_a_boundary_is_at_none(driver: Driver) -> None:
    driver.checkpoint("n")
    with pytest.raises(TaskDeferred):
        sensor().execute(of_interval(BOUNDARY))


def test_a_checkpoint_that_is_not_published_yet_is_waited_for(driver: Driver) -> None:
    driver.request_checkpoint("n")
    sequence = driver.complete()
    assert waited_for(deferral(sensor(sequence=sequence))) == CheckpointExists(sequence=sequence)
    driver.publish()
    sensor(sequence=str(sequence)).execute(task_context())
    deferral(sensor(sequence=sequence + 1))


def test_a_checkpoint_that_a_reset_has_undone_is_none(driver: Driver) -> None:
    from airflow_kcr.protocol.targets import ToCheckpoint
    from tests.support.scripts import rewind

    first = driver.checkpoint("first")
    driver.process()
    second = driver.checkpoint("second")
    sensor(sequence=second).execute(task_context())
    rewind(driver, ToCheckpoint(sequence=first))
    sensor(sequence=first).execute(task_context())
    deferral(sensor(sequence=second))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"sequence": "newest"}, "number of a checkpoint"),
        ({"boundary": "noon"}, "not a time"),
        ({}, "no data interval"),
    ],
    ids=str,
)
def test_what_says_no_checkpoint_is_not_retried(driver: Driver, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(AirflowFailException, match=said):
        sensor(**changed).execute(task_context())


def test_both_ways_to_say_it_are_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(ConfigurationError, match="give one of the two"):
        sensor(boundary=BOUNDARY, sequence=1)
