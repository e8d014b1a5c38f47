"""Runs of a region, as far as they need no member: what is asked of Kafka before, and those with nothing to read.

A process that starts Spark takes seconds, so the logs are looked at first: by the times of their records, as members
find a boundary, or where they end now. Where nothing is to be read, the checkpoint is complete in one transaction; then
Kafka is told its offsets again, or the group's would be forgotten after a week of silence.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from time import monotonic
from typing import Final, TypeAlias

from airflow_kcr.api import partitions
from airflow_kcr.api.clusters import Cluster
from airflow_kcr.api.regions import Handle
from airflow_kcr.api.validation import noted
from airflow_kcr.errors import ConfigurationError, GroupNotEmpty, SinkError
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.region import boundaries, timelines
from airflow_kcr.protocol.region.commands import CompleteAtRest, PublishCheckpoint, ReportClusters, Run
from airflow_kcr.protocol.region.rows import BoundaryOffset, Checkpoint, Committed, InitialOffset, RegionState
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import GroupRules
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    GroupId,
    GroupPartition,
    MemberId,
    Offset,
    RegionId,
    RequestId,
)
from airflow_kcr.spec import RegionSpec, stored_spec
from airflow_kcr.store.regions import RegionStore

_LOG: Final = logging.getLogger(__name__)

_PERIOD: Final = timedelta(milliseconds=250)
"""How long to wait before logs with nothing new are read once more, while records of the interval may still come.

Or before leases are, of which it isn't known whether their holders live.
"""

_GONE_PERIOD: Final = timedelta(seconds=1)
"""How long to wait before a group is asked again whether members that were killed are gone; each opens its cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsUntil:
    """The logs of a region's groups, and where a boundary falls in them, as far as that can be known by now."""

    logs: Mapping[GroupPartition, LogBounds] = field(default_factory=dict)
    """None, where members have to look at a group."""

    found: Mapping[GroupPartition, BoundaryOffset] = field(default_factory=dict)
    begins: Mapping[GroupPartition, InitialOffset] = field(default_factory=dict)
    """Of a region that has never run."""


NOT_READ: Final = LogsUntil()

Show: TypeAlias = Callable[[RegionStore, RegionSpec, RegionId, CheckpointNumber], tuple[TableVersion, ...]]
"""Shows a checkpoint that holds nothing in the sinks of a region, without members, as `ports.Sinks.publish` does."""


