"""The tables of the region store, as SQLAlchemy knows them; the migrations make them, a test holds the two together.

Everything is in the schema `kcr`. Numbers are `bigint`, instants `timestamptz`. A partition is always the three columns
`group_id`, `topic`, `partition`; an offset is the next one to read, concrete and not negative. Constraints are named,
and their names are what errors are recognised by (`failures`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Identity,
    Index,
    Interval,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy import (
    event as sqlalchemy_event,
)
from sqlalchemy.dialects.postgresql import JSONB

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from sqlalchemy.schema import SchemaItem

SCHEMA: Final = "kcr"

metadata: Final = MetaData(schema=SCHEMA)

_PARTITION: Final = ("group_id", "topic", "partition")


def _number(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


def _number_or_null(name: str) -> Column[int]:
    return Column(name, BigInteger)


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _truth(name: str) -> Column[bool]:
    return Column(name, Boolean, nullable=False)


def _instant(name: str) -> Column[datetime]:
    return Column(name, DateTime(timezone=True), nullable=False)


def _instant_or_null(name: str) -> Column[datetime]:
    return Column(name, DateTime(timezone=True))


def _span(name: str) -> Column[timedelta]:
    return Column(name, Interval, nullable=False)


def _json(name: str) -> Column[object]:
    return Column(name, JSONB, nullable=False)


def _partition() -> tuple[Column[str], Column[str], Column[int]]:
    return _text("group_id"), _text("topic"), _number("partition")


def _key(table: str, *columns: str) -> PrimaryKeyConstraint:
    return PrimaryKeyConstraint(*columns, name=f"{table}_pkey")


def _of(table: str, parent: str, columns: tuple[str, ...], keys: tuple[str, ...]) -> ForeignKeyConstraint:
    targets = [f"{SCHEMA}.{parent}.{key}" for key in keys]
    return ForeignKeyConstraint(columns, targets, name=f"{table}_{parent}_fkey", ondelete="CASCADE")


def _of_region(table: str) -> ForeignKeyConstraint:
    return _of(table, "region", ("region_id",), ("id",))


def _not_negative(table: str, *columns: str) -> tuple[CheckConstraint, ...]:
    return tuple(CheckConstraint(f"{c} >= 0", name=f"{table}_{c}_not_negative") for c in columns)


def _table(name: str, *parts: SchemaItem) -> Table:
    return Table(name, metadata, *parts)


region: Final = _table(
    "region",
    Column("id", BigInteger, Identity(always=True), nullable=False),
    _text("name"),
    _text("spec"),
    _number("spec_revision"),
    Column("next_spec", Text),
    _number_or_null("next_spec_revision"),
    _text("state"),
    _text("wanted"),
    _number("epoch"),
    _number("lineage"),
    _number("next_sequence"),
    _number("counter"),
    _number_or_null("base"),
    _number_or_null("base_epoch"),
    _instant_or_null("next_bound"),
    _number("failures"),
    _number_or_null("open_cut"),
    _number_or_null("stopping"),
    Column("halt", JSONB),
    _instant_or_null("due_at"),
    _truth("initialised"),
    _key("region", "id"),
    UniqueConstraint("name", name="region_name_key"),
)

consumer_group: Final = _table(
    "consumer_group",
    _number("region_id"),
    _text("group_id"),
    # Which cluster a group lives on is what a broker reports; until one was asked it is empty.
    Column("cluster_id", Text, nullable=False, server_default=text("''")),
    _key("consumer_group", "region_id", "group_id"),
    _of_region("consumer_group"),
    UniqueConstraint("cluster_id", "group_id", name="consumer_group_cluster_id_group_id_key"),
)

member: Final = _table(
    "member",
    _number("region_id"),
    _text("group_id"),
    _number("member_index"),
    _number("incarnation"),
    _text("token"),
    _text("label"),
    _number_or_null("acknowledged"),
    _number_or_null("claimed"),
    _number_or_null("assignment"),
    _number("spec_revision"),
    _truth("sinks_fenced"),
    _span("ends_within"),
    _truth("has_left"),
    _key("member", "region_id", "group_id", "member_index"),
    _of_region("member"),
)

lease: Final = _table(
    "lease",
    _number("region_id"),
    _text("group_id"),
    _number("member_index"),
    _number("incarnation"),
    _instant("valid_until"),
    _key("lease", "region_id", "group_id", "member_index"),
    _of_region("lease"),
)

claim: Final = _table(
    "claim",
    _number("region_id"),
    *_partition(),
    # An owner is a member of the partition's own group, hence only its index.
    _number_or_null("owner_index"),
    _number("incarnation"),
    _number("epoch"),
    _number_or_null("last_owner_index"),
    _text("topic_id"),
    _number("leader_epoch"),
    _number_or_null("resume_offset"),
    _number_or_null("position"),
    _number_or_null("begun_to"),
    _key("claim", "region_id", *_PARTITION),
    _of_region("claim"),
    *_not_negative("claim", "partition", "resume_offset", "position", "begun_to"),
    Index("claim_owner", "owner_index", "group_id", "region_id"),
)

batch: Final = _table(
    "batch",
    # In the order of their begins. The region is no foreign key: each begin would lock the one region row, beside the
    # others that do so at the same time; whoever deletes a region deletes its batches.
    Column("number", BigInteger, Identity(always=True), nullable=False),
    _number("region_id"),
    _text("batch_id"),
    _text("group_id"),
    _number("member_index"),
    _number("incarnation"),
    _number("epoch"),
    _number("lineage"),
    _number("sequence"),
    _instant("begun_at"),
    _number("begun_after"),
    Column("outcome", Text),
    _instant_or_null("ended_at"),
    _number_or_null("ended_after"),
    _instant_or_null("quiet_after"),
    _key("batch", "number"),
    UniqueConstraint("region_id", "batch_id", name="batch_region_id_batch_id_key"),
    Index("batch_order", "region_id", "number"),
    Index("batch_running", "region_id", "number", postgresql_where=text("outcome IS NULL")),
    Index(
        "batch_unaccepted",
        "region_id",
        "epoch",
        postgresql_where=text("outcome IN ('unknown', 'discarded')"),
    ),
)

batch_range: Final = _table(
    "batch_range",
    _number("batch_number"),
    _number("region_id"),
    *_partition(),
    _number("from_offset"),
    _number("to_offset"),
    # From where on a later reset has undone it.
    _number_or_null("undone_from"),
    _key("batch_range", "batch_number", *_PARTITION),
    _of("batch_range", "batch", ("batch_number",), ("number",)),
    *_not_negative("batch_range", "from_offset"),
    CheckConstraint("from_offset < to_offset", name="batch_range_not_empty"),
    CheckConstraint("undone_from BETWEEN from_offset AND to_offset", name="batch_range_undone_inside"),
    Index("batch_range_partition", "region_id", *_PARTITION, "to_offset"),
)

initial_offset: Final = _table(
    "initial_offset",
    _number("region_id"),
    *_partition(),
    _text("topic_id"),
    _number("next_offset"),
    _text("source"),
    _number("log_start"),
    _number("log_end"),
    _text("log_topic_id"),
    _number("log_leader_epoch"),
    _key("initial_offset", "region_id", *_PARTITION, "topic_id"),
    _of_region("initial_offset"),
    *_not_negative("initial_offset", "next_offset", "log_start"),
    CheckConstraint("next_offset BETWEEN log_start AND log_end", name="initial_offset_inside_log"),
)

bound_offset: Final = _table(
    "bound_offset",
    _number("region_id"),
    _instant("bound"),
    *_partition(),
    _text("topic_id"),
    _number("next_offset"),
    _text("inexact"),
    _number("leader_epoch"),
    _key("bound_offset", "region_id", "bound", *_PARTITION, "topic_id"),
    _of_region("bound_offset"),
    *_not_negative("bound_offset", "next_offset"),
)

cut_request: Final = _table(
    "cut_request",
    _number("region_id"),
    _text("nonce"),
    _text("purpose"),
    _text("state"),
    _instant("requested_at"),
    _number("asked_order"),
    _instant_or_null("bound"),
    _truth("allow_inexact"),
    Column("then_wanted", Text),
    _json("requester"),
    _number_or_null("sequence"),
    _instant_or_null("answered_at"),
    _text("refusal"),
    _key("cut_request", "region_id", "nonce"),
    _of_region("cut_request"),
)

checkpoint: Final = _table(
    "checkpoint",
    _number("region_id"),
    _number("sequence"),
    _number("lineage"),
    _number("epoch"),
    _text("state"),
    _text("purpose"),
    _text("nonce"),
    _json("roster"),
    _instant("opened_at"),
    Column("phase", Text),
    _instant_or_null("bound"),
    _instant_or_null("drain_deadline"),
    _number_or_null("previous"),
    _json("inexact"),
    _text("committed"),
    _instant_or_null("commit_deadline"),
    _instant_or_null("publish_deadline"),
    _instant_or_null("ended_at"),
    _instant_or_null("published_at"),
    _text("abort_reason"),
    _number_or_null("undone_by"),
    _text("pinned_as"),
    _text("pin_reason"),
    _text("digest"),
    _key("checkpoint", "region_id", "sequence"),
    _of_region("checkpoint"),
)

checkpoint_partition: Final = _table(
    "checkpoint_partition",
    _number("region_id"),
    _number("sequence"),
    *_partition(),
    _key("checkpoint_partition", "region_id", "sequence", *_PARTITION),
    _of("checkpoint_partition", "checkpoint", ("region_id", "sequence"), ("region_id", "sequence")),
)

checkpoint_offset: Final = _table(
    "checkpoint_offset",
    _number("region_id"),
    _number("sequence"),
    *_partition(),
    _number("next_offset"),
    _key("checkpoint_offset", "region_id", "sequence", *_PARTITION),
    _of("checkpoint_offset", "checkpoint", ("region_id", "sequence"), ("region_id", "sequence")),
    *_not_negative("checkpoint_offset", "next_offset"),
)

contribution: Final = _table(
    "contribution",
    _number("region_id"),
    _number("sequence"),
    _text("group_id"),
    _number("member_index"),
    _number("incarnation"),
    _instant("contributed_at"),
    _key("contribution", "region_id", "sequence", "group_id", "member_index"),
    _of("contribution", "checkpoint", ("region_id", "sequence"), ("region_id", "sequence")),
)

contribution_offset: Final = _table(
    "contribution_offset",
    _number("region_id"),
    _number("sequence"),
    *_partition(),
    _number("member_index"),
    _number("next_offset"),
    _number_or_null("committed_offset"),
    _number_or_null("log_start"),
    _number_or_null("log_end"),
    Column("log_topic_id", Text),
    _number_or_null("log_leader_epoch"),
    # One owner of a partition in one cut: a double claim can't be stored.
    _key("contribution_offset", "region_id", "sequence", *_PARTITION),
    _of(
        "contribution_offset",
        "contribution",
        ("region_id", "sequence", "group_id", "member_index"),
        ("region_id", "sequence", "group_id", "member_index"),
    ),
    *_not_negative("contribution_offset", "next_offset", "committed_offset", "log_start"),
)

echo: Final = _table(
    "echo",
    _number("region_id"),
    _number("sequence"),
    *_partition(),
    _number("next_offset"),
    _key("echo", "region_id", "sequence", *_PARTITION),
    _of("echo", "checkpoint", ("region_id", "sequence"), ("region_id", "sequence")),
    *_not_negative("echo", "next_offset"),
)

reset: Final = _table(
    "reset",
    _number("region_id"),
    _number("epoch"),
    _number("sequence"),
    _number("lineage"),
    _text("cause"),
    _text("state"),
    _instant("begun_at"),
    _number("attempt"),
    _number_or_null("base"),
    _instant_or_null("deadline"),
    _json("must_publish"),
    _json("undoes"),
    Column("person", Text),
    _text("detail"),
    _instant_or_null("done_at"),
    _key("reset", "region_id", "epoch"),
    _of_region("reset"),
)

seek_offset: Final = _table(
    "seek_offset",
    _number("region_id"),
    _number("epoch"),
    *_partition(),
    _number_or_null("next_offset"),
    _text("source"),
    _number_or_null("current_offset"),
    # What was asked for, where the log did not have it; a shift may go below zero.
    _number_or_null("clamped_from"),
    _key("seek_offset", "region_id", "epoch", *_PARTITION),
    _of("seek_offset", "reset", ("region_id", "epoch"), ("region_id", "epoch")),
    *_not_negative("seek_offset", "next_offset", "current_offset"),
)

person_reset: Final = _table(
    "person_reset",
    _number("region_id"),
    _text("nonce"),
    _json("target"),
    _json("scope"),
    _text("state"),
    _json("requester"),
    _instant("requested_at"),
    _number("asked_order"),
    _truth("forced"),
    _json("skip"),
    _truth("forward"),
    _truth("allow_partial"),
    _number_or_null("epoch"),
    _text("failure"),
    _instant_or_null("ended_at"),
    _key("person_reset", "region_id", "nonce"),
    _of_region("person_reset"),
)

skip: Final = _table(
    "skip",
    _number("region_id"),
    *_partition(),
    _number("skipped_offset"),
    _key("skip", "region_id", *_PARTITION, "skipped_offset"),
    _of_region("skip"),
    *_not_negative("skip", "skipped_offset"),
)

event: Final = _table(
    "event",
    _number("region_id"),
    # From the counter in the locked region row, so that the order is that of the commits.
    _number("number"),
    _instant("at"),
    _number("epoch"),
    _number("lineage"),
    _text("kind"),
    _json("body"),
    _key("event", "region_id", "number"),
    _of_region("event"),
)

# Room for the next versions of the busiest rows on their own page (revision 0002).
for _busy, _filled in ((claim, 60), (lease, 50)):
    _room = f"ALTER TABLE {_busy.fullname} SET (fillfactor = {_filled})"
    sqlalchemy_event.listen(_busy, "after_create", DDL(_room))  # type: ignore[no-untyped-call]
