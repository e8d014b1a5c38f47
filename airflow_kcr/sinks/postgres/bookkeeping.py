"""The tables beside a target: who has written into it, under which fence, and up to where."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import psycopg
import psycopg.abc
from psycopg import sql

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.protocol.values import (
    Epoch,
    GroupId,
    GroupPartition,
    Offset,
    Timeline,
    TopicName,
)
from airflow_kcr.sinks.postgres.target import (
    Target,
    TargetPlace,
)

DDL_LOCK: Final = 7_305_012
"""Of a transaction advisory lock: only one session creates tables at a time; IF NOT EXISTS is not enough for two."""

# name: tables — made by the first session.
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS {fence} (
    source integer GENERATED ALWAYS AS IDENTITY UNIQUE,
    region text NOT NULL,
    region_id text NOT NULL,
    group_id text NOT NULL,
    sink text NOT NULL,
    target text NOT NULL,
    target_id oid,
    epoch bigint NOT NULL,
    PRIMARY KEY (region_id, group_id, sink)
);
CREATE TABLE IF NOT EXISTS {progress} (
    source integer NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    timeline bigint NOT NULL,
    "offset" bigint NOT NULL,
    epoch bigint NOT NULL,
    batch text NOT NULL,
    stepped_over bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (source, topic, partition)
) WITH (fillfactor = 50);
CREATE UNLOGGED TABLE IF NOT EXISTS {crash_mark} (
    single boolean PRIMARY KEY CHECK (single),
    mark text NOT NULL
)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetProgress:
    """How far the target is on one partition."""

    timeline: Timeline
    offset: Offset
    """The next one that is not in it."""

    batch: str
    """The batch that brought it there; empty where a reset did."""


def ensure_tables(connection: psycopg.Connection, place: TargetPlace) -> None:
    """Make the three tables where they are missing."""
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [DDL_LOCK])
    connection.execute(sql.SQL(_TABLES).format(fence=place.fence, progress=place.progress, crash_mark=place.crash_mark))


def crash_mark(connection: psycopg.Connection, place: TargetPlace) -> str:
    """Return the present mark; empty where a crash of the server has taken it, or a standby took the server's place."""
    found = connection.execute(sql.SQL("SELECT mark FROM {}").format(place.crash_mark)).fetchone()
    return "" if found is None else str(found[0])


def ensure_crash_mark(connection: psycopg.Connection, place: TargetPlace) -> str:
    """Return the present mark; if there is none, a new one, the first writer's."""
    if not crash_mark(connection, place):
        connection.execute(
            sql.SQL("INSERT INTO {} (single, mark) VALUES (true, %s) ON CONFLICT DO NOTHING").format(place.crash_mark),
            [uuid.uuid4().hex],
        )
    return crash_mark(connection, place)


def ensure_source(connection: psycopg.Connection, place: TargetPlace, target: Target) -> int:
    """Return the number of a sink; a new one gets a number, and a fence that refuses no epoch."""
    who = [target.region_id, target.group, target.sink]
    connection.execute(
        sql.SQL(
            "INSERT INTO {} (region, region_id, group_id, sink, target, target_id, epoch) "
            "SELECT %s, %s, %s, %s, %s, to_regclass(%s)::oid, 0 "
            "WHERE NOT EXISTS (SELECT FROM {} WHERE (region_id, group_id, sink) = (%s, %s, %s)) ON CONFLICT DO NOTHING"
        ).format(place.fence, place.fence),
        [target.region, *who, place.table, place.shown, *who],
    )
    found = source_of(connection, place, target)
    if found is None:
        raise LookupError(f"the fence of {target} is gone")  # deleted in between, by hand
    return found


def source_of(connection: psycopg.Connection, place: TargetPlace, target: Target) -> int | None:
    """Return the number of a sink; None: it has none yet."""
    statement = sql.SQL("SELECT source FROM {} WHERE (region_id, group_id, sink) = (%s, %s, %s)").format(place.fence)
    found = connection.execute(statement, [target.region_id, target.group, target.sink]).fetchone()
    return None if found is None else int(found[0])


