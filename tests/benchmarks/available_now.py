"""What a run is measured against: a program that reads what a topic has with Structured Streaming, and ends."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(servers: str, topic: str, checkpoint: str) -> None:
    """Read a topic from where the last run of this checkpoint ended to its end, and write nothing."""
    spark = SparkSession.builder.appName("available now").getOrCreate()
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
    rows = spark.readStream.format("kafka").options(**options).load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
