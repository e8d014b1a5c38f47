"""Real Spark, got ready as it is before the first batch of an application counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.values import GroupPartition, Offset, TopicName
from airflow_kcr.spark.pipelines import warm_up
from tests.integration.spark.batches import GROUP, Bench, source_of
from tests.support.kafka import Kafka, Record


def logs(kafka: Kafka, topic: str) -> dict[GroupPartition, LogBounds]:
    return {
        GroupPartition(GROUP, TopicName(topic), n): LogBounds(start=Offset(0), end=Offset(end))
        for n, end in kafka.ends(topic).items()
    }


@pytest.mark.long
def test_records_are_read_and_no_batch_misses_them(
    spark: SparkSession, kafka: Kafka, bench: Bench, tmp_path: Path
) -> None:
    noted = tmp_path / "imported"
    (tmp_path / "kcr_noted.py").write_text(f"from pathlib import Path\nPath({str(noted)!r}).touch()\n")
    spark.sparkContext.addPyFile(str(tmp_path / "kcr_noted.py"))
    topic = kafka.topic(partitions=3)
    kafka.fill(topic, {0: 5, 1: 1})
    assert warm_up(spark, source_of(kafka.settings), logs(kafka, topic), ("kcr_noted", "no_such_module")) == 16
    assert noted.exists()
    assert bench.read(topic, {0: (0, 5), 1: (0, 1)}).offsets() == [0, 1, 2, 3, 4]


def test_records_that_a_transaction_hides_and_markers_do_no_harm(spark: SparkSession, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=1)
    kafka.begin_transaction(topic, [Record(value=b"aborted", partition=0)]).abort()
    assert warm_up(spark, source_of(kafka.settings), logs(kafka, topic), ()) == 0


def test_where_no_log_has_a_record_python_is_started_all_the_same(spark: SparkSession, kafka: Kafka) -> None:
    assert warm_up(spark, source_of(kafka.settings), logs(kafka, kafka.topic(partitions=2)), ()) == 0
