"""Runs of a region, as far as they need no member: what is asked of Kafka before, and those with nothing to read.

A process that starts Spark takes seconds, so the logs are looked at first: by the times of their records, as members
find a boundary, or where they end now. Where nothing is to be read, the checkpoint is complete in one transaction; then
Kafka is told its offsets again, or the group's would be forgotten after a week of silence.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from airflow_kcr.api import partitions
from airflow_kcr.api.regions import Handle
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.region import boundaries, timelines
from airflow_kcr.protocol.region.commands import CompleteAtRest, PublishCheckpoint, Run, StartRun
from airflow_kcr.protocol.region.rows import (
    BoundaryOffset,
    CheckpointState,
    Committed,
    RegionState,
)
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import GroupPartition, Offset, RequestId
from airflow_kcr.spec import RegionSpec, stored_spec

_PERIOD: Final = timedelta(milliseconds=250)
"""How long to wait before logs with nothing new are read once more, while records of the interval may still come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsUntil:
    """The logs of a region's groups, and where a boundary falls in them, as far as that can be known by now."""

    logs: Mapping[GroupPartition, LogBounds] = field(default_factory=dict)
    found: Mapping[GroupPartition, BoundaryOffset] = field(default_factory=dict)


NOT_READ: Final = LogsUntil()


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRun:
    """What is asked of a run."""

    until: datetime | None = None
    """The boundary; None: as far as the logs go when they are looked at."""

    request_id: RequestId
    """Names the run, so that another try finds it."""

    allow_inexact: bool = False
    """As in `commands.Run`."""


def is_done_at_rest(handle: Handle, wanted: WantedRun) -> bool:
    """Return whether a run is done, which one is at once that has nothing to read; else members are needed.

    Raises:
        RegionInState, CheckpointRefused: as `runs.start` of the protocol.
        BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
        GroupNotEmpty: nothing was to be read, and a foreign consumer is in a group that is to be told so.
    """
    region, now = handle.store.read(handle.name)
    spec, boundary, seen = stored_spec(region.spec.text), _boundary(region, wanted, now), NOT_READ
    # A sink that shows its output with a checkpoint has to show an empty one, too, and a member does that.
    shows_checkpoints = any(sink.shows_checkpoints for group in spec.groups for sink in group.sinks)
    if not shows_checkpoints and _has_to_look(region, boundary):
        seen = _seen(handle, spec, region, boundary, is_now=wanted.until is None)
    complete = CompleteAtRest(run=_run(handle, wanted, boundary, seen), logs=seen.logs)
    if not handle.store.handle(handle.name, complete):
        return False
    _settle(handle, wanted.request_id)
    return True


def start(handle: Handle, wanted: WantedRun) -> None:
    """Start a region for a run, or find it started; its members are the caller's to start.

    Raises:
        RegionInState, CheckpointRefused: as `runs.start` of the protocol.
        BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
    """
    region, now = handle.store.read(handle.name)
    boundary, seen = _boundary(region, wanted, now), NOT_READ
    if wanted.until is None and _has_to_look(region, boundary):
        seen = _logs(handle, stored_spec(region.spec.text), region, boundary, None)
    handle.store.handle(handle.name, StartRun(run=_run(handle, wanted, boundary, seen)))


def _boundary(region: Region, wanted: WantedRun, now: datetime) -> datetime:
    known = region.request_of(wanted.request_id)
    return wanted.until or (known.boundary if known is not None and known.boundary is not None else now)


def _has_to_look(region: Region, boundary: datetime) -> bool:
    """Whether the logs say what is to be done; not where members work, or a checkpoint is there."""
    return region.state is RegionState.STOPPED and timelines.covering(region, boundary) is None


def _run(handle: Handle, wanted: WantedRun, boundary: datetime, seen: LogsUntil) -> Run:
    return Run(
        request_id=wanted.request_id,
        boundary=boundary,
        allow_inexact=wanted.allow_inexact,
        requester=handle.requester,
        found=seen.found,
    )


def _seen(handle: Handle, spec: RegionSpec, region: Region, boundary: datetime, *, is_now: bool) -> LogsUntil:
    """Read the logs; where they have nothing new, wait until nothing of before the boundary can come any more."""
    grace = region.rules.checkpoint.grace
    while True:
        _, now = handle.store.read(handle.name)
        if boundary > now + grace:
            return NOT_READ  # refused for it
        seen = _logs(handle, spec, region, boundary, None if is_now else now)
        if seen.found.keys() == seen.logs.keys() or now >= boundary + grace or not _has_nothing_new(region, seen.logs):
            return seen
        threading.Event().wait(min(_PERIOD, boundary + grace - now).total_seconds())


def _has_nothing_new(region: Region, logs: Mapping[GroupPartition, LogBounds]) -> bool:
    return all((claim := region.claims.get(p)) is not None and claim.resume == log.end for p, log in logs.items())


def _logs(handle: Handle, spec: RegionSpec, region: Region, boundary: datetime, now: datetime | None) -> LogsUntil:
    """Read every group's logs, and find the boundary in them; `now`: None where they count as they end now."""
    logs: dict[GroupPartition, LogBounds] = {}
    found: dict[GroupPartition, BoundaryOffset] = {}
    for group, rules in sorted(region.rules.groups.items()):
        with handle.clusters(spec, group) as cluster:
            wanted = rules.partitions(cluster.logs.topics(rules.topics))
            highs = cluster.logs.high_watermarks(wanted)
            bounds = cluster.logs.bounds(wanted)
            answers = {} if now is None else cluster.logs.first_at_or_after(dict.fromkeys(bounds, boundary))
        logs |= bounds
        for partition, log in bounds.items():
            restore_point = region.restore_point_offset(partition) or Offset(0)
            row = (
                BoundaryOffset(offset=log.end, leader_epoch=log.leader_epoch)
                if now is None
                else boundaries.locate(
                    boundary=boundary,
                    end_before=log,
                    answer=answers[partition],
                    restore_point=restore_point,
                    now=now,
                    grace=region.rules.checkpoint.grace,
                    high_before=highs.get(partition),
                )
            )
            if row is not None:
                found[partition] = row
    return LogsUntil(logs=logs, found=found)


def _settle(handle: Handle, request_id: RequestId) -> None:
    """Publish and commit the checkpoint of a run that took no member; of any other one its members do."""
    region = handle.read()
    request = region.request_of(request_id)
    row = None if request is None or request.sequence is None else region.checkpoint_of(request.sequence)
    if row is None or row.participants or region.state is not RegionState.STOPPED:
        return
    if row.state is CheckpointState.COMPLETE:
        handle.store.handle(handle.name, PublishCheckpoint(sequence=row.sequence))
    if row.committed is Committed.PENDING and partitions.is_restore_point(region, row.sequence):
        partitions.repair(handle.store, handle.name, row.sequence, handle.clusters)