def remember_target(connection: psycopg.Connection, place: TargetPlace, source: int) -> None:
    """Note which table the target is, and that it is the right one."""
    statement = sql.SQL("UPDATE {} SET target = %s, target_id = to_regclass(%s)::oid WHERE source = %s")
    connection.execute(statement.format(place.fence), [place.table, place.shown, source])


def raise_fence(connection: psycopg.Connection, place: TargetPlace, epoch: Epoch) -> Epoch:
    """Raise the fence to `epoch` where it is lower, and return where it stands.

    Waits for every transaction that has seen the lower one, until it is over or Postgres ends it.
    """
    statement = sql.SQL("UPDATE {} SET epoch = %s WHERE source = %s AND epoch < %s").format(place.fence)
    connection.execute(statement, [epoch, place.source, epoch])
    return _standing(connection, sql.SQL("SELECT {} FROM {} WHERE source = %s").format(_STANDING, place.fence), place)


def lock_fence(connection: psycopg.Connection, place: TargetPlace) -> Epoch:
    """Return where the fence stands; it can't be raised until this transaction is over."""
    statement = sql.SQL("SELECT {} FROM {} WHERE source = %s FOR SHARE").format(_STANDING, place.fence)
    return _standing(connection, statement, place)


_STANDING: Final = sql.SQL("epoch, target_id IS NULL OR target_id IS NOT DISTINCT FROM to_regclass(%s)::oid")


def _standing(connection: psycopg.Connection, statement: sql.Composed, place: TargetPlace) -> Epoch:
    """Return the epoch of a fence.

    Raises:
        SinkError: the table of the target's name is not the one that its progress is of, or the fence is gone.
    """
    found = connection.execute(statement, [place.shown, place.source]).fetchone()
    if found is None:
        raise SinkError(lost_fence(place.shown))
    epoch, is_same = found
    if not is_same:
        raise SinkError(another_table(place.shown))
    return Epoch(int(epoch))


def another_table(shown: str) -> str:
    """Return what is said of a target that was dropped, made anew, renamed or restored."""
    return (
        f"table {shown} is not the one that this sink has written to: it was dropped, made anew, swapped or restored, "
        "and may lack rows that the sink's progress counts; stop the region, then put the table back, or accept this "
        "one with `kcr region output REGION --take-over`, and reset the region to before the rows that are missing"
    )


def lost_fence(shown: str) -> str:
    """Return what is said of a database that was made anew, or restored from before the sink wrote to it."""
    return (
        f"this sink has written to {shown} before, and its fence and progress are gone: the database, the schema or "
        "the sink's tables were dropped, made anew or restored from before; stop the region, then put them back, or "
        "accept what is there with `kcr region output REGION --take-over`, and reset the region to before the rows "
        "that are missing"
    )


def highest_timeline(connection: psycopg.Connection, place: TargetPlace) -> Timeline:
    """Return the highest timeline of any partition; 0 if there is no progress."""
    statement = sql.SQL("SELECT coalesce(max(timeline), 0) FROM {} WHERE source = %s").format(place.progress)
    found = connection.execute(statement, [place.source]).fetchone()
    return Timeline(0 if found is None else int(found[0]))


def lock_progress(
    connection: psycopg.Connection, place: TargetPlace, group: GroupId, partitions: Iterable[GroupPartition]
) -> dict[GroupPartition, TargetProgress]:
    """Return the progress of these partitions, locked until this transaction is over; always in the same order."""
    wanted = sorted(partitions)
    rows = connection.execute(
        sql.SQL(
            'SELECT topic, partition, timeline, "offset", batch FROM {} '
            "WHERE source = %s AND (topic, partition) IN (SELECT * FROM unnest(%s::text[], %s::integer[])) "
            "ORDER BY topic, partition FOR UPDATE"
        ).format(place.progress),
        [place.source, [p.topic for p in wanted], [p.partition for p in wanted]],
    ).fetchall()
    return {
        GroupPartition(group, TopicName(topic), partition): TargetProgress(
            timeline=Timeline(timeline), offset=Offset(offset), batch=batch
        )
        for topic, partition, timeline, offset, batch in rows
    }


