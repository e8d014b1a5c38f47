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
    Connection,
    DateTime,
    Engine,
    ForeignKeyConstraint,
    Identity,
    Index,
    Interval,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from airflow_kcr.errors import SchemaMissing, SchemaTooNew, SchemaTooOld

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from sqlalchemy.schema import SchemaItem


SCHEMA: Final = "kcr"
VERSION_TABLE: Final = "alembic_version"
HEAD: Final = "0001"
"""The revision that this program works with."""

metadata: Final = MetaData(schema=SCHEMA)

PARTITION: Final = ("group_id", "topic", "partition")
"""The three columns that name a partition of a group."""


def number(name: str) -> Column[int]:
    """Return a column of numbers."""
    return Column(name, BigInteger, nullable=False)


def number_or_null(name: str) -> Column[int]:
    """Return a column of numbers that may be missing."""
    return Column(name, BigInteger)


def text_(name: str) -> Column[str]:
    """Return a column of texts."""
    return Column(name, Text, nullable=False)


def truth(name: str) -> Column[bool]:
    """Return a column of truth values."""
    return Column(name, Boolean, nullable=False)


def instant(name: str) -> Column[datetime]:
    """Return a column of instants."""
    return Column(name, DateTime(timezone=True), nullable=False)


def instant_or_null(name: str) -> Column[datetime]:
    """Return a column of instants that may be missing."""
    return Column(name, DateTime(timezone=True))


def span(name: str) -> Column[timedelta]:
    """Return a column of durations."""
    return Column(name, Interval, nullable=False)


def document(name: str) -> Column[object]:
    """Return a column of small documents."""
    return Column(name, JSONB, nullable=False)


def partition() -> tuple[Column[str], Column[str], Column[int]]:
    """Return the columns of `PARTITION`."""
    return text_("group_id"), text_("topic"), number("partition")


def key(table: str, *columns: str) -> PrimaryKeyConstraint:
    """Return the primary key of a table."""
    return PrimaryKeyConstraint(*columns, name=f"{table}_pkey")


def part_of(table: str, parent: str, columns: tuple[str, ...], keys: tuple[str, ...]) -> ForeignKeyConstraint:
    """Return the foreign key to the rows that a table's rows go with.

    Not for tables that have a row for each partition of a checkpoint or reset: those are written in the transaction
    that writes the checkpoint or reset, and deleted with it, and looking each one up took the server a third of a
    completion's time.
    """
    targets = [f"{SCHEMA}.{parent}.{key}" for key in keys]
    return ForeignKeyConstraint(columns, targets, name=f"{table}_{parent}_fkey", ondelete="CASCADE")


def of_region(table: str) -> ForeignKeyConstraint:
    """Return the foreign key to the region."""
    return part_of(table, "region", ("region_id",), ("id",))


def not_negative(table: str, *columns: str) -> tuple[CheckConstraint, ...]:
    """Return a check for each of these columns."""
    return tuple(CheckConstraint(f"{c} >= 0", name=f"{table}_{c}_not_negative") for c in columns)


def table(name: str, *parts: SchemaItem) -> Table:
    """Return a table of the schema."""
    return Table(name, metadata, *parts)


__all__ = ["metadata"]

region: Final = table(
    "region",
    Column("id", BigInteger, Identity(always=True), nullable=False),
    text_("name"),
    # What the region is beyond its name.
    text_("uid"),
    text_("spec"),
    number("spec_revision"),
    Column("next_spec", Text),
    number_or_null("next_spec_revision"),
    text_("state"),
    text_("desired_state"),
    number("epoch"),
    number("timeline"),
    number("next_sequence"),
    number("counter"),
    number_or_null("restore_point"),
    number_or_null("restore_point_epoch"),
    instant_or_null("next_boundary"),
    instant_or_null("held_boundary"),
    number("failures"),
    number_or_null("open_checkpoint"),
    number_or_null("stopping"),
    Column("halt", JSONB),
    instant_or_null("reconcile_at"),
    truth("initialised"),
    Column("foreign_consumers", JSONB),
    Column("start_failures", JSONB),
    Column("unowned", JSONB),
    Column("reset_answers", JSONB),
    instant_or_null("retire_at"),
    number_or_null("aligned"),
    instant_or_null("recorded_at"),
    key("region", "id"),
    UniqueConstraint("name", name="region_name_key"),
    UniqueConstraint("uid", name="region_uid_key"),
)

