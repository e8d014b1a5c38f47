"""Where an automatic reset goes: decided by each group's delivery, and by nothing else (docs/explanation/what-if.md).

There is one knob. `at_least_once` goes to the restore point, whatever was done since; `almost_once` repeats only the
batch in flight; `at_most_once` repeats nothing; `exactly_once` goes where the sink says it is. A partition that the
target does not have resumes at its initial offset, each time.
"""

from __future__ import annotations

from typing import Final, assert_never

from airflow_kcr.protocol.delivery import Delivery
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.rows import Claim
from airflow_kcr.protocol.region.state import (
    NO_SEEK,
    Region,
    initial_offset,
    initial_offsets,
    restore_point_offset,
    restore_point_offsets,
    universe_in_order,
)
from airflow_kcr.protocol.seek_map import SeekEntry, SeekMap, SeekSource, filled, from_offsets
from airflow_kcr.protocol.values import GroupPartition, Offset

_UNCLAIMED: Final = Claim()


def restore_point_map(region: Region) -> SeekMap:
    """Return the restore point as a seek map, entries that are still open among them."""
    if region.restore_point is None:
        return NO_SEEK
    if region.restore_point_epoch is not None:
        return region.seek_maps[region.restore_point_epoch]
    return from_offsets(region.offsets[region.restore_point], SeekSource.MERGED)


def target(region: Region) -> SeekMap:
    """Return the seek map of an automatic reset or a start, total over the region's partitions."""
    partitions = universe_in_order(region)
    restore_point = filled(restore_point_map(region), initial=initial_offsets(region), partitions=partitions)
    return SeekMap({partition: _entry(region, partition, entry) for partition, entry in restore_point.items()})


def _entry(region: Region, partition: GroupPartition, restore_point: SeekEntry) -> SeekEntry:
    claim = region.claims.get(partition, _UNCLAIMED)
    resume, current = claim.resume, claim.position
    # An entry that is still open is asked again, from where the partition was when it was first asked.
    asked_from = restore_point.current if restore_point.offset is None else current
    to_restore_point = SeekEntry(
        offset=restore_point.offset,
        source=restore_point.source,
        current=asked_from,
        clamped_from=restore_point.clamped_from,
    )
    delivery = region.rules.groups[partition.group].delivery
    match delivery:
        case Delivery.AT_LEAST_ONCE:
            return to_restore_point
        case Delivery.ALMOST_ONCE:
            return to_restore_point if resume is None else _reached(claim.position, resume, current)
        case Delivery.AT_MOST_ONCE:
            return to_restore_point if resume is None else _reached(claim.started_to, resume, current)
        case Delivery.EXACTLY_ONCE:
            # While the restore point's own entry is open nothing was processed in its timeline, so no sink has progress
            # in it.
            is_open = restore_point.offset is None
            return (
                to_restore_point
                if is_open
                else SeekEntry(offset=None, source=SeekSource.SINK_PROGRESS, current=current)
            )
        case _:
            assert_never(delivery)


def _reached(offset: Offset | None, resume: Offset, current: Offset | None) -> SeekEntry:
    if offset is None or offset <= resume:
        return SeekEntry(offset=resume, source=SeekSource.RESUME_POINT, current=current)
    return SeekEntry(offset=offset, source=SeekSource.BATCH_END, current=current)


def last_done(region: Region) -> OffsetMap:
    """Return, per partition, the furthest place up to which everything is known to be done.

    That is its position; while a reset has not yet found out where that is, the restore point's offset, else the
    initial one. A sink may have gone further; rolled back to here it holds each record once.
    """
    restore_point, initial = restore_point_offsets(region), initial_offsets(region)
    known: dict[GroupPartition, Offset] = {}
    for partition in universe_in_order(region):
        claim = region.claims.get(partition)
        place = None if claim is None else claim.position
        place = restore_point.get(partition, initial.get(partition)) if place is None else place
        if place is not None:
            known[partition] = place
    return OffsetMap(known)


def without_progress(region: Region, partition: GroupPartition) -> Offset | None:
    """Return where a sink resumes that has no progress in this timeline.

    The restore point's offset, else the initial one.
    """
    place = restore_point_offset(region, partition)
    if place is not None:
        return place
    initial = initial_offset(region, partition)
    return None if initial is None else initial.offset
