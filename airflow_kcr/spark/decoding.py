"""Decoding records in a pipeline: the bytes of JSON, Avro or Protobuf as columns, by Spark's own functions.

A record that can't be decoded is *poison*: without care it either fails its batch, so that the region resets and fails
again, or silently becomes a row of nulls. Here a pipeline says which of two it wants:

    rows = decoded(batch, Json("carrier STRING NOT NULL, delay INT"))      # poison fails the batch, and is named

    with decoding(batch, Json("carrier STRING NOT NULL, delay INT")) as found:
        context.sinks["delays"].write(found.rows)
        dead_letters_to_topic(found.poison, context, topic="flights-dead", kafka={...})   # or into a sink's table

Either way the batch is read once.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Final, Protocol, cast

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.spark.causes import OWN
from airflow_kcr.spark.context import COORDINATES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, DecimalType, StructType

    from airflow_kcr.spark.context import BatchContext

_LOG = logging.getLogger(__name__)
_VALUE: Final = "kcr_value"
_REASON: Final = "kcr_reason"
_LIBRARIES: Final[Mapping[str, str]] = {
    "AVRO_NOT_LOADED_SQL_FUNCTIONS_UNUSABLE": "spark-avro",
    "PROTOBUF_NOT_LOADED_SQL_FUNCTIONS_UNUSABLE": "spark-protobuf",
}


def decoded(batch: DataFrame, how: Format) -> DataFrame:
    """Return the batch's records with their values decoded; a record that can't be decoded fails the batch.

    The error names the record and why. The region then resets, and after `max_failures` halts: a person decides, and
    may have the record skipped by name (`kcr reset`).

    Args:
        batch: as the pipeline is given it.
        how: the format of the values.

    Returns:
        `topic`, `partition`, `offset`, `timestamp` and `key` as they are, then the decoded columns.

    Raises:
        ConfigurationError: the format's schema can't be used, or its library is not on the class path.
    """
    from pyspark.sql import functions as F

    message = F.concat_ws(
        "",
        F.lit(f"{OWN}poison record "),
        F.concat_ws("/", *COORDINATES),
        F.lit(": "),
        F.col(_REASON),
        F.lit("; decode with `decoding` to set such records aside, or skip it by name"),
    )
    judged = _judged(batch, how)
    # The filter has to be computed to know whether a row stays, so the error can't be optimised away.
    sound = F.when(F.col(_REASON).isNull(), F.lit(True)).otherwise(F.raise_error(message).cast("boolean"))
    return _rows(judged.where(sound), how)


@dataclass(frozen=True)
class Decoded:
    """A batch's records, told apart."""

    rows: DataFrame
    """Those that could be decoded: as `decoded` returns them."""

    poison: DataFrame
    """The others: `topic`, `partition`, `offset`, `timestamp`, `key` and `value` as they are, and `reason`."""

    @property
    def poisoned(self) -> int:
        """How many could not be decoded; counted when it is first asked for."""
        return self.summary[0]

    @cached_property
    def summary(self) -> tuple[int, Sequence[object]]:
        """How many, and of the first of them topic, partition, offset and reason; empty: there is none."""
        from pyspark.sql import functions as F

        first = F.min(F.struct(*COORDINATES, "reason"))
        row = self.poison.agg(F.count(F.lit(1)), first).first()
        return (0, ()) if row is None else (int(row[0]), tuple(row[1] or ()))


@contextmanager
def decoding(batch: DataFrame, how: Format) -> Iterator[Decoded]:
    """Lend a batch's records told apart, kept by Spark for as long as the block lasts, so that they are read once.

    The number of poison records is logged at the end of the block, with the first of them.

    Args:
        batch: as the pipeline is given it.
        how: the format of the values.

    Raises:
        ConfigurationError: the format's schema can't be used, or its library is not on the class path.
    """
    from pyspark.sql import functions as F
    from pyspark.storagelevel import StorageLevel

    judged = _judged(batch, how).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        bad = judged.where(F.col(_REASON).isNotNull())
        found = Decoded(
            rows=_rows(judged.where(F.col(_REASON).isNull()), how),
            poison=bad.select(*COORDINATES, "timestamp", "key", "value", F.col(_REASON).alias("reason")),
        )
        yield found
        poisoned, first = found.summary
        if poisoned:
            _LOG.warning("%d poison record(s), the first %s/%s/%s: %s", poisoned, *first)
    finally:
        judged.unpersist()


