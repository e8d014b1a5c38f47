"""The insertion of a staged batch into its target, under the fence (docs/explanation/delivery.md).

Every insertion locks in the same order: the batch's own staging table, which waits for a task that still writes; the
fence, shared, so that no reset raises it meanwhile; the progress of the batch's partitions. The second insertion of the
same partitions waits, and then finds progress where its batch does not start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_kcr.errors import SinkAhead, SinkError
from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.rules import Delivery, SinkMode
from airflow_kcr.protocol.values import GroupPartition, Offset, TopicName
from airflow_kcr.sinks.postgres import bookkeeping
from airflow_kcr.sinks.postgres.staging import ROW, Staging, rows_once
from airflow_kcr.sinks.postgres.target import OWN_COLUMNS, Target, TargetTable, names, quoted


def insert(table: TargetTable, call: BatchCall, staging: Staging) -> int:
    """Bring the staged rows of a batch into the target, and move its progress; in the caller's transaction.

    Said again for a batch that is in the target, it changes nothing. Returns how many rows came into the target, or
    replaced one there.

    Raises:
        SinkAhead: a later epoch or timeline has been here: this process is out of date.
        SinkError: the delivery forbids it, or rows are not what this batch has read.
    """
    table.run("lock_staging", {"staging": staging.shown})
    staged, rows = _checked(table, call, staging)
    _require_fence(table, call)
    starts = {partition: range_.from_ for partition, range_ in call.ranges.items()}
    bookkeeping.start_progress(table, call.timeline, call.epoch, starts)
    before = bookkeeping.lock_progress(table, call.ranges)
    if all(row.batch == call.batch for row in before.values()):
        return 0
    _require_progress(table.target, call, before)
    _require_staged(table, call, staging)
    # Where nothing is in the target already, every row goes in.
    is_new = all(before[p].offset <= r.from_ for p, r in call.ranges.items())
    most = staged if is_new and table.target.mode is SinkMode.APPEND else None
    written = _insert(table, call, staging, rows, most) if staged else 0
    bookkeeping.set_progress(
        table,
        timeline=call.timeline,
        epoch=call.epoch,
        batch=call.batch,
        offsets={p: Offset(max(before[p].offset, call.progress.get(p, r.to), r.to)) for p, r in call.ranges.items()},
        stepped_over={p: max(r.from_ - before[p].offset, 0) for p, r in call.ranges.items()},
    )
    return written


def is_inserted(table: TargetTable, call: BatchCall) -> bool:
    """Whether a batch is in the target: for who lost the connection while it was committed."""
    found = bookkeeping.lock_progress(table, call.ranges)
    return len(found) == len(call.ranges) and all(row.batch == call.batch for row in found.values())


def _checked(table: TargetTable, call: BatchCall, staging: Staging) -> tuple[int, str]:
    """Return how many rows are staged, each counted once, and what SQL selects them from."""
    target, rows = table.target, rows_once(table, staging, call.batch)
    staged = 0
    for topic, partition, first, last, count in table.run("staged_offsets", {"rows": rows}):
        read = call.ranges.get(GroupPartition(target.owner.group, TopicName(topic), partition))
        if read is None or first < read.from_ or last >= read.to:
            raise SinkError(
                f"{target}: rows name records that batch {call.batch} has not read, among offsets {first} to {last} of "
                f"{topic}:{partition}; keep the columns topic, partition and offset of the batch as they are"
            )
        staged += count
    return staged, rows


def _require_fence(table: TargetTable, call: BatchCall) -> None:
    target, fence = table.target, bookkeeping.lock_fence(table)
    if fence > call.epoch:
        raise SinkAhead(
            f"{target}: batch {call.batch} is of epoch {call.epoch} and the fence stands at {fence}: another process "
            "has taken over, nothing was written",
            fence=fence,
            timeline=max(call.timeline, bookkeeping.highest_timeline(table)),
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


def _require_staged(table: TargetTable, call: BatchCall, staging: Staging) -> None:
    if bookkeeping.crash_mark(table) != staging.crash_mark:
        raise SinkError(
            f"{table.target}: the database has crashed, or another server has taken its place, and has lost what batch "
            f"{call.batch} had staged; nothing was written, the reset that follows has it processed again"
        )


def _insert(table: TargetTable, call: BatchCall, staging: Staging, rows: str, expected: int | None) -> int:
    """Insert the staged rows that are not in the target yet, and return how many went in or replaced one.

    Args:
        table: the target.
        call: the batch.
        staging: where its rows are.
        rows: what SQL selects them from.
        expected: how many there are; None: they are counted.

    Raises:
        SinkError: the target took fewer: it would lack rows that its progress counts.
    """
    filled, given = _filled(table.target, staging, rows), _checkpoint(call)
    written = table.run("insert", filled, **given).rowcount
    if expected is None:
        expected = int(table.value("count_chosen", filled, **given))
    _require_taken(table, call, written, expected)
    return written


def insert_recomputed(table: TargetTable, call: BatchCall, staging: Staging) -> int:
    """Insert the staged rows of a batch that recomputes records, of which the target has none any more.

    Returns how many there are.

    Raises:
        SinkError: rows are not what this batch has read, the target took fewer, or the database has lost them.
    """
    table.run("lock_staging", {"staging": staging.shown})
    staged, rows = _checked(table, call, staging)
    _require_staged(table, call, staging)
    if not staged:
        return 0
    filled, given = _filled(table.target, staging, rows), _checkpoint(call)
    expected = int(table.value("count_recomputed", filled, **given))
    written = table.run("insert_recomputed", filled, **given).rowcount
    _require_taken(table, call, written, expected)
    return written


def _checkpoint(call: BatchCall) -> dict[str, object]:
    return {"timeline": call.timeline, "sequence": call.sequence}


def _filled(target: Target, staging: Staging, rows: str) -> dict[str, str]:
    """Return what stands in braces where staged rows go into a target."""
    columns = (*staging.columns, *OWN_COLUMNS)
    filled = {
        "rows": rows,
        "chosen_columns": _staged(staging, staging.columns),
        "inserted_columns": names(columns),
        "distinct": "",
        "ordered": "",
        "on_conflict": "",
        "same_key": "false",
    }
    if target.mode is SinkMode.UPSERT:
        # Of rows with one key the last one stays; in one order, so that two publishers don't wait in a circle.
        key, changed = _staged(staging, target.key), [name for name in columns if name not in target.key]
        filled["distinct"] = f"DISTINCT ON ({key})"
        filled["ordered"] = f"ORDER BY {key}, s.kcr_offset DESC, s.kcr_topic, s.kcr_partition, s.{ROW} DESC"
        changes = ", ".join(f"{name} = EXCLUDED.{name}" for name in map(quoted, changed))
        filled["on_conflict"] = f"ON CONFLICT ({names(target.key)}) DO UPDATE SET {changes}"
        filled["same_key"] = f"({', '.join(f't.{quoted(name)}' for name in target.key)}) = ({key})"
    return filled


def _require_taken(table: TargetTable, call: BatchCall, written: int, expected: int) -> None:
    if expected != written:
        raise SinkError(
            f"{table.target}: table {table.shown} took {written} of the {expected} rows of batch {call.batch}: a "
            "trigger BEFORE INSERT or UPDATE that returns NULL leaves rows out, most likely; drop it, or leave such "
            "rows out in the pipeline; nothing was changed"
        )


def _staged(staging: Staging, columns: Iterable[str]) -> str:
    """Return columns of staged rows with commas between them, as the target takes them."""
    plain = {name: f"s.{quoted(name)}" for name in columns}
    kinds = staging.cast
    return ", ".join(f"CAST({value} AS {kinds[name]})" if name in kinds else value for name, value in plain.items())
