"""An application on a standalone cluster, submitted by `test_standalone`: runs batches and writes down what it saw."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame

from airflow_kcr.errors import BatchCancelled
from airflow_kcr.spark import jvm
from airflow_kcr.spark.context import BatchContext
from airflow_kcr.spark.session import SparkSettings, open_session
from tests.integration.spark.batches import WITHIN, Bench, Collected, call, started, wait_until
from tests.support.kafka import Kafka


def main(servers: str, topic: str, records: int, folder: Path) -> dict[str, object]:
    spark = open_session(SparkSettings(app_name="kcr standalone"))
    bench = Bench(spark, Kafka(servers))
    seen: dict[str, object] = {"daemon": spark.sparkContext.getConf().get("spark.python.daemon.module")}

    engine = bench.engine(collected := Collected())
    report = engine.run(call(topic, {0: (0, records), 1: (5, 15)}))
    seen["whole"] = collected.offsets(0) == list(range(records)) and collected.offsets(1) == list(range(5, 15))
    seen["scans"] = report.scans

    marks, batch = folder / "marks", call(topic, {0: (0, records), 1: (0, records)})
    engine = bench.engine(_slow(marks, 0.01))
    run = started(engine, batch)
    wait_until(lambda: marks.exists() and marks.stat().st_size > 2, "tasks at work")
    engine.cancel(batch.batch)
    error = run.exception(WITHIN)
    seen["cancelled"] = isinstance(error, BatchCancelled)
    scheduler = jvm.scala_context(spark.sparkContext).taskScheduler()
    seen["tasks_after"] = scheduler.taskIdToTaskSetManager().size()
    before = marks.stat().st_size
    _moment()
    seen["marks_after"] = marks.stat().st_size - before

    found = Collected()
    killing = folder / "kill-an-executor"

    def through_a_loss(frame: DataFrame, context: BatchContext) -> None:
        from pyspark.sql.functions import udf

        def slowly(offset: int) -> int:
            import time

            killing.touch()
            time.sleep(0.002)
            return offset

        found(frame.withColumn("offset", udf(slowly, "long")("offset")), context)

    bench.engine(through_a_loss).run(call(topic, {0: (0, records), 1: (0, records)}))
    seen["after_loss"] = all(found.offsets(partition) == list(range(records)) for partition in (0, 1))
    spark.stop()
    return seen


def _slow(marks: Path, pause: float):  # type: ignore[no-untyped-def]  # noqa: ANN202 (sent to executors without types)
    def each(rows: Iterator[object]) -> None:
        import time

        for _ in rows:
            with marks.open("ab") as file:
                file.write(b"x")
            time.sleep(pause)

    return lambda batch, context: batch.foreachPartition(each)


def _moment() -> None:
    import threading

    threading.Event().wait(1.5)


if __name__ == "__main__":
    bootstrap, name, number, where = sys.argv[1:]
    (Path(where) / "seen.json").write_text(json.dumps(main(bootstrap, name, int(number), Path(where))))
