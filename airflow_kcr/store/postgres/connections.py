"""Connections of the store's engine, lent for one transaction or one statement, and those that LISTEN for a region.

Every failure leaves here as an error of this project, which says whether anything can have changed (`session`).

A notification only wakes waiters. Who waits reads the counter first, so one sent before it listened is not missed; one
that is lost costs the timeout. Behind a pooler, where LISTEN would be of a session that others use, the counter is
polled.
"""

from __future__ import annotations

import logging
import selectors
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import wraps
from time import monotonic
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

import psycopg
from psycopg import IsolationLevel
from sqlalchemy import Connection, Engine, TextClause, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from airflow_kcr import libpq
from airflow_kcr.errors import StoreBusy, StoreRefused
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import EventNumber, RegionName
from airflow_kcr.store.postgres.session import (
    FAILURES,
    UNDEFINED,
    Address,
    Found,
    Session,
    before_commit,
    during_commit,
    execute,
    is_lost,
    sqlstate_of,
    unstorable,
)
from airflow_kcr.store.postgres.tables import require_current

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection, Dialect, PoolProxiedConnection


CONNECT_TIMEOUT: Final = 10
"""Seconds in which a server has to answer a new connection, where the URL has no `connect_timeout`."""

POOL_WAIT: Final = 5.0
"""Seconds to wait for a connection of the pool to become free."""

PLANNER: Final = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "jit": "off"}
"""Every statement names its rows by an index, so one plan serves it whatever it asks about. Left to itself the server
would plan those that a decision reads again at each call, which takes longer than their rows do. And no table is walked
through: a server that saw it while it was short, or never, takes it for short. Where one has to be, it would compile
code for what it then believes to be dear."""


def build_engine(
    url: str | URL, *, timeouts: Timeouts | None = None, application: str = "kcr", connections: int = 5
) -> Engine:
    """Return an engine whose every connection gives up in time, so that a frozen process can't freeze a region.

    Args:
        url: an SQLAlchemy URL; the driver is psycopg 3, whatever it says of Postgres.
        timeouts: the region's times; the three of the connection follow from its lease.
        application: what `pg_stat_activity` shows.
        connections: how many are kept open; as many again may be opened for a while.
    """
    target = make_url(url).set(drivername="postgresql+psycopg")
    times = timeouts or Timeouts()
    limits = {
        "idle_in_transaction_session_timeout": _milliseconds(times.idle_in_transaction_session_timeout),
        "lock_timeout": _milliseconds(times.lock_timeout),
        "statement_timeout": _milliseconds(times.statement_timeout),
    }
    given = target.query.get("options", ())
    if not isinstance(given, str):
        target = target.update_query_dict({"options": " ".join(given)}) if given else target
    engine = create_engine(
        target,
        pool_size=connections,
        max_overflow=connections,
        pool_timeout=POOL_WAIT,
        hide_parameters=True,
        # These win over the URL's query.
        connect_args={
            "application_name": application,
            "connect_timeout": target.query.get("connect_timeout", CONNECT_TIMEOUT),
        },
    )
    settings = {**limits, **PLANNER, "default_transaction_isolation": "read committed", "timezone": "UTC"}
    connect_under(engine, settings)
    return engine


def connect_under(engine: Engine, settings: Mapping[str, str]) -> None:
    """Have an engine's transactions run under these settings, also behind a pooler.

    Args:
        engine: not connected yet.
        settings: of the server, by their names.
    """
    address = Address(engine.url)

    def connect(_dialect: Dialect, _record: object, _args: object, parameters: dict[str, object]) -> libpq.Connection:
        try:
            return libpq.connect(parameters, settings)
        except libpq.Unsuitable as wrong:
            raise StoreRefused(f"the store at {address} can't be used: {wrong}; nothing was changed") from None

    def begin(connection: Connection) -> None:
        driver_of(connection.connection).begin()

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "begin", begin)


