"""Layouts of rows as columns: their SQL, both directions, and the one that a row class has by its type hints.

There are two kinds. Rows of one partition each are many and narrow: they are bound as one array for each column, and
read column by column. The others are few and wide: they cross as JSON, all rows in one value, because what a statement
costs the driver grows with its parameters and with the columns of its answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Sequence as Row
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache, lru_cache
from types import NoneType, UnionType
from typing import Any, Final, Generic, NewType, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from sqlalchemy import BigInteger, Boolean, DateTime, Interval, Table
from sqlalchemy.dialects.postgresql import JSONB

from airflow_kcr.protocol.documents import codec_of, storable
from airflow_kcr.protocol.values import GroupId, GroupPartition, MemberId, TopicName

K = TypeVar("K")
V = TypeVar("V")

Values: TypeAlias = tuple[object, ...]

_RENAMED: Final = {"left": "has_left", "order": "asked_order", "until": "valid_until", "then": "then_desired_state"}
"""Fields whose name is a word of SQL, or says too little beside the other columns."""

_FOR_PEOPLE: Final = frozenset({"label", "detail", "refusal", "abort_reason", "failure", "pin_reason", "inexact"})
"""Texts that are never compared: they are made storable, while a name that can't be stored is refused."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout(Generic[K, V]):
    """The layout of one mapping of the region: its table, its columns in order, and both directions.

    Of this kind are tables with a row for each partition.
    """

    table: Table
    key: tuple[str, ...]
    """The columns of the key, after the region's."""

    values: tuple[str, ...]
    split: Callable[[K, V], Values]
    """Return key and value as the columns' values."""

    join: Callable[[Row[Any]], tuple[K, V]]
    """Return key and value from the columns of a row."""

    key_values: Callable[[K], Values]

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column but the region's."""
        return self.key + self.values

    def selected(self, alias: str) -> str:
        """Return the expressions that read a row of the table under an alias."""
        return named(self.columns, alias)

    def gathered(self, alias: str) -> str:
        """Return the expressions that read all rows at once, each column as one array."""
        return arrays_of(self.columns, alias)

    def rows(self, gathered: Row[Any]) -> dict[K, V]:
        """Return the rows that `gathered` has read."""
        return dict(map(self.join, scattered(gathered)))

    def given(self) -> str:
        """Return the query of rows that are bound."""
        return given_arrays(self.table, self.columns)

    def bound(self, rows: Iterable[Values]) -> dict[str, object]:
        """Return rows as the parameters of `given`."""
        return arrays(self.table.name, zip(*rows, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class JsonLayout(Layout[K, V]):
    """The layout of a mapping whose rows are few and wide: each crosses as one JSON array, which `join` is given."""

    def selected(self, alias: str) -> str:
        """Return the expression that reads a row of the table under an alias."""
        return json_row(self.table, self.columns, alias)

    def rows(self, gathered: Row[Any] | None) -> dict[K, V]:
        """Return the rows that a `json_agg` of `selected` has read."""
        return dict(map(self.join, gathered or ()))

    def given(self) -> str:
        """Return the query of rows that are bound as one JSON value, named after the table."""
        return given_json(self.table, self.columns)

    def bound(self, rows: Iterable[Values]) -> dict[str, object]:
        """Return rows as the parameter of `given`."""
        return {self.table.name: as_json(self.columns, rows)}


# The SQL of columns


def listed(parts: Iterable[str]) -> str:
    """Return parts with commas between them."""
    return ", ".join(parts)


def named(columns: Iterable[str], alias: str = "") -> str:
    """Return the names of columns with commas between them, each under an alias where one is given."""
    return listed(f"{alias}.{column}" if alias else column for column in columns)


def arrays_of(columns: Iterable[str], alias: str) -> str:
    """Return each of these columns as one array of all rows, with commas between them."""
    return listed(f"array_agg({alias}.{column})" for column in columns)


def scattered(gathered: Row[Any]) -> Iterable[Row[Any]]:
    """Return the rows of what `arrays_of` has read; without rows, there are no arrays."""
    return () if gathered[0] is None else zip(*gathered, strict=True)


def json_row(table: Table, columns: Iterable[str], alias: str) -> str:
    """Return the expression that reads these columns of a row as one JSON array."""
    return f"json_build_array({listed(_read_as_json(table, column, alias) for column in columns)})"


def assigned(columns: Iterable[str], alias: str) -> str:
    """Return what an UPDATE sets: each of these columns to that of the same name under an alias."""
    return listed(f"{c} = {alias}.{c}" for c in columns)


def given_arrays(table: Table, columns: tuple[str, ...], derived: Iterable[str] = ()) -> str:
    """Return the query of rows of a table that are bound as one array for each column, named as in `arrays`.

    Args:
        table: whose types the columns have.
        columns: those that are bound.
        derived: what else each row `n` has, in SQL.
    """
    chosen = listed((*(f"n.{c}" for c in columns), *derived))
    return f"SELECT :region, {chosen} FROM {_unnested(table, columns, table.name)}"


def arrays(name: str, columns: Iterable[tuple[object, ...]]) -> dict[str, object]:
    """Return columns of values as the parameters `name_0`, `name_1`, … of a statement."""
    return {f"{name}_{n}": list(column) for n, column in enumerate(columns)}


def given_json(table: Table, columns: tuple[str, ...]) -> str:
    """Return the query of rows of a table that are bound as one JSON value, named after the table."""
    chosen = listed(_written_from_json(table, c) for c in columns)
    return f"SELECT :region, {chosen} FROM json_to_recordset(CAST(:{table.name} AS json)) AS {record(table, columns)}"


def record(table: Table, columns: tuple[str, ...]) -> str:
    """Return the alias `n` of rows that are read from JSON, with the types of their columns."""
    return f"n ({listed(f'{c} {_json_type(table, c)}' for c in columns)})"


def insert(table: Table, columns: tuple[str, ...], given: str) -> str:
    """Return what stores new rows, and fails where one is there already."""
    return f"INSERT INTO {table.fullname} (region_id, {named(columns)}) {given}"


def upsert(table: Table, key: tuple[str, ...], columns: tuple[str, ...], given: str) -> str:
    """Return what stores rows, each new or in the place of the one with its key."""
    values = [c for c in columns if c not in key]
    replaced = f"DO UPDATE SET {assigned(values, 'excluded')}" if values else "DO NOTHING"
    return f"{insert(table, columns, given)} ON CONFLICT ON CONSTRAINT {table.name}_pkey {replaced}"


@cache
def delete(table: Table, key: tuple[str, ...]) -> str:
    """Return what deletes rows by their keys, bound as the arrays `…_gone`; fenced as in `admit_start`."""
    same = " AND ".join(f"t.{c} = n.{c}" for c in ("region_id", *key))
    gone = _unnested(table, key, f"{table.name}_gone")
    return (
        f"DELETE FROM {table.fullname} t USING (SELECT CAST(:region AS bigint) AS region_id, n.* FROM {gone} OFFSET 0) "
        f"n WHERE {same}"
    )


def _unnested(table: Table, columns: tuple[str, ...], name: str) -> str:
    """Return rows that are bound as arrays, as a table `n`."""
    bound = listed(f"CAST(:{name}_{n} AS {_type(table, c)}[])" for n, c in enumerate(columns))
    return f"unnest({bound}) AS n ({named(columns)})"


def _type(table: Table, column: str) -> str:
    kind = table.c[column].type
    match kind:
        case BigInteger():
            return "bigint"
        case Boolean():
            return "boolean"
        case DateTime():
            return "timestamptz"
        case Interval():
            return "interval"
        case JSONB():
            return "jsonb"
        case _:
            return "text"


_SPAN: Final = "interval"
"""Durations are whole microseconds in JSON, as everywhere in this project."""


def _json_type(table: Table, column: str) -> str:
    kind = _type(table, column)
    return "bigint" if kind == _SPAN else kind


def _written_from_json(table: Table, column: str) -> str:
    return f"n.{column} * interval '1 microsecond'" if _type(table, column) == _SPAN else f"n.{column}"


def _read_as_json(table: Table, column: str, alias: str) -> str:
    value = f"{alias}.{column}"
    if _type(table, column) != _SPAN:
        return value
    return f"CAST(extract(epoch FROM {value}) * 1000000 AS bigint)"


# Values


def as_json(columns: tuple[str, ...], rows: Iterable[Values]) -> str:
    """Return rows as the JSON that `given_json` reads."""
    return document([dict(zip(columns, row, strict=True)) for row in rows])


def document(value: object) -> str:
    """Return JSON, instants in it allowed, as the text that Postgres reads it from."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=datetime.isoformat)


def partition_of(group: GroupId, topic: TopicName, partition: int) -> GroupPartition:
    """Return the partition that three columns name."""
    return GroupPartition(group, topic, partition)


def partition_columns(partitions: Collection[GroupPartition]) -> dict[str, object]:
    """Return partitions as the parameters `groups`, `topics` and `partitions`."""
    return {
        "groups": [p.group for p in partitions],
        "topics": [p.topic for p in partitions],
        "partitions": [p.partition for p in partitions],
    }


@lru_cache(maxsize=10_000)  # a member has many claims
def member_of(group: str, index: int) -> MemberId:
    """Return the member that two columns name."""
    return MemberId(GroupId(group), index)


# Row classes


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a row class that is a column."""

    name: str
    column: str
    encode: Callable[[Any], object] | None
    """Makes JSON of a value; None if it is that already."""

    decode: Callable[[Any], object] | None

    def written(self, value: object) -> object:
        """Return a value of the field as that of its column in JSON."""
        return value if value is None or self.encode is None else self.encode(value)

    def read(self, value: object) -> object:
        """Return the value of the field from that of its column in JSON."""
        return value if value is None or self.decode is None else self.decode(value)


def fields_of(row: type[object], names: Collection[str]) -> tuple[Field, ...]:
    """Return fields of a dataclass as columns, by their type hints."""
    hints = get_type_hints(row)
    return tuple(_field(name, hints[name]) for name in names)


def _field(name: str, hint: object) -> Field:
    column = _RENAMED.get(name, name)
    plain = hint
    if get_origin(hint) in {Union, UnionType}:  # a NewType makes the former
        plain = next(a for a in get_args(hint) if a is not NoneType)
    if isinstance(plain, NewType):
        plain = plain.__supertype__
    if name in _FOR_PEOPLE and plain is str:
        return Field(name, column, storable, None)
    if plain in {str, int, bool}:
        return Field(name, column, None, None)
    codec = codec_of(hint)
    return Field(name, column, codec.encode, codec.decode)


def of_dataclass(
    table: Table,
    row: type[V],
    *,
    field: str | None,
    key: tuple[str, ...],
    key_values: Callable[[K], Values] = lambda key: (key,),
    read_key: Callable[[Any], K] = lambda columns: columns[0],
) -> JsonLayout[K, V]:
    """Return the layout of a row class by its type hints.

    Args:
        table: where its rows are.
        row: the dataclass.
        field: the field that is the key, so that it is stored once; None where the key is not in the row.
        key: the key's columns.
        key_values: a key as their values.
        read_key: the key from their values.
    """
    parts = fields_of(row, [f.name for f in fields(row) if f.name != field])  # type: ignore[arg-type]
    names = tuple(part.name for part in parts)
    readers = [(part.name, part.read) for part in parts if part.decode is not None]
    width = len(key)

    def split(key: K, value: V) -> Values:
        return (*key_values(key), *(part.written(getattr(value, part.name)) for part in parts))

    def join(columns: Row[Any]) -> tuple[K, V]:
        found = read_key(columns[:width])
        values = dict(zip(names, columns[width:], strict=True))
        for name, read in readers:
            values[name] = read(values[name])
        if field is not None:
            values[field] = found
        return found, row(**values)

    return JsonLayout(table, key, tuple(p.column for p in parts), split, join, key_values)


Rows: TypeAlias = Mapping[GroupPartition, Values]
"""Rows of a map by partition, without their keys."""


@dataclass(frozen=True, slots=True, eq=False)
class MapLayout:
    """The layout of a map by partition beneath its number: one row for each partition."""

    table: Table
    number: str
    """The column of the sequence or epoch that the map belongs to."""

    values: tuple[str, ...]
    derived: tuple[tuple[str, str], ...] = ()
    """Columns that only the database reads, each with the SQL that makes it of a written row `n`."""
