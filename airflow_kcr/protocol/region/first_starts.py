"""Partitions of a region that has never run: where they begin is said before a member has met them.

Else the first owner of each partition resolves the group's start position. A person's reset of the stopped region does
it for all of them at once, from what its caller has read of the logs: each place in its seek map is that partition's
initial offset, stored in the transaction that accepts the reset. So does a first run that has nothing to read, with the
group's start positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry
from airflow_kcr.protocol.region import resets, rows
from airflow_kcr.protocol.region.state import Region, put
from airflow_kcr.protocol.values import GroupPartition, replace


def is_open(region: Region) -> bool:
    """Whether a reset says where partitions begin that no member has met: the region is stopped and has never run."""
    return region.state is rows.RegionState.STOPPED and not region.initialised


def initial(
    places: Mapping[GroupPartition, SeekEntry], logs: Mapping[GroupPartition, LogBounds]
) -> dict[GroupPartition, rows.InitialOffset]:
    """Return where partitions begin, of those that have a place and a log.

    Args:
        places: inside their logs.
        logs: as read.
    """
    return {
        p: rows.InitialOffset(offset=entry.offset, source=str(entry.source), bounds=logs[p])
        for p, entry in sorted(places.items())
        if p in logs and entry.offset is not None
    }


def met(region: Region, now: datetime, begins: Mapping[GroupPartition, rows.InitialOffset]) -> Region:
    """Return a region that has never run, with these partitions of its topics and where each begins.

    Those that it knows already keep their initial offset.

    Args:
        region: any; another one is returned as it is.
        now: the store's clock.
        begins: where they begin, in their logs as just read; what it lacks stays unknown.
    """
    if not is_open(region):
        return region
    known = region.universe()
    fresh = {p: row for p, row in begins.items() if p not in known and region.rules.subscribes(p.group, p.topic)}
    if not fresh:
        return region
    claims = {
        p: replace(region.claim_of(p), topic_id=row.bounds.topic_id, leader_epoch=row.bounds.leader_epoch)
        for p, row in fresh.items()
    }
    stored = {(p, row.bounds.topic_id): row for p, row in fresh.items()}
    return replace(region, claims=put(region.claims, claims)).with_initial(now, stored)


def reached(region: Region) -> OffsetMap:
    """Return up to where everything is done in each partition; in a region that has never run only where it has been.

    Where a partition begins is not a place that it has reached.
    """
    done = resets.last_done(region)
    return done.restrict(p for p in done if region.claim_of(p).resume is not None) if is_open(region) else done