def driver_of(connection: PoolProxiedConnection) -> libpq.Connection:
    """Return the driver's connection under one that an engine has lent, which `connect_under` has set up."""
    driver: object = connection.dbapi_connection
    if not isinstance(driver, libpq.Connection):
        raise TypeError(f"the store needs connections of its own, not {type(driver).__name__}")
    return driver


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What a Postgres says of itself."""

    version: str
    """As it shows it, such as `16.4 (Debian 16.4-1)`."""

    is_standby: bool
    is_pooled: bool
    """Whether a pooler is in between."""

    now: datetime
    """Its clock, as it answered; with zone."""


# name: server — what `kcr doctor` reads.
_SERVER: Final = text("""
    SELECT current_setting('server_version'), pg_is_in_recovery(), clock_timestamp()
""")


def server_at(url: str | URL) -> Server:
    """Return what the server at a URL says of itself, over a connection such as every store has.

    Raises:
        StoreError: it can't be reached, or a connection is not what was asked for.
    """
    engine, began = build_engine(url, connections=1), monotonic()
    try:
        with engine.connect() as connection:
            version, is_standby, now = connection.execute(_SERVER).one()
            is_pooled = driver_of(connection.connection).is_pooled
    except FAILURES as error:
        raise before_commit(error, Address(engine.url), monotonic() - began) from error
    finally:
        engine.dispose()
    return Server(version=version, is_standby=is_standby, is_pooled=is_pooled, now=now)


def _milliseconds(span: timedelta) -> str:
    return str(max(span // timedelta(milliseconds=1), 1))


_SNAPSHOT: Final = libpq.Mode(isolation=IsolationLevel.REPEATABLE_READ, read_only=True)
"""All of a transaction sees one moment, and it changes nothing."""

_ALONE: Final = libpq.Mode(autocommit=True)
"""A statement by itself."""

# name: no_lock — the first statement of a transaction that needs no lock.
NO_LOCK: Final = text("SELECT 1")

IDLE: Final = "25P03"
"""The server's message about a transaction that stood idle for too long."""

_REPLACED: Final = frozenset({"57P01", "57P02", "57P05", IDLE, "08006", "08003"})
"""What the server says, as its last words, on a connection that it had already ended."""


P = ParamSpec("P")
A = TypeVar("A")


def read_again(read: Callable[P, A]) -> Callable[P, A]:
    """Have a read begin again, once, where the server has ended its transaction because this process was kept from it.

    On a machine that is busy enough a process gets no turn for longer than a transaction may be idle. A decision is not
    repeated: while it idled it kept others from deciding.
    """

    @wraps(read)
    def begun_anew(*args: P.args, **kwargs: P.kwargs) -> A:
        try:
            return read(*args, **kwargs)
        except StoreBusy as busy:
            if busy.__cause__ is None or sqlstate_of(busy.__cause__) != IDLE:
                raise
        return read(*args, **kwargs)

    return begun_anew


