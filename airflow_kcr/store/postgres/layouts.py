"""Which columns a row of the region becomes, and back: one `Layout` for each table that mirrors a mapping of `Region`.

A row class whose fields are the columns is laid out by its type hints (`row_layout`); the few whose columns differ say
so themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Row
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.region.rows import (
    BoundaryOffset,
    Checkpoint,
    CheckpointRequest,
    Claim,
    InitialOffset,
    Lease,
    Member,
    PersonReset,
    ResetAttempt,
)
from airflow_kcr.protocol.region.state import BoundaryKey, InitialKey
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    ClusterId,
    Epoch,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    RequestId,
    TopicId,
)
from airflow_kcr.store.codec import storable
from airflow_kcr.store.postgres import tables
from airflow_kcr.store.postgres.rewinds import REWINDS
from airflow_kcr.store.postgres.row_layout import JsonLayout, Layout, Values, member_of, of_dataclass, partition_of
from airflow_kcr.store.postgres.tables import PARTITION

if TYPE_CHECKING:
    from psycopg.sql import Composable
    from sqlalchemy import Table

_MEMBER: Final = ("group_id", "member_index")


def _member_key(member: MemberId) -> Values:
    return (member.group, member.index)


def _one(key: object) -> Values:
    return (key,)


MEMBERS: Final[JsonLayout[MemberId, Member]] = of_dataclass(
    tables.member, Member, field="member", key=_MEMBER, key_values=_member_key, read_key=lambda c: member_of(*c)
)
REQUESTS: Final[JsonLayout[RequestId, CheckpointRequest]] = of_dataclass(
    tables.checkpoint_request,
    CheckpointRequest,
    field="request_id",
    key=("request_id",),
    key_values=_one,
    read_key=lambda c: RequestId(c[0]),
)
CHECKPOINTS: Final[JsonLayout[CheckpointNumber, Checkpoint]] = of_dataclass(
    tables.checkpoint,
    Checkpoint,
    field="sequence",
    key=("sequence",),
    key_values=_one,
    read_key=lambda c: CheckpointNumber(c[0]),
)
RESETS: Final[JsonLayout[Epoch, ResetAttempt]] = of_dataclass(
    tables.reset, ResetAttempt, field="epoch", key=("epoch",), key_values=_one, read_key=lambda c: Epoch(c[0])
)
PERSON_RESETS: Final[JsonLayout[RequestId, PersonReset]] = of_dataclass(
    tables.person_reset,
    PersonReset,
    field="request_id",
    key=("request_id",),
    key_values=_one,
    read_key=lambda c: RequestId(c[0]),
)
LEASES: Final[JsonLayout[MemberId, Lease]] = of_dataclass(
    tables.lease, Lease, field=None, key=_MEMBER, key_values=_member_key, read_key=lambda c: member_of(*c)
)

GROUPS: Final[Layout[GroupId, ClusterId]] = Layout(
    tables.consumer_group,
    key=("group_id",),
    values=("cluster_id",),
    split=lambda group, cluster: (group, cluster),
    join=lambda c: (GroupId(c[0]), ClusterId(c[1])),
    key_values=_one,
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
        value.started_to,
    )


def join_claim(columns: Row[Any]) -> tuple[GroupPartition, Claim]:
    """Return one partition's claim from its columns."""
    group, topic, partition, owner, incarnation, epoch, last, topic_id, leader_epoch, resume, position, begun = columns
    return partition_of(group, topic, partition), Claim(
        owner=None if owner is None else member_of(group, owner),
        incarnation=incarnation,
        epoch=epoch,
        last_owner=None if last is None else member_of(group, last),
        topic_id=topic_id,
        leader_epoch=leader_epoch,
        resume=resume,
        position=position,
        started_to=begun,
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
    "started_to",
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


def _split_boundary(key: BoundaryKey, value: BoundaryOffset) -> Values:
    partition, topic_id, boundary = key
    return (*partition, topic_id, boundary, value.offset, storable(value.inexact), value.leader_epoch)


def _join_boundary(columns: Row[Any]) -> tuple[BoundaryKey, BoundaryOffset]:
    group, topic, partition, topic_id, boundary, offset, inexact, leader_epoch = columns
    row = BoundaryOffset(offset=Offset(offset), inexact=inexact, leader_epoch=leader_epoch)
    return (partition_of(group, topic, partition), TopicId(topic_id), boundary), row


BOUNDARY_OFFSETS: Final[Layout[BoundaryKey, BoundaryOffset]] = Layout(
    tables.boundary_offset,
    (*PARTITION, "topic_id", "boundary"),
    ("next_offset", "inexact", "leader_epoch"),
    _split_boundary,
    _join_boundary,
    lambda key: (*key[0], key[1], key[2]),
)

# -- contributions: one row for the member, one for each partition ---------------------------------------------------

ContributionKey: TypeAlias = tuple[CheckpointNumber, MemberId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributor:
    """The row of one member's contribution, without its offsets."""

    incarnation: Incarnation
    contributed_at: datetime


CONTRIBUTORS: Final[JsonLayout[ContributionKey, Contributor]] = of_dataclass(
    tables.contribution,
    Contributor,
    field=None,
    key=("sequence", *_MEMBER),
    key_values=lambda key: (key[0], key[1].group, key[1].index),
    read_key=lambda c: (CheckpointNumber(c[0]), member_of(c[1], c[2])),
)

# -- maps: the offsets of one checkpoint, the seek map of one epoch ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class MapLayout:
    """How a map by partition is kept beneath its number: one row for each partition."""

    table: Table
    number: str
    """The column of the sequence or epoch that the map belongs to."""

    values: tuple[str, ...]
    derived: tuple[tuple[str, Composable], ...] = ()
    """Columns that only the database reads, each with the SQL that makes it of a written row `n`."""


OFFSETS: Final = MapLayout(tables.checkpoint_offset, "sequence", ("next_offset",))
READ_BACKS: Final = MapLayout(tables.read_back, "sequence", ("next_offset",))
FROZEN: Final = MapLayout(tables.checkpoint_partition, "sequence", ())
SEEKS: Final = MapLayout(
    tables.seek_offset,
    "epoch",
    ("next_offset", "source", "current_offset", "clamped_from", "recreated"),
    derived=(("rewinds", REWINDS),),
)
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