def dead_letters_to_topic(poison: DataFrame, context: BatchContext, *, topic: str, kafka: Mapping[str, str]) -> None:
    """Write poison records to a topic, with where they came from and why as headers.

    Key and value are the record's. A reset writes them again, so the topic has them at least once; the headers
    `kcr.topic`, `kcr.partition` and `kcr.offset` name a record for ever.

    Args:
        poison: of `decoding`.
        context: of the batch.
        topic: the dead-letter topic; not one that the group reads.
        kafka: client settings as Kafka's Java client names them, without the prefix `kafka.`.

    Raises:
        ConfigurationError: the group reads the topic itself.
    """
    from pyspark.sql import functions as F

    if topic in {place.topic for place in context.ranges}:
        raise ConfigurationError(f"{topic} is read by this very batch: its poison would come back for ever")
    named = {
        "kcr.topic": F.col("topic"),
        "kcr.partition": F.col("partition").cast("string"),
        "kcr.offset": F.col("offset").cast("string"),
        "kcr.reason": F.col("reason"),
        "kcr.region": F.lit(str(context.region)),
        "kcr.batch": F.lit(str(context.batch_id)),
    }
    headers = F.array(
        *(F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value")) for name, value in named.items())
    )
    options = {f"kafka.{name}": value for name, value in kafka.items()}
    letters = poison.select("key", "value", headers.alias("headers"))
    letters.write.format("kafka").mode("append").options(**options).option("topic", topic).option(
        "includeHeaders", "true"
    ).save()


def _judged(batch: DataFrame, how: Format) -> DataFrame:
    """The records with their decoded value and why it is poison."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    value = F.col("value")
    try:
        with_value = batch.select(*COORDINATES, "timestamp", "key", "value", how.struct(value).alias(_VALUE))
    except AnalysisException as error:
        library = _LIBRARIES.get(error.getCondition() or "")
        if library is None:
            raise
        raise _lacks(library) from error
    return with_value.withColumn(_REASON, how.reason(value, F.col(_VALUE)))


def _rows(judged: DataFrame, how: Format) -> DataFrame:
    from pyspark.sql import functions as F

    fields = how.fields or tuple(cast("StructType", judged.schema[_VALUE].dataType).names)
    taken = {*COORDINATES, "timestamp", "key"}
    clashing = [name for name in fields if name.lower() in taken]
    if clashing:
        raise ConfigurationError(
            f"field {', '.join(clashing)} of the schema has the name of a column of the record itself, so that one of "
            "the two would be lost; give it another one: Json(schema, renamed={'timestamp': 'event_time'}), or, with "
            "Avro, rename it in the schema"
        )
    named = [F.col(_VALUE)[name].alias(name) for name in fields]
    return judged.select(*COORDINATES, "timestamp", "key", *named)


def _lacks(library: str) -> ConfigurationError:
    import pyspark

    return ConfigurationError(
        f"Spark decodes this by its {library}, which is not on the class path; add "
        f"--packages org.apache.spark:{library}_2.13:{pyspark.__version__} to spark-submit (`packages` of "
        "KcrConsumeOperator)"
    )


# What the bytes of a record are: how Spark makes columns of them, and how it is seen that it could not.

_CORRUPT: Final = "kcr_corrupt"


class Format(Protocol):
    """How bytes become columns."""

    def struct(self, value: Column) -> Column:
        """Return the decoded value as a struct; null, or without a field that has to be there, where it can't be."""
        ...

    def reason(self, value: Column, struct: Column) -> Column:
        """Return why a value is poison; null if it is not."""
        ...

    @property
    def fields(self) -> tuple[str, ...] | None:
        """The names of the decoded columns; None: those that the struct has."""
        ...


@dataclass(frozen=True)
class Json:
    """JSON objects, exactly one in each record, with JSON's own white space around it (RFC 8259).

    Args:
        schema: of the object, as Spark writes schemas: `carrier STRING NOT NULL, delay INT`. A field that is NOT NULL
            has to be there, in this type, also within a struct; others are null if they are missing. Fields that it
            does not name are left out.
        renamed: columns by the names of the object's fields, for those that are to be called otherwise.

    Raises:
        ConfigurationError: the schema can't be read, or has no field; `renamed` names a field that it does not have.
    """

    schema: str | StructType
    renamed: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _parsed(self) -> StructType:
        # Not at once: a pipeline names its schema when it is imported, and the JVM reads it.
        from pyspark.errors import ParseException
        from pyspark.sql.types import StructType

        if isinstance(self.schema, StructType):
            found = self.schema
        else:
            try:
                found = cast("StructType", StructType.fromDDL(self.schema))
            except (ParseException, ValueError) as error:
                raise ConfigurationError(
                    f"the schema {self.schema!r} can't be read; write it as `carrier STRING NOT NULL, delay INT`: "
                    f"{error}"
                ) from error
        if not found.fields:
            raise ConfigurationError("the schema has no field; name at least one: carrier STRING NOT NULL")
        strange = sorted(self.renamed.keys() - set(found.names))
        if strange:
            raise ConfigurationError(f"renamed has {', '.join(strange)}, which the schema does not name")
        return found

    @property
    def fields(self) -> tuple[str, ...]:
        """The schema's, as they are renamed."""
        return tuple(self.renamed.get(name, name) for name in self._parsed.names)

    def struct(self, value: Column) -> Column:
        """Return the object as a struct, with what is wrong with it beside its fields."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import BooleanType, StringType, StructType

        # Spark reads one JSON value and is silent about whatever stands behind it. So the text is a field of an object
        # that ends with another one; if that was not reached, the text was not one value. The names can't be guessed.
        # It is the one element of an array as well (`reason`): what closes or continues the one breaks the other.
        whole, end = f"v{uuid.uuid4().hex}", f"e{uuid.uuid4().hex}"
        text = F.concat(F.lit(f'{{"{whole}":'), value.cast("string"), F.lit(f',"{end}":true}}'))
        schema = (
            StructType().add(whole, _read_as(self._parsed, _wide)).add(end, BooleanType()).add(_CORRUPT, StringType())
        )

        def object_of(read: Column) -> Column:
            unread = F.when(
                read.isNull() | read[_CORRUPT].isNotNull() | read[end].isNull() | read[whole].isNull(),
                "not JSON of this schema",
            )
            flaws = [_flaw(read[whole], self._parsed, "")]
            columns = (
                # What does not fit is poison, and no error of its own.
                read[whole][one.name].try_cast(_read_as(one.dataType)).alias(self.renamed.get(one.name, one.name))
                for one in self._parsed.fields
            )
            return F.struct(*columns, F.coalesce(unread, *flaws).alias(_CORRUPT))

        # As an element of an array it is read once, however often it is named.
        return F.transform(F.array(F.from_json(text, schema, _STRICT)), object_of)[0]

    def reason(self, value: Column, struct: Column) -> Column:
        """Return what is wrong with an object."""
        from pyspark.sql import functions as F

        text = value.cast("string")
        found = F.when(value.isNull(), "no value").when(~F.is_valid_utf8(text), "not UTF-8")
        begins = F.ltrim(text, F.lit(_WHITE_SPACE)).startswith("{")
        alone = F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1
        return (
            found.when(~F.coalesce(begins, F.lit(False)), "not a JSON object")
            .when(~F.coalesce(alone, F.lit(False)), "not JSON of this schema")
            .when(struct[_CORRUPT].isNotNull(), struct[_CORRUPT])
        )


_WHITE_SPACE: Final = " \t\n\r"
"""JSON's own (RFC 8259, section 2)."""

_STRICT: Final[Mapping[str, str]] = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    # Spark's defaults take both, and JSON has neither.
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}

