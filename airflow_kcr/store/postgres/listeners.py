"""Waiting for a region: LISTEN on connections of its own, apart from the pool, outside of any transaction.

A notification only wakes waiters. Who waits reads the counter first, so one sent before it listened is not missed; one
that is lost costs the timeout. Behind a pooler, where LISTEN would be of a session that others use, the counter is
polled.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import Final

import psycopg
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

from airflow_kcr.protocol.values import EventNumber, RegionName
from airflow_kcr.store.postgres.connections import driver_of

CHANNEL: Final = "kcr"

# name: notify — delivered by Postgres after the commit, and only then.
NOTIFY: Final = f"SELECT pg_notify('{CHANNEL}', :payload)"

_POLL_PERIOD: Final = 1.0
"""Seconds after which a waiter checks whether the store was closed."""

POLL: Final = 1.0
"""Seconds between two reads of a region's counter if nothing can listen."""

_LOG = logging.getLogger(__name__)

_DIGITS: Final = 19
"""Of the largest number that the store has."""

_LISTEN: Final = text(f"LISTEN {CHANNEL}")


def payload(name: RegionName, counter: EventNumber) -> str:
    """Return what a transition tells its waiters."""
    return f"{name}:{counter}"


def told(text_: str, name: RegionName) -> EventNumber | None:
    """Return the region's counter as a notification says it; None if it is about another region, or strange."""
    region, _, counter = text_.rpartition(":")
    # Every user of the database may notify; a number of thousands of digits doesn't count.
    return EventNumber(int(counter)) if region == name and counter.isdecimal() and len(counter) <= _DIGITS else None


class Listeners:
    """Connections that listen, kept between waits; each waiter uses one alone.

    Args:
        engine: makes them.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._is_told = False

    def wait(
        self, name: RegionName, after: EventNumber, timeout: timedelta, counter: Callable[[Connection], EventNumber]
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
                _discard(connection)
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
            _discard(connection)

    def _listen(
        self,
        connection: Connection,
        name: RegionName,
        after: EventNumber,
        deadline: float,
        counter: Callable[[Connection], EventNumber],
    ) -> EventNumber:
        """Return the region's counter once a notification says that it is beyond `after`, else `after`.

        It is read then: every user of the database may notify, and a number that the region never had would keep its
        waiters from hearing of real ones.
        """
        driver = driver_of(connection)
        while (left := deadline - monotonic()) > 0 and not self._closed.is_set():
            # All of them before anything is asked: the driver holds the connection's lock while it yields them.
            notices = list(driver.notifies(timeout=min(left, _POLL_PERIOD), stop_after=1))
            numbers = [known for notice in notices if (known := told(notice.payload, name)) is not None]
            if max(numbers, default=after) > after and (read := counter(connection)) > after:
                return read
        return after

    def _poll(self, after: EventNumber, deadline: float, counter: Callable[[Connection], EventNumber]) -> EventNumber:
        """Return the region's counter once it is beyond `after`, else `after`; the pool's connections stay free."""
        while True:
            with self._engine.connect() as connection:
                known = counter(connection)
            left = deadline - monotonic()
            if known > after or left <= 0 or self._closed.wait(min(left, POLL)):
                return max(known, after)

    def _take(self) -> Connection | None:
        """Return a connection that listens; None: a pooler is in between."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        connection = self._engine.connect()
        if driver_of(connection).is_pooled:
            connection.close()
            self._tell()
            return None
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        try:
            # Outside the pool: waiters must not keep others from working.
            connection.detach()
            connection.execute(_LISTEN)
        except BaseException:
            _discard(connection)
            raise
        return connection

    def _tell(self) -> None:
        with self._lock:
            was, self._is_told = self._is_told, True
        if not was:
            _LOG.warning(
                "a pooler is between here and the store, so nothing can LISTEN: changes are found by reading a "
                "region's counter every %g s",
                POLL,
            )

    def _keep(self, connection: Connection) -> None:
        with self._lock:
            if not self._closed.is_set() and not connection.closed and not connection.invalidated:
                self._idle.append(connection)
                return
        _discard(connection)


def _discard(connection: Connection) -> None:
    try:
        connection.close()
    except (SQLAlchemyError, psycopg.Error):
        connection.invalidate()
