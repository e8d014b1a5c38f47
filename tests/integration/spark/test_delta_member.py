"""A member on Spark whose sink has a Delta table: each record is in it once, after a kill and a reset."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_kcr.api import Region, ResetRequest
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.sinks import read_checkpoint
from tests.support.faults import checkpoints, finished
from tests.support.kafka import Kafka
from tests.support.members import Live, live
from tests.support.spark_gated_pipeline import JARS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPEC = """\
batch: {target: 2s, min_records: 50, max_records: 500, timeout: 90s}
timeouts: {lease: 10s, renew: 1s, session: 30s, relaunch: 20s, reset: 120s, drain: 100s, commit: 20s, close: 8s}
"""
PARTITIONS = 2
WITHIN = 240.0

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


def shown(spark: SparkSession, path: Path) -> Counter[tuple[int, int]]:
    """How often the table has each record."""
    rows = spark.read.format("delta").load(f"{path}/table").select("kcr_partition", "kcr_offset").collect()
    return Counter((row[0], row[1]) for row in rows)


def records(one: Live) -> Counter[tuple[int, int]]:
    """Every record of the topic, once."""
    return Counter((number, offset) for number, end in one.kafka.ends(one.topic).items() for offset in range(end))


def test_a_member_keeps_a_delta_table_through_a_kill_and_a_reset(
    spark: SparkSession,
    kafka: Kafka,
    database_url: str,
    tmp_path: Path,
    connector_jars: tuple[Path, ...],
    delta_jars: tuple[Path, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(JARS, ",".join(map(str, (*connector_jars, *delta_jars))))
    path = tmp_path / "out"
    with live(
        kafka,
        database_url,
        tmp_path / "region",
        members=1,
        partitions=PARTITIONS,
        spec=SPEC,
        group=f", delivery: exactly_once, sinks: {{out: {{kind: files, path: '{path}', format: delta}}}}",
        name=kafka.group_id("g"),
        hosting="tests.support.spark_member_process",
        pipeline="tests.support.spark_latest_pipeline:process",
    ) as one:
        member = one.start(0)
        for _ in range(2):
            one.fill(30)
            finished(one, WITHIN)
        one.until(lambda: shown(spark, path) == records(one), "each record in the table once", WITHIN)

        member.kill()
        one.start(0, takeover=True)
        one.fill(30)
        finished(one, WITHIN)
        one.until(lambda: shown(spark, path) == records(one), "each record in the table once, after a kill", WITHIN)

        with Region(one.name, one.store) as region:
            first = checkpoints(one)[0].sequence
            plan = region.resets.plan(ResetRequest(target=ToCheckpoint(sequence=first)))
            region.resets.apply(plan, "to see")
            region.resets.wait_for(plan.plan, timedelta(seconds=WITHIN))
        one.fill(30)
        finished(one, WITHIN)
        one.until(lambda: shown(spark, path) == records(one), "each record in the table once, after a reset", WITHIN)

        newest = (
            spark.read.format("delta").load(f"{path}/table").where(f"kcr_sequence = {checkpoints(one)[-1].sequence}")
        )
        assert newest.count() == read_checkpoint(spark, str(path)).count()
        with Region(one.name, one.store) as region:
            assert not region.verify().violations
