"""Layouts of rows as columns, for reading and for writing: by the type hints of a row class, said once for both.

There are two kinds. Rows of one partition each are many and narrow: they are bound as one array for each column, and
read column by column. The others are few and wide: they cross as JSON, all rows in one value, because what a statement
costs the driver grows with its parameters and with the columns of its answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cached_property, lru_cache
from itertools import chain
from operator import attrgetter
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, Generic, NewType, Self, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from airflow_kcr.protocol.documents import codec_of, storable
from airflow_kcr.protocol.values import GroupId, GroupPartition, MemberId

K = TypeVar("K")
V = TypeVar("V")

Values: TypeAlias = tuple[object, ...]
Columns: TypeAlias = Sequence[Sequence[Any]]
"""All values of each column."""

PARTITION: Final = ("group_id", "topic", "partition")
"""The three columns that name a partition of a group."""

_RENAMED: Final = {
    "batch": "batch_id",
    "current": "current_offset",
    "left": "has_left",
    "offset": "next_offset",
    "order": "asked_order",
    "resume": "resume_offset",
    "then": "then_desired_state",
    "until": "valid_until",
}
"""Fields whose name is a word of SQL, or says too little beside the other columns."""

_FOR_PEOPLE: Final = frozenset({"label", "detail", "refusal", "abort_reason", "failure", "pin_reason", "inexact"})
"""Texts that are never compared: they are made storable, while a name that can't be stored is refused."""

_TEXTS: Final = ("group_id", "cluster_id", "topic", "topic_id", "log_topic_id", "source", "inexact", "recreated")
_TYPES: Final = {**dict.fromkeys(_TEXTS, "text"), "boundary": "timestamptz"}
"""Of those columns of narrow tables that are no numbers."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a row class: the columns that it is in, and how a value becomes theirs, and they one."""

    name: str
    columns: tuple[str, ...]
    split: Callable[[Any], Any] | None = None
    """Makes the value of its one column, or those of its columns; None: it is that already."""

    join: Callable[..., object] | None = None
    beside: tuple[str, ...] = ()
    """Columns of other fields that `join` is given first."""

    def read(self, found: Mapping[str, Sequence[Any]]) -> Sequence[Any]:
        """Return its values of all rows from the columns, by name."""
        if self.join is None:
            return found[self.columns[0]]
        return list(map(self.join, *(found[column] for column in self.beside + self.columns)))

    def written(self, values: Sequence[Any]) -> Columns:
        """Return its values of all rows as its columns."""
        if self.split is None:
            return [values]
        split = list(map(self.split, values))
        return [split] if len(self.columns) == 1 else list(zip(*split, strict=True))


@lru_cache(maxsize=10_000)  # a member has many claims
def member_of(group: str, index: int) -> MemberId:
    """Return the member that two columns name."""
    return MemberId(GroupId(group), index)


_member_columns = attrgetter("group", "index")


def field_of(name: str, hint: object) -> Field:
    """Return a field as columns, by its type hint."""
    column, plain = _RENAMED.get(name, name), hint
    if get_origin(hint) in {Union, UnionType}:  # a NewType makes the former
        plain = next(a for a in get_args(hint) if a is not NoneType)
    if isinstance(plain, NewType):
        plain = plain.__supertype__
    if plain is MemberId:
        return Field(name, ("group_id", "member_index"), _member_columns, member_of)
    if plain is GroupPartition:
        return Field(name, PARTITION, tuple, GroupPartition)
    if name in _FOR_PEOPLE and plain is str:
        return Field(name, (column,), storable)
    if plain in {str, int, bool}:
        return Field(name, (column,))
    codec = codec_of(hint)
    return Field(
        name,
        (column,),
        lambda value: value if value is None else codec.encode(value),
        lambda value: value if value is None else codec.decode(value),
    )


