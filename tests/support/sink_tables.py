"""A target table and who writes into it: batches as a member runs them, with the executors' part by plain SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any

import psycopg

from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.member.messages import ResetSinks
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap, SeekEntry, SeekSource
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    Epoch,
    GroupId,
    GroupPartition,
    MemberId,
    Offset,
    Range,
    RegionId,
    RegionName,
    Timeline,
    TopicName,
)
from airflow_kcr.sinks.contract import SinkOwner
from airflow_kcr.sinks.postgres.sink import PostgresSink
from airflow_kcr.sinks.postgres.staging import Staging
from airflow_kcr.sinks.postgres.target import Target, names
from tests.support.databases import execute, libpq

GROUP = GroupId("g")
COLUMNS = {"value": "text", "size": "bigint"}
QUICK = Timeouts(lease=timedelta(seconds=3), renew=timedelta(seconds=1), batch=timedelta(seconds=10))
"""Times with which a frozen transaction is ended within two seconds."""

Row = tuple[Any, ...]
"""Values of `COLUMNS`, then topic, partition, offset and the row's number."""


@dataclass(slots=True, kw_only=True)
class Table:
    """One sink as a member has it, in one epoch and timeline, and what its database holds."""

    url: str
    delivery: Delivery = Delivery.EXACTLY_ONCE
    epoch: int = 1
    timeline: int = 1
    sequence: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    sink: PostgresSink = field(init=False)
    _ids: Any = field(init=False, default_factory=count)

    def __post_init__(self) -> None:
        fields: dict[str, Any] = {
            "table": "out",
            "beside": frozenset({(GROUP, "x"), (GroupId("h"), "x"), (GROUP, "y")}),
            **self.options,
        }
        whose = {"region": RegionName("r"), "region_id": RegionId("the only one"), "group": GROUP, "sink": "x"}
        owner = SinkOwner(**{name: fields.pop(name, known) for name, known in whose.items()})
        self.sink = PostgresSink(Target(owner=owner, delivery=self.delivery, **fields), self.url, QUICK)

    def partition(self, number: int) -> GroupPartition:
        """A partition of the topic that every test reads."""
        return GroupPartition(self.sink.target.owner.group, TopicName("t"), number)

    # -- what a member does --------------------------------------------------------------------------------------

    def reset(
        self,
        resume: Mapping[int, int] | None = None,
        *,
        open: Mapping[int, int | None] | None = None,  # noqa: A002 - as the order has it
        skips: Mapping[int, Sequence[int]] | None = None,
    ) -> dict[int, int | None]:
        """Carry out a reset, and return what it answers."""
        order = ResetSinks(
            epoch=Epoch(self.epoch),
            timeline=Timeline(self.timeline),
            resume=OffsetMap({self.partition(p): Offset(o) for p, o in (resume or {}).items()}),
            open={
                self.partition(p): SeekEntry(
                    offset=None, source=SeekSource.SINK_PROGRESS, current=None if o is None else Offset(o)
                )
                for p, o in (open or {}).items()
            },
            target=None,
            skips={self.partition(p): tuple(map(Offset, offsets)) for p, offsets in (skips or {}).items()},
        )
        return {p.partition: offset for p, offset in self.sink.reset(order).items()}

    def call(self, ranges: Mapping[int, tuple[int, int]], *, batch: str = "", past: int = 0) -> BatchCall:
        """A batch over these ranges."""
        whole = {self.partition(p): Range(Offset(begin), Offset(end)) for p, (begin, end) in ranges.items()}
        return BatchCall(
            region=self.sink.target.owner.region,
            member=MemberId(self.sink.target.owner.group, 0),
            batch=BatchId(batch or f"e{self.epoch}-{id(self)}-{next(self._ids)}"),
            epoch=Epoch(self.epoch),
            timeline=Timeline(self.timeline),
            sequence=CheckpointNumber(self.sequence),
            ranges=whole,
            progress=OffsetMap({p: Offset(r.to + past) for p, r in whole.items()}) if whole else EMPTY,
        )

    def rows_of(self, call: BatchCall) -> list[Row]:
        """One row for each record of a batch."""
        places = [(p, offset) for p, r in sorted(call.ranges.items()) for offset in range(r.from_, r.to)]
        return [(f"{p.partition}:{o}", o, p.topic, p.partition, o, n) for n, (p, o) in enumerate(places)]

    def staged(self, call: BatchCall, rows: Iterable[Row] | None = None) -> Staging:
        """Stage a batch as executors do."""
        staging = self.sink.stage(call, COLUMNS)
        self.fill(staging, self.rows_of(call) if rows is None else rows)
        return staging

    def fill(self, staging: Staging, rows: Iterable[Row]) -> None:
        """Write rows into a staging table."""
        with psycopg.connect(libpq(self.url)) as connection, connection.cursor() as cursor:
            columns = (*staging.columns, "kcr_topic", "kcr_partition", "kcr_offset", "kcr_row")
            # psycopg looks for placeholders within names too.
            into, named = (text.replace("%", "%%") for text in (staging.shown, names(columns)))
            values = ", ".join(["%s"] * len(columns))
            statement = f"INSERT INTO {into} ({named}) VALUES ({values})".encode()
            cursor.executemany(statement, list(rows))

    def run(self, ranges: Mapping[int, tuple[int, int]], **options: Any) -> int:  # noqa: ANN401 (as `call`)
        """Stage and insert a batch."""
        call = self.call(ranges, **options)
        return self.sink.insert(call, self.staged(call))

    # -- what the database holds ---------------------------------------------------------------------------------

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of a statement, over another connection."""
        return execute(self.url, statement)

    def held(self) -> list[tuple[int, int]]:
        """Partition and offset of every row in the target, in order; one that is there twice is there twice."""
        return self.ask(f"SELECT kcr_partition, kcr_offset FROM {self.sink.target.table} ORDER BY 1, 2")

    def progress(self) -> dict[int, tuple[int, int]]:
        """Timeline and offset of each partition."""
        return {p: (n, o) for p, n, o in self.ask('SELECT partition, timeline, "offset" FROM kcr_progress')}

    def fence(self) -> int:
        """Where the fence stands."""
        return int(self.ask("SELECT max(epoch) FROM kcr_fence")[0][0])

    def left(self) -> list[str]:
        """The staging tables that there are."""
        return [n for (n,) in self.ask("SELECT relname FROM pg_class WHERE relname LIKE 'kcr_staging%'")]


def records(**ranges: tuple[int, int]) -> list[tuple[int, int]]:
    """Partition and offset of every record: `records(p0=(0, 10))`."""
    return [(int(name[1:]), offset) for name, (begin, end) in sorted(ranges.items()) for offset in range(begin, end)]