class RegionRun:
    """One run of a region, from the first look at the logs to its end; used by one thread.

    What was seen of the logs is kept, so that they are read once where members are needed.

    Args:
        handle: the region, and who asks.
        until: the boundary; None: as far as the logs go when they are looked at.
        request_id: names the run, so that another try finds it.
        allow_inexact: checkpoint even where a partition is past the boundary.
        show: None: only members show checkpoints.
    """

    def __init__(
        self,
        handle: Handle,
        until: datetime | None,
        request_id: RequestId,
        *,
        allow_inexact: bool = False,
        show: Show | None = None,
    ) -> None:
        self.request_id, self._show = request_id, show
        self._handle, self._until, self._allow_inexact = handle, until, allow_inexact
        self._boundary: datetime | None = until
        self._seen: LogsUntil | None = None
        self._begins: dict[GroupPartition, InitialOffset] = {}
        self._free: dict[GroupId, bool] = {}

    def is_done_at_rest(self) -> bool:
        """Return whether the run is done, which one is at once that has nothing to read; else members are needed.

        Raises:
            RegionInState, CheckpointRefused: as `runs.start` of the protocol.
            BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
            OtherCluster: one is another than the region knows.
            GroupNotEmpty: a foreign consumer is in a group that is to be told so.
        """
        region, boundary = self._read()
        spec = stored_spec(region.spec.text)
        # A sink that shows output with its checkpoint shows an empty one, too. Members take its place first.
        showing = [sink for group in spec.groups for sink in group.sinks if sink.shows_checkpoints]
        is_shown_here = self._show is not None and not any(sink.needs_spark_to_show for sink in showing)
        if not showing or (is_shown_here and region.restore_point is not None):
            self._look(spec, region, boundary)
        seen = self._seen or NOT_READ
        complete = CompleteAtRest(run=self._run(boundary), logs=seen.logs, begins=seen.begins)
        if not self._handle.store.handle(self._handle.name, complete):
            return False
        return self._settled(spec, is_shown=not showing)

    def start(self) -> None:
        """Start the region for the run, or find it started; its members are the caller's to start.

        Raises:
            RegionInState, CheckpointRefused: as `runs.start` of the protocol.
            BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
        """
        region, boundary = self._read()
        if self._until is None:
            self._look(stored_spec(region.spec.text), region, boundary)
        self._handle.store.handle(self._handle.name, self._run(boundary))

    def _read(self) -> tuple[Region, datetime]:
        """Return the region, and the boundary: of a run up to now, the first that was asked for, or this moment."""
        region, now = self._left()
        if self._boundary is None:
            known = region.request_of(self.request_id)
            self._boundary = now if known is None or known.boundary is None else known.boundary
        return region, self._boundary

    def _left(self) -> tuple[Region, datetime]:
        """Return the region and the store's clock, once the members of another run that are dead count as that.

        Those of a live process renew their leases, which takes no longer to find out; the protocol refuses this run.
        """
        first: Mapping[MemberId, datetime] | None = None
        while True:
            region, now = self._handle.store.read(self._handle.name)
            leases = {member: region.leases[member].until for member in region.live_members(now)}
            first = leases if first is None else first
            is_others = region.is_in_run and region.request_of(self.request_id) is None
            if not is_others or not leases or any(first.get(one) != until for one, until in leases.items()):
                return region, now
            threading.Event().wait(_PERIOD.total_seconds())

    def _run(self, boundary: datetime) -> Run:
        seen = self._seen or NOT_READ
        return Run(
            request_id=self.request_id,
            boundary=boundary,
            is_up_to_now=self._until is None,
            allow_inexact=self._allow_inexact,
            requester=self._handle.requester,
            found=seen.found,
        )

    def _look(self, spec: RegionSpec, region: Region, boundary: datetime) -> None:
        """Look at the logs once; where they have nothing new, wait until nothing of before the boundary can come.

        Not where members work, or a checkpoint is there, nor for a boundary that is yet to come.
        """
        grace = region.rules.checkpoint.grace
        if region.state is not RegionState.STOPPED or timelines.covering(region, boundary) is not None:
            return
        while self._seen is None:
            _, now = self._handle.store.read(self._handle.name)
            if boundary > now + grace:
                return
            seen = self._logs(spec, region, boundary, now)
            is_found = seen.found.keys() == seen.logs.keys()
            if is_found or now >= boundary + grace or not _has_nothing_new(region, seen):
                self._seen = seen
            else:
                threading.Event().wait(min(_PERIOD, boundary + grace - now).total_seconds())

    def _logs(self, spec: RegionSpec, region: Region, boundary: datetime, now: datetime) -> LogsUntil:
        """Read every group's logs, and find the boundary in them; up to now it is where they end."""
        logs: dict[GroupPartition, LogBounds] = {}
        found: dict[GroupPartition, BoundaryOffset] = {}
        for group, rules in sorted(region.rules.groups.items()):
            with self._handle.clusters(spec, group) as cluster:
                if group not in self._free:
                    self._free[group] = _is_free(region, cluster, rules)
                    if region.restore_point is None:
                        told = ReportClusters(found={group: cluster.logs.cluster_id()})
                        self._handle.store.handle(self._handle.name, told)
                        # Once: `latest` is where the log ended when the run came.
                        self._begins |= partitions.begins(cluster, rules, now)
                wanted = rules.partitions(cluster.logs.topics(rules.topics))
                if self._until is None:
                    bounds = cluster.logs.bounds(wanted)
                    found |= {p: BoundaryOffset(offset=b.end, leader_epoch=b.leader_epoch) for p, b in bounds.items()}
                else:
                    highs, bounds = cluster.logs.high_watermarks(wanted), cluster.logs.bounds(wanted)
                    answers = cluster.logs.first_at_or_after(dict.fromkeys(bounds, boundary))
                    for partition, answer in answers.items():
                        row = boundaries.locate(
                            boundary=boundary,
                            end_before=bounds[partition],
                            answer=answer,
                            restore_point=region.restore_point_offset(partition) or Offset(0),
                            now=now,
                            grace=region.rules.checkpoint.grace,
                            high_before=highs.get(partition),
                        )
                        found |= {} if row is None else {partition: row}
            logs |= bounds
        return LogsUntil(logs=logs if all(self._free.values()) else {}, found=found, begins=self._begins)

    def _settled(self, spec: RegionSpec, *, is_shown: bool) -> bool:
        """Return whether the run's checkpoint is published and Kafka's, after doing what no member does any more.

        Args:
            spec: the region's.
            is_shown: no sink has to show it.
        """
        store, name = self._handle.store, self._handle.name
        region = self._handle.read()
        request = region.request_of(self.request_id)
        row = None if request is None or request.sequence is None else region.checkpoint_of(request.sequence)
        if row is None or region.state is not RegionState.STOPPED:
            return False  # its members are about to go
        if row.published_at is None:
            tables = () if is_shown else self._shown(spec, region, row)
            if tables is None:
                return False
            store.handle(name, PublishCheckpoint(sequence=row.sequence, tables=tables))
        if row.committed is not Committed.YES and partitions.is_restore_point(region, row.sequence):
            self._tell_kafka(region, row)
        return True

    def _tell_kafka(self, region: Region, row: Checkpoint) -> None:
        """Have Kafka hold a checkpoint's offsets; members that were killed are in their groups for a session more."""
        until = monotonic() + (region.rules.timeouts.reset.total_seconds() if row.participants else 0)
        told = ""
        while True:
            try:
                partitions.repair(self._handle.store, region.name, row.sequence, self._handle.clusters)
            except GroupNotEmpty as error:
                if monotonic() > until:
                    raise
                if told != (told := str(error)):
                    _LOG.info(
                        "region %s: members of checkpoint %s are not gone yet: %s", region.name, row.sequence, told
                    )
                threading.Event().wait(_GONE_PERIOD.total_seconds())
            else:
                return

    def _shown(self, spec: RegionSpec, region: Region, row: Checkpoint) -> tuple[TableVersion, ...] | None:
        """Return what tables have of a checkpoint, having shown it; None: members are to do so.

        They put the files together of one that they have made.
        """
        if self._show is None or row.participants:
            return None
        try:
            return self._show(self._handle.store, spec, region.region_id, row.sequence)
        except (ConfigurationError, SinkError) as error:
            _LOG.warning("region %s: members are to show checkpoint %s: %s", region.name, row.sequence, error)
            return None


def _is_free(region: Region, cluster: Cluster, group: GroupRules) -> bool:
    """Whether nothing is in the way of a checkpoint without members, who find out as they start what is.

    Of a group that goes on that is a store which was restored; of one that begins also its topics and readers.
    """
    notes = noted(region, cluster.committed(group.group_id, None))
    if any(number >= region.next_sequence for number in notes.values()):
        return False
    if region.restore_point is not None:
        return True
    topics = cluster.logs.topics(group.topics)
    try:
        cluster.require_empty(group.group_id)
    except GroupNotEmpty:
        return False
    return all(topic in topics for topic in group.topics)


def _has_nothing_new(region: Region, seen: LogsUntil) -> bool:
    places = {p: row.offset for p, row in seen.begins.items()}
    places |= {p: claim.resume for p, claim in region.claims.items() if claim.resume is not None}
    return bool(seen.logs) and all(places.get(p) == log.end for p, log in seen.logs.items())
