"""A Structured Streaming query as people have it, in a process of its own: `python -m … '{"topic": …}'`.

Each batch is written into a folder of its own. It ends when it has read all there is, or hangs in a batch, after it has
written that and before Spark commits it.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

HANGS = "hangs"


def main() -> None:
    """Run the query."""
    asked = json.loads(sys.argv[1])
    output = Path(asked["output"])

    def write(batch: DataFrame, number: int) -> None:
        batch.select("partition", "offset").write.mode("overwrite").parquet(f"{output}/{number}")
        if number == asked["hangs_in"]:
            (output / HANGS).touch()
            threading.Event().wait()

    spark = SparkSession.builder.appName("query").config("spark.ui.enabled", "false").getOrCreate()
    spark.conf.set("spark.sql.streaming.offsetLog.formatVersion", asked["version"])
    read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", asked["bootstrap_servers"])
    read = read.option("subscribe", asked["topic"]).option("startingOffsets", "earliest")
    records = read.option("maxOffsetsPerTrigger", asked["each"]).load()
    query = records.writeStream.foreachBatch(write).option("checkpointLocation", asked["checkpoint"])
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
