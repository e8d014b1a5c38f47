"""How rows become columns and back: what a layout is, and the one that a row class has by its type hints.

There are two kinds. Rows of one partition each are many and narrow: they are bound as one array for each column, and
read column by column. The others are few and wide: they cross as JSON, all rows in one value, because what a statement
costs the driver grows with its parameters and with the columns of its answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Row
from dataclasses import dataclass, fields
from datetime import datetime
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Final, Generic, NewType, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from psycopg.sql import SQL, Composable, Composed, Identifier
from sqlalchemy import BigInteger, Boolean, DateTime, Interval, Table
from sqlalchemy.dialects.postgresql import JSONB

from airflow_kcr.protocol.documents import codec_of, storable
from airflow_kcr.protocol.values import GroupId, GroupPartition, MemberId, TopicName
from airflow_kcr.store.postgres.tables import SCHEMA

K = TypeVar("K")
V = TypeVar("V")

Values: TypeAlias = tuple[object, ...]

_RENAMED: Final = {"left": "has_left", "order": "asked_order", "until": "valid_until", "then": "then_desired_state"}
"""Fields whose name is a word of SQL, or says too little beside the other columns."""

_FOR_PEOPLE: Final = frozenset({"label", "detail", "refusal", "abort_reason", "failure", "pin_reason", "inexact"})
"""Texts that are never compared: they are made storable, while a name that can't be stored is refused."""


@dataclass(frozen=True, slots=True)
class Layout(Generic[K, V]):
    """How one mapping of the region is kept: its table, its columns in order, and both directions.

    Of this kind are tables with a row for each partition.
    """

    table: Table
    key: tuple[str, ...]
    """The columns of the key, after the region's."""

    values: tuple[str, ...]
    split: Callable[[K, V], Values]
    """Return key and value as the columns' values."""

    join: Callable[[Row[Any]], tuple[K, V]]
    """Return key and value from what `selected` reads of a row."""

    key_values: Callable[[K], Values]

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column but the region's."""
        return self.key + self.values

    @property
    def width(self) -> int:
        """How many expressions `selected`, or `gathered`, are."""
        return len(self.columns)

    def selected(self, alias: str) -> Composed:
        """Return the expressions that read a row of the table under an alias."""
        return named(self.columns, alias)

    def gathered(self, alias: str) -> Composed:
        """Return the expressions that read all rows at once, as aggregates."""
        return arrays_of(self.columns, alias)

    def scattered(self, gathered: Row[Any]) -> Iterable[Row[Any]]:
        """Return the rows, for `join`, of what `gathered` has read."""
        held = [column for column in gathered if column is not None]  # without rows, there are no arrays
        return zip(*held, strict=True)

    def given(self) -> Composed:
        """Return the query of rows that are bound."""
        return given_arrays(self.table, self.columns)

    def bound(self, rows: Iterable[Values]) -> dict[str, object]:
        """Return rows as the parameters of `given`."""
        return arrays(self.table.name, zip(*rows, strict=True))


@dataclass(frozen=True, slots=True)
class JsonLayout(Layout[K, V]):
    """How a mapping is kept whose rows are few and wide: each crosses as one JSON array."""

    @property
    def width(self) -> int:
        """See `Layout.width`."""
        return 1

    def selected(self, alias: str) -> Composed:
        """See `Layout.selected`."""
        read = listed(_read_as_json(self.table, column, alias) for column in self.columns)
        return SQL("json_build_array({})").format(read)

    def gathered(self, alias: str) -> Composed:
        """See `Layout.gathered`."""
        return SQL("json_agg({})").format(self.selected(alias))

    def scattered(self, gathered: Row[Any]) -> Iterable[Row[Any]]:
        """See `Layout.scattered`."""
        (rows,) = gathered
        return ((row,) for row in rows or ())

    def given(self) -> Composed:
        """See `Layout.given`."""
        return given_json(self.table, self.columns)

    def bound(self, rows: Iterable[Values]) -> dict[str, object]:
        """See `Layout.bound`."""
        return {self.table.name: as_json(self.columns, rows)}


def listed(parts: Iterable[Composable]) -> Composed:
    """Return parts with commas between them."""
    return SQL(", ").join(parts)


def named(columns: Iterable[str], alias: str | None = None) -> Composed:
    """Return the names of columns with commas between them, each under an alias where one is given."""
    return listed(Identifier(column) if alias is None else Identifier(alias, column) for column in columns)


def arrays_of(columns: Iterable[str], alias: str) -> Composed:
    """Return each of these columns as one array of all rows, with commas between them."""
    return listed(SQL("array_agg({})").format(Identifier(alias, column)) for column in columns)


