"""Which columns a row of the region becomes, and back: one `Layout` for each table that mirrors a mapping of `Region`.

A row class whose fields are the columns is laid out by its type hints (`_of_dataclass`); the few whose columns differ
say so themselves. Values cross as plain Python values; what is a small document is JSON text on the way in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Row
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, Generic, NewType, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from sqlalchemy import BigInteger, Boolean, DateTime, Interval, Table
from sqlalchemy.dialects.postgresql import JSONB

from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.region.rows import (
    BoundOffset,
    Checkpoint,
    Claim,
    CutRequest,
    InitialOffset,
    Lease,
    Member,
    PersonReset,
    Reset,
)
from airflow_kcr.protocol.region.state import BoundKey, InitialKey
from airflow_kcr.protocol.values import (
    Epoch,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    Nonce,
    Offset,
    Sequence,
    TopicId,
    TopicName,
)
from airflow_kcr.store.codec import codec_of, storable
from airflow_kcr.store.postgres import tables

K = TypeVar("K")
V = TypeVar("V")

Values: TypeAlias = tuple[object, ...]

PARTITION: Final = ("group_id", "topic", "partition")
_MEMBER: Final = ("group_id", "member_index")

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


# -- rows whose fields are the columns ------------------------------------------------------------------------------


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


def _of_dataclass(
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


def _member_key(member: MemberId) -> Values:
    return (member.group, member.index)


def _one(key: object) -> Values:
    return (key,)


MEMBERS: Final[Layout[MemberId, Member]] = _of_dataclass(
    tables.member, Member, field="member", key=_MEMBER, key_values=_member_key, read_key=lambda c: member_of(*c)
)
REQUESTS: Final[Layout[Nonce, CutRequest]] = _of_dataclass(
    tables.cut_request, CutRequest, field="nonce", key=("nonce",), key_values=_one, read_key=lambda c: Nonce(c[0])
)
CHECKPOINTS: Final[Layout[Sequence, Checkpoint]] = _of_dataclass(
    tables.checkpoint,
    Checkpoint,
    field="sequence",
    key=("sequence",),
    key_values=_one,
    read_key=lambda c: Sequence(c[0]),
)
RESETS: Final[Layout[Epoch, Reset]] = _of_dataclass(
    tables.reset, Reset, field="epoch", key=("epoch",), key_values=_one, read_key=lambda c: Epoch(c[0])
)
PERSON_RESETS: Final[Layout[Nonce, PersonReset]] = _of_dataclass(
    tables.person_reset, PersonReset, field="nonce", key=("nonce",), key_values=_one, read_key=lambda c: Nonce(c[0])
)
LEASES: Final[Layout[MemberId, Lease]] = _of_dataclass(
    tables.lease, Lease, field=None, key=_MEMBER, key_values=_member_key, read_key=lambda c: member_of(*c)
)

# -- rows by partition, written out: there may be tens of thousands -------------------------------------------------


def _split_claim(key: GroupPartition, value: Claim) -> Values:
    return (
        *key,
        None if value.owner is None else value.owner.index,
        value.incarnation,
        value.epoch,
        None if value.last_owner is None else value.last_owner.index,
        value.topic_id,
        value.leader_epoch,
        value.resume,
        value.position,
        value.begun_to,
    )


def join_claim(columns: Row[Any]) -> tuple[GroupPartition, Claim]:
    """Return one partition's claim from its columns."""
    group, topic, partition, owner, incarnation, epoch, last, topic_id, leader_epoch, resume, position, begun = columns
    group = GroupId(group)
    return GroupPartition(group, topic, partition), Claim(
        owner=None if owner is None else MemberId(group, owner),
        incarnation=incarnation,
        epoch=epoch,
        last_owner=None if last is None else MemberId(group, last),
        topic_id=topic_id,
        leader_epoch=leader_epoch,
        resume=resume,
        position=position,
        begun_to=begun,
    )


