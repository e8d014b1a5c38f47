"""The insertion of a staged batch into its target, under the fence (docs/explanation/delivery.md).

Every insertion locks in the same order: the batch's own staging table, which waits for a task that still writes; the
fence, shared, so that no reset raises it meanwhile; the progress of the batch's partitions. The second insertion of the
same partitions waits, and then finds progress where its batch does not start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psycopg
from psycopg import sql

from airflow_kcr.errors import SinkAhead, SinkError
from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.rules import Delivery, SinkMode
from airflow_kcr.protocol.values import GroupPartition, Offset, TopicName
from airflow_kcr.sinks.postgres import bookkeeping
from airflow_kcr.sinks.postgres.staging import ROW, Staging
from airflow_kcr.sinks.postgres.target import COORDINATES, OWN_COLUMNS, Quoted, Target, TargetPlace, names

_COORDINATES = tuple(COORDINATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inserted:
    """What became of a batch's rows."""

    staged: int
    """How many rows waited, those of tasks that ran twice among them."""

    written: int
    """How many came into the target, or replaced a row there."""


def insert(
    connection: psycopg.Connection, target: Target, place: TargetPlace, call: BatchCall, staging: Staging
) -> Inserted:
    """Bring the staged rows of a batch into the target, and move its progress; in the caller's transaction.

    Said again for a batch that is in the target, it changes nothing.

    Raises:
        SinkAhead: a later epoch or timeline has been here: this process is out of date.
        SinkError: the delivery forbids it, or rows are not what this batch has read.
    """
    connection.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(staging.identifier))
    staged, repeated = _checked(connection, target, call, staging)
    _require_fence(connection, target, place, call)
    starts = {partition: range_.from_ for partition, range_ in call.ranges.items()}
    bookkeeping.start_progress(connection, place, call.timeline, call.epoch, starts)
    before = bookkeeping.lock_progress(connection, place, target.group, call.ranges)
    if all(row.batch == call.batch for row in before.values()):
        return Inserted(staged=staged, written=0)
    _require_progress(target, call, before)
    _require_staged(connection, target, place, call, staging)
    # Where nothing is there twice, or in the target already, every staged row goes in.
    is_new = not repeated and all(before[p].offset <= r.from_ for p, r in call.ranges.items())
    most = staged if is_new and target.mode is SinkMode.APPEND else None
    written = _insert(connection, target, place, call, staging, most, repeated=repeated) if staged else 0
    bookkeeping.set_progress(
        connection,
        place,
        timeline=call.timeline,
        epoch=call.epoch,
        batch=call.batch,
        offsets={p: Offset(max(before[p].offset, call.progress.get(p, r.to), r.to)) for p, r in call.ranges.items()},
        stepped_over={p: max(r.from_ - before[p].offset, 0) for p, r in call.ranges.items()},
    )
    return Inserted(staged=staged, written=written)


def is_inserted(connection: psycopg.Connection, target: Target, place: TargetPlace, call: BatchCall) -> bool:
    """Whether a batch is in the target: for who lost the connection while it was committed."""
    found = bookkeeping.lock_progress(connection, place, target.group, call.ranges)
    return len(found) == len(call.ranges) and all(row.batch == call.batch for row in found.values())