_MOST_DIGITS: Final = 38
"""Of a decimal in Spark."""


def _wide(kind: DecimalType) -> DecimalType:
    """Return the decimal that reads what one has no room for, so that it is seen: Spark rounds to the scale."""
    from pyspark.sql.types import DecimalType

    return DecimalType(_MOST_DIGITS, _MOST_DIGITS - (kind.precision - kind.scale))


def _read_as(kind: DataType, decimals: Callable[[DecimalType], DecimalType] = lambda kind: kind) -> DataType:
    """Return a type as Spark reads it: with null for whatever is missing, and with other decimals."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructField, StructType

    match kind:
        case StructType():
            return StructType([StructField(one.name, _read_as(one.dataType, decimals)) for one in kind.fields])
        case ArrayType():
            return ArrayType(_read_as(kind.elementType, decimals))
        case MapType():
            return MapType(kind.keyType, _read_as(kind.valueType, decimals))
        case DecimalType():
            return decimals(kind)
        case _:
            return kind


def _flaw(column: Column, kind: DataType, place: str) -> Column:
    """Return what is wrong with a value that was read by the wider type; null if nothing is."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, DecimalType, DoubleType, FloatType, MapType, StructType

    nothing = F.lit(None).cast("string")
    match kind:
        case StructType():
            found = []
            for one in kind.fields:
                name = f"{place}.{one.name}" if place else one.name
                if not one.nullable:
                    found.append(F.when(column.isNotNull() & column[one.name].isNull(), f"without {name}"))
                found.append(_flaw(column[one.name], one.dataType, name))
            return F.coalesce(*found)
        case ArrayType():
            # A bound variable can't be named twice: the first element's flaw stands for all.
            flaws = F.filter(F.transform(column, lambda x: _flaw(x, kind.elementType, place)), lambda x: x.isNotNull())
            return F.get(flaws, F.lit(0))
        case MapType():
            values = ArrayType(kind.valueType)
            return _flaw(F.map_values(column), values, place)
        case DecimalType():
            narrow = column.try_cast(kind)
            fits = narrow.isNotNull() & (narrow == column)
            return F.when(column.isNotNull() & ~fits, f"{place} does not fit {kind.simpleString()}")
        case DoubleType() | FloatType():
            return F.when(F.abs(column) == F.lit(float("inf")), f"{place} does not fit {kind.simpleString()}")
        case _:
            return nothing


