from __future__ import annotations

from collections.abc import Iterator

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_kcr.operators.region import KcrRetireOperator
from airflow_kcr.protocol.region.commands import KillRegion, PinCheckpoint
from tests.support.airflow_tasks import task_context
from tests.support.driver import Driver
from tests.support.live_region import SPEC, live_region


@pytest.fixture
def driver(store_connection: str) -> Iterator[Driver]:
    with live_region(store_connection, SPEC + "retention: {keep: 1}\n") as driver:
        yield driver


def test_checkpoints_that_retention_gives_up_are_forgotten_once(driver: Driver) -> None:
    driver.up()
    first = driver.checkpoint("a")
    driver.handle(
        PinCheckpoint(
            sequence=first, label="kept", reason="until the region is stopped, which then forgets nothing by itself"
        )
    )
    for request_id in ("b", "c", "d"):
        driver.checkpoint(request_id)
    driver.handle(KillRegion())
    driver.handle(PinCheckpoint(sequence=first, label="", reason=""))
    made = KcrRetireOperator(task_id="retire", region="flights")
    assert made.execute(task_context()) == {"region": "flights", "retired": [first]}
    assert made.execute(task_context()) == {"region": "flights", "retired": []}


def test_an_unknown_region_is_not_retried(store_connection: str) -> None:
    with pytest.raises(AirflowFailException):
        KcrRetireOperator(task_id="retire", region="nowhere").execute(task_context())
