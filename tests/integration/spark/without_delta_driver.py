"""Opens a file sink of format `delta` in a Spark without Delta, or without its extension; prints why that is refused.

Its arguments are the jars that Spark has.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.rules import FileFormat
from airflow_kcr.protocol.values import UNDECLARED, GroupId, RegionName
from airflow_kcr.sinks.contract import SinkOwner
from airflow_kcr.sinks.files.delta import table_of
from airflow_kcr.sinks.files.layout import FileTarget


def main() -> None:
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.jars", ",".join(sys.argv[1:])).config("spark.driver.host", "127.0.0.1")
    spark = builder.getOrCreate()
    target = FileTarget(
        owner=SinkOwner(region=RegionName("flights"), region_id=UNDECLARED, group=GroupId("g"), sink="out"),
        path="/lake/out",
        format=FileFormat.DELTA,
    )
    try:
        table_of(spark, target)
    except ConfigurationError as error:
        sys.stdout.write(str(error))


if __name__ == "__main__":
    main()