def name_of(table: Table) -> Identifier:
    """Return the name of a table, with its schema."""
    return Identifier(SCHEMA, table.name)


def given_arrays(table: Table, columns: tuple[str, ...], derived: Iterable[Composable] = ()) -> Composed:
    """Return the query of rows of a table that are bound as one array for each column, named as in `arrays`.

    Args:
        table: whose types the columns have.
        columns: those that are bound.
        derived: what else each row `n` has, in SQL.
    """
    return SQL("SELECT :region, {chosen} FROM {rows}").format(
        chosen=listed((*(Identifier("n", c) for c in columns), *derived)), rows=unnested(table, columns, table.name)
    )


def unnested(table: Table, columns: tuple[str, ...], name: str) -> Composed:
    """Return rows that are bound as arrays, as a table `n`."""
    bound = (SQL(f"CAST(:{name}_{n} AS {_type(table, c)}[])") for n, c in enumerate(columns))
    return SQL("unnest({bound}) AS n ({columns})").format(bound=listed(bound), columns=named(columns))


def arrays(name: str, columns: Iterable[tuple[object, ...]]) -> dict[str, object]:
    """Return columns of values as the parameters `name_0`, `name_1`, … of a statement."""
    return {f"{name}_{n}": list(column) for n, column in enumerate(columns)}


def given_json(table: Table, columns: tuple[str, ...]) -> Composed:
    """Return the query of rows of a table that are bound as one JSON value, named after the table."""
    return SQL("SELECT :region, {chosen} FROM json_to_recordset(CAST({rows} AS json)) AS {record}").format(
        chosen=listed(_written_from_json(table, c) for c in columns),
        rows=SQL(f":{table.name}"),
        record=record(table, columns),
    )


def record(table: Table, columns: tuple[str, ...]) -> Composed:
    """Return the alias `n` of rows that are read from JSON, with the types of their columns."""
    types = (SQL("{} {}").format(Identifier(c), SQL(_json_type(table, c))) for c in columns)
    return SQL("n ({})").format(listed(types))


def as_json(columns: tuple[str, ...], rows: Iterable[Values]) -> str:
    """Return rows as the JSON that `given_json` reads."""
    return document([dict(zip(columns, row, strict=True)) for row in rows])


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


def _written_from_json(table: Table, column: str) -> Composable:
    value = Identifier("n", column)
    return SQL("{} * interval '1 microsecond'").format(value) if _type(table, column) == _SPAN else value


def _read_as_json(table: Table, column: str, alias: str) -> Composable:
    value = Identifier(alias, column)
    if _type(table, column) != _SPAN:
        return value
    return SQL("CAST(extract(epoch FROM {}) * 1000000 AS bigint)").format(value)


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


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    column: str
    write: Callable[[Any], object] | None
    """Makes JSON of a value; None if it is that already."""

    read: Callable[[Any], object] | None


def _field(name: str, hint: object) -> _Field:
    column = _RENAMED.get(name, name)
    plain = hint
    if get_origin(hint) in {Union, UnionType}:  # a NewType makes the former
        plain = next(a for a in get_args(hint) if a is not NoneType)
    if isinstance(plain, NewType):
        plain = plain.__supertype__
    if name in _FOR_PEOPLE and plain is str:
        return _Field(name, column, storable, None)
    if plain in {str, int, bool}:
        return _Field(name, column, None, None)
    codec = codec_of(hint)
    return _Field(name, column, codec.encode, codec.decode)


def of_dataclass(
    table: Table,
    row: type[V],
    *,
    field: str | None,
    key: tuple[str, ...],
    key_values: Callable[[K], Values],
    read_key: Callable[[Row[Any]], K],
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
    hints = get_type_hints(row)
    parts = [_field(f.name, hints[f.name]) for f in fields(row) if f.name != field]  # type: ignore[arg-type]
    names = tuple(part.name for part in parts)
    readers = [(part.name, part.read) for part in parts if part.read is not None]
    width = len(key)

    def split(key: K, value: V) -> Values:
        return (*key_values(key), *(_written(part, getattr(value, part.name)) for part in parts))

    def join(columns: Row[Any]) -> tuple[K, V]:
        (whole,) = columns
        found = read_key(whole[:width])
        values = dict(zip(names, whole[width:], strict=True))
        for name, read in readers:
            held = values[name]
            if held is not None:
                values[name] = read(held)
        if field is not None:
            values[field] = found
        return found, row(**values)

    return JsonLayout(table, key, tuple(p.column for p in parts), split, join, key_values)


def _written(part: _Field, value: object) -> object:
    return value if value is None or part.write is None else part.write(value)
