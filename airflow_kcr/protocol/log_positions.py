"""Places in a log as seek entries: its start, its end, an offset that was asked for, the first record at a time.

Start positions and reset targets both end here, so that they agree on the two rules that matter:

- An offset outside of [start, end] is clamped to the nearer end, and the entry records what was asked for. It is
  never clamped silently: that is how records get lost without a trace.
- Where no record is at or after a time there is nothing to read yet, so the place is the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_kcr.protocol.seek_map import SeekEntry, SeekSource
from airflow_kcr.protocol.values import GroupPartition, Offset

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_kcr.protocol.observations import LogBounds, LogView


def at_start(bounds: LogBounds, source: SeekSource) -> SeekEntry:
    """Return the entry for the first offset that the log still has."""
    return SeekEntry(offset=bounds.start, source=source)


def at_end(bounds: LogBounds, source: SeekSource) -> SeekEntry:
    """Return the entry for the end of the log, its last stable offset."""
    return SeekEntry(offset=bounds.end, source=source)


def at_offset(asked: int, bounds: LogBounds, source: SeekSource) -> SeekEntry:
    """Return the entry for `asked`, clamped into [start, end] and marked if the log does not have it.

    Args:
        asked: an offset; negative where a shift leads there.
        bounds: the log as it was read.
        source: where the offset comes from.
    """
    offset = Offset(min(max(asked, bounds.start), bounds.end))
    return SeekEntry(offset=offset, source=source, clamped_from=None if offset == asked else asked)


def at_time(partition: GroupPartition, instant: datetime, log: LogView, source: SeekSource) -> SeekEntry:
    """Return the entry for the first record at or after `instant`, or for the end where there is none.

    The answer is clamped like any offset: log start and time index are two reads, and retention may act between them.

    Raises:
        KeyError: the log view has no bounds, or no such look-up, for this partition; its reader knew what was needed.
    """
    bounds = log.bounds[partition]
    answer = log.times.first_at_or_after(partition, instant)
    return at_end(bounds, source) if answer.offset is None else at_offset(answer.offset, bounds, source)
