"""A region that rests between its runs, in a real Airflow: late intervals, a cleared run, what builds on them.

The rows of the cleared run are made anew, by the pipeline as it is then, and what builds on them runs again: once for
each event, or once for all that were pending.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import psycopg
import pytest

from airflow_kcr.airflow_features import CHECKPOINT_KEYS, PARTITION_DATES
from airflow_kcr.embedded.jars import resolve
from airflow_kcr.embedded.processes import happened
from airflow_kcr.hooks.compat import has
from airflow_kcr.protocol.region.rows import Checkpoint, RegionState
from airflow_kcr.sinks.checkpoints import CheckpointId
from tests.support.databases import libpq
from tests.support.jar_sets import POSTGRES_DRIVER
from tests.support.kafka import Record
from tests.support.live_airflow import LiveAirflow

pytestmark = pytest.mark.timeout(1_200)

HOUR = timedelta(hours=1)
WITHIN = 600.0

REGION = """\
from datetime import datetime

from airflow.sdk import DAG, task

from airflow_kcr.dags import region_dags
from airflow_kcr.hooks.assets import checkpoint_schedule
from airflow_kcr.hooks.checkpoints import checkpoint_of
from airflow_kcr.spec import parse

spec = parse('''
region: NAME
kafka: {bootstrap.servers: 'BOOTSTRAP'}
groups:
  - {group_id: NAME, topics: [TOPIC], delivery: exactly_once, pipeline: 'PIPELINE:process',
     sinks: {out: {kind: postgres, url: 'TABLE_URL', table: NAME}}}
checkpoint: {cron: '0 * * * *'}
batch: {timeout: 10m}
timeouts: {drain: 12m, reset: 12m}
''')
interval, reset = region_dags(
    spec,
    mode="interval",
    start_date=datetime.fromisoformat("SINCE"),
    schedule=SCHEDULE,
    consume={"jars": "JARS"},
    # The test may last into the next hour.
    dag_args_of={"interval": {"end_date": datetime.fromisoformat("UNTIL")}},
)
"""

REPORT = """
with DAG("NAME_report", schedule=checkpoint_schedule("NAME"), max_active_runs=1):

    @task
    def report(**context):
        return checkpoint_of(context).to_json()

    report()
"""

WITH_KEYS = """
from airflow.sdk import Asset, PartitionedAssetTimetable

from airflow_kcr.hooks.assets import region_asset
from airflow_kcr.operators.recompute import KcrRecomputeOperator

with DAG("NAME_again", schedule=None):
    KcrRecomputeOperator(
        task_id="again", region="NAME", run="{{ dag_run.conf['run'] }}", downstream="tell", jars="JARS"
    )

other = Asset("NAME_other")

with DAG("NAME_other", schedule=None):

    @task(outlets=[other])
    def emit(**context):
        context["outlet_events"][other].add_partitions(context["dag_run"].conf["key"])

    emit()

with DAG("NAME_joined", schedule=PartitionedAssetTimetable(assets=region_asset("NAME") & other)):

    @task
    def join(**context):
        events = context["triggering_asset_events"][region_asset("NAME")]
        return [checkpoint_of(context).to_json(), [event.extra.get("revision", 0) for event in events]]

    join()
"""

PIPELINE = """\
def process(rows, context):
    context.sinks["out"].write(rows.selectExpr("topic", "partition", "offset", "'WORD' AS word"))
"""


MEETING = """\
import os
import time
from pathlib import Path


def process(rows, context):
    context.sinks["out"].write(rows.selectExpr("topic", "partition", "offset", "'new' AS word"))
    here = Path(__file__).with_suffix(".here")
    here.mkdir(exist_ok=True)
    (here / str(os.getpid())).touch()
    until = time.monotonic() + 400
    while len(list(here.iterdir())) < 2:
        if time.monotonic() > until:
            raise TimeoutError("no other application came")
        time.sleep(0.2)
"""
"""Of two applications that work at once, or else fail."""


def command(airflow: LiveAirflow, *arguments: str) -> None:
    """Run a command of Airflow's."""
    line, environment = [sys.executable, "-m", "airflow", *arguments], airflow.airflow.environment
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def filled_in(
    airflow: LiveAirflow, text: str, name: str, topic: str, jars: tuple[Path, ...], since: datetime, until: datetime
) -> tuple[str, Path]:
    """Fill in a file of DAGs, and write its pipeline; return both."""
    pipeline = airflow.dags / f"{name}_pipeline.py"
    pipeline.write_text(PIPELINE.replace("WORD", "old"), encoding="utf-8")
    values = {
        "NAME": name,
        "TOPIC": topic,
        "BOOTSTRAP": airflow.kafka.bootstrap_servers,
        "SINCE": since.isoformat(),
        "UNTIL": until.isoformat(),
        "JARS": ",".join(map(str, (*jars, *resolve(POSTGRES_DRIVER)))),
        "TABLE_URL": airflow.store_url,
        "PIPELINE": str(pipeline),
    }
    for word, value in values.items():
        text = text.replace(word, value)
    return text, pipeline