def begin_progress(
    connection: psycopg.Connection,
    place: TargetPlace,
    timeline: Timeline,
    epoch: Epoch,
    begins: Mapping[GroupPartition, Offset],
) -> None:
    """Note where partitions begin that have no progress; of two at once the second waits and does nothing."""
    wanted = sorted(begins)
    connection.execute(
        sql.SQL(
            'INSERT INTO {} (source, topic, partition, timeline, "offset", epoch, batch) '
            "SELECT %s, topic, partition, %s, begins, %s, '' "
            "FROM unnest(%s::text[], %s::integer[], %s::bigint[]) AS new (topic, partition, begins) "
            "ORDER BY topic, partition ON CONFLICT DO NOTHING"
        ).format(place.progress),
        [
            place.source,
            timeline,
            epoch,
            [p.topic for p in wanted],
            [p.partition for p in wanted],
            [begins[p] for p in wanted],
        ],
    )


def set_progress(
    connection: psycopg.Connection,
    place: TargetPlace,
    *,
    timeline: Timeline,
    epoch: Epoch,
    batch: str,
    offsets: Mapping[GroupPartition, Offset],
    stepped_over: Mapping[GroupPartition, int],
) -> None:
    """Write the progress of partitions that have a row, which this transaction has locked.

    Args:
        connection: in the transaction.
        place: of the target.
        timeline: of what was written.
        epoch: the writer's.
        batch: which one; empty for a reset.
        offsets: where each partition is now.
        stepped_over: how many offsets were left out on the way; added up within a timeline.
    """
    wanted = sorted(offsets)
    connection.execute(
        sql.SQL(
            "UPDATE {} AS old SET timeline = %(timeline)s, epoch = %(epoch)s, batch = %(batch)s, "
            '"offset" = new.reached, stepped_over = new.stepped_over + '
            "CASE WHEN old.timeline = %(timeline)s THEN old.stepped_over ELSE 0 END "
            "FROM unnest(%(topics)s::text[], %(partitions)s::integer[], %(offsets)s::bigint[], %(over)s::bigint[]) "
            "AS new (topic, partition, reached, stepped_over) "
            "WHERE old.source = %(source)s AND (old.topic, old.partition) = (new.topic, new.partition)"
        ).format(place.progress),
        {
            "source": place.source,
            "timeline": timeline,
            "epoch": epoch,
            "batch": batch,
            "topics": [p.topic for p in wanted],
            "partitions": [p.partition for p in wanted],
            "offsets": [offsets[p] for p in wanted],
            "over": [stepped_over.get(p, 0) for p in wanted],
        },
    )


def is_same(connection: psycopg.Connection, place: TargetPlace, source: int | None) -> bool:
    """Whether the table is the one that a sink has written to, as far as anything of it counts.

    A table's oid is what tells. TRUNCATE keeps it, and so does a restore of rows alone: they can't be told from here.

    Args:
        connection: in a transaction.
        place: of the target.
        source: the sink's number; None: it has written nothing.
    """
    found = connection.execute(
        sql.SQL(
            "SELECT f.target = %s AND f.target_id IS NOT NULL AND f.target_id IS DISTINCT FROM to_regclass(%s)::oid "
            "AND EXISTS (SELECT FROM {} p WHERE p.source = f.source) FROM {} f WHERE f.source = %s"
        ).format(place.progress, place.fence),
        [place.table, place.shown, source],
    ).fetchone()
    return found is None or not found[0]


def require_same(connection: psycopg.Connection, target: Target, place: TargetPlace) -> None:
    """Refuse a table that took the place of the one that the sink has written to; another name is another table."""
    if not is_same(connection, place, place.source):
        raise ConfigurationError(f"{target}: {another_table(place.shown)}")
    remember_target(connection, place, place.source)