def _checked(connection: psycopg.Connection, target: Target, call: BatchCall, staging: Staging) -> tuple[int, bool]:
    """Return how many rows are staged, and whether any record is there more than once."""
    staged = 0
    by_partition = "SELECT kcr_topic, kcr_partition, min(kcr_offset), max(kcr_offset), count(*) FROM {} GROUP BY 1, 2"
    for topic, partition, first, last, rows in connection.execute(sql.SQL(by_partition).format(staging.identifier)):
        read = call.ranges.get(GroupPartition(target.group, TopicName(topic), partition))
        if read is None or first < read.from_ or last >= read.to:
            raise SinkError(
                f"{target}: rows name records that batch {call.batch} has not read, among offsets {first} to {last} of "
                f"{topic}:{partition}; keep the columns topic, partition and offset of the batch as they are"
            )
        staged += rows
    # Grouped on its own: beside the boundaries, Postgres would sort.
    composed = sql.SQL("SELECT count(*) FROM (SELECT DISTINCT {} FROM {}) AS one").format(
        names(_COORDINATES), staging.identifier
    )
    found = connection.execute(composed).fetchone()
    distinct = 0 if found is None else int(found[0])
    if distinct == staged:
        return staged, False
    if target.mode is SinkMode.APPEND and _has_several_rows_for_one_record(connection, staging):
        raise SinkError(
            f"{target}: batch {call.batch} has several rows for one record, and a task that runs twice could not "
            "be told from them; write one row for each record (an array, say), or use mode: upsert"
        )
    return staged, True


def _has_several_rows_for_one_record(connection: psycopg.Connection, staging: Staging) -> bool:
    """The same row twice is a task that ran twice; rows of different numbers are different rows."""
    statement = sql.SQL("SELECT FROM {1} GROUP BY {0} HAVING min({2}) <> max({2}) LIMIT 1").format(
        names(_COORDINATES), staging.identifier, Quoted(ROW)
    )
    return connection.execute(statement).fetchone() is not None


def _require_fence(connection: psycopg.Connection, target: Target, place: TargetPlace, call: BatchCall) -> None:
    fence = bookkeeping.lock_fence(connection, place)
    if fence > call.epoch:
        raise SinkAhead(
            f"{target}: batch {call.batch} is of epoch {call.epoch} and the fence stands at {fence}: another process "
            "has taken over, nothing was written",
            fence=fence,
            timeline=max(call.timeline, bookkeeping.highest_timeline(connection, place)),
        )
    if fence < call.epoch:
        raise SinkError(
            f"{target}: the fence stands at {fence} and batch {call.batch} is of epoch {call.epoch}: the database was "
            "restored, or its kcr_fence changed by hand; the reset that follows raises it"
        )


def _require_progress(
    target: Target, call: BatchCall, before: Mapping[GroupPartition, bookkeeping.TargetProgress]
) -> None:
    for partition, range_ in sorted(call.ranges.items()):
        row = before[partition]
        if row.timeline > call.timeline:
            raise SinkAhead(
                (
                    f"{target}: progress of {partition} is of timeline {row.timeline}, batch {call.batch} of "
                    f"{call.timeline}"
                ),
                fence=call.epoch,
                timeline=row.timeline,
            )
        if row.timeline < call.timeline:
            raise SinkError(
                f"{target}: progress of {partition} is still of timeline {row.timeline}; the reset to {call.timeline} "
                "has "
                "not reached it, the one that follows does"
            )
        exact = target.delivery is Delivery.EXACTLY_ONCE
        skips_forward = range_.from_ > row.offset and target.delivery is not Delivery.AT_MOST_ONCE
        if (exact and range_.from_ != row.offset) or skips_forward:
            raise SinkError(
                f"{target}: batch {call.batch} begins {partition} at {range_.from_}, the table is at {row.offset}; "
                f"{target.delivery} forbids the step, the reset that follows goes to where the table is"
                if exact
                else f"{target}: batch {call.batch} begins {partition} at {range_.from_}, the table ends at "
                f"{row.offset}: records would be missing; the table was restored, or kcr_progress changed by hand"
            )


def _require_staged(
    connection: psycopg.Connection, target: Target, place: TargetPlace, call: BatchCall, staging: Staging
) -> None:
    if bookkeeping.crash_mark(connection, place) != staging.crash_mark:
        raise SinkError(
            f"{target}: the database has crashed, or another server has taken its place, and has lost what batch "
            f"{call.batch} had staged; nothing was written, the reset that follows has it processed again"
        )


