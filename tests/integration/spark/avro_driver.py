"""Decodes Avro in a Spark that has the library for it; arguments: its jars. Prints what came of it as JSON."""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession

from airflow_kcr.spark.decoding import Avro, decoded, decoding

SCHEMA = """{"type": "record", "name": "delay", "fields": [
    {"name": "carrier", "type": "string"}, {"name": "delay", "type": ["null", "int"]}]}"""
NULLABLE = """{"type": "record", "name": "delay", "fields": [{"name": "delay", "type": ["null", "int"]}]}"""
COLUMNS = "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY"
UA, AA = b"\x04UA\x02\x06", b"\x04AA\x00"


def main() -> None:
    builder = SparkSession.builder.master("local[1]").config("spark.jars", ",".join(sys.argv[1:]))
    spark = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1").getOrCreate()
    with decoding(batch_of(spark, UA, AA, b"", b"\xff\xff\xff", b"\x04U", None), Avro(SCHEMA)) as found:
        rows = sorted([row.offset, row.carrier, row.delay] for row in found.rows.collect())
        poison = sorted([row.offset, row.reason] for row in found.poison.collect())
    with decoding(batch_of(spark, b"\x02\x06", b""), Avro(NULLABLE)) as found:
        nullable = [[row.offset, None] for row in found.rows.collect()]
        nullable += [[row.offset, row.reason] for row in found.poison.collect()]
    behind = decoded(batch_of(spark, b"\x00\x00\x00\x00\x01" + UA), Avro(SCHEMA, skip=5)).collect()
    found_all = {
        "rows": rows,
        "poison": poison,
        "nullable": nullable,
        "behind five bytes": [[row.offset, row.carrier, row.delay] for row in behind],
    }
    sys.stdout.write(json.dumps(found_all))


def batch_of(spark: SparkSession, *values: bytes | None) -> DataFrame:
    rows = [("t", 0, n, None, None, None if v is None else bytearray(v)) for n, v in enumerate(values)]
    return spark.createDataFrame(rows, COLUMNS)


if __name__ == "__main__":
    main()
