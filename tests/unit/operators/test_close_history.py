from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from sqlalchemy import create_engine, text

from airflow_kcr.api import Region
from airflow_kcr.operators.region import KcrCloseHistoryOperator
from tests.support.airflow_tasks import task_context
from tests.support.driver import Driver
from tests.support.live_region import SPEC, live_region


@pytest.fixture
def driver(store_connection: str, tmp_path: Path) -> Iterator[Driver]:
    with live_region(store_connection, f"{SPEC}history: {{keep: 1ms, archive: '{tmp_path}'}}\n") as driver:
        driver.up()
        for request_id in ("a", "b", "c"):
            driver.process()
            driver.checkpoint(request_id)
            with Region("flights", store=store_connection) as region:
                region.verify()
        yield driver


def test_what_is_old_enough_is_archived_and_dropped_once(driver: Driver, tmp_path: Path) -> None:
    made = KcrCloseHistoryOperator(task_id="close", region="flights")
    told = made.execute(task_context())
    assert told["violations"] == []
    assert len(list(tmp_path.glob("*/*.jsonl.gz"))) == 2
    again = made.execute(task_context())
    assert (again["archived"], again["dropped_events"]) == ([], 0)


def test_a_history_that_contradicts_its_certificate_fails_for_good(driver: Driver, store_connection: str) -> None:
    engine = create_engine(store_connection)
    with engine.begin() as connection:
        connection.execute(text("UPDATE kcr.batch SET outcome = 'discarded' WHERE number = 1"))
    engine.dispose()
    with pytest.raises(AirflowFailException, match="violation"):
        KcrCloseHistoryOperator(task_id="close", region="flights").execute(task_context())


def test_an_archive_that_is_away_is_worth_a_retry(driver: Driver, tmp_path: Path) -> None:
    tmp_path.rmdir()
    with pytest.raises(AirflowException, match=str(tmp_path)) as raised:
        KcrCloseHistoryOperator(task_id="close", region="flights").execute(task_context())
    assert not isinstance(raised.value, AirflowFailException)
