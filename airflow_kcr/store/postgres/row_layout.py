"""How rows become columns and back: what a layout is, and the one that a row class has by its type hints.

Values cross as plain Python values; what is a small document is JSON text on the way in.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Sequence as Row
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, Generic, NewType, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from sqlalchemy import BigInteger, Boolean, DateTime, Interval, Table
from sqlalchemy.dialects.postgresql import JSONB

from airflow_kcr.protocol.values import GroupId, GroupPartition, MemberId, TopicName
from airflow_kcr.store.codec import codec_of, storable

K = TypeVar("K")
V = TypeVar("V")

Values: TypeAlias = tuple[object, ...]

_RENAMED: Final = {"left": "has_left", "order": "asked_order", "until": "valid_until", "then": "then_wanted"}
"""Fields whose name is a word of SQL, or says too little beside the other columns."""

_FOR_PEOPLE: Final = frozenset({"label", "detail", "refusal", "abort_reason", "failure", "pin_reason", "inexact"})
"""Texts that nobody compares: they are made storable, while a name that can't be stored is refused."""


@dataclass(frozen=True, slots=True)
class Layout(Generic[K, V]):
    """How one mapping of the region is kept: its table, its columns in order, and both directions."""

    table: Table
    key: tuple[str, ...]
    """The columns of the key, after the region's."""

    values: tuple[str, ...]
    split: Callable[[K, V], Values]
    """Return key and value as the columns' values."""

    join: Callable[[Row[Any]], tuple[K, V]]
    """Return key and value from the columns' values."""

    key_values: Callable[[K], Values]

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column but the region's."""
        return self.key + self.values


def array_type(table: Table, column: str) -> str:
    """Return the type of an array of a column's values, as it is bound; documents are bound as text."""
    kind = table.c[column].type
    match kind:
        case BigInteger():
            return "bigint[]"
        case Boolean():
            return "boolean[]"
        case DateTime():
            return "timestamptz[]"
        case Interval():
            return "interval[]"
        case _:
            return "text[]"


def is_document(table: Table, column: str) -> bool:
    """Whether a column holds JSON, which is bound as text and cast."""
    return isinstance(table.c[column].type, JSONB)


def document(value: object) -> str:
    """Return JSON as the text that Postgres reads it from."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def partition_of(group: str, topic: str, partition: int) -> GroupPartition:
    """Return the partition that three columns name."""
    return GroupPartition(GroupId(group), TopicName(topic), partition)


def member_of(group: str, index: int) -> MemberId:
    """Return the member that two columns name."""
    return MemberId(GroupId(group), index)


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    column: str
    write: Callable[[Any], object]
    read: Callable[[Any], object]


def _same(value: object) -> object:
    return value


def _field(name: str, hint: object) -> _Field:
    column = _RENAMED.get(name, name)
    plain = hint
    if get_origin(hint) in {Union, UnionType}:  # a NewType makes the former
        plain = next(a for a in get_args(hint) if a is not NoneType)
    if isinstance(plain, NewType):
        plain = plain.__supertype__
    if name in _FOR_PEOPLE and plain is str:
        return _Field(name, column, storable, _same)
    if plain in {str, int, bool, datetime, timedelta}:
        return _Field(name, column, _same, _same)
    if isinstance(plain, type) and issubclass(plain, Enum):
        kind = plain
        return _Field(name, column, _same, lambda value: None if value is None else kind(value))
    codec = codec_of(hint)
    return _Field(name, column, lambda value: document(codec.encode(value)), codec.decode)


def of_dataclass(
    table: Table,
    row: type[V],
    *,
    field: str | None,
    key: tuple[str, ...],
    key_values: Callable[[K], Values],
    read_key: Callable[[Row[Any]], K],
) -> Layout[K, V]:
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
    width = len(key)

    def split(key: K, value: V) -> Values:
        return (*key_values(key), *(p.write(getattr(value, p.name)) for p in parts))

    def join(columns: Row[Any]) -> tuple[K, V]:
        found = read_key(columns[:width])
        values = {p.name: p.read(column) for p, column in zip(parts, columns[width:], strict=True)}
        if field is not None:
            values[field] = found
        return found, row(**values)

    return Layout(table, key, tuple(p.column for p in parts), split, join, key_values)
