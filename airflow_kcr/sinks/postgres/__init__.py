"""A table in Postgres whose rows and whose progress are one transaction, under a fence.

The database may be another one than the store's. Beside the target table, in its schema, are four kinds of tables:

- `kcr_fence`: one row for each sink of a group, with the epoch below which writes are refused;
- `kcr_progress`: one row for each partition, with the timeline and the offset up to which its records are in the
  target;
- `kcr_crash_mark`: one row, unlogged like the next: a crash of the server takes it, and so tells who staged before;
- `kcr_staging_…`: one for each batch, unlogged, which executors fill in parallel; dropped when the batch is published.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import psycopg
from psycopg import sql

from airflow_kcr.errors import SinkAhead, SinkError
from airflow_kcr.ports import BatchCall, SinkPlace
from airflow_kcr.protocol.member.messages import ResetSinks
from airflow_kcr.protocol.offsets import SeekSource
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import Epoch, GroupPartition, Offset, Timeline
from airflow_kcr.sinks.postgres import bookkeeping, transactions
from airflow_kcr.sinks.postgres.bookkeeping import (
    SOURCE,
    Target,
    TargetPlace,
    TargetProgress,
    begin_progress,
    columns_of,
    highest_timeline,
    lock_fence,
    lock_progress,
    raise_fence,
    require_gone,
    set_progress,
)
from airflow_kcr.sinks.postgres.transactions import Column, Database, OutcomeLost, Published, SinkBusy, Staging

__all__ = ["Column", "PostgresSink", "Published", "Staging", "Target"]


ATTEMPTS: Final = 3
"""How often a publication is tried that the database gave up: a lock that a frozen transaction held, a deadlock."""

_SHORT: Final = timedelta(0)
"""For statements that take no time: their timeout is the shortest that the region has."""

_LOG = logging.getLogger(__name__)


class PostgresSink:
    """Writes the output of one group's pipeline into one table; nothing is opened before `check`.

    Args:
        target: which table, how, and in whose name.
        url: of the database, with its password.
        timeouts: of the region.
        taken: where the region's sinks have written to before.

    Raises:
        ConfigurationError: the URL can't be read.
    """

    def __init__(
        self, target: Target, url: str, timeouts: Timeouts, taken: Collection[SinkPlace] = frozenset()
    ) -> None:
        self.target = target
        self._taken = taken
        self.database = Database(url, timeouts=timeouts, who=str(target))
        self._timeouts = timeouts
        self._place: TargetPlace | None = None

    def check(self) -> None:
        """Check that the target can be written, and make the sink's own tables; may be repeated.

        Raises:
            ConfigurationError: a schema, right, column or index is missing; the message has the SQL that helps.
            SinkError: the database can't be reached, or refuses.
        """
        try:
            with self.database.transaction(_SHORT) as connection:
                self._place = bookkeeping.checked(connection, self.target, is_known=self.where in self._taken)
        except OutcomeLost:
            raise self._lost("check the target") from None

    @property
    def where(self) -> SinkPlace:
        """Where it writes to, as the store notes it."""
        return SinkPlace(self.target.group, self.target.sink, f"{self.target.table} at {self.database.address}")

    @contextmanager
    def deciding(self) -> Iterator[psycopg.Connection]:
        """Lend a transaction in which a person's decision about the target is carried out.

        Raises:
            SinkError: the database can't be reached, or refuses.
        """
        try:
            with self.database.transaction(self._timeouts.reset) as connection:
                yield connection
        except OutcomeLost:
            raise self._lost("what was decided") from None

    @property
    def place(self) -> TargetPlace:
        """Where the target is.

        Raises:
            SinkError: it was not checked yet, and that can't be done now.
        """
        if self._place is None:
            self.check()
        if self._place is None:
            raise self._lost("find the target")
        return self._place

    def reset(self, order: ResetSinks) -> Mapping[GroupPartition, Offset | None]:
        """Raise the fence, then roll back or skip; see `ports.Sinks`.

        Raises:
            SinkError: it could not; it may be tried again.
            SinkAhead: the target has seen a later epoch or timeline.
        """
        place = self.place
        try:
            with self.database.transaction(_SHORT) as connection:
                fence(connection, self.target, place, order.epoch, order.timeline)
            # A large table takes as long to roll back as a reset may take.
            with self.database.transaction(self._timeouts.reset) as connection:
                answer = reset(connection, self.target, place, order)
        except OutcomeLost:
            raise self._lost(f"reset to epoch {order.epoch}") from None
        self._tidy(place, order)
        return answer

    def stage(self, call: BatchCall, columns: Sequence[Column]) -> Staging:
        """Make the table that executors write a batch's rows into, and the target if there is none yet.

        Args:
            call: the batch.
            columns: what the pipeline writes, without the coordinates.

        Raises:
            SinkError: the columns don't fit the target, or the database refuses.
        """
        try:
            with self.database.transaction(_SHORT) as connection:
                return transactions.make(connection, self.target, self.place, call.batch, call.epoch, columns)
        except OutcomeLost:
            raise self._lost(f"stage batch {call.batch}") from None

    def publish(self, call: BatchCall, staged: Staging) -> Published:
        """Publish what executors have staged, and drop the staging table in the same transaction.

        Raises:
            SinkAhead: this process is out of date.
            SinkError: the delivery forbids it, the database refuses, or it is unknown whether it is published.
        """
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._publish(call, staged)
            except SinkBusy as error:
                if attempt == ATTEMPTS:
                    raise
                _LOG.warning("%s: batch %s is published again: %s", self.target, call.batch, error)
        raise self._lost(f"publish batch {call.batch}")  # never reached: the last attempt raises

    def _publish(self, call: BatchCall, staged: Staging) -> Published:
        try:
            with self.database.transaction(self._timeouts.batch) as connection:
                published = transactions.publish(connection, self.target, self.place, call, staged)
                transactions.drop(connection, staged)
                return published
        except OutcomeLost:
            _LOG.warning("%s: the answer to the publication of batch %s was lost", self.target, call.batch)
        try:
            with self.database.transaction(_SHORT) as connection:
                known = transactions.is_published(connection, self.target, self.place, call)
        except OutcomeLost:
            raise self._lost(f"publish batch {call.batch}") from None
        if not known:
            raise SinkBusy(f"{self.target}: batch {call.batch} is not published: the connection was lost before")
        return Published(staged=0, written=0)

    def _discard(self, staged: Staging) -> None:
        """Drop a staging table; where that fails, the next reset does it."""
        try:
            with self.database.transaction(_SHORT) as connection:
                transactions.drop(connection, staged)
        except (SinkError, OutcomeLost) as error:
            _LOG.info("%s: staging table %s is left for the next reset: %s", self.target, staged.table, error)

    def _tidy(self, place: TargetPlace, order: ResetSinks) -> None:
        try:
            with self.database.transaction(_SHORT) as connection:
                left = transactions.leftovers(connection, place, order.epoch)
        except (SinkError, OutcomeLost) as error:
            _LOG.info("%s: what older epochs have staged is left for the next reset: %s", self.target, error)
            return
        for table in left:
            self._discard(table)

    def _lost(self, what: str) -> SinkError:
        return SinkError(f"{self.target}: can't tell whether the database {self.database.address} did {what}")


# What a reset does to a target: its fence is raised first, only then progress is read and newer rows go.
#
# Two transactions: when the first one is over, no older epoch publishes any more; what it published until then is seen
# by the second one.

_HINT = (
    "the store was restored to an earlier state; resume the region with the later numbers (`kcr region resume`), or "
    "write to another table"
)


def fence(connection: psycopg.Connection, target: Target, place: TargetPlace, epoch: Epoch, timeline: Timeline) -> None:
    """Raise the fence to an epoch.

    Raises:
        SinkAhead: it stands higher, or progress is of a later timeline.
    """
    stands = raise_fence(connection, place, epoch)
    newest = highest_timeline(connection, place)
    if stands > epoch or newest > timeline:
        raise SinkAhead(
            f"{target}: the fence stands at {stands} and progress is of timeline {newest}, the region is at epoch "
            f"{epoch} and timeline {timeline}: {_HINT}",
            fence=stands,
            timeline=max(newest, timeline),
        )


def reset(
    connection: psycopg.Connection, target: Target, place: TargetPlace, order: ResetSinks
) -> dict[GroupPartition, Offset | None]:
    """Roll back what a new timeline begins before, step over what a person skipped, and answer the open entries.

    Raises:
        SinkAhead: the fence was raised further meanwhile.
    """
    stands = lock_fence(connection, place)
    if stands != order.epoch:
        raise SinkAhead(f"{target}: the fence stands at {stands} already", fence=stands, timeline=order.timeline)
    asked = {p: t for p, t in order.open.items() if t.source is SeekSource.SINK_PROGRESS}
    found = lock_progress(connection, place, target.group, {*order.resume, *asked})
    here = {p: row for p, row in found.items() if row.timeline == order.timeline}
    places = {p: t.fallback for p, t in asked.items() if t.fallback is not None}
    begins = {p: offset for p, offset in {**places, **order.resume}.items() if p not in here}
    _roll_back(connection, target, place, order, begins)
    skipped = _past_skips(here, order.skips)
    if skipped:
        _set(connection, place, order, skipped)
    return {p: skipped.get(p, here[p].offset) if p in here else None for p in asked}


def _roll_back(
    connection: psycopg.Connection,
    target: Target,
    place: TargetPlace,
    order: ResetSinks,
    begins: Mapping[GroupPartition, Offset],
) -> None:
    """Begin partitions again in this timeline: rows of older ones at or beyond the place go."""
    if not begins:
        return
    if target.mode.restorable and SOURCE in columns_of(connection, place.schema, place.table):
        wanted = sorted(begins)
        undone = sql.SQL(
            "unnest(%s::text[], %s::integer[], %s::bigint[]) AS r (topic, partition, begins) "
            "WHERE t.kcr_source = %s AND t.kcr_topic = r.topic AND t.kcr_partition = r.partition "
            "AND t.kcr_offset >= r.begins AND t.kcr_timeline < %s"
        )
        given = [
            [p.topic for p in wanted],
            [p.partition for p in wanted],
            [begins[p] for p in wanted],
            place.source,
            order.timeline,
        ]
        connection.execute(sql.SQL("DELETE FROM {} AS t USING {}").format(place.target, undone), given)
        require_gone(connection, place, sql.SQL("FROM {} AS t, {}").format(place.target, undone), given)
    begin_progress(connection, place, order.timeline, order.epoch, begins)
    _set(connection, place, order, begins)


def _past_skips(
    here: Mapping[GroupPartition, TargetProgress], skips: Mapping[GroupPartition, tuple[Offset, ...]]
) -> dict[GroupPartition, Offset]:
    """Return where progress goes that stands at a skipped record."""
    moved: dict[GroupPartition, Offset] = {}
    for partition, row in here.items():
        offset = row.offset
        for skipped in sorted(skips.get(partition, ())):
            if skipped == offset:
                offset = Offset(skipped + 1)
        if offset != row.offset:
            moved[partition] = offset
    return moved


def _set(
    connection: psycopg.Connection, place: TargetPlace, order: ResetSinks, offsets: Mapping[GroupPartition, Offset]
) -> None:
    set_progress(
        connection, place, timeline=order.timeline, epoch=order.epoch, batch="", offsets=offsets, stepped_over={}
    )