CLAIM_VALUES: Final = (
    "owner_index",
    "incarnation",
    "epoch",
    "last_owner_index",
    "topic_id",
    "leader_epoch",
    "resume_offset",
    "position",
    "begun_to",
)
CLAIMS: Final[Layout[GroupPartition, Claim]] = Layout(
    tables.claim, PARTITION, CLAIM_VALUES, _split_claim, join_claim, tuple
)


def _split_initial(key: InitialKey, value: InitialOffset) -> Values:
    bounds = value.bounds
    log = (bounds.start, bounds.end, bounds.topic_id, bounds.leader_epoch)
    return (*key[0], key[1], value.offset, value.source, *log)


def _join_initial(columns: Row[Any]) -> tuple[InitialKey, InitialOffset]:
    group, topic, partition, topic_id, offset, source, start, end, log_topic_id, log_leader_epoch = columns
    bounds = LogBounds(start=start, end=end, topic_id=log_topic_id, leader_epoch=log_leader_epoch)
    key = (partition_of(group, topic, partition), TopicId(topic_id))
    return key, InitialOffset(offset=Offset(offset), source=source, bounds=bounds)


INITIAL: Final[Layout[InitialKey, InitialOffset]] = Layout(
    tables.initial_offset,
    (*PARTITION, "topic_id"),
    ("next_offset", "source", "log_start", "log_end", "log_topic_id", "log_leader_epoch"),
    _split_initial,
    _join_initial,
    lambda key: (*key[0], key[1]),
)


def _split_bound(key: BoundKey, value: BoundOffset) -> Values:
    partition, topic_id, bound = key
    return (*partition, topic_id, bound, value.offset, storable(value.inexact), value.leader_epoch)


def _join_bound(columns: Row[Any]) -> tuple[BoundKey, BoundOffset]:
    group, topic, partition, topic_id, bound, offset, inexact, leader_epoch = columns
    row = BoundOffset(offset=Offset(offset), inexact=inexact, leader_epoch=leader_epoch)
    return (partition_of(group, topic, partition), TopicId(topic_id), bound), row


BOUND_OFFSETS: Final[Layout[BoundKey, BoundOffset]] = Layout(
    tables.bound_offset,
    (*PARTITION, "topic_id", "bound"),
    ("next_offset", "inexact", "leader_epoch"),
    _split_bound,
    _join_bound,
    lambda key: (*key[0], key[1], key[2]),
)

# -- contributions: one row for the member, one for each partition ---------------------------------------------------

ContributionKey: TypeAlias = tuple[Sequence, MemberId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributor:
    """The row of one member's contribution, without its offsets."""

    incarnation: Incarnation
    contributed_at: datetime


CONTRIBUTORS: Final[Layout[ContributionKey, Contributor]] = _of_dataclass(
    tables.contribution,
    Contributor,
    field=None,
    key=("sequence", *_MEMBER),
    key_values=lambda key: (key[0], key[1].group, key[1].index),
    read_key=lambda c: (Sequence(c[0]), member_of(c[1], c[2])),
)

# -- maps: the offsets of one checkpoint, the seek map of one epoch ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class MapLayout:
    """How a map by partition is kept beneath its number: one row for each partition."""

    table: Table
    number: str
    """The column of the sequence or epoch that the map belongs to."""

    values: tuple[str, ...]


OFFSETS: Final = MapLayout(tables.checkpoint_offset, "sequence", ("next_offset",))
ECHOES: Final = MapLayout(tables.echo, "sequence", ("next_offset",))
FROZEN: Final = MapLayout(tables.checkpoint_partition, "sequence", ())
SEEKS: Final = MapLayout(tables.seek_offset, "epoch", ("next_offset", "source", "current_offset", "clamped_from"))
CONTRIBUTED: Final = MapLayout(
    tables.contribution_offset,
    "sequence",
    (
        "member_index",
        "next_offset",
        "committed_offset",
        "log_start",
        "log_end",
        "log_topic_id",
        "log_leader_epoch",
    ),
)

Rows: TypeAlias = Mapping[GroupPartition, Values]
