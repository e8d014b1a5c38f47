"""A topic that was deleted and created again: the same name, another log, and offsets that mean other records.

What the region stores of a partition (position, initial offset, checkpoints, boundaries) belongs to the topic id that
its claim names. It moves to another id only if an out-of-range policy or a person's reset has looked a place up in that
other log. Nothing else is carried over, so offsets of two topics are never compared or subtracted.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import Claim, InitialOffset
from airflow_kcr.protocol.region.state import InitialKey, Region, put, record, without
from airflow_kcr.protocol.seek_map import SeekEntry, SeekMap, SeekSource
from airflow_kcr.protocol.values import CheckpointNumber, GroupPartition, TopicId, replace


def is_another(known: TopicId, seen: TopicId) -> bool:
    """Whether two ids are those of two topics; an id that a broker did not tell says nothing."""
    return bool(known and seen) and known != seen


def found(region: Region, logs: Mapping[GroupPartition, LogBounds]) -> frozenset[GroupPartition]:
    """Return the partitions whose log, as it was just read, is of another topic than the one that was claimed."""
    return frozenset(
        p for p, log in logs.items() if p in region.claims and is_another(region.claims[p].topic_id, log.topic_id)
    )


def followed(region: Region, now: datetime, logs: Mapping[GroupPartition, LogBounds]) -> Region:
    """Return the region knowing the topics of these logs, in each of which a place was looked up.

    A recreated topic is like a partition that was found later: it begins at the start of its log. Records of
    the old one that were to be skipped are no records of the new one.
    """
    anew = found(region, logs)
    if not anew:
        return region
    rows: dict[GroupPartition, Claim] = {
        p: replace(region.claims[p], topic_id=logs[p].topic_id, leader_epoch=logs[p].leader_epoch) for p in anew
    }
    initial: dict[InitialKey, InitialOffset] = {
        (p, logs[p].topic_id): InitialOffset(
            offset=logs[p].start, source=str(SeekSource.START_POSITION), bounds=logs[p]
        )
        for p in sorted(anew)
        if (p, logs[p].topic_id) not in region.initial
    }
    region = replace(
        region,
        claims=put(region.claims, rows),
        initial=put(region.initial, initial),
        skips=without(region.skips, anew & region.skips.keys()),
    )
    if not initial:
        return region
    body = events.InitialOffsetsStored(
        offsets=OffsetMap({p: row.offset for (p, _), row in initial.items()}),
        bounds={p: row.bounds for (p, _), row in initial.items()},
        sources={p: row.source for (p, _), row in initial.items()},
    )
    return record(region, now, body)


def told(region: Region, seek: Mapping[GroupPartition, SeekEntry], logs: Mapping[GroupPartition, LogBounds]) -> SeekMap:
    """Return a seek map that says which of its places are in the log of another topic; see `followed`."""
    anew = {p: logs[p].topic_id for p in found(region, logs) & seek.keys()}
    return SeekMap({**seek, **{p: replace(seek[p], recreated=topic_id) for p, topic_id in anew.items()}})


def topics_of(region: Region, sequence: CheckpointNumber) -> Mapping[GroupPartition, TopicId]:
    """Return the topic ids that a checkpoint's offsets are of, as its contributors saw them."""
    held = [part for (of, _), part in region.contributions.items() if of == sequence]
    if held or sequence == region.open_checkpoint:
        return {p: log.topic_id for part in held for p, log in part.bounds.items()}
    return region.archive.topics(sequence)


def lost_to(region: Region, sequence: CheckpointNumber) -> tuple[GroupPartition, ...]:
    """Return the partitions of a checkpoint whose topic the region has since followed to another one."""
    return tuple(
        p
        for p, topic_id in sorted(topics_of(region, sequence).items())
        if p in region.claims and is_another(topic_id, region.claims[p].topic_id)
    )
