"""What is recorded of a region, page by page: events and ledger as `kcr verify` reads them.

A page is one statement and one short transaction. A batch comes with its ranges as one JSON value: they are six columns
of a million rows otherwise, and what a row costs the driver is most of what reading them costs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Final

from psycopg.sql import SQL
from sqlalchemy import TextClause, text

from airflow_kcr.ports import Dropped, HistoryStart, Horizon
from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    EventNumber,
    Range,
)
from airflow_kcr.store.codec import event_from_json
from airflow_kcr.store.postgres.connections import read_again
from airflow_kcr.store.postgres.row_layout import member_of, partition_of
from airflow_kcr.store.postgres.session import Found, Session, composed

EVENT_PAGE: Final = 1000
"""Events per page."""

LEDGER_PAGE: Final = 2000
"""Batches per page."""

# name: horizon — under the exclusive lock: no batch begins or ends at this moment, so what is there is all there is.
_HORIZON: Final = text("""
    SELECT r.counter, (SELECT coalesce(max(b.number), 0) FROM kcr.batch b WHERE b.region_id = r.id)
    FROM kcr.region r WHERE r.id = :region
""")

# name: events_between — a page of events.
EVENTS: Final = text("""
    SELECT number, at, epoch, timeline, kind, body FROM kcr.event
    WHERE region_id = :region AND number > :after AND number <= :upto ORDER BY number LIMIT :limit
""")

_BATCH: Final = SQL("""
    b.number, b.batch_id, b.group_id, b.member_index, b.incarnation, b.epoch, b.timeline, b.sequence, b.started_at,
    b.started_after, b.outcome, b.finished_at, b.finished_after, b.proven_in,
    (SELECT json_agg(json_build_array(r.group_id, r.topic, r.partition, r.from_offset, r.to_offset)
                     ORDER BY r.group_id, r.topic, r.partition)
     FROM kcr.batch_range r WHERE r.batch_number = b.number)
""")
_WIDTH: Final = 15

# name: batches_between — a page of the ledger.
BATCHES: Final = composed(
    SQL("""
    SELECT {batch} FROM kcr.batch b
    WHERE b.region_id = :region AND b.number > :after AND b.number <= :upto ORDER BY b.number LIMIT :limit
""").format(batch=_BATCH)
)

# name: some_batches — by their ids.
_SOME: Final = composed(
    SQL("""
    SELECT {batch} FROM kcr.batch b
    WHERE b.region_id = :region AND b.batch_id = ANY (CAST(:batches AS text[])) ORDER BY b.number
""").format(batch=_BATCH)
)


# name: start — of the kept history.
_START: Final = text("SELECT counter, ledger, open, proof FROM kcr.history_start WHERE region_id = :region")

# name: horizon_before — the newest event stays: batches may still start after it. No batch starts any more after one
# that is older, so the first batch after the next event ends the ledger's part; their numbers grow with their starts.
_HORIZON_BEFORE: Final = text("""
    SELECT h.counter, coalesce(
        (SELECT b.number - 1 FROM kcr.batch b
         WHERE b.region_id = :region AND b.number > :ledger AND b.started_after > h.counter ORDER BY b.number LIMIT 1),
        (SELECT max(b.number) FROM kcr.batch b WHERE b.region_id = :region AND b.number > :ledger),
        :ledger)
    FROM (
        SELECT max(e.number) AS counter FROM kcr.event e JOIN kcr.region r ON r.id = e.region_id
        WHERE e.region_id = :region AND e.number > :after AND e.number <= CAST(:after AS bigint) + :limit
          AND e.number < r.counter AND e.at < :instant
    ) h WHERE h.counter IS NOT NULL
""")

# name: move_start — the first of two that move it at once wins.
_FIRST_START: Final = text("""
    INSERT INTO kcr.history_start (region_id, counter, ledger, open, proof)
    VALUES (:region, :counter, :ledger, CAST(:open AS text[]), :proof) ON CONFLICT DO NOTHING
""")
_NEXT_START: Final = text("""
    UPDATE kcr.history_start SET counter = :counter, ledger = :ledger, open = CAST(:open AS text[]), proof = :proof
    WHERE region_id = :region AND counter = :earlier
""")

PIECE: Final = 10_000
"""Rows of a table that a transaction drops."""

# name: drop_events — a piece from the oldest one on; they have no gaps.
_DROP_EVENTS: Final = text("""
    DELETE FROM kcr.event e WHERE e.region_id = :region AND e.number <= :upto AND e.number < :limit + (
        SELECT min(o.number) FROM kcr.event o WHERE o.region_id = :region
    )
""")

# name: droppable — the next batches; no foreign key leads from their ranges to them.
_DROPPABLE: Final = text("""
    SELECT b.number FROM kcr.batch b
    WHERE b.region_id = :region AND b.number > :after AND b.number <= :ledger AND b.outcome IS NOT NULL
      AND b.sequence <= :floor AND NOT b.batch_id = ANY (CAST(:open AS text[])) ORDER BY b.number LIMIT :limit
