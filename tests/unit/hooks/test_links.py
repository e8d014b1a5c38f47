from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskInstanceKey
from airflow.sdk import BaseOperator
from airflow.sdk.execution_time import xcom

from airflow_kcr.hooks.links import RegionLink, SparkUiLink, region_path
from tests.support.airflow_tasks import FakeTask, task_context

KEY = TaskInstanceKey(dag_id="d", task_id="t", run_id="r", try_number=1, map_index=2)


class OfRegion(BaseOperator):
    def __init__(self, *, region: object, kcr_conn_id: str | None = "kcr_default", **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self.region = region
        self.kcr_conn_id = kcr_conn_id


@pytest.mark.parametrize(
    ("base_url", "path"),
    [
        ("http://localhost:8080", "/plugin/kcr/regions/flights"),
        ("https://example.com/", "/plugin/kcr/regions/flights"),
        ("https://example.com/team/airflow/", "/team/airflow/plugin/kcr/regions/flights"),
    ],
)
def test_the_link_to_a_region_is_below_airflow_s_own_path(
    monkeypatch: pytest.MonkeyPatch, base_url: str, path: str
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base_url)
    assert region_path("flights") == path
    assert RegionLink().get_link(OfRegion(task_id="t", region="flights"), ti_key=KEY) == path


def test_a_link_can_not_lead_anywhere_else() -> None:
    assert region_path("../../api?x#y").endswith("/kcr/regions/..%2F..%2Fapi%3Fx%23y")


def test_a_region_of_another_store_is_found_under_its_connection() -> None:
    assert region_path("flights", "team kcr") == "/plugin/kcr/stores/team%20kcr/regions/flights"
    operator = OfRegion(task_id="t", region="flights")
    operator.kcr_conn_id = "team"
    assert RegionLink().get_link(operator, ti_key=KEY) == "/plugin/kcr/stores/team/regions/flights"
    task = FakeTask()
    RegionLink().persist(task_context(task), "flights", "team")
    assert task.xcoms == {"_link_RegionLink": "/plugin/kcr/stores/team/regions/flights"}


def test_an_operator_without_a_region_has_no_link() -> None:
    assert RegionLink().get_link(OfRegion(task_id="t", region=None), ti_key=KEY) == ""
    assert RegionLink().get_link(BaseOperator(task_id="t"), ti_key=KEY) == ""


@pytest.mark.parametrize("conn_id", [None, "", "{{ params.store }}"])
def test_a_region_whose_connection_is_not_known_has_no_link(conn_id: str | None) -> None:
    assert RegionLink().get_link(OfRegion(task_id="t", region="flights", kcr_conn_id=conn_id), ti_key=KEY) == ""
    assert RegionLink().get_link(OfRegion(task_id="t", region="{{ params.region }}"), ti_key=KEY) == ""


def test_the_link_to_spark_is_kept_where_airflow_looks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    task = FakeTask()
    SparkUiLink().persist(task_context(task), "http://driver:4040")
    assert task.xcoms == {"kcr_spark_ui": "http://driver:4040"}
    asked: list[dict[str, object]] = []

    def get_one(**keys: object) -> object:
        asked.append(keys)
        return task.xcoms.get(str(keys["key"]))

    monkeypatch.setattr(xcom.XCom, "get_one", get_one)
    assert SparkUiLink().get_link(BaseOperator(task_id="t"), ti_key=KEY) == "http://driver:4040"
    assert asked == [{"key": "kcr_spark_ui", "task_id": "t", "dag_id": "d", "run_id": "r", "map_index": 2}]
    task.xcoms.clear()
    assert SparkUiLink().get_link(BaseOperator(task_id="t"), ti_key=KEY) == ""
