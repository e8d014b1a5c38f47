"""Events and ledger of a region, page by page, as `kcr verify` reads them.

A page is one statement and one short transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Final

from airflow_kcr.protocol import documents
from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.values import MAX_NUMBER, BatchId, CheckpointNumber, EventNumber, Incarnation, MemberId
from airflow_kcr.store.answers import BriefEvent, HistoryStart, Horizon
from airflow_kcr.store.postgres import ledger
from airflow_kcr.store.postgres.connections import read_again
from airflow_kcr.store.postgres.layouts import batches_from, event_from
from airflow_kcr.store.postgres.row_layout import document
from airflow_kcr.store.postgres.session import Found, Session
from airflow_kcr.store.postgres.statements import Statement, load

SQL: Final = load("events")

EVENT_PAGE: Final = 1000
"""Events per page: a statement of bounded length, whatever the region has been through."""

LEDGER_PAGE: Final = 2000
"""Batches per page."""

PIECE: Final = 10_000
"""Rows of a table that a transaction drops."""


def events(session: Session, after: EventNumber, limit: int) -> tuple[Event, ...]:
    """Return up to `limit` events after a number, in commit order."""
    return tuple(map(event_from, session.rows(SQL["page"], after=after, upto=MAX_NUMBER, limit=limit)))


def brief(session: Session, before: EventNumber | None, last: int, longest: int) -> tuple[BriefEvent, ...]:
    """Return what `RegionStore.brief_events` does; none of the long details leaves the store."""
    return tuple(BriefEvent(*row) for row in session.rows(SQL["brief"], before=before, last=last, longest=longest))


def position(session: Session, reader: str) -> EventNumber | None:
    """Return the newest event that a reader has dealt with; None: it has not read here before."""
    return next((EventNumber(number) for (number,) in session.rows(SQL["position"], reader=reader)), None)


def keep_position(session: Session, reader: str, number: EventNumber) -> None:
    """Note the newest event that a reader has dealt with; a reader never goes back."""
    session.run(SQL["keep_position"], reader=reader, number=number)


def all_events(session: Session) -> list[Event]:
    """Return every event, read page by page, so that no more rows than a page's are held beside them."""
    found: list[Event] = []
    while page := events(session, found[-1].number if found else EventNumber(0), EVENT_PAGE):
        found.extend(page)
    return found


def registered(session: Session, member: MemberId, incarnation: Incarnation) -> str:
    """Return how the process of an incarnation called itself; empty: no event tells of it."""
    given = {"member": document(documents.write(member, MemberId)), "incarnation": incarnation}
    return next((label for (label,) in session.rows(SQL["registered"], **given)), "")


class Chronicle:
    """The record of one region, read page by page in the order in which it happened.

    Every page is a short statement of its own, so that nothing is held open or in memory, however long it is. Each call
    may raise as those of `RegionStore` do.

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
        """Return how far the region has got; waits for the batches that are beginning or ending at this moment."""
        with self._alone() as session:
            ((counter, newest),) = session.rows(SQL["horizon"])
            return Horizon(counter=EventNumber(counter), ledger=newest)

    def events(self, after: EventNumber, upto: EventNumber) -> Iterator[Event]:
        """Yield the events after a number, up to another."""
        while after < upto:
            found = self._page(SQL["page"], after=after, upto=upto, limit=EVENT_PAGE)
            yield from map(event_from, found)
            if len(found) < EVENT_PAGE:
                return
            after = found[-1][0]

    def batches(self, after: int, upto: int) -> Iterator[Batch]:
        """Yield the ledger after a place, up to another, in the order of the starts.

        What later resets have undone is not told: the events say it. Such a batch is simply done.
        """
        while after < upto:
            found = self._page(ledger.SQL["page"], after=after, upto=upto, limit=LEDGER_PAGE)
            yield from batches_from(found)
            if len(found) < LEDGER_PAGE:
                return
            after = found[-1][0][0]

    @read_again
    def _page(self, statement: Statement, **limits: int) -> Sequence[Found]:
        with self._about() as session:
            return session.rows(statement, **limits)

    @read_again
    def rows(self, batches: Collection[BatchId]) -> tuple[Batch, ...]:
        """Return the rows of some batches as they are now, in the order of the starts, told as in `batches`."""
        if not batches:
            return ()
        with self._about() as session:
            return tuple(batches_from(session.rows(ledger.SQL["some"], batches=sorted(batches))))

    @read_again
    def start(self) -> HistoryStart | None:
        """Return where the kept history starts; None: it is whole."""
        with self._about() as session:
            found = session.rows(SQL["start"])
        if not found:
            return None
        ((counter, newest, still_open, proof),) = found
        return HistoryStart(horizon=Horizon(counter=counter, ledger=newest), open=tuple(still_open), proof=bytes(proof))

    @read_again
    def horizon_before(self, instant: datetime, after: Horizon, events: int) -> Horizon | None:
        """Return the furthest horizon within which all happened before an instant; None: there is no further one.

        Args:
            instant: the newest event of the region is never before it.
            after: where it is looked for from.
            events: how many it may hold at most beyond that.
        """
        with self._about() as session:
            found = session.rows(
                SQL["horizon_before"], instant=instant, after=after.counter, ledger=after.ledger, limit=events
            )
        return next((Horizon(counter=counter, ledger=newest) for counter, newest in found), None)

    def move_start(self, earlier: HistoryStart | None, start: HistoryStart) -> bool:
        """Let the kept history start later; False: another process has moved its start meanwhile, nothing changes."""
        row = {"counter": start.horizon.counter, "ledger": start.horizon.ledger, "proof": start.proof}
        with self._beside() as session:
            if earlier is None:
                return session.run(SQL["first_start"], open=list(start.open), **row) == 1
            return session.run(SQL["next_start"], open=list(start.open), earlier=earlier.horizon.counter, **row) == 1

    def drop(self, start: HistoryStart, floor: CheckpointNumber) -> Iterator[tuple[int, int]]:
        """Drop what lies before the start of the kept history, in pieces: one for each time that it is asked.

        Batches stay that the start has open, that run, or that are stamped with a later sequence than `floor`. A later
        call finds them. Any piece may be the last for now.

        Args:
            start: as it is stored.
            floor: the newest sequence whose batches are no longer read.
        """
        dropped = PIECE
        while dropped == PIECE:
            with self._beside() as session:
                dropped = session.run(SQL["drop_events"], upto=start.horizon.counter, limit=PIECE)
            yield dropped, 0
        within = {"ledger": start.horizon.ledger, "floor": floor, "open": list(start.open)}
        after, limit = 0, max(PIECE // 100, 1)
        while True:
            with self._beside() as session:
                batches = [number for (number,) in session.rows(SQL["droppable"], after=after, limit=limit, **within)]
                if not batches:
                    return
                ranges = ledger.delete(session, batches)
            after, limit = batches[-1], max(PIECE * len(batches) // max(ranges, len(batches)), 1)
            yield 0, len(batches)
