"""What the page shows of a region, from one read of the store; neither Kafka nor Airflow is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Self, TypeAlias

from airflow_kcr.api.checkpoints import CheckpointSummary
from airflow_kcr.api.regions import regions
from airflow_kcr.api.reset_views import ResetView, of_page
from airflow_kcr.api.views import OF_PARTITION, AnswerColumns, RegionSummary, RegionView, View, last_complete
from airflow_kcr.errors import KcrError
from airflow_kcr.hooks.links import region_place
from airflow_kcr.plugins.rights import Rights
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import EMPTY
from airflow_kcr.protocol.region import timelines
from airflow_kcr.protocol.region.archive import RegionPage
from airflow_kcr.protocol.region.lag import LagSample
from airflow_kcr.protocol.region.liveness import Seen
from airflow_kcr.protocol.region.rows import Claim
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.values import CheckpointNumber, GroupPartition, MemberId
from airflow_kcr.store.regions import RegionStore

Lend: TypeAlias = Callable[[], AbstractContextManager[RegionStore]]
"""Opens a store, for one request."""

SHOWN: Final = 50
"""The number of checkpoints and resets listed, newest first."""

PARTITIONS: Final = 500
"""The number of partitions listed, those furthest behind first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRegions:
    """The regions of one store, or why they can't be shown."""

    kcr_conn_id: str
    regions: tuple[RegionSummary, ...] = ()
    problem: str = ""

    @classmethod
    def read_all(cls, stores: Mapping[str, Lend], may: Rights) -> Iterator[Self]:
        """Yield the stores of which something may be seen; one that is away does not hide the others.

        Args:
            stores: what opens them, by their connections.
            may: what the user may see.
        """
        for name in filter(may.has_any_of, stores):
            try:
                with stores[name]() as store:
                    seen = tuple(one for one in regions(store) if may.has(name, one.region))
                yield cls(kcr_conn_id=name, regions=seen)
            except KcrError as error:
                yield cls(kcr_conn_id=name, problem=error.message)

    def place(self, region: str) -> str:
        """Return the relative address of a region."""
        return region_place(region, self.kcr_conn_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow(View):
    """One partition, as the store knows it; what it has in common with `kcr lag` has its name there."""

    shown = AnswerColumns["PartitionRow"](
        *OF_PARTITION,
        *("position", "checkpointed", "log_end"),
        ("lag", lambda row: row.behind),
        ("member_id", lambda row: row.owner),
    )

    partition: GroupPartition
    owner: MemberId | None
    position: int | None
    checkpointed: int | None
    """Its offset in the newest complete checkpoint."""

    log_end: int | None
    """The end of its log, as the member saw it at that checkpoint."""

    @property
    def behind(self) -> int | None:
        """How many offsets it was behind that end, or is still; 0 if it has passed it."""
        return None if self.position is None or self.log_end is None else max(self.log_end - self.position, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Everything that the page of one region shows."""

    region: RegionView
    now: datetime
    """The store's clock."""

    partitions: tuple[PartitionRow, ...]
    partition_count: int
    behind: int | None
    """In all partitions of which it is known."""

    checkpoints: tuple[CheckpointSummary, ...]
    resets: tuple[ResetView, ...]

    @classmethod
    def of(cls, region: StoredRegion, now: datetime, seen: Seen, samples: Sequence[LagSample] = ()) -> Self:
        """Return what there is to show of a region as it was read; the arguments are those of `RegionView.of`."""
        newest = last_complete(region)
        past = region.archive.region_page(newest, SHOWN)
        rows = sorted(_partitions(region, newest, past), key=lambda row: (-(row.behind or 0), row.partition))
        known = [row.behind for row in rows if row.behind is not None]
        return cls(
            region=RegionView.of(region, now, seen, samples),
            now=now,
            partitions=tuple(rows[:PARTITIONS]),
            partition_count=len(rows),
            behind=sum(known) if known else None,
            checkpoints=CheckpointSummary.of_page(region, past.checkpoints)[::-1],
            resets=of_page(region.name, past.resets, SHOWN)[::-1],
        )


class PartitionOrder(StrEnum):
    """What partitions are listed by."""

    PARTITION = "partition"
    LAG = "lag"
    """The furthest behind first; those of which it is not known last."""

    MEMBER = "member"


_KEYS: Final[Mapping[PartitionOrder, Callable[[PartitionRow], Any]]] = {
    PartitionOrder.PARTITION: lambda row: row.partition,
    PartitionOrder.LAG: lambda row: (-1 if row.behind is None else row.behind, row.partition),
    PartitionOrder.MEMBER: lambda row: (str(row.owner or ""), row.partition),
}


def partition_page(
    region: StoredRegion, match: str, order: PartitionOrder, start: int, count: int, *, is_descending: bool
) -> tuple[list[PartitionRow], int]:
    """Return some partitions of a region, and how many there are that match.

    Args:
        region: as it was read.
        match: a part of what stands in the row: group, topic and number, or member; empty: all.
        order: what they are listed by.
        start: how many are left out before the first.
        count: how many at most.
        is_descending: whether the order is turned round.
    """
    newest = last_complete(region)
    rows = _partitions(region, newest, region.archive.region_page(newest, 1))
    found = [row for row in rows if match in f"{row.partition} {row.owner or ''}"]
    found.sort(key=_KEYS[order], reverse=is_descending)
    return found[start : start + count], len(found)


def _partitions(region: StoredRegion, newest: CheckpointNumber | None, past: RegionPage) -> list[PartitionRow]:
    offsets = EMPTY
    if newest is not None:  # of checkpoints undone since, there may be more than a page
        offsets = past.checkpoints.offsets.get(newest) or region.offsets_of(newest) or EMPTY
    ends: dict[GroupPartition, LogBounds] = {}
    for part in past.contributions.values():
        ends |= part.bounds
    return [
        PartitionRow(
            partition=partition,
            owner=claim.owner,
            position=claim.position,
            checkpointed=offsets.get(partition),
            log_end=_end(claim, ends.get(partition)),
        )
        for partition, claim in region.claims.items()
    ]


def _end(claim: Claim, log: LogBounds | None) -> int | None:
    """Return the end of a log, where it is of the topic that the position is of."""
    return None if log is None or timelines.is_recreated(claim.topic_id, log.topic_id) else log.end