consumer_group: Final = table(
    "consumer_group",
    number("region_id"),
    text_("group_id"),
    # Which cluster a group lives on is what a broker reports; until one was asked it is empty.
    Column("cluster_id", Text, nullable=False, server_default=text("''")),
    key("consumer_group", "region_id", "group_id"),
    of_region("consumer_group"),
    UniqueConstraint("cluster_id", "group_id", name="consumer_group_cluster_id_group_id_key"),
)

member: Final = table(
    "member",
    number("region_id"),
    text_("group_id"),
    number("member_index"),
    number("incarnation"),
    text_("token"),
    text_("label"),
    number_or_null("acknowledged"),
    number_or_null("claimed"),
    number_or_null("assignment"),
    number("spec_revision"),
    truth("sinks_fenced"),
    span("ends_within"),
    truth("has_left"),
    text_("version"),
    instant_or_null("arrived_at"),
    key("member", "region_id", "group_id", "member_index"),
    of_region("member"),
)

lease: Final = table(
    "lease",
    number("region_id"),
    text_("group_id"),
    number("member_index"),
    number("incarnation"),
    instant("valid_until"),
    text_("lacks"),
    key("lease", "region_id", "group_id", "member_index"),
    of_region("lease"),
)

claim: Final = table(
    "claim",
    number("region_id"),
    *partition(),
    # An owner is a member of the partition's own group, hence only its index.
    number_or_null("owner_index"),
    number("incarnation"),
    number("epoch"),
    number_or_null("last_owner_index"),
    text_("topic_id"),
    number("leader_epoch"),
    number_or_null("resume_offset"),
    number_or_null("position"),
    number_or_null("started_to"),
    key("claim", "region_id", *PARTITION),
    of_region("claim"),
    *not_negative("claim", "partition", "resume_offset", "position", "started_to"),
    Index("claim_owner", "owner_index", "group_id", "region_id"),
)

