"""The pages that lead from a Structured Streaming query to a region, and back to a query, each record counted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.dataset
import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession

from airflow_kcr.embedded.processes import happened
from airflow_kcr.sinks.files.hadoop import HadoopFolder
from airflow_kcr.spark.query_checkpoint import LocalCheckpoint, query_offsets
from tests.conftest import StartKafka
from tests.support.kafka import Kafka, KafkaSet
from tests.support.kafka_tool import consumer_groups
from tests.support.structured_query import HANGS
from tests.support.typed_page import Page

TOP = Path(__file__).parents[3]
WITHIN = 300.0
IN_THE_END = "\nquery.processAllAvailable()\nquery.stop()\nspark.stop()\n"
"""After the program of the page, whose query has no end."""


def records(*folders: Path) -> Counter[tuple[int, int]]:
    """Return how often each record is in what was written, as partition and offset."""
    found: Counter[tuple[int, int]] = Counter()
    for folder in folders:
        for file in folder.rglob("*.parquet"):
            rows = pyarrow.dataset.dataset(file).to_table(["partition", "offset"])
            found.update(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
    return found


def query_killed(kafka: KafkaSet, data: Path, environ: dict[str, str], version: int) -> None:
    """Run a query that is killed in its third batch: planned and written, but not committed."""
    asked = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "topic": "orders",
        "checkpoint": str(data / "checkpoint"),
        "output": str(data / "before"),
        "each": 30,
        "hangs_in": 2,
        "version": version,
    }
    command = [sys.executable, "-m", "tests.support.structured_query", json.dumps(asked)]
    with (data / "query.log").open("w") as told:
        query = subprocess.Popen(command, cwd=TOP, env=environ, stdout=told, stderr=told, start_new_session=True)
    try:
        hangs = data / "before" / HANGS
        assert happened(lambda: query.poll() is not None or hangs.exists(), within=WITHIN)
        assert query.poll() is None, (data / "query.log").read_text()[-3000:]
    finally:
        os.killpg(query.pid, signal.SIGKILL)
        query.wait()


def committed_by_a_live_consumer(kafka: KafkaSet) -> Consumer:
    """Return a consumer in a group that has committed offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "orders-legacy",
            "client.id": "legacy-1",
            "log_level": 0,
        }
    )
    consumer.subscribe(["orders"])
    assert happened(lambda: consumer.poll(0.1) is not None or bool(consumer.assignment()), within=WITHIN)
    offsets = [TopicPartition("orders", 0, 20), TopicPartition("orders", 1, 10)]
    consumer.commit(offsets=offsets, asynchronous=False)
    return consumer


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", [1, 2])
def test_each_record_is_counted_from_a_query_to_a_region_and_back(
    version: int,
    database_url: str,
    kafka_set: StartKafka,
    connector_jars: tuple[Path, ...],
    tmp_path: Path,
) -> None:
    kafka, data = kafka_set(1), tmp_path / "data"
    data.mkdir()
    kafka.fill(kafka.topic(2, name="orders"), {0: 60, 1: 60})
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    jars = ",".join(map(str, connector_jars))
    environ = {
        **os.environ,
        "PATH": path,
        "KCR_STORE_URL": database_url,
        "PYSPARK_SUBMIT_ARGS": f"--master local[2] --driver-memory 512m --jars {jars} pyspark-shell",
    }
    query_killed(kafka, data, environ, version)
    assert (data / "checkpoint" / "offsets" / "2").read_text().startswith(f"v{version}\n")
    assert not (data / "checkpoint" / "commits" / "2").exists()

    addresses = {"/data/orders": str(data), "127.0.0.1:9092": kafka.bootstrap_servers}
    way_in = Page("take-over.md", tmp_path, environ, addresses)
    (tmp_path / "orders.yaml").write_text(way_in.block("yaml"))
    (tmp_path / "orders_pipeline.py").write_text(way_in.block("python"))
    way_in.type("kcr region apply")
    way_in.type("kcr adopt --spark-checkpoint")
    legacy = committed_by_a_live_consumer(kafka)
    refused = ["kcr", "adopt", "--group", "orders-legacy", "--region", "orders"]
    ran = subprocess.run(
        refused, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=WITHIN
    )
    assert (ran.returncode, "group orders-legacy is stable, with 1 member(s): legacy-1" in ran.stderr) == (3, True)
    legacy.close()
    way_in.type("kcr adopt --group")
    way_in.type("kcr reset apply")
    way_in.type("kcr run")
    assert kafka.committed("orders-legacy") == {("orders", 0): 20, ("orders", 1): 10}

    # What comes now is for the query that goes on where the region stops.
    kafka.fill("orders", {0: 25, 1: 5})
    way_out = Page("leave-again.md", tmp_path, environ, addresses)
    way_out.type("kcr region stop")
    way_out.type("kcr checkpoint")
    (tmp_path / "orders.py").write_text(way_out.block("python") + IN_THE_END)
    way_out.run(sys.executable, "orders.py")

    wanted = Counter({(n, o): 1 for n, end in {0: 85, 1: 65}.items() for o in range(end)})
    plan = json.loads((tmp_path / "plan.json").read_text())
    planned = records(data / "before" / "2")
    assert len(planned) == 30, "which the plan says may be read twice"
    assert {(e["partition"], e["target"]) for e in plan["entries"]} == {(0, 30), (1, 30)}
    assert records(data / "before", data / "region", data / "query") == wanted + planned

    # Another group goes on there too, and the region is forgotten.
    reset = ("--group", "orders-next", "--reset-offsets", "--from-file", str(tmp_path / "offsets.csv"), "--execute")
    consumer_groups(kafka.bootstrap_servers, *reset)
    assert kafka.committed("orders-next") == {("orders", 0): 60, ("orders", 1): 60}
    way_out.type("kcr region delete")


def test_a_checkpoint_that_only_spark_reaches_is_read_as_one_on_this_machine(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    topics = [kafka.topic(2), kafka.topic(1)]
    for topic in topics:
        kafka.fill(topic, {0: 7})
    read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    read = read.option("startingOffsets", "earliest")
    both = read.option("subscribe", topics[0]).load().union(read.option("subscribe", topics[1]).load())
    query = both.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    query.start().awaitTermination()
    found = query_offsets(HadoopFolder(spark, f"file://{tmp_path}"))
    assert replace(found, consumer="") == replace(query_offsets(LocalCheckpoint(str(tmp_path))), consumer="")
    assert dict(found.offsets) == {(topics[0], 0): 7, (topics[0], 1): 0, (topics[1], 0): 7}
