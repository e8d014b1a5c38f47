"""Reads the beginning of each partition of a topic, once, as a member does; prints the heap before, after, and later.

Lines are what is alive, in MiB. The last is of when it is as before, or of a minute later. Its arguments are the
broker, the topic, its number of partitions, and settings of Spark as JSON.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from airflow_kcr.driver.application import fetch_for
from airflow_kcr.embedded.processes import happened
from airflow_kcr.protocol.values import MemberId, RegionId
from airflow_kcr.spark import jvm
from airflow_kcr.spark.engine import SparkEngine
from airflow_kcr.spark.reads import Source
from airflow_kcr.spark.session import SparkSettings, executor_memory, open_session
from tests.integration.spark.batches import GROUP, REGION, call, noop

RECORDS = 50
CLOSE = 15
FORGOTTEN_WITHIN = 120.0
"""Twice the time after which executors drop what no task asks for."""


def main() -> None:
    broker, topic, partitions, conf = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
    spark = open_session(SparkSettings(app_name="kcr", master="local[2,2]", conf=conf))
    source = Source(
        region_id=RegionId("1"),
        region=REGION,
        member=MemberId(GROUP, 0),
        kafka={"bootstrap.servers": broker},
        fetch=fetch_for(GROUP, partitions, executor_memory(spark)),
    )
    engine = SparkEngine(spark, noop, source)
    before = _heap(spark)
    _tell(before)
    engine.run(call(topic, dict.fromkeys(range(partitions), (0, RECORDS))))
    _tell(_heap(spark))
    happened(lambda: _heap(spark) < before + CLOSE, within=FORGOTTEN_WITHIN)
    _tell(_heap(spark))
    spark.stop()


def _tell(heap: int) -> None:
    sys.stdout.write(f"{heap}\n")


def _heap(spark: SparkSession) -> int:
    java = jvm.virtual_machine(spark.sparkContext).java.lang
    java.System.gc()
    machine = java.Runtime.getRuntime()
    return int(machine.totalMemory() - machine.freeMemory()) >> 20


if __name__ == "__main__":
    main()