@dataclass(frozen=True, slots=True)
class Avro:
    """Avro records of one schema, by Spark's `spark-avro`, which has to be on the class path.

    Of bytes that are no such record Spark makes nulls. So they are known by a field that can't be null; in a schema
    without one, a record in which everything is null counts as poison.

    Args:
        schema: the writer's, as JSON.
        skip: how many bytes stand before each record: 5 where a schema registry's serializer has written them.

    Raises:
        ConfigurationError: the schema is no record's, or has no field.
    """

    schema: str
    skip: int = 0

    @property
    def fields(self) -> None:
        """Those of the schema."""
        return None

    def struct(self, value: Column) -> Column:
        """Return the record as a struct."""
        from pyspark.sql.avro.functions import from_avro

        return from_avro(_without(value, self.skip), self.schema, {"mode": "PERMISSIVE"})

    def reason(self, value: Column, struct: Column) -> Column:
        """Return what is wrong with a record."""
        from pyspark.sql import functions as F

        # Spark makes a row of nulls of what is no record of the schema.
        required, nullable = self._by_null()
        missing = [struct[name].isNull() for name in required] or [
            reduce(and_, (struct[name].isNull() for name in nullable))
        ]
        return F.when(value.isNull(), "no value").when(reduce(or_, missing), "not Avro of this schema")

    def _by_null(self) -> tuple[list[str], list[str]]:
        """The names of the fields that are never null, and of those that may be."""
        try:
            fields = json.loads(self.schema)["fields"]
            required = [str(one["name"]) for one in fields if "null" not in _types(one["type"])]
            nullable = [str(one["name"]) for one in fields if "null" in _types(one["type"])]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"the Avro schema is not the JSON of a record with its fields: {error!r}"
            ) from error
        if not required and not nullable:
            raise ConfigurationError("the Avro schema has no field")
        return required, nullable


@dataclass(frozen=True, slots=True)
class Protobuf:
    """Protobuf messages of one type, by Spark's `spark-protobuf`, which has to be on the class path.

    Args:
        message: the type's full name.
        descriptor: a serialized `FileDescriptorSet`, as `protoc --descriptor_set_out` writes it.
        skip: how many bytes stand before each message: 6 where a schema registry's serializer has written one that is
            the first of its file.
    """

    message: str
    descriptor: bytes = field(repr=False)
    skip: int = 0

    @property
    def fields(self) -> None:
        """Those of the message."""
        return None

    def struct(self, value: Column) -> Column:
        """Return the message as a struct."""
        from pyspark.sql.protobuf.functions import from_protobuf

        return from_protobuf(
            _without(value, self.skip),
            self.message,
            options={"mode": "PERMISSIVE"},
            binaryDescriptorSet=self.descriptor,
        )

    def reason(self, value: Column, struct: Column) -> Column:
        """Return what is wrong with a message."""
        from pyspark.sql import functions as F

        return F.when(value.isNull(), "no value").when(struct.isNull(), "not Protobuf of this type")


def _types(declared: object) -> list[object]:
    """The types of an Avro field, of which there are several in a union."""
    return declared if isinstance(declared, list) else [declared]


def _without(value: Column, skip: int) -> Column:
    from pyspark.sql import functions as F

    return F.substring(value, skip + 1, 2**31 - 1) if skip else value
