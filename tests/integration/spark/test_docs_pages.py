"""The code of pages that needs Spark, and a broker or a store: run as it stands but for its addresses."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk.execution_time.context import set_current_context
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from pyspark.sql import DataFrame, Row, SparkSession

from airflow_kcr.errors import BatchFailed
from airflow_kcr.hooks.checkpoints import PublishedCheckpoint
from airflow_kcr.protocol.region.rows import Requester
from airflow_kcr.protocol.targets import ToInitial
from airflow_kcr.protocol.values import CheckpointNumber
from airflow_kcr.sinks.contract import SinkOfBatch
from airflow_kcr.spark import BatchContext
from airflow_kcr.spark.decoding import decoded, decoding
from airflow_kcr.spark.engine import SparkEngine
from tests.integration.spark.batches import GROUP, Bench, call
from tests.support.airflow_tasks import triggered
from tests.support.breaking_proxy import breaking_proxy
from tests.support.docs_pages import DOCS
from tests.support.lake import PATIENT, Lake
from tests.support.live_region import live_region
from tests.support.scripts import reset_order
from tests.support.sink_tables import Table

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

    def finish(self) -> None:
        """Nothing is left to do."""


def test_the_pipelines_of_the_page_about_decoding_do_what_it_says(bench: Bench) -> None:
    kafka, topic, dead = bench.kafka, bench.kafka.topic(1), bench.kafka.topic(1)
    failing, setting_aside, _ = blocks(
        "decode-records.md", {'"…"': repr(kafka.bootstrap_servers), "flights-dead": dead}
    )
    kafka.produce(topic, [GOOD, BAD])
    names: dict[str, Any] = {}
    kept = Kept()

    def engine() -> SparkEngine:
        return bench.engine(names["process"], writers=lambda _: {"delays": kept})

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


# -- write to Postgres ---------------------------------------------------------------------------------------------


def test_the_page_about_tables_writes_several_rows_for_a_record(bench: Bench, empty_database_url: str) -> None:
    page = "write-to-postgres.md"
    (code,) = (block for block in blocks(page, {}) if "posexplode" in block)
    names: dict[str, Any] = {}
    exec(code, names)
    (order,) = re.findall(r"A record `(.*)` becomes", (DOCS / "how-to" / page).read_text("utf-8"))
    kafka, topic = bench.kafka, bench.kafka.topic(1)
    kafka.produce(topic, [order.encode(), b'{"id": "o8", "lines": []}'])
    batch = call(topic, {0: (0, 2)})
    with breaking_proxy(empty_database_url) as (_, through):  # because executors can't take a socket
        table = Table(url=through.render_as_string(hide_password=False), options={"group": GROUP})
        table.reset()
        bench.engine(names["process"], writers=lambda its: {"lines": SinkOfBatch(table.sink, its)}).run(batch)
        rows = table.ask("SELECT id, line, item, amount, kcr_offset FROM out ORDER BY line")
    shown = [" | ".join(map(str, row)) for row in rows]
    assert len(shown) == 2
    assert [f"| {row} |" in (DOCS / "how-to" / page).read_text("utf-8") for row in shown] == [True, True]


GENERATED = """from google.protobuf import descriptor_pool
from google.protobuf.internal import builder

DESCRIPTOR = descriptor_pool.Default().AddSerializedFile({descriptor!r})
builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())
builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, "delay_pb2", globals())
"""
"""What `protoc --python_out` generates, but for comments and offsets."""

NO_DELAYS = (b"\xff", b"\x0a\x09UA", b"\x0a\x02\xff\xfe", b"nothing")


@pytest.fixture
def delay_pb2(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of a message, here and in the Python workers."""
    described = FileDescriptorProto(name="delay.proto", syntax="proto3")
    message = described.message_type.add(name="Delay")
    message.field.add(name="carrier", number=1, type=9, label=1)
    message.field.add(name="delay", number=2, type=5, label=1, oneof_index=0, proto3_optional=True)
    message.oneof_decl.add(name="_delay")
    module = tmp_path / "delay_pb2.py"
    module.write_text(GENERATED.format(descriptor=described.SerializeToString()), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    spark.sparkContext.addPyFile(str(module))
    return importlib.import_module("delay_pb2")


@pytest.mark.long
def test_the_page_decodes_protobuf_with_its_python_library(bench: Bench, delay_pb2: ModuleType) -> None:
    *_, page = blocks("decode-records.md", {})
    names: dict[str, Any] = {}
    exec(page, names)
    good = [delay_pb2.Delay(carrier="UA", delay=0), delay_pb2.Delay(carrier="AA"), delay_pb2.Delay()]
    kafka, topic = bench.kafka, bench.kafka.topic(1)
    kafka.produce(topic, [*(one.SerializeToString() for one in good), *NO_DELAYS])
    kept, poison = Kept(), Kept()

    def engine(process: Callable[[DataFrame, BatchContext], None]) -> SparkEngine:
        return bench.engine(process, writers=lambda _: {"delays": kept, "dead": poison})

    def setting_aside(batch: DataFrame, context: BatchContext) -> None:
        with decoding(batch, names["Delays"]()) as found:
            context.sinks["delays"].write(found.rows)
            context.sinks["dead"].write(found.poison)

    report = engine(setting_aside).run(call(topic, {0: (0, len(good) + len(NO_DELAYS))}))
    assert report.scans == 1
    assert [(row.offset, row.carrier, row.delay) for row in kept.rows] == [(0, "UA", 0), (1, "AA", None), (2, "", None)]
    assert [(row.offset, bytes(row.value), row.reason) for row in poison.rows] == [
        (3 + number, value, "not a Delay") for number, value in enumerate(NO_DELAYS)
    ]

    def failing(batch: DataFrame, context: BatchContext) -> None:
        context.sinks["delays"].write(decoded(batch, names["Delays"]()))

    with pytest.raises(BatchFailed, match=f"poison record {topic}/0/3: not a Delay"):
        engine(failing).run(call(topic, {0: (0, 4)}))


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
        region=lake.driver.name,
        region_id=lake.driver.region.region_id,
        timeline=row.timeline,
        sequence=sequence,
        boundary=None,
        digest=row.digest,
    )
    return dict(told.to_json())


@pytest.mark.long
def test_the_page_about_reading_checkpoints_reads_them_and_its_dag_one_of_each_event(lake: Lake) -> None:
    reports = lake.root.parent / "reports"
    reading, _, dag = blocks(
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
