"""Decoding in a pipeline: what is poison is set aside or fails the batch, and the batch is read once either way."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from airflow_kcr.embedded.jars import JarSet, resolve, spark_connector
from airflow_kcr.errors import BatchFailed, ConfigurationError
from airflow_kcr.spark import BatchContext
from airflow_kcr.spark.decoding import Avro, Decoded, Json, Protobuf, dead_letters_to_topic, decoded, decoding
from airflow_kcr.spark.session import CONNECTOR
from tests.integration.spark.batches import Bench, call, said_by
from tests.support.kafka import Kafka

DELAYS = Json("carrier STRING NOT NULL, delay INT, at STRUCT<hour: INT>")
GOOD = [
    b'{"carrier": "UA", "delay": 3, "at": {"hour": 5}, "more": 1}',
    b'{"carrier": "AA"}',
    b'{"carrier": "B6", "delay": null}',
]
BAD = {
    b"": "not a JSON object",
    b"\xff\xfe": "not UTF-8",
    b'[{"carrier": "UA"}]': "not a JSON object",
    b'"UA"': "not a JSON object",
    b'{"carrier": "UA"': "not JSON of this schema",
    b'{"carrier": "UA", "delay": "late"}': "not JSON of this schema",
    b'{"delay": 3}': "without carrier",
    b'{"carrier": null}': "without carrier",
}
SPARK_AVRO = JarSet(
    name="spark-avro",
    coordinates=f"org.apache.spark:spark-avro_2.13:{CONNECTOR.rpartition(':')[2]}",
    variable="KCR_SPARK_AVRO_JARS",
    without=spark_connector().without,
)
AVRO = """{"type": "record", "name": "delay", "fields": [
    {"name": "carrier", "type": "string"}, {"name": "delay", "type": ["null", "int"]}]}"""
SCHEMA = "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY"


def batch_of(spark: SparkSession, *values: bytes | None) -> DataFrame:
    rows = [("t", 0, n, None, None, None if v is None else bytearray(v)) for n, v in enumerate(values)]
    return spark.createDataFrame(rows, SCHEMA)


def told_apart(batch: DataFrame) -> tuple[list[int], dict[int, str]]:
    with decoding(batch, DELAYS) as found:
        rows = [row.offset for row in found.rows.collect()]
        poison = {row.offset: row.reason for row in found.poison.collect()}
        assert found.poisoned == len(poison)
    return sorted(rows), poison


@pytest.mark.long
def test_what_can_be_decoded_becomes_columns_beside_its_coordinates(spark: SparkSession) -> None:
    rows = decoded(batch_of(spark, *GOOD), DELAYS)
    assert rows.columns == ["topic", "partition", "offset", "timestamp", "key", "carrier", "delay", "at"]
    found = [(row.offset, row.carrier, row.delay, row.at and row.at.hour) for row in rows.orderBy("offset").collect()]
    assert found == [(0, "UA", 3, 5), (1, "AA", None, None), (2, "B6", None, None)]


def test_poison_is_set_aside_with_its_bytes_and_the_reason(spark: SparkSession) -> None:
    batch = batch_of(spark, *GOOD, *BAD, None)
    rows, poison = told_apart(batch)
    assert rows == [0, 1, 2]
    assert [poison[n] for n in sorted(poison)] == [*BAD.values(), "no value"]
    with decoding(batch, DELAYS) as found:
        kept = {row.offset: row.value for row in found.poison.collect()}
    assert kept == {3 + n: bytearray(value) for n, value in enumerate(BAD)} | {3 + len(BAD): None}


def test_how_much_was_poison_is_told_with_the_first_of_it(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    told_apart(batch_of(spark, *GOOD))
    assert caplog.messages == []
    told_apart(batch_of(spark, *GOOD, *BAD))
    assert caplog.messages == ["8 poison record(s), the first t/0/3: not a JSON object"]


@pytest.mark.parametrize(
    "value", [*list(BAD)[:1], None, *(pytest.param(one, marks=pytest.mark.long) for one in list(BAD)[1:])]
)
def test_without_being_set_aside_poison_fails_the_batch_and_is_named(spark: SparkSession, value: bytes | None) -> None:
    reason = "no value" if value is None else BAD[value]
    batch = batch_of(spark, *GOOD, value)
    with pytest.raises(PySparkException, match=f"poison record t/0/3: {reason}"):
        decoded(batch, DELAYS).select("offset").collect()
    with pytest.raises(PySparkException, match=f"poison record t/0/3: {reason}"):
        decoded(batch, DELAYS).count()


@pytest.mark.parametrize("schema", ["carrier", "carrier STRINGS", "", "carrier STRING,"])
def test_a_schema_that_is_none_is_refused_before_anything_is_read(spark: SparkSession, schema: str) -> None:
    with pytest.raises(ConfigurationError):
        decoded(batch_of(spark), Json(schema))


def test_a_library_that_is_not_there_is_named_with_how_to_have_it(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match=r"--packages org\.apache\.spark:spark-avro_2\.13:4\."):
        decoded(batch_of(spark), Avro(AVRO))
    with pytest.raises(ConfigurationError, match=r"--packages org\.apache\.spark:spark-protobuf_2\.13:4\."):
        decoded(batch_of(spark), Protobuf("a.B", b""))


def read_with_headers(spark: SparkSession, kafka: Kafka, topic: str) -> list[tuple[bytes, dict[str, str]]]:
    """The records of a topic, and their headers as text."""
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic, "includeHeaders": "true"}
    rows = spark.read.format("kafka").options(**options).load().select("value", "headers").collect()
    return [(bytes(row.value), {one.key: bytes(one.value).decode() for one in row.headers}) for row in rows]


@pytest.mark.parametrize("schema", ["", "[]", '"string"', '{"type": "record", "name": "r", "fields": []}'])
def test_an_avro_schema_that_is_no_records_is_refused(spark: SparkSession, schema: str) -> None:
    with pytest.raises(ConfigurationError, match="Avro schema"):
        Avro(schema).reason(functions.col("value"), functions.col("value"))


@pytest.mark.long
def test_avro_is_decoded_where_its_library_is(tmp_path: Path) -> None:
    # In a session of its own: the others are without it, as most applications are.
    assert json.loads(said_by("avro_driver", *resolve(SPARK_AVRO))) == {
        "rows": [[0, "UA", 3], [1, "AA", None]],
        "poison": [[n, "not Avro of this schema"] for n in (2, 3, 4)] + [[5, "no value"]],
        "nullable": [[0, None], [1, "not Avro of this schema"]],
        "behind five bytes": [[0, "UA", 3]],
    }


# -- on a real broker, in a real batch -----------------------------------------------------------------------------


def test_a_batch_with_poison_is_read_once_and_its_poison_goes_to_a_topic_with_where_it_came_from(
    bench: Bench, tmp_path: Path
) -> None:
    kafka, topic = bench.kafka, bench.kafka.topic(1)
    dead = kafka.topic(1)
    kafka.produce(topic, [*GOOD, *BAD])
    seen: list[Decoded] = []

    def pipeline(batch: DataFrame, context: BatchContext) -> None:
        with decoding(batch, DELAYS) as found:
            found.rows.write.parquet(str(tmp_path / "rows"))
            dead_letters_to_topic(found.poison, context, topic=dead, kafka=dict(kafka.settings))
            seen.append(found)

    report = bench.engine(pipeline).run(call(topic, {0: (0, len(GOOD) + len(BAD))}))
    assert report.scans == 1
    assert report.warnings == ()
    assert [one.poisoned for one in seen] == [len(BAD)]
    letters = read_with_headers(bench.spark, kafka, dead)
    assert sorted(value for value, _ in letters) == sorted(BAD)
    headers = [told for _, told in letters]
    assert sorted(int(one["kcr.offset"]) for one in headers) == list(range(len(GOOD), len(GOOD) + len(BAD)))
    assert {one["kcr.topic"] for one in headers} == {topic}
    assert {one["kcr.reason"] for one in headers} == set(BAD.values())


def test_a_batch_fails_with_the_coordinates_of_its_poison(bench: Bench, tmp_path: Path) -> None:
    kafka, topic = bench.kafka, bench.kafka.topic(1)
    kafka.produce(topic, [*GOOD, b"nothing"])

    def pipeline(batch: DataFrame, context: BatchContext) -> None:
        decoded(batch, DELAYS).write.parquet(str(tmp_path / "rows"))

    with pytest.raises(BatchFailed, match=f"poison record {topic}/0/3: not a JSON object"):
        bench.engine(pipeline).run(call(topic, {0: (0, len(GOOD) + 1)}))


def test_poison_does_not_go_back_to_the_topic_that_it_came_from(bench: Bench) -> None:
    kafka, topic = bench.kafka, bench.kafka.topic(1)
    kafka.produce(topic, [b"nothing"])

    def pipeline(batch: DataFrame, context: BatchContext) -> None:
        with decoding(batch, DELAYS) as found:
            dead_letters_to_topic(found.poison, context, topic=topic, kafka=dict(kafka.settings))

    with pytest.raises(BatchFailed, match="would come back for ever"):
        bench.engine(pipeline).run(call(topic, {0: (0, 1)}))


# -- field by field, against Python's own reading of JSON -----------------------------------------------------------

STRICT = "s STRING, i INT, l BIGINT, d DOUBLE, f FLOAT, m DECIMAL(5,2), b BOOLEAN, "
STRICT += "o STRUCT<n: INT NOT NULL, m: DECIMAL(5,2)>, a ARRAY<DECIMAL(5,2)>, p MAP<STRING, DOUBLE>, "
STRICT += "z ARRAY<STRUCT<n: INT NOT NULL>>"

FIELDS = {
    "s": ['"x"', '"\\u00e9"', "null"],
    "i": ["1", "-1", "2147483647", "2147483648", "1.5", '"1"', "01", "null"],
    "l": ["9223372036854775807", "9223372036854775808"],
    "d": ["1.5", "1e308", "1e400", "-1e400", "NaN", "Infinity", "null"],
    "f": ["1.5", "1e38", "1e39"],
    "m": ["1.99", "999.99", "1.999", "1000", "1e2", "1e400", "-0.001", "null"],
    "b": ["true", "false", "1", "null"],
    "o": ['{"n": 1}', "{}", '{"n": null}', '{"n": 1, "m": 1.999}', "null", "1"],
    "a": ["[]", "[1.99]", "[1.99, 1.999]", "[null]", "{}"],
    "p": ["{}", '{"x": 1.5}', '{"x": 1e400}', '{"x": null}'],
    "z": ["[]", '[{"n": 1}]', '[{"n": 1}, {}]', "[null]"],
}

WHOLE = [
    b"{}",
    b" \t\r\n{} \t\r\n",
    b"{}\n{}",
    b"{} rest",
    b"{}, {}",
    b"{}]",
    b"{}}",
    b'{}} {"x": {}',
    b"{}] x }",
    b'{},"x":{}',
    b'{}],"x":[{}',
    b'{}},"x":{"y":{}',
    b"{}\x00",
    b"\xef\xbb\xbf{}",
    b"\xc2\xa0{}",
    b"{}\xff",
    b'{"s": "\xff"}',
    b"{'s': 'x'}",
    b"{s: 1}",
    b"{/* c */}",
    b"{,}",
    b'{"s": "x",}',
    b'{"s": "\n"}',
    b'{"s": "\\x"}',
    b"null",
    b"[]",
    b"1",
    b"",
    b" ",
]


def is_decimal(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return False
    number = Decimal(value)
    return abs(number) < 1000 and number == number.quantize(Decimal("0.01"), context=Context(prec=500))


def is_binary(value: object, most: str = "1.7976931348623158e308") -> bool:
    return not isinstance(value, bool) and isinstance(value, int | Decimal) and abs(Decimal(value)) < Decimal(most)


def is_whole(value: object, bits: int = 32) -> bool:
    return type(value) is int and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)


FITS: dict[str, Callable[[Any], bool]] = {
    "s": lambda v: isinstance(v, str),
    "i": is_whole,
    "l": lambda v: is_whole(v, 64),
    "d": is_binary,
    "f": lambda v: is_binary(v, "3.4028235e38"),
    "m": is_decimal,
    "b": lambda v: isinstance(v, bool),
    "o": lambda v: isinstance(v, dict) and is_whole(v.get("n")) and (v.get("m") is None or is_decimal(v["m"])),
    "a": lambda v: isinstance(v, list) and all(one is None or is_decimal(one) for one in v),
    "p": lambda v: isinstance(v, dict) and all(one is None or is_binary(one) for one in v.values()),
    "z": lambda v: isinstance(v, list) and all(one is None or is_whole(one.get("n")) for one in v),
}
"""Whether a value that is not null is one of its field's type; numbers as they were written."""


