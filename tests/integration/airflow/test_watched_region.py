"""In a real Airflow: a DAG notifies people of a region's incidents, and another one is late."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_kcr.embedded.airflow import Component
from airflow_kcr.embedded.processes import happened
from airflow_kcr.protocol.region.commands import KillRegion
from tests.integration.airflow.test_region_notifier import spec
from tests.support.live_airflow import LiveAirflow
from tests.support.live_region import live_region

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

DAGS = """\
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, AsyncCallback, BaseNotifier, DeadlineAlert, DeadlineReference

from airflow_kcr.dags import watch_dag
from airflow_kcr.sensors.region import KcrRegionStateSensor


class Pager(BaseNotifier):
    template_fields = ("text",)

    def __init__(self):
        super().__init__()
        self.text = "{{ dag_run.dag_id }} {{ kcr.text }}"

    def notify(self, context):
        with Path("FILE").open("a") as file:
            print(self.text, file=file)


watch = watch_dag("watched", notifiers=[Pager()], start_date=datetime(2026, 1, 1, tzinfo=UTC))

late = DeadlineAlert(
    reference=DeadlineReference.DAGRUN_QUEUED_AT,
    interval=timedelta(seconds=5),
    callback=AsyncCallback("tests.support.late.note", kwargs={"file": "LATE"}),
)
with DAG("watched_late", schedule=None, deadline=late):
    KcrRegionStateSensor(task_id="wait", region="watched", state="running")
"""


def test_people_are_notified_once_also_by_a_triggerer_that_starts_again_and_of_a_late_run(
    airflow: LiveAirflow, tmp_path: Path
) -> None:
    file, late = tmp_path / "said", tmp_path / "late"

    def said() -> list[str]:
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    with live_region(airflow.store_url, spec("watched")) as region:
        region.up()
        text = DAGS.replace("FILE", str(file)).replace("LATE", str(late))
        airflow.add_dags("watched", text, "watched_watch", "watched_late")
        region.find_stranger()
        assert happened(lambda: bool(said()), within=120, pause=0.5)
        (begun,) = said()
        assert begun.startswith("watched_watch region watched: halted: consumer stranger on host host in group watched")
        airflow.restart(Component.TRIGGERER)
        region.handle(KillRegion())
        assert happened(lambda: len(said()) > 1, within=120, pause=0.5)
        over = said()[1:]
        assert len(over) == 1
        assert over[0].startswith("watched_watch region watched: over since ")
        airflow.editor.trigger("watched_late")
        assert happened(late.exists, within=120, pause=0.5)
    assert late.read_text(encoding="utf-8").split() == ["watched_late"]