class Connections:
    """Lends connections of one engine.

    Args:
        engine: as `build_engine` makes it.
        read_rules: for the sessions, which build regions from rows.
    """

    def __init__(self, engine: Engine, read_rules: Callable[[str], RegionRules]) -> None:
        self._engine = engine
        self._read_rules = read_rules
        self._address = Address(engine.url)
        self._schema_is_current = False

    @contextmanager
    def transaction(self, first: TextClause, **parameters: object) -> Iterator[Session]:
        """Run the body in one transaction that begins with the statement `first`, and commit it.

        Raises:
            StoreError: see `session`; before COMMIT was sent, nothing was changed.
        """
        started = monotonic()
        with self._lent(libpq.WRITING, first, parameters) as session:
            yield session
            try:
                session.commit()
            except FAILURES as error:
                raise during_commit(error, self._address, monotonic() - started) from error

    @contextmanager
    def snapshot(self, first: TextClause, **parameters: object) -> Iterator[Session]:
        """Run the body in a transaction that only reads, all of it as of one moment: that of the statement `first`.

        What was read is true whatever becomes of the transaction: a server may have ended it while the body worked on
        what it had read. It is committed all the same, because the driver forgets its prepared statements with a
        rollback.
        """
        with self._lent(_SNAPSHOT, first, parameters) as session:
            yield session
            with suppress(*FAILURES):
                session.commit()

    @contextmanager
    def _lent(self, mode: libpq.Mode, first: TextClause, parameters: Mapping[str, object]) -> Iterator[Session]:
        self.require_schema()
        started = monotonic()
        lent, rows = self._begun(mode, first, parameters, started)
        session = Session(driver_of(lent), self.answer, self._read_rules, rows)
        try:
            with self._translating(started):
                yield session
        finally:
            session.end()
            _give_back(lent)

    def _begun(
        self, mode: libpq.Mode, first: TextClause, parameters: Mapping[str, object], started: float
    ) -> tuple[PoolProxiedConnection, Sequence[Found]]:
        """Return a connection in a transaction whose first statement was run, and the rows of that.

        A pooled connection may have died since it was used last. It is found here, before anything was asked that
        changes something, and replaced once, with all that are as old.
        """
        with self._translating(started):
            try:
                return _with_first(self._engine.raw_connection(), mode, first, parameters)
            except FAILURES as error:
                if not is_lost(error) and sqlstate_of(error) not in _REPLACED:
                    raise
            self._engine.dispose()
            return _with_first(self._engine.raw_connection(), mode, first, parameters)

    def answer(self, statement: TextClause, **parameters: object) -> Sequence[Found]:
        """Return the rows of one statement in autocommit, which may be repeated without harm; one round trip."""
        self.require_schema()
        started = monotonic()
        lent, rows = self._begun(_ALONE, statement, parameters, started)
        try:
            with self._translating(started):
                # Behind a pooler there is a transaction, for its settings; else this sends nothing.
                driver_of(lent).commit()
        finally:
            _give_back(lent)
        return rows

    @contextmanager
    def _translating(self, started: float) -> Iterator[None]:
        try:
            yield
        except FAILURES as error:
            if sqlstate_of(error) in UNDEFINED:
                self._schema_is_current = False
                self.require_schema()
            raise before_commit(error, self._address, monotonic() - started) from error
        except UnicodeEncodeError as error:
            raise unstorable() from error

    def require_schema(self) -> None:
        """Check whether the schema is this program's: once, and again after something was found to be missing."""
        if self._schema_is_current:
            return
        started = monotonic()
        try:
            require_current(self._engine)
        except FAILURES as error:
            raise before_commit(error, self._address, monotonic() - started) from error
        self._schema_is_current = True


def _with_first(
    lent: PoolProxiedConnection, mode: libpq.Mode, first: TextClause, parameters: Mapping[str, object]
) -> tuple[PoolProxiedConnection, Sequence[Found]]:
    try:
        driver = driver_of(lent)
        driver.take_mode(mode)
        driver.begin()
        return lent, execute(driver, first, parameters).fetchall()
    except BaseException:
        _give_back(lent)
        raise


def _give_back(lent: PoolProxiedConnection) -> None:
    """Give a connection back to the pool, what was not committed rolled back; a broken one is thrown away."""
    try:
        driver = driver_of(lent)
        driver.rollback()
        driver.take_mode(libpq.WRITING)
    except FAILURES:
        lent.invalidate()
    lent.close()


# Listeners

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

_LISTEN: Final = f"LISTEN {CHANNEL}".encode()


def payload(name: RegionName, counter: EventNumber) -> str:
    """Return what a transition tells its waiters."""
    return f"{name}:{counter}"


def counter_in(notified: str, name: RegionName) -> EventNumber | None:
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
        self._is_told = False

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
            numbers = [known for notice in notices if (known := counter_in(notice.payload, name)) is not None]
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
            self._tell()
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

    def _tell(self) -> None:
        with self._lock:
            was, self._is_told = self._is_told, True
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