def _insert(
    connection: psycopg.Connection,
    target: Target,
    place: TargetPlace,
    call: BatchCall,
    staging: Staging,
    expected: int | None,
    *,
    repeated: bool,
) -> int:
    """Insert the staged rows that are not in the target yet, and return how many went in or replaced one.

    Args:
        connection: in the transaction.
        target: the sink.
        place: of the target.
        call: the batch.
        staging: its rows.
        expected: how many there are; None: they are counted.
        repeated: whether a record is staged more than once.

    Raises:
        SinkError: the target took fewer: it would lack rows that its progress counts.
    """
    chosen = sql.SQL("SELECT {}{}, {} FROM {} AS s JOIN {} AS p ON {} {}").format(
        _distinct(target, staging, repeated=repeated),
        _staged(staging, staging.columns),
        sql.SQL("%(source)s, s.kcr_topic, s.kcr_partition, s.kcr_offset, %(timeline)s, %(sequence)s"),
        staging.identifier,
        place.progress,
        # What is below progress is in the target: a batch that comes again writes the rest.
        sql.SQL(
            "p.source = %(source)s AND p.topic = s.kcr_topic AND p.partition = s.kcr_partition "
            'AND s.kcr_offset >= p."offset"'
        ),
        _order(target, staging, repeated=repeated),
    )
    statement = sql.SQL("INSERT INTO {} ({}) {} {}").format(
        place.target, names((*staging.columns, *OWN_COLUMNS)), chosen, _conflict(target, staging)
    )
    given = {"source": place.source, "timeline": call.timeline, "sequence": call.sequence}
    written = connection.execute(statement, given).rowcount
    if expected is None:
        counted = connection.execute(sql.SQL("SELECT count(*) FROM ({}) AS chosen").format(chosen), given).fetchone()
        expected = 0 if counted is None else int(counted[0])
    if expected != written:
        raise SinkError(
            f"{target}: table {place.shown} took {written} of the {expected} rows of batch {call.batch}: a trigger "
            "BEFORE INSERT or UPDATE that returns NULL leaves rows out, most likely; drop it, or leave such rows out "
            "in the pipeline; nothing was changed"
        )
    return written


def _distinct(target: Target, staging: Staging, *, repeated: bool) -> sql.Composable:
    columns = target.key if target.mode is SinkMode.UPSERT else _COORDINATES if repeated else ()
    return sql.SQL("DISTINCT ON ({}) ").format(_staged(staging, columns)) if columns else sql.SQL("")


def _order(target: Target, staging: Staging, *, repeated: bool) -> sql.Composable:
    """Of rows with one key the last one stays; written in one order, so that two publishers don't wait in a circle."""
    if target.mode is SinkMode.UPSERT:
        last = sql.SQL("s.kcr_offset DESC, s.kcr_topic, s.kcr_partition, s.{} DESC").format(Quoted(ROW))
        return sql.SQL("ORDER BY {}, {}").format(_staged(staging, target.key), last)
    return sql.SQL("ORDER BY {}").format(_staged(staging, _COORDINATES)) if repeated else sql.SQL("")


def _staged(staging: Staging, columns: tuple[str, ...]) -> sql.Composed:
    return sql.SQL(", ").join(
        sql.SQL("CAST(s.{} AS {})" if name in staging.cast else "s.{}").format(
            Quoted(name), sql.SQL(staging.cast.get(name, ""))
        )
        for name in columns
    )


def _conflict(target: Target, staging: Staging) -> sql.Composable:
    if target.mode is not SinkMode.UPSERT:
        return sql.SQL("")
    replaced = [name for name in (*staging.columns, *OWN_COLUMNS) if name not in target.key]
    changes = sql.SQL(", ").join(sql.SQL("{} = EXCLUDED.{}").format(Quoted(name), Quoted(name)) for name in replaced)
    return sql.SQL("ON CONFLICT ({}) DO UPDATE SET {}").format(names(target.key), changes)
