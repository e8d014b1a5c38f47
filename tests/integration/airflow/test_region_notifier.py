"""Who is told in a real Airflow when a region halts or stalls, through Airflow's notifiers, one of which fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.driver import START
from tests.support.live_airflow import LiveAirflow
from tests.support.live_region import SPEC, live_region
from tests.support.members import BRISK

pytestmark = [pytest.mark.timeout(600)]

LONGER_THAN_PATIENCE = 30
"""Seconds of the sensor, within which a region without members counts as stalled."""

DAGS = """\
from pathlib import Path

from airflow.sdk import DAG, BaseNotifier

from airflow_kcr.notifications.region import KcrRegionNotifier
from airflow_kcr.sensors.region import KcrProgressSensor


class Broken(BaseNotifier):
    def notify(self, context):
        raise ConnectionError("the mail server is away")


class Pager(BaseNotifier):
    template_fields = ("text",)

    def __init__(self, text):
        super().__init__()
        self.text = text

    def notify(self, context):
        with Path("FILE").open("a") as file:
            print(self.text, file=file)


for region in ("guarded", "unmanned"):
    pager = Pager("{{ ti.task_id }} {{ kcr.region }} {{ kcr.standing }}: {{ kcr.detail }}")
    told = KcrRegionNotifier(region=region, notifiers=[Broken(), pager])
    with DAG(f"{region}_watch", schedule=None):
        KcrProgressSensor(task_id="watch", region=region, timeout=SECONDS, on_failure_callback=told)
"""


def spec(region: str) -> str:
    """Return the spec of a region with a group of its own, and short times."""
    head = SPEC.partition("timeouts:")[0]
    return head.replace("region: flights", f"region: {region}").replace("group_id: g,", f"group_id: {region},") + BRISK


def test_people_are_told_of_a_halt_and_of_a_stall_although_one_notifier_fails(
    airflow: LiveAirflow, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    text = DAGS.replace("FILE", str(told)).replace("SECONDS", str(LONGER_THAN_PATIENCE))
    with (
        live_region(airflow.store_url, spec("guarded")) as guarded,
        live_region(airflow.store_url, spec("unmanned")) as unmanned,
    ):
        guarded.up()
        guarded.find_stranger()
        halt = guarded.region.halt
        assert halt is not None
        unmanned.handle(START)
        airflow.add_dags("watches", text, "guarded_watch", "unmanned_watch")
        runs = {dag: airflow.editor.trigger(dag).run_id for dag in ("guarded_watch", "unmanned_watch")}
        for dag, run in runs.items():
            assert airflow.editor.wait_for_run(dag, run).state == "failed"
    first, second = sorted(told.read_text(encoding="utf-8").splitlines())
    assert first == f"watch guarded halted: {halt.text}; choices: {'; '.join(halt.choices)}"
    assert second.startswith("watch unmanned stalled: members since ")
    for dag, standing in (("guarded_watch", "halted"), ("unmanned_watch", "stalled")):
        log = airflow.editor.log(dag, runs[dag], "watch")
        assert "ConnectionError: the mail server is away" in log
        assert f"1 of 2 notifiers failed to tell that region {dag.removesuffix('_watch')} is {standing}: Broken" in log
