"""Partitions of a region that has never run: a person says where they begin, before a member has met them.

Else the first owner of each partition resolves the group's start position. A reset of the stopped region does it for
all of them at once, from what its caller has read of the logs: each place in its seek map is that partition's initial
offset, stored in the transaction that accepts the reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry
from airflow_kcr.protocol.region import resets, rows
from airflow_kcr.protocol.region.state import InitialKey, Region, put
from airflow_kcr.protocol.values import GroupPartition, replace


def is_open(region: Region) -> bool:
    """Whether a reset says where partitions begin that no member has met: the region is stopped and has never run."""
    return region.state is rows.RegionState.STOPPED and not region.initialised


def met(
    region: Region, now: datetime, logs: Mapping[GroupPartition, LogBounds], places: Mapping[GroupPartition, SeekEntry]
) -> Region:
    """Return a region that has never run, with the partitions of these logs and where each begins.

    Those that it knows already keep their initial offset.

    Args:
        region: any; another one is returned as it is.
        now: the store's clock.
        logs: every log of its topics, as just read.
        places: where they begin, inside their logs; what they lack stays unknown.
    """
    if not is_open(region):
        return region
    known = region.universe()
    begins = {p: o for p, entry in sorted(places.items()) if (o := entry.offset) is not None and p in logs}
    fresh = {p: logs[p] for p in begins if p not in known and region.rules.subscribes(p.group, p.topic)}
    if not fresh:
        return region
    claims = {
        p: replace(region.claim_of(p), topic_id=log.topic_id, leader_epoch=log.leader_epoch) for p, log in fresh.items()
    }
    initial: dict[InitialKey, rows.InitialOffset] = {
        (p, log.topic_id): rows.InitialOffset(offset=begins[p], source=str(places[p].source), bounds=log)
        for p, log in fresh.items()
    }
    return replace(region, claims=put(region.claims, claims)).with_initial(now, initial)


def reached(region: Region) -> OffsetMap:
    """Return up to where everything is done in each partition; in a region that has never run only where it has been.

    Where a partition begins is not a place that it has reached.
    """
    done = resets.last_done(region)
    return done.restrict(p for p in done if region.claim_of(p).resume is not None) if is_open(region) else done
