"""Jars that only tests need."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

from airflow_kcr.embedded.jars import JarSet, shipped
from airflow_kcr.spark import session
from airflow_kcr.spark.launch import line_of

KAFKA_TOOLS: Final = JarSet(
    name="kafka-tools",
    coordinates="org.apache.kafka:kafka-tools:4.1.1",
    variable="KCR_KAFKA_TOOLS_JARS",
    # What it needs for Kafka Connect, which it is not asked for.
    without=frozenset({"connect-api", "connect-json", "connect-runtime", "connect-transforms"}),
)

MIRROR_MAKER: Final = JarSet(
    name="kafka-mirror",
    coordinates="org.apache.kafka:connect-mirror:4.1.1,org.slf4j:slf4j-simple:1.7.36",
    variable="KCR_KAFKA_MIRROR_JARS",
)

POSTGRES_DRIVER: Final = JarSet(
    name="postgres-driver",
    coordinates=session.POSTGRES_DRIVER,
    variable="KCR_POSTGRES_JARS",
    without=frozenset({"checker-qual"}),  # annotations, for its compiler only
)

ICEBERG: Final = {"4.0": "1.10.1", "4.1": "1.12.0"}
"""The newest version of Iceberg that has a library for a line of Spark; for others there is none yet."""


def delta() -> JarSet:
    """Return the library that Spark writes Delta tables with, without what the installed PySpark ships already."""
    return JarSet(
        name="delta",
        coordinates=f"io.delta:delta-spark_{line_of(version('pyspark'))}_2.13:4.4.0",
        variable="KCR_DELTA_JARS",
        without=shipped(),
    )


def iceberg() -> JarSet | None:
    """Return the library that Spark maintains Iceberg tables with; None: there is none for the installed PySpark."""
    line = line_of(version("pyspark"))
    if line not in ICEBERG:
        return None
    return JarSet(
        name="iceberg-spark",
        coordinates=f"org.apache.iceberg:iceberg-spark-runtime-{line}_2.13:{ICEBERG[line]}",
        variable="KCR_ICEBERG_SPARK_JARS",
        without=shipped(),
    )