batch: Final = table(
    "batch",
    # In the order of their starts. The region is no foreign key: each start would lock the one region row, beside the
    # others that do so at the same time; deleting a region deletes its batches.
    Column("number", BigInteger, Identity(always=True), nullable=False),
    number("region_id"),
    text_("batch_id"),
    text_("group_id"),
    number("member_index"),
    number("incarnation"),
    number("epoch"),
    number("timeline"),
    number("sequence"),
    instant("started_at"),
    number("started_after"),
    Column("outcome", Text),
    instant_or_null("finished_at"),
    number_or_null("finished_after"),
    instant_or_null("quiesced_after"),
    number_or_null("proven_in"),
    key("batch", "number"),
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

WIDTH: Final = "POSITION('1'::bit(1) IN (to_offset - from_offset)::bit(64))"
"""Of a range: where its length, as a binary number of 64 digits, has its first 1.

So a range of width `w` is shorter than 2^(65 - w), which bounds how far beyond a record ranges that have it can end:
with the width before its end, an index finds them among any number of others, of any lengths (`ledger.containing`).
"""

batch_range: Final = table(
    "batch_range",
    # No foreign key: it would search for the one batch once for each range of it, which the same statement stores.
    number("batch_number"),
    number("region_id"),
    *partition(),
    number("from_offset"),
    number("to_offset"),
    key("batch_range", "batch_number", *PARTITION),
    *not_negative("batch_range", "from_offset"),
    CheckConstraint("from_offset < to_offset", name="batch_range_not_empty"),
    Index("batch_range_record", "region_id", *PARTITION, text(f"({WIDTH})"), "to_offset"),
)

initial_offset: Final = table(
    "initial_offset",
    number("region_id"),
    *partition(),
    text_("topic_id"),
    number("next_offset"),
    text_("source"),
    number("log_start"),
    number("log_end"),
    text_("log_topic_id"),
    number("log_leader_epoch"),
    key("initial_offset", "region_id", *PARTITION, "topic_id"),
    of_region("initial_offset"),
    *not_negative("initial_offset", "next_offset", "log_start"),
    CheckConstraint("next_offset BETWEEN log_start AND log_end", name="initial_offset_inside_log"),
)

boundary_offset: Final = table(
    "boundary_offset",
    number("region_id"),
    instant("boundary"),
    *partition(),
    text_("topic_id"),
    number("next_offset"),
    text_("inexact"),
    number("leader_epoch"),
    key("boundary_offset", "region_id", "boundary", *PARTITION, "topic_id"),
    of_region("boundary_offset"),
    *not_negative("boundary_offset", "next_offset"),
)

checkpoint_request: Final = table(
    "checkpoint_request",
    number("region_id"),
    text_("request_id"),
    text_("purpose"),
    text_("state"),
    instant("requested_at"),
    number("asked_order"),
    instant_or_null("boundary"),
    truth("allow_inexact"),
    Column("then_desired_state", Text),
    document("requester"),
    number_or_null("sequence"),
    instant_or_null("answered_at"),
    text_("refusal"),
    key("checkpoint_request", "region_id", "request_id"),
    of_region("checkpoint_request"),
    Index("checkpoint_request_waiting", "region_id", postgresql_where=text("state IN ('queued', 'open')")),
    Index("checkpoint_request_sequence", "region_id", "sequence"),
    Index("checkpoint_request_run", "region_id", text("(requester ->> 'dag_id')"), text("(requester ->> 'run_id')")),
)

CURRENT: Final = (
    "undone_by IS NULL AND (state IN ('complete', 'published') OR state = 'retired' AND previous IS NOT NULL)"
)
"""Of a checkpoint's row: whether it is current, as `Checkpoint.is_current` says. Of statements and indexes."""

USABLE: Final = "undone_by IS NULL AND state IN ('complete', 'published')"
"""Whether it is on the current timeline and has its offsets."""

ALIGNED: Final = f"boundary IS NOT NULL AND {CURRENT}"
"""Whether it is on the current timeline and aligned to a boundary."""

checkpoint: Final = table(
    "checkpoint",
    number("region_id"),
    number("sequence"),
    number("timeline"),
    number("epoch"),
    text_("state"),
    text_("purpose"),
    text_("request_id"),
    document("participants"),
    instant("opened_at"),
    Column("phase", Text),
    instant_or_null("boundary"),
    instant_or_null("drain_deadline"),
    number_or_null("previous"),
    document("inexact"),
    text_("committed"),
    instant_or_null("commit_deadline"),
    instant_or_null("publish_deadline"),
    instant_or_null("finished_at"),
    instant_or_null("published_at"),
    text_("abort_reason"),
    number_or_null("undone_by"),
    text_("pinned_as"),
    text_("pin_reason"),
    text_("digest"),
    key("checkpoint", "region_id", "sequence"),
    of_region("checkpoint"),
    # What decisions and people ask for is found beside any number of retired ones.
    Index("checkpoint_complete", "region_id", "sequence", postgresql_where=text("state = 'complete'")),
    Index("checkpoint_kept", "region_id", "sequence", postgresql_where=text("state <> 'retired'")),
    Index("checkpoint_usable", "region_id", "sequence", postgresql_where=text(USABLE)),
    Index("checkpoint_current", "region_id", "sequence", postgresql_where=text(CURRENT)),
    Index("checkpoint_aligned", "region_id", "boundary", "sequence", postgresql_where=text(ALIGNED)),
    Index("checkpoint_undone", "region_id", "undone_by", "sequence", postgresql_where=text("undone_by IS NOT NULL")),
)

checkpoint_partition: Final = table(
    "checkpoint_partition",
    number("region_id"),
    number("sequence"),
    *partition(),
    key("checkpoint_partition", "region_id", "sequence", *PARTITION),
)

checkpoint_offset: Final = table(
    "checkpoint_offset",
    number("region_id"),
    number("sequence"),
    *partition(),
    number("next_offset"),
    key("checkpoint_offset", "region_id", "sequence", *PARTITION),
    *not_negative("checkpoint_offset", "next_offset"),
)

contribution: Final = table(
    "contribution",
    number("region_id"),
    number("sequence"),
    text_("group_id"),
    number("member_index"),
    number("incarnation"),
    instant("contributed_at"),
    key("contribution", "region_id", "sequence", "group_id", "member_index"),
    part_of("contribution", "checkpoint", ("region_id", "sequence"), ("region_id", "sequence")),
)

contribution_offset: Final = table(
    "contribution_offset",
    number("region_id"),
    number("sequence"),
    *partition(),
    number("member_index"),
    number("next_offset"),
    number_or_null("committed_offset"),
    number_or_null("log_start"),
    number_or_null("log_end"),
    Column("log_topic_id", Text),
    number_or_null("log_leader_epoch"),
    # One owner of a partition in one checkpoint: a double claim can't be stored.
    key("contribution_offset", "region_id", "sequence", *PARTITION),
    *not_negative("contribution_offset", "next_offset", "committed_offset", "log_start"),
)

read_back: Final = table(
    "read_back",
    number("region_id"),
    number("sequence"),
    *partition(),
    number("next_offset"),
    key("read_back", "region_id", "sequence", *PARTITION),
    *not_negative("read_back", "next_offset"),
)

reset: Final = table(
    "reset",
    number("region_id"),
    number("epoch"),
    number("sequence"),
    number("timeline"),
    text_("cause"),
    text_("state"),
    instant("started_at"),
    number("attempt"),
    number_or_null("restore_point"),
    instant_or_null("deadline"),
    document("must_publish"),
    Column("person", Text),
    text_("detail"),
    instant_or_null("done_at"),
    key("reset", "region_id", "epoch"),
    of_region("reset"),
    Index("reset_sequence", "region_id", "sequence"),
    Index("reset_done", "region_id", "epoch", postgresql_where=text("state = 'done'")),
)

TURN: Final = "CASE WHEN rewinds THEN -epoch ELSE epoch END"
"""Tells the two kinds of seek entries apart, each in the order of the epochs: what `lowest` looks them up by.

No column and nothing that another index could answer, or a planner that knows little of the table would take that.
"""

seek_offset: Final = table(
    "seek_offset",
    number("region_id"),
    number("epoch"),
    *partition(),
    number_or_null("next_offset"),
    text_("source"),
    number_or_null("current_offset"),
    # What was asked for, where the log did not have it; a shift may go below zero.
    number_or_null("clamped_from"),
    # Whether it is, or may be, before where the reset just before sent the partition.
    truth("rewinds"),
    # The recreated topic that next_offset is of, while current_offset is of the one before.
    text_("recreated"),
    key("seek_offset", "region_id", "epoch", *PARTITION),
    *not_negative("seek_offset", "next_offset", "current_offset"),
    Index("seek_offset_recreated", "region_id", *PARTITION, "epoch", postgresql_where=text("recreated <> ''")),
    Index(
        "seek_offset_rewinds",
        "region_id",
        *PARTITION,
        text(f"({TURN})"),
        postgresql_include=["next_offset"],
        postgresql_where=text("next_offset IS NOT NULL"),
    ),
)

person_reset: Final = table(
    "person_reset",
    number("region_id"),
    text_("request_id"),
    document("target"),
    document("scope"),
    text_("state"),
    document("requester"),
    instant("requested_at"),
    number("asked_order"),
    truth("forced"),
    document("skip"),
    truth("forward"),
    truth("allow_partial"),
    number_or_null("epoch"),
    text_("failure"),
    instant_or_null("finished_at"),
    truth("consent_upsert"),
    key("person_reset", "region_id", "request_id"),
    of_region("person_reset"),
    Index("person_reset_active", "region_id", postgresql_where=text("state IN ('waiting', 'draining', 'started')")),
    Index("person_reset_not_started", "region_id", "requested_at", postgresql_where=text("epoch IS NULL")),
)

skip: Final = table(
    "skip",
    number("region_id"),
    *partition(),
    number("skipped_offset"),
    key("skip", "region_id", *PARTITION, "skipped_offset"),
    of_region("skip"),
    *not_negative("skip", "skipped_offset"),
)

event: Final = table(
    "event",
    number("region_id"),
    # From the counter in the locked region row, so that the order is that of the commits.
    number("number"),
    instant("at"),
    number("epoch"),
    number("timeline"),
    text_("kind"),
    document("body"),
    key("event", "region_id", "number"),
    of_region("event"),
    Index(
        "event_registered",
        "region_id",
        text("(body -> 'member')"),
        text("(body -> 'incarnation')"),
        postgresql_where=text("kind = 'MemberRegistered'"),
    ),
)

history_start: Final = table(
    "history_start",
    # Where the kept history starts; no row: it is whole.
    number("region_id"),
    # The newest event and the last batch of what was judged and may be dropped.
    number("counter"),
    number("ledger"),
    # The ids of batches within that had no final outcome there.
    Column("open", ARRAY(Text), nullable=False),
    # What the proof of what follows has to know.
    Column("proof", LargeBinary, nullable=False),
    key("history_start", "region_id"),
    of_region("history_start"),
)

sink_place: Final = table(
    "sink_place",
    # Where the sinks of a region write to, so that a place that was emptied is told from a new one.
    number("region_id"),
    text_("group_id"),
    text_("sink"),
    text_("place"),
    key("sink_place", "region_id", "group_id", "sink", "place"),
    of_region("sink_place"),
)

# Room for the next versions of the busiest rows on their own page.
for _busy, _filled in ((claim, 60), (lease, 50)):
    _room = f"ALTER TABLE {_busy.fullname} SET (fillfactor = {_filled})"
    sqlalchemy_event.listen(_busy, "after_create", DDL(_room))  # type: ignore[no-untyped-call]

# What grows with time: a region has most of it, however few rows of a young one the server has analysed. Of eight rows
# of one region it would believe that every eighth row is of another, and find a region's newest by reading all it has
# .
for _growing in (
    batch,
    batch_range,
    boundary_offset,
    checkpoint,
    checkpoint_offset,
    checkpoint_partition,
    checkpoint_request,
    contribution,
    contribution_offset,
    event,
    person_reset,
    read_back,
    reset,
    seek_offset,
):
    _whole = f"ALTER TABLE {_growing.fullname} ALTER COLUMN region_id SET (n_distinct = 1)"
    sqlalchemy_event.listen(_growing, "after_create", DDL(_whole))  # type: ignore[no-untyped-call]

# Room that dropped history leaves is found again before much of it is there.
for _closed in (event, batch, batch_range):
    _early = f"ALTER TABLE {_closed.fullname} SET (autovacuum_vacuum_scale_factor = 0.02)"
    sqlalchemy_event.listen(_closed, "after_create", DDL(_early))  # type: ignore[no-untyped-call]


# Which revision of the schema a database has. They are numbers in the order of their making, so older and newer can
# be told apart by a program that has never heard of the newer one.

_HAS_VERSION_TABLE: Final = text("SELECT to_regclass(:name) IS NOT NULL")
_VERSION: Final = text("SELECT version_num FROM kcr.alembic_version")


def require_current(engine: Engine) -> None:
    """Refuse a database that this program can't work with.

    Raises:
        SchemaMissing: it has no kcr schema.
        SchemaTooOld: it has an earlier one; the message says how to upgrade.
        SchemaTooNew: it has a later one.
    """
    with engine.connect() as connection:
        require_revision(revision_of(connection))


def require_revision(current: str | None) -> None:
    """Refuse a revision that this program can't work with; see `require_current`."""
    if current is None:
        raise SchemaMissing
    if int(current) < int(HEAD):
        raise SchemaTooOld(
            f"the store's schema is of revision {current}, this program needs {HEAD}; run `kcr store upgrade`"
        )
    if int(current) > int(HEAD):
        raise too_new(current)


def revision_of(connection: Connection) -> str | None:
    """Return the revision of the database behind a connection; None: it has no kcr schema."""
    if not connection.execute(_HAS_VERSION_TABLE, {"name": f"{SCHEMA}.{VERSION_TABLE}"}).scalar_one():
        return None
    found = connection.execute(_VERSION).scalar_one_or_none()
    return None if found is None else str(found)


def too_new(current: str) -> SchemaTooNew:
    """Return the refusal of a revision that is later than this program's."""
    return SchemaTooNew(
        f"the store's schema is of revision {current}, this program knows {HEAD} and earlier; "
        "upgrade airflow-kcr where this program runs"
    )
