"""The plan of a simulated batch, in the order that makes a boundary exact: the end first, then where it falls."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from airflow_kcr.protocol.member.messages import RangesPlanned
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import boundaries
from airflow_kcr.protocol.region.rows import BoundaryOffset
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.values import BatchId, GroupPartition, Offset, Range
from tests.support.simulation.broker import Log

GRACE = timedelta(seconds=1)


def plan(
    batch: BatchId,
    positions: OffsetMap,
    view: MemberRegion,
    logs: Mapping[GroupPartition, Log],
    *,
    now: datetime,
    size: int,
) -> RangesPlanned:
    """Return the next ranges from these positions, and where the boundary falls in partitions that lacked it."""
    ranges: dict[GroupPartition, Range] = {}
    found: dict[GroupPartition, BoundaryOffset] = {}
    outside: dict[GroupPartition, LogBounds] = {}
    left = view.records_left
    for partition, position in positions.items():
        end = logs[partition].bounds()
        if position not in end and position - 1 not in view.skips.get(partition, ()):
            outside[partition] = end
            continue
        to = min(end.end, position + size)
        if view.limit is not None and partition in view.claims:
            row = view.boundary_offsets.get(partition) or _located(partition, view, logs, view.limit, end, now)
            if row is not None:
                if partition not in view.boundary_offsets:
                    found[partition] = row
                to = min(to, max(row.offset, position))
        for skipped in view.skips.get(partition, ()):
            if position <= skipped < to:
                to = skipped
        if left is not None:
            to = min(to, position + left)
        if to > position:
            ranges[partition] = Range(position, Offset(to))
            left = None if left is None else left - (to - position)
    return RangesPlanned(batch=batch, ranges=ranges, boundary=view.limit, boundary_offsets=found, outside=outside)


def _located(
    partition: GroupPartition,
    view: MemberRegion,
    logs: Mapping[GroupPartition, Log],
    boundary: datetime,
    end: LogBounds,
    now: datetime,
) -> BoundaryOffset | None:
    answer = logs[partition].first_at_or_after(boundary)
    return boundaries.locate(
        boundary=boundary,
        end_before=end,
        answer=answer,
        restore_point=view.restore_point.get(partition, Offset(0)),
        now=now,
        grace=GRACE,
        high_before=Offset(len(logs[partition].stamps)),
    )
