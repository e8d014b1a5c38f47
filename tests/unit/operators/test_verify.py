from __future__ import annotations

from collections.abc import Iterator

import pytest
from airflow.sdk.exceptions import AirflowFailException
from sqlalchemy import create_engine, text

from airflow_kcr.operators.region import KcrVerifyOperator
from tests.support.airflow_tasks import task_context
from tests.support.driver import Driver
from tests.support.live_region import live_region


@pytest.fixture
def driver(store_connection: str) -> Iterator[Driver]:
    with live_region(store_connection) as driver:
        driver.up()
        driver.process()
        driver.checkpoint("a")
        yield driver


def test_a_consistent_history_is_verified(driver: Driver) -> None:
    said = KcrVerifyOperator(task_id="verify", region="flights").execute(task_context())
    assert said == {
        "region": "flights",
        "after": 0,
        "checked_events": len(driver.events),
        "checked_batches": len(driver.batches),
    }


def test_a_contradiction_fails_for_good_and_says_which(driver: Driver, store_connection: str) -> None:
    engine = create_engine(store_connection)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM kcr.event WHERE kind = 'batch_started' OR number = 3"))
    engine.dispose()
    with pytest.raises(AirflowFailException, match=r"violation\(s\); the first: "):
        KcrVerifyOperator(task_id="verify", region="flights").execute(task_context())


def test_an_unknown_region_is_not_retried(store_connection: str) -> None:
    with pytest.raises(AirflowFailException):
        KcrVerifyOperator(task_id="verify", region="nowhere").execute(task_context())
