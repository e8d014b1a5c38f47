from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from airflow.sdk import DAG

from airflow_kcr.errors import ConfigurationError, SpecError
from airflow_kcr.hooks.kcr import KcrHook
from airflow_kcr.operators.region import KcrApplyRegionOperator
from airflow_kcr.spec import RegionSpec, parse
from tests.support.airflow_tasks import FakeTask, task_context
from tests.support.live_region import SPEC


def operator(spec: Any, **kwargs: Any) -> KcrApplyRegionOperator:  # noqa: ANN401 (what a DAG author may write)
    return KcrApplyRegionOperator(task_id="apply", spec=spec, **kwargs)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "flights.yaml"
    path.write_text(SPEC, encoding="utf-8")
    return path


def test_a_spec_may_be_written_in_every_way_that_a_dag_author_has(file: Path) -> None:
    spec = parse(SPEC)
    for written in (spec, spec.to_json(), SPEC, file, str(file)):
        made = operator(written)
        assert made.spec == spec
        assert made.region == "flights"


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (SPEC.replace("members: 2", "members: 0"), r"groups\[0\].members: line 4"),
        (SPEC.replace("topics", "topic"), r"groups\[0\].topic: line 4: no such field; did you mean 'topics'"),
        ({"region": "flights"}, "groups"),
        ("/nowhere/flights.yaml", "/nowhere/flights.yaml: can't be read"),
    ],
)
def test_a_contradiction_is_an_error_of_the_dag_file_that_names_the_field(spec: object, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence), DAG("d", schedule=None):
        operator(spec)


@pytest.mark.parametrize("path", ["flights.yaml", Path("specs/flights.yaml")])
def test_a_path_that_depends_on_the_folder_is_refused_with_what_to_write(path: object) -> None:
    with pytest.raises(ConfigurationError, match=r"write Path\(__file__\).parent"):
        operator(path)


def test_what_is_no_spec_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not int"):
        operator(5)
    with pytest.raises(ConfigurationError, match="leave `region` out"):
        operator(SPEC, region="other")


def test_a_region_is_created_changed_and_left_alone(store_connection: str) -> None:
    task = FakeTask()
    assert operator(SPEC).execute(task_context(task)) == {"region": "flights", "change": "created", "differences": []}
    assert task.xcoms == {"_link_RegionLink": "/plugin/kcr/regions/flights"}
    assert operator(SPEC).execute(task_context())["change"] == "unchanged"
    changed = operator(SPEC + "max_failures: 9\n").execute(task_context())
    assert changed == {
        "region": "flights",
        "change": "changed",
        "differences": [{"field": "max_failures", "takes_effect": "at_once"}],
    }
    json.dumps(changed)
    with KcrHook().region("flights") as region:
        assert region.spec().max_failures == 9
        assert region.show().state == "stopped"


def test_it_may_be_started_at_once_in_the_name_of_the_run(store_connection: str) -> None:
    operator(SPEC, start=True).execute(task_context(user="ada"))
    with KcrHook().region("flights") as region:
        assert region.show().state == "starting"
        assert "ada" in repr(region.events())


@pytest.mark.long
def test_a_change_that_needs_another_region_is_not_retried(store_connection: str) -> None:
    operator(SPEC).execute(task_context())
    with pytest.raises(AirflowFailException, match="kafka"):
        operator(SPEC.replace("broker.invalid", "other.invalid")).execute(task_context())


def test_a_store_that_is_away_may_be_back_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_KCR_DEFAULT", "kcr://kcr:hunter2@127.0.0.1:1/kcr")
    with pytest.raises(AirflowException, match=r"127\.0\.0\.1:1") as raised:
        operator(SPEC).execute(task_context())
    assert not isinstance(raised.value, AirflowFailException)
    assert "hunter2" not in str(raised.value)


def test_it_is_made_without_a_look_at_anything() -> None:
    with DAG("d", schedule=None, default_args={"kcr_conn_id": "nowhere"}) as dag:
        made = operator(SPEC)
    assert made.kcr_conn_id == "nowhere"
    assert dag.task_ids == ["apply"]


def test_a_spec_is_no_template() -> None:
    made = operator(SPEC.replace("group_id: g", "group_id: '{{ ds }}'"))
    made.render_template_fields({})
    assert isinstance(made.spec, RegionSpec)
    assert made.spec.groups[0].group_id == "{{ ds }}"