""")
_DROP_RANGES: Final = text("DELETE FROM kcr.batch_range WHERE batch_number = ANY (CAST(:batches AS bigint[]))")
_DROP_BATCHES: Final = text("DELETE FROM kcr.batch WHERE number = ANY (CAST(:batches AS bigint[]))")


class PostgresChronicle:
    """Implements `ports.Chronicle`.

    Args:
        about: lends a session that reads about the region.
        alone: lends one that holds the region's lock, so that nothing happens meanwhile.
        beside: lends one that writes without that lock: no other transaction writes the same.
    """

    def __init__(
        self,
        about: Callable[[], AbstractContextManager[Session]],
        alone: Callable[[], AbstractContextManager[Session]],
        beside: Callable[[], AbstractContextManager[Session]],
    ) -> None:
        self._about = about
        self._alone = alone
        self._beside = beside

    def horizon(self) -> Horizon:
        """See `ports.Chronicle.horizon`."""
        with self._alone() as session:
            ((counter, ledger),) = session.rows(_HORIZON)
            return Horizon(counter=EventNumber(counter), ledger=ledger)

    def events(self, after: EventNumber, upto: EventNumber) -> Iterator[Event]:
        """See `ports.Chronicle.events`."""
        while after < upto:
            found = self._page(EVENTS, after=after, upto=upto, limit=EVENT_PAGE)
            for number, at, epoch, timeline, kind, body in found:
                yield Event(number=number, at=at, epoch=epoch, timeline=timeline, body=event_from_json(kind, body))
            if len(found) < EVENT_PAGE:
                return
            after = found[-1][0]

    def batches(self, after: int, upto: int) -> Iterator[Batch]:
        """See `ports.Chronicle.batches`."""
        while after < upto:
            found = self._page(BATCHES, after=after, upto=upto, limit=LEDGER_PAGE)
            for row in found:
                yield _batch(row)
            if len(found) < LEDGER_PAGE:
                return
            after = found[-1][0]

    @read_again
    def _page(self, statement: TextClause, **limits: int) -> Sequence[Found]:
        with self._about() as session:
            return session.rows(statement, **limits)

    @read_again
    def rows(self, batches: Collection[BatchId]) -> tuple[Batch, ...]:
        """See `ports.Chronicle.rows`."""
        if not batches:
            return ()
        with self._about() as session:
            return tuple(_batch(row) for row in session.rows(_SOME, batches=sorted(batches)))

    @read_again
    def start(self) -> HistoryStart | None:
        """See `ports.Chronicle.start`."""
        with self._about() as session:
            found = session.rows(_START)
        if not found:
            return None
        ((counter, ledger, still_open, proof),) = found
        return HistoryStart(horizon=Horizon(counter=counter, ledger=ledger), open=tuple(still_open), proof=bytes(proof))

    @read_again
    def horizon_before(self, instant: datetime, after: Horizon, events: int) -> Horizon | None:
        """See `ports.Chronicle.horizon_before`."""
        with self._about() as session:
            found = session.rows(
                _HORIZON_BEFORE, instant=instant, after=after.counter, ledger=after.ledger, limit=events
            )
        return next((Horizon(counter=counter, ledger=ledger) for counter, ledger in found), None)

    def move_start(self, earlier: HistoryStart | None, start: HistoryStart) -> bool:
        """See `ports.Chronicle.move_start`."""
        row = {"counter": start.horizon.counter, "ledger": start.horizon.ledger, "proof": start.proof}
        with self._beside() as session:
            if earlier is None:
                return session.run(_FIRST_START, open=list(start.open), **row) == 1
            return session.run(_NEXT_START, open=list(start.open), earlier=earlier.horizon.counter, **row) == 1

    def drop(self, start: HistoryStart, floor: CheckpointNumber) -> Iterator[Dropped]:
        """See `ports.Chronicle.drop`."""
        events = PIECE
        while events == PIECE:
            with self._beside() as session:
                events = session.run(_DROP_EVENTS, upto=start.horizon.counter, limit=PIECE)
            yield Dropped(events=events, batches=0)
        after, limit = 0, max(PIECE // 100, 1)
        while True:
            with self._beside() as session:
                found = session.rows(
                    _DROPPABLE,
                    after=after,
                    ledger=start.horizon.ledger,
                    floor=floor,
                    open=list(start.open),
                    limit=limit,
                )
                batches = [number for (number,) in found]
                if not batches:
                    return
                ranges = session.run(_DROP_RANGES, batches=batches)
                session.run(_DROP_BATCHES, batches=batches)
            after, limit = batches[-1], max(PIECE * len(batches) // max(ranges, len(batches)), 1)
            yield Dropped(events=0, batches=len(batches))


def _batch(row: Found) -> Batch:
    _, batch, group, index, incarnation, epoch, timeline, sequence, started_at, started_after, *rest = row
    outcome, finished_at, finished_after, proven_in, ranges = rest
    return Batch(
        batch=batch,
        member=member_of(group, index),
        incarnation=incarnation,
        epoch=epoch,
        timeline=timeline,
        sequence=sequence,
        ranges=_ranges(ranges),
        started_at=started_at,
        started_after=started_after,
        outcome=None if outcome is None else _OUTCOMES[outcome],
        finished_at=finished_at,
        finished_after=finished_after,
        proven_in=proven_in,
    )


def _ranges(ranges: Any) -> dict[Any, Range]:  # noqa: ANN401 (JSON)
    return {partition_of(group, topic, number): Range(a, b) for group, topic, number, a, b in ranges or ()}


_OUTCOMES: Final = {str(o): o for o in Outcome}
