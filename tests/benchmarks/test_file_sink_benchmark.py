"""What the file sink costs: against Spark's own `write.parquet` of the same batches, and to publish many files."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.offsets import EMPTY
from airflow_kcr.protocol.values import CheckpointNumber
from airflow_kcr.sinks import read_checkpoint
from airflow_kcr.sinks.contract import SinkOfBatch
from airflow_kcr.sinks.files.contents import RegionLedger
from airflow_kcr.sinks.files.frames import Rewriter, with_coordinates
from airflow_kcr.sinks.files.hadoop import HadoopFolder
from airflow_kcr.sinks.files.layout import FileTarget
from airflow_kcr.sinks.files.sink import FileSink
from airflow_kcr.sinks.files.tables import NO_TABLE
from tests.benchmarks.contenders import Reading, member, rates, shown
from tests.benchmarks.figures import Report, Scale, in_turns, ratio
from tests.benchmarks.lab import PARTITIONS, Filled, Lab
from tests.benchmarks.pipelines import FOLDER_VARIABLE
from tests.support.driver import Driver
from tests.support.sink_files import owner_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]

RECORDS = 1_200_000
BATCH = 100_000
SIZE = 100

FILES, FILES_OF_A_BATCH = 1_000, 4


def test_files_against_plain_files(
    lab: Lab,
    scale: Scale,
    report: Callable[[str], Report],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "plain"))
    found = report("sink-files")
    topic = lab.filled(scale.of(RECORDS, BATCH), SIZE)
    numbers = count()

    def into_sink() -> Reading:
        # A folder of its own each time: it belongs to one region.
        path = tmp_path / f"sink-{next(numbers)}"
        out = f"{{kind: files, path: '{path}'}}"
        reading = member(lab, topic, BATCH, "sink", f", delivery: exactly_once, sinks: {{out: {out}}}")
        shutil.rmtree(path)
        return reading

    def plain(topic: Filled) -> Reading:
        reading = member(lab, topic, BATCH, "files")
        shutil.rmtree(tmp_path / "plain")
        return reading

    ours, theirs = "the sink, exactly_once", "write.parquet"
    contenders: dict[str, Callable[[], Reading]] = {ours: into_sink, theirs: partial(plain, topic)}
    race = in_turns(contenders, scale.rounds)
    found.table(
        f"{topic.records:,} records of {SIZE:,} B, {PARTITIONS} partitions, batches of {BATCH:,}: records a second",
        ("who writes", "batches a round", "median", "smallest to largest"),
        shown(race, rates),
    )
    found.at_least("files: to write.parquet", ratio(rates(race[ours]), rates(race[theirs])), 0.95)


def test_publication_of_many_files(
    bench_spark: SparkSession, scale: Scale, report: Callable[[str], Report], tmp_path: Path
) -> None:
    found = report("sink-files-publication")
    taken: dict[str, list[float]] = {}
    for name, file_size in (("as they are", 0), ("put together", 128 * 1024 * 1024)):
        for number in range(scale.rounds + 1):
            sink, sequence = complete_checkpoint(bench_spark, tmp_path / f"{file_size}-{number}", file_size)
            began = time.monotonic()
            sink.publish(sequence)
            if number:  # the first warms up
                taken.setdefault(name, []).append(time.monotonic() - began)
            assert read_checkpoint(bench_spark, sink.folder.uri, sequence=sequence).count() == FILES
    found.medians(
        f"a checkpoint of {FILES:,} small files, {FILES // FILES_OF_A_BATCH} batches: seconds to publish it",
        "files",
        taken,
    )


def complete_checkpoint(spark: SparkSession, folder: Path, file_size: int) -> tuple[FileSink, CheckpointNumber]:
    """Return a sink and a complete checkpoint that has many files, each of one record."""
    driver = Driver()
    for partition in tuple(driver.logs):
        driver.grow(partition, end=1_000_000)
    driver.up()
    target = FileTarget(owner=owner_of(driver), path=str(folder), file_size=file_size)
    hadoop = HadoopFolder(spark, str(folder))
    sink = FileSink(target, hadoop, RegionLedger(driver.store, driver.name), Rewriter(spark, hadoop, NO_TABLE.write))
    sink.check()
    written: Path | None = None
    schema = ""
    for _ in range(FILES // FILES_OF_A_BATCH):
        batch = driver.row(driver.start_batch(driver.member(0), width=2))
        call = BatchCall(
            region=driver.name,
            member=batch.member,
            batch=batch.batch,
            epoch=batch.epoch,
            timeline=batch.timeline,
            sequence=batch.sequence,
            ranges=batch.ranges,
            progress=EMPTY,
        )
        here = folder / sink.attempt(call)
        if written is None:
            writer = SinkOfBatch(sink, call)
            rows = spark.range(0, 1, 1, 1).selectExpr("'t' AS topic", "0 AS partition", "id AS offset", "'x' AS value")
            writer.write(rows)
            schema = with_coordinates(rows).schema.json()
            (written,) = here.glob("*.parquet")
        here.mkdir(parents=True, exist_ok=True)
        for number in range(FILES_OF_A_BATCH - len(list(here.glob("*.parquet")))):
            shutil.copyfile(written, here / f"copy-{number}.parquet")
        sink.list_files(call, schema)
        driver.finish_batch(batch.batch)
    driver.request_checkpoint("n1")
    return sink, driver.complete()
