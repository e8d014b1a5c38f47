"""What a reset does to a target: its fence is raised first, only then progress is read and newer rows go.

Two transactions: when the first one is over, no older epoch inserts any more; what it inserted until then is seen by
the second one.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_kcr.errors import SinkAhead
from airflow_kcr.protocol.member.messages import ResetSinks
from airflow_kcr.protocol.offsets import SeekSource, past_skips
from airflow_kcr.protocol.values import Epoch, GroupPartition, Offset, Timeline
from airflow_kcr.sinks.postgres import bookkeeping
from airflow_kcr.sinks.postgres.earlier import rows_kept
from airflow_kcr.sinks.postgres.target import SOURCE, TargetTable

_HINT = (
    "the store was restored to an earlier state; resume the region with the later numbers (`kcr region resume`), or "
    "write to another table"
)


def fence(table: TargetTable, epoch: Epoch, timeline: Timeline) -> None:
    """Raise the fence to an epoch.

    Raises:
        SinkAhead: it stands higher, or progress is of a later timeline.
    """
    stands = bookkeeping.raise_fence(table, epoch)
    newest = bookkeeping.highest_timeline(table)
    if stands > epoch or newest > timeline:
        raise SinkAhead(
            f"{table.target}: the fence stands at {stands} and progress is of timeline {newest}, the region is at "
            f"epoch {epoch} and timeline {timeline}: {_HINT}",
            fence=stands,
            timeline=max(newest, timeline),
        )


def reset(table: TargetTable, order: ResetSinks) -> dict[GroupPartition, Offset | None]:
    """Roll back what a new timeline starts before, step over what a person skipped, and answer the open entries.

    Raises:
        SinkAhead: the fence was raised further meanwhile.
    """
    stands = bookkeeping.lock_fence(table)
    if stands != order.epoch:
        raise SinkAhead(f"{table.target}: the fence stands at {stands} already", fence=stands, timeline=order.timeline)
    asked = {p: t for p, t in order.open.items() if t.source is SeekSource.SINK_PROGRESS}
    found = bookkeeping.lock_progress(table, {*order.resume, *asked})
    here = {p: row for p, row in found.items() if row.timeline == order.timeline}
    places = {p: t.current for p, t in asked.items() if t.current is not None}
    starts = {p: offset for p, offset in {**places, **order.resume}.items() if p not in here}
    _roll_back(table, order, starts)
    past = {p: past_skips(row.offset, sorted(order.skips.get(p, ()))) for p, row in here.items()}
    skipped = {p: offset for p, offset in past.items() if offset != here[p].offset}
    if skipped:
        _set(table, order, skipped)
    return {p: past.get(p) for p in asked}


def _roll_back(table: TargetTable, order: ResetSinks, starts: Mapping[GroupPartition, Offset]) -> None:
    """Begin partitions again in this timeline: rows of older ones at or beyond the place go."""
    if not starts:
        return
    if table.target.mode.restorable and SOURCE in table.read_columns():
        named = bookkeeping.with_offsets(starts)
        table.run("roll_back", timeline=order.timeline, **named)
        if table.value("is_left", timeline=order.timeline, **named):
            raise rows_kept(table, "rows that were deleted", "DELETE")
    bookkeeping.start_progress(table, order.timeline, order.epoch, starts)
    _set(table, order, starts)


def _set(table: TargetTable, order: ResetSinks, offsets: Mapping[GroupPartition, Offset]) -> None:
    bookkeeping.set_progress(
        table, timeline=order.timeline, epoch=order.epoch, batch="", offsets=offsets, stepped_over={}
    )
