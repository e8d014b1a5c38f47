"""Connections that LISTEN for a change of a region.

A notification only wakes waiters. Who waits reads the counter first, so one sent before it listened is not missed; one
that is lost costs the timeout. Behind a pooler, where LISTEN would be of a session that others use, the counter is
polled.
"""

from __future__ import annotations

import logging
import selectors
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Final

import psycopg
from sqlalchemy.exc import SQLAlchemyError

from airflow_kcr import libpq
from airflow_kcr.protocol.values import EventNumber, RegionName
from airflow_kcr.store.postgres.connections import driver_of

if TYPE_CHECKING:
    from sqlalchemy import Engine

CHANNEL: Final = "kcr"

NOTIFY: Final = f"SELECT pg_notify('{CHANNEL}', :payload)"
"""Delivered by Postgres after the commit, and only then."""

_POLL_PERIOD: Final = 1.0
"""Seconds after which a waiter checks whether the store was closed."""

POLL: Final = 1.0
"""Seconds between two reads of a region's counter if nothing can listen."""

_LOG = logging.getLogger(__name__)

_DIGITS: Final = 19
"""Of the largest number that the store has."""

_LISTEN: Final = f"LISTEN {CHANNEL}".encode()


def payload(name: RegionName, counter: EventNumber) -> str:
    """Return what a transition tells its waiters."""
    return f"{name}:{counter}"


def parse_payload(notified: str, name: RegionName) -> EventNumber | None:
    """Return the region's counter as a notification says it; None if it is about another region, or strange."""
    region, _, counter = notified.rpartition(":")
    # Every user of the database may notify; a number of thousands of digits doesn't count.
    return EventNumber(int(counter)) if region == name and counter.isdecimal() and len(counter) <= _DIGITS else None


def _until_readable(connection: libpq.Connection, seconds: float) -> None:
    """Wait for what the server sends; the driver's own wait wakes up ten times a second."""
    with selectors.PollSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.select(seconds)


class Listeners:
    """Connections that listen, kept between waits; each waiter uses one alone.

    Args:
        engine: makes them.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._idle: list[libpq.Connection] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._is_warned = False

    def wait(
        self,
        name: RegionName,
        after: EventNumber,
        timeout: timedelta,
        counter: Callable[[libpq.Connection], EventNumber],
    ) -> EventNumber:
        """Return the region's counter once it is beyond `after`; else `after`, in the end or when all is closed.

        Args:
            name: the region.
            after: the counter that the caller has seen.
            timeout: how long at most.
            counter: reads the region's counter; raises if there is no such region.
        """
        deadline = monotonic() + timeout.total_seconds()
        with suppress(SQLAlchemyError, psycopg.Error):
            connection = self._take()
            if connection is None:
                return self._poll(after, deadline, counter)
            try:
                known = max(counter(connection), after)
                if known == after:
                    known = self._listen(connection, name, after, deadline, counter)
                if known > after:
                    return known
            except BaseException:
                connection.close()
                raise
            finally:
                self._keep(connection)
        # What is left of the time: none, unless listening failed.
        self._closed.wait(max(deadline - monotonic(), 0))
        return after

    def close(self) -> None:
        """Close the connections; those that wait notice within their timeout."""
        self._closed.set()
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _listen(
        self,
        connection: libpq.Connection,
        name: RegionName,
        after: EventNumber,
        deadline: float,
        counter: Callable[[libpq.Connection], EventNumber],
    ) -> EventNumber:
        """Return the region's counter once a notification says that it is beyond `after`, else `after`.

        It is read then: every user of the database may notify, and a number that the region never had would keep its
        waiters from hearing of real ones.
        """
        while (left := deadline - monotonic()) > 0 and not self._closed.is_set():
            # All of them before anything is asked: the driver holds the connection's lock while it yields them.
            notices = list(connection.notifies(timeout=0))
            numbers = [known for notice in notices if (known := parse_payload(notice.payload, name)) is not None]
            if max(numbers, default=after) > after and (read := counter(connection)) > after:
                return read
            if not notices:
                _until_readable(connection, min(left, _POLL_PERIOD))
        return after

    def _poll(
        self, after: EventNumber, deadline: float, counter: Callable[[libpq.Connection], EventNumber]
    ) -> EventNumber:
        """Return the region's counter once it is beyond `after`, else `after`; the pool's connections stay free."""
        while True:
            with self._engine.connect() as lent, lent.begin():
                known = counter(driver_of(lent.connection))
            left = deadline - monotonic()
            if known > after or left <= 0 or self._closed.wait(min(left, POLL)):
                return max(known, after)

    def _take(self) -> libpq.Connection | None:
        """Return a connection that listens; None: a pooler is in between."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        lent = self._engine.raw_connection()
        connection = driver_of(lent)
        if connection.is_pooled:
            lent.close()
            self._warn()
            return None
        # Outside the pool: waiters must not keep others from working.
        lent.detach()
        try:
            connection.autocommit = True
            connection.execute(_LISTEN)
        except BaseException:
            connection.close()
            raise
        return connection

    def _warn(self) -> None:
        with self._lock:
            was, self._is_warned = self._is_warned, True
        if not was:
            _LOG.warning(
                "a pooler is between here and the store, so nothing can LISTEN: changes are found by reading a "
                "region's counter every %g s",
                POLL,
            )

    def _keep(self, connection: libpq.Connection) -> None:
        with self._lock:
            if not self._closed.is_set() and not connection.closed:
                self._idle.append(connection)
                return
        connection.close()
