"""A region that rests between its runs, in a real Airflow: late intervals, a cleared run, what builds on them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_kcr.embedded.processes import happened
from airflow_kcr.protocol.region.rows import Checkpoint, RegionState
from tests.support.kafka import Record
from tests.support.live_airflow import LiveAirflow

pytestmark = pytest.mark.timeout(1_200)

HOUR = timedelta(hours=1)
WITHIN = 600.0

DAGS = """\
from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG, PartitionedAssetTimetable, task

from airflow_kcr.dags import region_dags
from airflow_kcr.hooks.assets import region_asset
from airflow_kcr.hooks.checkpoints import checkpoint_of
from airflow_kcr.spec import parse

spec = parse('''
region: NAME
kafka: {bootstrap.servers: 'BOOTSTRAP'}
groups:
  - {group_id: NAME, topics: [TOPIC], pipeline: 'tests.support.interval_pipeline:count'}
checkpoint: {cron: '0 * * * *'}
''')
interval, reset = region_dags(
    spec, mode="interval", start_date=datetime.fromisoformat("SINCE"), consume={"jars": "JARS"}
)

with DAG("NAME_report", schedule=PartitionedAssetTimetable(assets=region_asset("NAME")), max_active_runs=1):

    @task
    def report(**context):
        return checkpoint_of(context).to_json()

    report()
"""


def test_late_intervals_are_processed_in_order_and_a_cleared_one_is_found(
    airflow: LiveAirflow, connector_jars: tuple[Path, ...]
) -> None:
    kafka, editor = airflow.kafka, airflow.editor
    name, topic = kafka.group_id("hours").replace("-", "_"), kafka.topic(2)
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    since = now - 3 * HOUR
    # One record before the first hour, which is the first run's too, ten in that hour, none in the second, ten in the
    # third, and five that no run has yet.
    stamps = [since - HOUR, *[since + HOUR / 2] * 10, *[now - HOUR / 2] * 10, *[datetime.now(UTC)] * 5]
    kafka.produce(topic, [Record(value=b"x", partition=n % 2, timestamp=at) for n, at in enumerate(stamps)])
    text = DAGS.replace("NAME", name).replace("TOPIC", topic).replace("BOOTSTRAP", kafka.bootstrap_servers)
    text = text.replace("SINCE", since.isoformat()).replace("JARS", ",".join(map(str, connector_jars)))
    airflow.add_dags(name, text, f"{name}_report", f"{name}_interval")

    def ended() -> bool:
        states = [run.state for run in editor.runs(f"{name}_interval")]
        return len(states) >= 3 and set(states) <= {"success", "failed"}

    assert happened(ended, within=WITHIN, pause=1), editor.runs(f"{name}_interval")
    runs = sorted(editor.runs(f"{name}_interval"), key=lambda run: str(run.interval_end))
    assert [run.state for run in runs] == ["success"] * 3
    answers = [editor.result(f"{name}_interval", run.run_id, "run") for run in runs]
    with airflow.region(name) as region:
        rows: list[Checkpoint] = [one.checkpoint for one in region.checkpoints.list()]
        assert [row.boundary for row in rows] == [since + HOUR, since + 2 * HOUR, now]
        held = [sum(region.checkpoints.show(row.sequence).offsets.values()) for row in rows]
        assert held == [11, 11, 21]
        assert [answer["sequence"] for answer in answers if isinstance(answer, dict)] == [row.sequence for row in rows]
        assert region.checkpoints.of_run(f"{name}_interval", runs[0].run_id).checkpoint.sequence == rows[0].sequence
        # The interval without a record has started no application.
        assert [bool(row.participants) for row in rows] == [True, False, True]
        assert str(region.show().state) == RegionState.STOPPED

        editor.clear(f"{name}_interval", runs[0].run_id, ["run"])
        again = editor.wait_for_task(f"{name}_interval", runs[0].run_id, "run", {"success", "failed"}, within=WITHIN)
        assert again.state == "success"
        assert editor.result(f"{name}_interval", runs[0].run_id, "run") == answers[0]
        assert len(region.checkpoints.list()) == 3
        assert region.verify().violations == ()

    def reported() -> bool:
        return [run.state for run in editor.runs(f"{name}_report")].count("success") >= 3

    assert happened(reported, within=WITHIN, pause=1), editor.runs(f"{name}_report")