def test_late_intervals_are_processed_in_order_and_a_cleared_one_is_recomputed(
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
    has_keys = has(CHECKPOINT_KEYS)
    text = f"{REGION.replace('SCHEDULE', 'None')}{REPORT}{WITH_KEYS if has_keys else ''}"
    text, pipeline = filled_in(airflow, text, name, topic, connector_jars, since, now - HOUR)
    names = ("report", *(("joined", "again", "other") if has_keys else ()), "interval")
    airflow.add_dags(name, text, *(f"{name}_{one}" for one in names))

    def ended() -> bool:
        states = [run.state for run in editor.runs(f"{name}_interval")]
        return len(states) >= 3 and set(states) <= {"success", "failed"}

    def words() -> set[tuple[object, ...]]:
        with psycopg.connect(libpq(airflow.store_url)) as connection:
            query = f"SELECT word, kcr_sequence, count(*) FROM {name} GROUP BY 1, 2".encode()
            return set(connection.execute(query).fetchall())

    def reported() -> list[str]:
        done = [run.run_id for run in editor.runs(f"{name}_report") if run.state == "success"]
        return [str(editor.result(f"{name}_report", run_id, "report")) for run_id in done]

    assert happened(ended, within=WITHIN, pause=1), editor.runs(f"{name}_interval")
    runs = sorted(editor.runs(f"{name}_interval"), key=lambda run: str(run.interval_end))
    log = editor.log(f"{name}_interval", runs[0].run_id, "run")
    assert [run.state for run in runs] == ["success"] * 3, log[-3000:]
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

        # Without keys, checkpoints that come at once share the run of the newest.
        newest = f"'sequence': {rows[2].sequence}"
        assert happened(lambda: any(newest in told for told in reported()), within=WITHIN, pause=1), reported()
        before = len(reported())
        assert before == 3 or not has_keys

        pipeline.write_text(PIPELINE.replace("WORD", "new"), encoding="utf-8")
        editor.clear(f"{name}_interval", runs[0].run_id, ["run"])
        again = editor.wait_for_task(f"{name}_interval", runs[0].run_id, "run", {"success", "failed"}, within=WITHIN)
        assert again.state == "success"
        answer = editor.result(f"{name}_interval", runs[0].run_id, "run")
        assert isinstance(answer, dict)
        assert isinstance(answers[0], dict)
        assert answer == {**answers[0], "revision": 1}
        assert [one.checkpoint.revision for one in region.checkpoints.list()] == [1, 0, 0]
        assert region.verify().violations == ()
    assert words() == {("new", rows[0].sequence, 11), ("old", rows[2].sequence, 10)}

    assert happened(lambda: len(reported()) > before, within=WITHIN, pause=1), editor.runs(f"{name}_report")
    assert sum("'revision': 1" in told for told in reported()) == 1
    if has_keys:
        only_told_and_joined_by_key(airflow, name, runs[0].run_id, rows[0])

    # A backfill clears the runs of its intervals, and so recomputes them.
    pipeline.write_text(PIPELINE.replace("WORD", "newest"), encoding="utf-8")
    dates = ("--from-date", (now - HOUR).isoformat(), "--to-date", (now - HOUR).isoformat())
    command(airflow, "backfill", "create", "--dag-id", f"{name}_interval", *dates, "--reprocess-behavior", "completed")

    def recomputed() -> bool:
        with airflow.region(name) as region:
            return region.checkpoints.show(rows[2].sequence).checkpoint.revision == 1

    assert happened(recomputed, within=WITHIN, pause=1), editor.runs(f"{name}_interval")
    assert words() == {("new", rows[0].sequence, 11), ("newest", rows[2].sequence, 10)}
    with airflow.region(name) as region:
        assert [one.checkpoint.revision for one in region.checkpoints.list()] == [2 if has_keys else 1, 0, 1]
        assert region.verify().violations == ()


def only_told_and_joined_by_key(airflow: LiveAirflow, name: str, run: str, row: Checkpoint) -> None:
    """Recompute a run's checkpoint by a DAG of its own, whose event only tells, and join its events by their key."""
    editor = airflow.editor
    run_id = editor.trigger(f"{name}_again", {"run": f"{name}_interval/{run}"}).run_id
    done = editor.wait_for_task(f"{name}_again", run_id, "again", {"success", "failed"}, within=WITHIN)
    assert done.state == "success", editor.log(f"{name}_again", run_id, "again")[-3000:]
    told = editor.result(f"{name}_again", run_id, "again")
    assert isinstance(told, dict)
    assert told["revision"] == 2
    assert len(editor.runs(f"{name}_report")) == 4

    # What waits for another asset as well has had the checkpoint's event and the revision's, of one key: one run.
    key = str(CheckpointId(row.timeline, row.sequence))
    assert sum(one.partition_key == key for one in editor.runs(f"{name}_report")) == 2
    assert editor.runs(f"{name}_joined") == ()
    editor.trigger(f"{name}_other", {"key": key})
    assert happened(lambda: len(editor.runs(f"{name}_joined")) > 0, within=WITHIN, pause=1)
    (joined,) = editor.runs(f"{name}_joined")
    done = editor.wait_for_task(f"{name}_joined", joined.run_id, "join", {"success", "failed"}, within=WITHIN)
    assert done.state == "success", editor.log(f"{name}_joined", joined.run_id, "join")[-3000:]
    newest, revisions = cast(
        "tuple[dict[str, object], list[int]]", editor.result(f"{name}_joined", joined.run_id, "join")
    )
    assert (joined.partition_key, newest["revision"], sorted(revisions)) == (key, 1, [0, 1])


BY_PARTITIONS = 'CronPartitionTimetable("0 * * * *", timezone="UTC", run_offset=-1)'


@pytest.mark.skipif(not has(PARTITION_DATES), reason="a task learns no date of its partition")
def test_a_backfill_and_a_clear_of_partitions_recompute_them(
    airflow: LiveAirflow, connector_jars: tuple[Path, ...]
) -> None:
    kafka, editor = airflow.kafka, airflow.editor
    name, topic = kafka.group_id("parts").replace("-", "_"), kafka.topic(2)
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    since = now - 3 * HOUR
    # Ten records in each of the three hours, whose partitions begin with `since`.
    stamps = [since + number * HOUR + HOUR / 2 for number in range(3) for _ in range(10)]
    kafka.produce(topic, [Record(value=b"x", partition=n % 2, timestamp=at) for n, at in enumerate(stamps)])
    text = f"from airflow.sdk import CronPartitionTimetable\n{REGION.replace('SCHEDULE', BY_PARTITIONS)}"
    text, pipeline = filled_in(airflow, text, name, topic, connector_jars, since, now)
    airflow.add_dags(name, text, dag := f"{name}_interval")

    def words() -> dict[datetime | None, tuple[str, int]]:
        """What the table has of each hour."""
        with airflow.region(name) as region:
            ends = {one.checkpoint.sequence: one.checkpoint.boundary for one in region.checkpoints.list()}
        with psycopg.connect(libpq(airflow.store_url)) as connection:
            query = f"SELECT kcr_sequence, word, count(*) FROM {name} GROUP BY 1, 2".encode()
            return {ends[sequence]: (word, count) for sequence, word, count in connection.execute(query)}

    def ended(tries: int) -> bool:
        tasks = [editor.task(dag, run.run_id, "run") for run in editor.runs(dag)]
        over = [task for task in tasks if task is not None and task.state in {"success", "failed"}]
        return len(over) == len(tasks) and sum(task.try_number for task in over) == tries

    hours = [since + HOUR, since + 2 * HOUR, now]
    assert happened(lambda: ended(3), within=WITHIN, pause=1), editor.runs(dag)
    assert words() == dict.fromkeys(hours, ("old", 10))

    # Airflow makes runs of their own for it, and both work at once.
    pipeline.write_text(MEETING, encoding="utf-8")
    dates = ("--from-date", since.isoformat(), "--to-date", (since + HOUR).isoformat(), "--max-active-runs", "2")
    command(airflow, "backfill", "create", "--dag-id", dag, *dates, "--reprocess-behavior", "completed")
    assert happened(lambda: ended(5), within=WITHIN, pause=1), editor.runs(dag)
    assert words() == {hours[0]: ("new", 10), hours[1]: ("new", 10), hours[2]: ("old", 10)}

    window = [part for bound in ("start", "end") for part in (f"--partition-date-{bound}", (now - HOUR).isoformat())]
    command(airflow, "dags", "clear", *window, "--yes", dag)
    assert happened(lambda: ended(6), within=WITHIN, pause=1), editor.runs(dag)
    assert words() == dict.fromkeys(hours, ("new", 10))
    with airflow.region(name) as region:
        assert [one.checkpoint.revision for one in region.checkpoints.list()] == [1, 1, 1]
        assert region.verify().violations == ()


APPLICATIONS = """\
from __future__ import annotations

from datetime import datetime

from airflow_kcr.dags import Application, region_dags
from airflow_kcr.spec import parse

spec = parse('''
region: NAME
kafka: {bootstrap.servers: 'BOOTSTRAP'}
groups:
  - {group_id: NAME, topics: [TOPIC], members: 2, delivery: exactly_once, pipeline: 'PIPELINE:process',
     sinks: {out: {kind: postgres, url: 'TABLE_URL', table: NAME}}}
checkpoint: {cron: '0 * * * *'}
''')
interval, reset = region_dags(
    spec,
    mode="interval",
    start_date=datetime.fromisoformat("SINCE"),
    applications=[Application("NAME", (0,)), Application("NAME", (1,))],
    consume={"jars": "JARS"},
    default_args={"retries": 2, "retry_delay": 1},
    # The test may last into the next hour.
    dag_args_of={"interval": {"end_date": datetime.fromisoformat("NOW")}},
)
"""

KILLED = """\
import os
import signal
from pathlib import Path

KILL = Path(__file__).with_suffix(".kill")


def process(rows, context):
    context.sinks["out"].write(rows.selectExpr("topic", "partition", "offset", "'old' AS word"))
    if KILL.exists():
        KILL.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
def test_applications_of_a_run_of_which_one_is_killed_make_one_checkpoint(
    airflow: LiveAirflow, connector_jars: tuple[Path, ...]
) -> None:
    kafka, editor = airflow.kafka, airflow.editor
    name, topic = kafka.group_id("apart").replace("-", "_"), kafka.topic(2)
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    since = now - 2 * HOUR
    # Ten records of each partition in the first hour; none in the second.
    kafka.produce(topic, [Record(value=b"x", partition=n % 2, timestamp=since + HOUR / 2) for n in range(20)])
    text = APPLICATIONS.replace("NAME", name).replace("TOPIC", topic).replace("BOOTSTRAP", kafka.bootstrap_servers)
    text = text.replace("SINCE", since.isoformat()).replace("NOW", (now - HOUR).isoformat())
    text = text.replace("JARS", ",".join(map(str, (*connector_jars, *resolve(POSTGRES_DRIVER)))))
    pipeline = airflow.dags / f"{name}_pipeline.py"
    text = text.replace("TABLE_URL", airflow.store_url).replace("PIPELINE", str(pipeline))
    pipeline.write_text(KILLED, encoding="utf-8")
    pipeline.with_suffix(".kill").touch()
    airflow.add_dags(name, text, dag := f"{name}_interval")

    def ended() -> bool:
        states = [run.state for run in editor.runs(dag)]
        return len(states) == 2 and set(states) <= {"success", "failed"}

    assert happened(ended, within=WITHIN, pause=1), editor.runs(dag)
    first, second = sorted(editor.runs(dag), key=lambda run: str(run.interval_end))
    assert (first.state, second.state) == ("success", "success"), editor.log(dag, first.run_id, "run")[-3000:]
    hosting = [task for task in editor.tasks(dag, first.run_id) if task.task_id in {"run", "members"}]
    assert sorted(task.try_number for task in hosting) == [1, 2]
    with airflow.region(name) as region:
        # The member's death has aborted a first try.
        rows = [one.checkpoint for one in region.checkpoints.list() if one.checkpoint.is_current]
        assert [row.boundary for row in rows] == [since + HOUR, now]
        # The members of both applications; the interval without a record has started none.
        assert [len(row.participants) for row in rows] == [2, 0]
        assert region.verify().violations == ()
        assert str(region.show().state) == RegionState.STOPPED
    with psycopg.connect(libpq(airflow.store_url)) as connection:
        query = f"SELECT kcr_partition, kcr_offset FROM {name} WHERE kcr_sequence <= {rows[0].sequence}".encode()
        assert sorted(connection.execute(query).fetchall()) == [(p, n) for p in range(2) for n in range(10)]
    events = editor.request("GET", "assets/events", source_dag_id=dag)["asset_events"]
    assert sorted(event["source_run_id"] for event in events) == sorted([first.run_id, second.run_id])