@dataclass(frozen=True, eq=False)
class TableLayout:
    """A table of the schema as it is written: rows that are bound as one array for each column."""

    name: str
    key: tuple[str, ...]
    """The columns of the key, after the region's."""

    values: tuple[str, ...] = ()
    derived: Mapping[str, str] = field(default_factory=dict)
    """Columns that only the database reads, each with the SQL that makes it of a written row `n`."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column but the region's and the derived ones."""
        return self.key + self.values

    def gathered(self, alias: str) -> str:
        """Return the expressions that read all rows under an alias at once, each column as one array."""
        return arrays_of(self.columns, alias)

    def given(self) -> str:
        """Return the query of rows that are bound."""
        chosen = listed((*(f"n.{c}" for c in self.columns), *self.derived.values()))
        return f"SELECT :region, {chosen} FROM {_unnested(self.columns, self.name)}"

    def bound(self, columns: Iterable[Iterable[object]]) -> dict[str, object]:
        """Return columns of values as the parameters of `given`."""
        return arrays(self.name, columns)

    @cached_property
    def insert(self) -> str:
        """What stores new rows, and fails where one is there already."""
        columns = named((*self.columns, *self.derived))
        return f"INSERT INTO kcr.{self.name} (region_id, {columns}) {self.given()}"

    @cached_property
    def upsert(self) -> str:
        """What stores rows, each new or in the place of the one with its key."""
        values = (*self.values, *self.derived)
        replaced = f"DO UPDATE SET {assigned(values, 'excluded')}" if values else "DO NOTHING"
        return f"{self.insert} ON CONFLICT ON CONSTRAINT {self.name}_pkey {replaced}"

    def delete(self, key: tuple[str, ...]) -> str:
        """Return what deletes rows by columns of their keys, bound as the arrays `…_gone`; fenced as `admit_start`."""
        same = " AND ".join(f"t.{c} = n.{c}" for c in ("region_id", *key))
        return (
            f"DELETE FROM kcr.{self.name} t USING (SELECT CAST(:region AS bigint) AS region_id, n.* "
            f"FROM {_unnested(key, f'{self.name}_gone')} OFFSET 0) n WHERE {same}"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Layout(TableLayout, Generic[K, V]):
    """The layout of a mapping of the region: its rows are of one class, its keys of one or several fields."""

    row: Callable[..., V]
    keys: tuple[Field, ...]
    fields: tuple[Field, ...]
    """Of the row, in their order."""

    @classmethod
    def of(
        cls,
        table: str,
        row: type[V],
        keys: Mapping[str, object],
        *special: Field,
        without: Collection[str] = (),
        derived: Mapping[str, str] = MappingProxyType({}),
    ) -> Self:
        """Return the layout of a row class.

        Args:
            table: where its rows are.
            row: a dataclass.
            keys: the hints of the key's parts by their names; one that is a field of the row is stored once.
            special: fields, and parts of the key, that are other columns than their hints say.
            without: fields that are no columns.
            derived: as the field of that name.
        """
        parts = fields_of(row, *special, without=without)
        known = {f.name: f for f in (*special, *parts)}
        key = tuple(known.get(name) or field_of(name, hint) for name, hint in keys.items())
        values = _columns_of(part for part in parts if part not in key)
        return cls(table, _columns_of(key), values, derived, row=row, keys=key, fields=parts)

    def selected(self, alias: str) -> str:
        """Return the expressions that read a row of the table under an alias."""
        return named(self.columns, alias)

    def read(self, columns: Columns) -> dict[K, V]:
        """Return the rows of their columns, as `gathered` has read them: without rows, there are none."""
        if not columns or columns[0] is None:
            return {}
        found = dict(zip(self.columns, columns, strict=True))
        return dict(zip(self._read_keys(found), map(self.row, *(f.read(found) for f in self.fields)), strict=True))

    def split(self, rows: Mapping[K, V]) -> list[Sequence[object]]:
        """Return rows as columns."""
        own = (f.written(list(map(attrgetter(f.name), rows.values()))) for f in self.fields if f not in self.keys)
        return [*self.split_keys(rows), *chain.from_iterable(own)]

    def split_keys(self, keys: Collection[K]) -> list[Sequence[object]]:
        """Return keys as columns."""
        parts: Iterable[Any] = zip(*keys, strict=True) if len(self.keys) > 1 else [keys]
        return [*chain.from_iterable(f.written(part) for f, part in zip(self.keys, parts, strict=True))]

    def _read_keys(self, found: Mapping[str, Sequence[Any]]) -> Iterable[Any]:
        first, *others = (key.read(found) for key in self.keys)
        return zip(first, *others, strict=True) if others else first


class JsonLayout(Layout[K, V]):
    """The layout of a mapping whose rows are few and wide: each crosses as one JSON array."""

    def selected(self, alias: str) -> str:
        """Return the expression that reads a row of the table under an alias."""
        return json_row(self.columns, alias)

    def read(self, columns: Sequence[Sequence[Any]] | None) -> dict[K, V]:
        """Return the rows that a `json_agg` of `selected` has read."""
        if not columns:
            return {}
        found = dict(zip(self.columns, zip(*columns, strict=True), strict=True))
        names = [f.name for f in self.fields]
        values = zip(*(f.read(found) for f in self.fields), strict=True)
        rows = (self.row(**dict(zip(names, row, strict=True))) for row in values)
        return dict(zip(self._read_keys(found), rows, strict=True))

    def given(self) -> str:
        """Return the query of rows that are bound as one JSON value, named after the table."""
        return f"SELECT :region, {named(self.columns, 'n')} FROM {json_rows(self.name)}"

    def bound(self, columns: Iterable[Iterable[object]]) -> dict[str, object]:
        """Return columns of values as the parameter of `given`."""
        return {self.name: as_json(self.columns, zip(*columns, strict=True))}


def fields_of(row: type[object], *special: Field, without: Collection[str] = ()) -> tuple[Field, ...]:
    """Return the fields of a dataclass as columns, by their type hints.

    Args:
        row: the dataclass.
        special: those that are other columns than their hints say.
        without: those that are no columns.
    """
    known, hints = {f.name: f for f in special}, get_type_hints(row)
    return tuple(known.get(f.name) or field_of(f.name, hints[f.name]) for f in fields(row) if f.name not in without)  # type: ignore[arg-type]


def _columns_of(parts: Iterable[Field]) -> tuple[str, ...]:
    """Return the columns that fields are in."""
    return tuple(column for part in parts for column in part.columns)


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


def scattered(gathered: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """Return the rows of what `arrays_of` has read; without rows, there are no arrays."""
    return () if gathered[0] is None else zip(*gathered, strict=True)


def json_row(columns: Iterable[str], alias: str) -> str:
    """Return the expression that reads these columns of a row as one JSON array."""
    return f"json_build_array({named(columns, alias)})"


def json_rows(table: str) -> str:
    """Return rows of a table that are bound as one JSON value, named after it, as `n`."""
    return f"json_populate_recordset(CAST(NULL AS kcr.{table}), CAST(:{table} AS json)) n"


def assigned(columns: Iterable[str], alias: str) -> str:
    """Return what an UPDATE sets: each of these columns to that of the same name under an alias."""
    return listed(f"{c} = {alias}.{c}" for c in columns)


def _unnested(columns: tuple[str, ...], name: str) -> str:
    """Return rows that are bound as arrays, as a table `n`."""
    bound = listed(f"CAST(:{name}_{n} AS {_TYPES.get(c, 'bigint')}[])" for n, c in enumerate(columns))
    return f"unnest({bound}) AS n ({named(columns)})"


# Values


def arrays(name: str, columns: Iterable[Iterable[object]]) -> dict[str, object]:
    """Return columns of values as the parameters `name_0`, `name_1`, … of a statement."""
    return {f"{name}_{n}": list(column) for n, column in enumerate(columns)}


def as_json(columns: tuple[str, ...], rows: Iterable[Values]) -> str:
    """Return rows as the JSON that `json_rows` reads."""
    return document([dict(zip(columns, row, strict=True)) for row in rows])


def document(value: object) -> str:
    """Return JSON, instants in it allowed, as the text that Postgres reads it from."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=datetime.isoformat)


def partition_columns(partitions: Collection[GroupPartition]) -> dict[str, object]:
    """Return partitions as the parameters `groups`, `topics` and `partitions`."""
    return {
        "groups": [p.group for p in partitions],
        "topics": [p.topic for p in partitions],
        "partitions": [p.partition for p in partitions],
    }