def is_sound(record: bytes) -> bool:
    """Whether a record is one JSON object of the schema, by Python's own reading."""

    def refused(constant: str) -> None:
        raise ValueError(constant)

    try:
        text = record.decode()
        if text[:1] == "\ufeff":
            return False
        value = json.loads(text, parse_float=Decimal, parse_constant=refused)
    except ValueError:
        return False
    return isinstance(value, dict) and all(value.get(name) is None or FITS[name](value[name]) for name in FIELDS)


def test_a_record_is_one_json_object_of_the_schema_or_poison(spark: SparkSession) -> None:
    records = [*WHOLE, *(f'{{"{name}": {text}}}'.encode() for name, texts in FIELDS.items() for text in texts)]
    with decoding(batch_of(spark, *records), Json(STRICT)) as found:
        sound = {row.offset for row in found.rows.select("offset").collect()}
        poison = {row.offset: row.reason for row in found.poison.select("offset", "reason").collect()}
    assert sound | poison.keys() == set(range(len(records)))
    told = {record: poison.get(n, "sound") for n, record in enumerate(records)}
    differing = {record: reason for record, reason in told.items() if (reason == "sound") != is_sound(record)}
    assert not differing


def test_values_are_as_they_were_written(spark: SparkSession) -> None:
    record = b'{"s": "x", "d": 0.1, "m": 999.99, "o": {"n": 1, "m": 0.01}, "a": [1.5, null], "p": {"x": 1.5}'
    record += b', "z": [{"n": 2}]}'
    (row,) = decoded(batch_of(spark, record), Json(STRICT)).collect()
    assert (row.s, row.d, row.m, row.o.n, row.o.m) == ("x", 0.1, Decimal("999.99"), 1, Decimal("0.01"))
    assert (row.a, row.p, row.z[0].n) == ([Decimal("1.50"), None], {"x": 1.5}, 2)


@pytest.mark.parametrize("name", ["timestamp", "key", "topic", "Partition", "OFFSET"])
def test_a_field_named_as_a_column_of_the_record_is_refused_and_may_be_renamed(spark: SparkSession, name: str) -> None:
    batch = batch_of(spark, f'{{"{name}": 5}}'.encode())
    with pytest.raises(ConfigurationError, match=r"has the name of a column of the record.*renamed="):
        decoded(batch, Json(f"`{name}` INT"))
    (row,) = decoded(batch, Json(f"`{name}` INT NOT NULL", renamed={name: "own"})).drop("timestamp", "key").collect()
    assert row.own == 5


def test_a_field_that_is_not_there_is_not_renamed(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="renamed has b"):
        decoded(batch_of(spark), Json("a INT", renamed={"b": "c"}))
