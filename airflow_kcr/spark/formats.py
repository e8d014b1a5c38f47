"""What the bytes of a record are: how Spark makes columns of them, and how it is seen that it could not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Final, Protocol, cast

from airflow_kcr.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

_CORRUPT: Final = "kcr_corrupt"


class Format(Protocol):
    """How bytes become columns."""

    def struct(self, value: Column) -> Column:
        """Return the decoded value as a struct; null, or without a field that has to be there, where it can't be."""
        ...

    def reason(self, value: Column, struct: Column) -> Column:
        """Return why a value is poison; null where it is not."""
        ...

    @property
    def fields(self) -> tuple[str, ...] | None:
        """The names of the decoded columns; None: those that the struct has."""
        ...


@dataclass(frozen=True)
class Json:
    """JSON objects, one in each record.

    Args:
        schema: of the object, as Spark writes schemas: `carrier STRING NOT NULL, delay INT`. A field that is NOT NULL
            has to be there, in this type; others are null where they are missing. Fields that it does not name are
            left out.

    Raises:
        ConfigurationError: the schema can't be read, or has no field.
    """

    schema: str | StructType

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
        return found

    @property
    def fields(self) -> tuple[str, ...]:
        """The schema's."""
        return tuple(self._parsed.names)

    def struct(self, value: Column) -> Column:
        """Return the object as a struct, with what could not be read beside it."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StringType, StructType

        schema = self._parsed
        # Spark reads fields that are missing as null in any case; what has to be there is looked at afterwards.
        nullable = StructType([*schema.fields]).add(_CORRUPT, StringType())
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        return F.from_json(value.cast("string"), nullable, options)

    def reason(self, value: Column, struct: Column) -> Column:
        """Return what is wrong with an object."""
        from pyspark.sql import functions as F

        text = value.cast("string")
        found = F.when(value.isNull(), "no value")
        # Of a list Spark takes the first element and is silent about the others.
        found = found.when(~F.coalesce(F.ltrim(text).startswith("{"), F.lit(False)), "not a JSON object")
        found = found.when(struct.isNull() | struct[_CORRUPT].isNotNull(), "not JSON of this schema")
        for name in (one.name for one in self._parsed.fields if not one.nullable):
            found = found.when(struct[name].isNull(), f"without {name}")
        return found


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
        required, nullable = self._told_apart()
        missing = [struct[name].isNull() for name in required] or [
            reduce(and_, (struct[name].isNull() for name in nullable))
        ]
        return F.when(value.isNull(), "no value").when(reduce(or_, missing), "not Avro of this schema")

    def _told_apart(self) -> tuple[list[str], list[str]]:
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
