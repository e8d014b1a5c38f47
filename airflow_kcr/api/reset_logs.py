"""What a target needs of the logs, read from Kafka: bounds, and where an instant falls. One request to each broker.

Positions are read from the store before this, so that a log's end is never below a position that was true with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from airflow_kcr.api.clusters import Clusters
from airflow_kcr.api.reset_requests import ResetRequest
from airflow_kcr.errors import InvalidTarget
from airflow_kcr.protocol.observations import LogBounds, LogView, TimeAnswer
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.region.state import universe
from airflow_kcr.protocol.target_resolution import times_needed
from airflow_kcr.protocol.targets import FromFile, Needs
from airflow_kcr.protocol.values import GroupId, GroupPartition
from airflow_kcr.spec import RegionSpec

_NAMED = 5


@dataclass(frozen=True, slots=True)
class ReadTimes:
    """Look-ups that were made, all for one instant; implements `TimeIndex`."""

    instant: datetime | None
    answers: Mapping[GroupPartition, TimeAnswer]

    def first_at_or_after(self, partition: GroupPartition, instant: datetime) -> TimeAnswer:
        """Return the answer for one partition."""
        if instant != self.instant:
            raise KeyError(partition, instant)
        return self.answers[partition]


def read_logs(region: StoredRegion, now: datetime, request: ResetRequest, clusters: Clusters) -> LogView:
    """Read what a request's target needs, and nothing where it needs nothing.

    Args:
        region: as it was read from the store.
        now: the store's clock then; durations count back from it.
        request: what is asked for.
        clusters: how Kafka is reached.

    Raises:
        InvalidTarget: nothing is in scope, the instant is in the future, or Kafka has no such log.
        BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
    """
    instant = times_needed(request.target, now)
    spec = RegionSpec.from_json(region.spec.text)
    bounds: dict[GroupPartition, LogBounds] = {}
    times: dict[GroupPartition, TimeAnswer] = {}
    for group, partitions in _wanted(region, request).items():
        with clusters(spec, group) as cluster:
            bounds |= cluster.logs.bounds(partitions)
            _require(partitions, bounds)
            if instant is not None:
                times |= cluster.logs.first_at_or_after(dict.fromkeys(partitions, instant))
                _require(partitions, times)
    return LogView(bounds=bounds, committed={}, times=ReadTimes(instant, times), read_at=now)


def _wanted(region: StoredRegion, request: ResetRequest) -> dict[GroupId, list[GroupPartition]]:
    partitions = set(request.skip)
    if Needs.LOG_BOUNDS in request.target.needs:
        partitions |= request.scope.select(universe(region))
        if isinstance(request.target, FromFile):
            partitions &= {*request.target.entries, *request.skip}
    found: dict[GroupId, list[GroupPartition]] = {}
    for partition in sorted(partitions):
        found.setdefault(partition.group, []).append(partition)
    return found


def _require(partitions: list[GroupPartition], answers: Mapping[GroupPartition, object]) -> None:
    gone = [str(p) for p in partitions if p not in answers]
    if gone:
        more = f" and {len(gone) - _NAMED} more" if len(gone) > _NAMED else ""
        raise InvalidTarget(
            f"Kafka has no log of {', '.join(gone[:_NAMED])}{more}: the topic was deleted or has fewer partitions now; "
            "leave it out of the scope"
        )
