"""How often a batch read its ranges: a pipeline with two actions reads Kafka twice.

The number of a group's jobs doesn't tell; what each plan's read of Kafka put out does. Spark keeps that for its UI, and
has no public way to it; without it nothing is known, which is no reason to fail a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from airflow_kcr.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_kcr.spark.jvm import JavaObject

_READ: Final = "BatchScan KafkaTable"
_ROWS: Final = "number of output rows"


def count_scans(spark: SparkSession, jobs: Collection[int], since: int) -> int | None:
    """Return how often the jobs read Kafka, leaving out those that looked at a few records only (`isEmpty`, `take`).

    A read counts if it put out at least half as many records as the one that put out most.

    Args:
        spark: any session of the application.
        jobs: the batch's.
        since: when the batch began, in milliseconds of the JVM's clock.

    Returns:
        None where no plan is known to have read Kafka: it may have been done through an RDD.
    """
    rows = [count for plan in _plans(spark, jobs, since) for count in _reads(spark, plan) if count]
    return sum(1 for count in rows if 2 * count >= max(rows)) or None


def _plans(spark: SparkSession, jobs: Collection[int], since: int) -> Iterator[JavaObject]:
    store = jvm.status_store(spark)
    total = store.executionsCount()
    for place in range(total - 1, -1, -1):
        page = store.executionsList(place, 1)
        if not page.size():
            # Forgotten in the meantime; those before it are older.
            return
        plan = page.apply(0)
        if plan.submissionTime() < since:
            return
        of_plan = plan.jobs().keySet().mkString(",")
        if any(int(job) in jobs for job in of_plan.split(",") if job):
            yield plan


def _reads(spark: SparkSession, plan: JavaObject) -> Iterator[int]:
    store, plan_id = jvm.status_store(spark), plan.executionId()
    nodes = [node for node in jvm.scala_items(store.planGraph(plan_id).allNodes()) if node.name() == _READ]
    if not nodes:
        return
    values = store.executionMetrics(plan_id)
    for node in nodes:
        for metric in jvm.scala_items(node.metrics()):
            if metric.name() == _ROWS:
                value = values.get(metric.accumulatorId())
                # Written for people: '1,200,000'.
                yield int(value.get().replace(",", "")) if value.isDefined() else 0
