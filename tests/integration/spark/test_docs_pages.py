"""The code of pages that needs Spark, and a broker or a store: run as it stands but for its addresses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException
from airflow.sdk.execution_time.context import set_current_context

from airflow_kcr.errors import BatchFailed
from airflow_kcr.hooks.checkpoints import PublishedCheckpoint
from airflow_kcr.protocol.region.rows import Requester
from airflow_kcr.protocol.targets import ToInitial
from airflow_kcr.sinks.contract import SinkOutput
from airflow_kcr.spark.engine import SparkEngine
from airflow_kcr.spark.reads import Source
from tests.integration.spark.batches import GROUP, REGION, Bench, call
from tests.support.airflow_tasks import triggered
from tests.support.docs_pages import DOCS
from tests.support.lake import PATIENT, Lake, reset_order
from tests.support.live_region import live_region

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from airflow_kcr.protocol.values import CheckpointNumber

FENCE = re.compile(r"^```python(?: run)?\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
GOOD = b'{"carrier": "UA", "delay": 3, "hour": "2013-01-01T05:00:00Z"}'
BAD = b'{"delay": 3}'


def blocks(page: str, addresses: dict[str, str]) -> list[str]:
    """The code of a page, by its blocks, with other addresses; each of them has to be on the page."""
    text = "".join(f"{match['body']}\0" for match in FENCE.finditer((DOCS / "how-to" / page).read_text("utf-8")))
    for shown, real in addresses.items():
        assert shown in text
        text = text.replace(shown, real)
    return text.split("\0")[:-1]


def values(code: str, names: dict[str, Any]) -> list[Any]:
    """What each expression of a block gives, the rest being run."""
    found = []
    for statement in ast.parse(code).body:
        if isinstance(statement, ast.Expr):
            found.append(eval(compile(ast.Expression(statement.value), "page", "eval"), names))
        else:
            exec(compile(ast.Module([statement], []), "page", "exec"), names)
    return found


# -- decode records ------------------------------------------------------------------------------------------------


class Kept:
    """A sink that brings what it is given to the driver, which only a test may do."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def write(self, rows: DataFrame) -> None:
        """Keep the rows."""
        self.rows = rows.collect()

    def publish(self) -> None:
        """Nothing is left to do."""


def test_the_pipelines_of_the_page_about_decoding_do_what_it_says(bench: Bench) -> None:
    kafka, topic, dead = bench.kafka, bench.kafka.topic(1), bench.kafka.topic(1)
    failing, setting_aside = blocks("decode-records.md", {'"…"': repr(kafka.bootstrap_servers), "flights-dead": dead})
    kafka.produce(topic, [GOOD, BAD])
    names: dict[str, Any] = {}
    kept = Kept()
    member = call(topic, {0: (0, 1)}).member
    assert member.group == GROUP

    def engine() -> SparkEngine:
        source = Source(region=REGION, member=member, kafka=kafka.settings, options={})
        return SparkEngine(bench.spark, names["process"], source, lambda _: SinkOutput([("delays", kept)]))

    exec(failing, names)
    engine().run(call(topic, {0: (0, 1)}))
    assert [(row.offset, row.carrier, row.delay) for row in kept.rows] == [(0, "UA", 3)]
    assert kept.rows[0].__fields__ == ["topic", "partition", "offset", "carrier", "delay", "hour"]
    with pytest.raises(BatchFailed, match=f"poison record {topic}/0/1: without carrier"):
        engine().run(call(topic, {0: (0, 2)}))

    exec(setting_aside, names)
    report = engine().run(call(topic, {0: (0, 2)}))
    assert report.scans == 1
    assert [row.offset for row in kept.rows] == [0]
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": dead, "includeHeaders": "true"}
    (letter,) = bench.spark.read.format("kafka").options(**options).load().collect()
    assert bytes(letter.value) == BAD
    assert {header.key for header in letter.headers} == {
        f"kcr.{name}" for name in ("topic", "partition", "offset", "reason", "region", "batch")
    }


# -- read a checkpoint
# ----------------------------------------------------------------------------------------------------


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path, store_connection: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """A region that has numbered its checkpoints for long, in a store on Postgres, with a sink."""
    monkeypatch.setenv("KCR_STORE_URL", store_connection)
    with live_region(store_connection, PATIENT) as driver:
        driver.number_from(41)
        yield Lake(spark, tmp_path / "out", driver=driver)


def event(lake: Lake, sequence: CheckpointNumber) -> dict[str, object]:
    """The event of a checkpoint, as a checkpoint DAG emits it."""
    row = lake.driver.region.checkpoints[sequence]
    told = PublishedCheckpoint(
        region=lake.driver.name, timeline=row.timeline, sequence=sequence, boundary=None, digest=row.digest
    )
    return dict(told.to_json())


def test_the_page_about_reading_checkpoints_reads_them_and_its_dag_one_of_each_event(lake: Lake) -> None:
    reports = lake.root.parent / "reports"
    reading, dag = blocks(
        "read-a-checkpoint.md", {"s3a://lake/delays": lake.root.as_uri(), "s3a://lake/reports": reports.as_uri()}
    )
    lake.batch(0, carrier="'UA'", delay="CAST(offset AS INT)")
    mine = lake.checkpoint("n1", Requester(who="airflow", dag_id="flights_checkpoint", run_id="scheduled__2026-01-01"))
    assert mine == 42
    lake.batch(1, carrier="'AA'", delay="1")
    newest = lake.checkpoint("n2")
    by_sequence, by_run, latest = values(reading, {"spark": lake.spark})
    assert sorted(by_sequence.inputFiles()) == sorted(by_run.inputFiles())
    assert sorted(map(tuple, by_run.collect())) == sorted(map(tuple, by_sequence.collect()))
    assert {row.delay for row in latest.collect()} == {1}

    names: dict[str, Any] = {}
    values(dag, names)
    build = names["dag"].get_task("build").python_callable

    def built(sequence: CheckpointNumber) -> list[tuple[object, ...]]:
        with set_current_context(triggered(event(lake, sequence))):
            told = build()
        assert told == {"checkpoint": f"000001.{sequence:010d}", "carriers": 1}
        return [tuple(row) for row in lake.spark.read.parquet(f"{reports.as_uri()}/{told['checkpoint']}").collect()]

    assert (built(mine), built(newest), built(mine)) == ([("UA", 90)], [("AA", 20)], [("UA", 90)])
    stale = event(lake, newest)
    lake.driver.reset(ToInitial())
    lake.driver.complete()
    lake.sink.reset(reset_order(lake.driver))
    lake.driver.finish_reset()
    with (
        set_current_context(triggered(stale)),
        pytest.raises(AirflowSkipException, match=f"undone checkpoint {newest}"),
    ):
        build()
