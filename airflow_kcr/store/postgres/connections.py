"""Connections of the store's engine, lent for one transaction or one statement.

Every failure leaves here as an error of this project, which says whether anything can have changed (`failures`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import wraps
from time import monotonic
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from psycopg import IsolationLevel
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url

from airflow_kcr import libpq
from airflow_kcr.errors import StoreBusy, StoreRefused
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.store.postgres import failures
from airflow_kcr.store.postgres.revision import require_current
from airflow_kcr.store.postgres.session import Found, Session
from airflow_kcr.store.postgres.statements import Statement

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
    connect_under(engine, {**libpq.limits(timeouts or Timeouts(), timedelta(0)), **PLANNER})
    return engine


def connect_under(engine: Engine, settings: Mapping[str, str]) -> None:
    """Have an engine's transactions run under these settings, also behind a pooler.

    Args:
        engine: not connected yet.
        settings: of the server, by their names.
    """
    address = failures.address_of(engine.url)

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
    """A Postgres, as it describes itself."""

    version: str
    """As it shows it, such as `16.4 (Debian 16.4-1)`."""

    is_standby: bool
    is_pooled: bool
    """Whether a pooler is in between."""

    now: datetime
    """Its clock, as it answered; with zone."""


_SERVER: Final = text("SELECT current_setting('server_version'), pg_is_in_recovery(), clock_timestamp()")
"""What `kcr doctor` reads."""


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
    except failures.FAILURES as error:
        raise failures.before_commit(error, failures.address_of(engine.url), monotonic() - began) from error
    finally:
        engine.dispose()
    return Server(version=version, is_standby=is_standby, is_pooled=is_pooled, now=now)


_SNAPSHOT: Final = libpq.Mode(isolation=IsolationLevel.REPEATABLE_READ, read_only=True)
"""All of a transaction sees one moment, and it changes nothing."""

_ALONE: Final = libpq.Mode(autocommit=True)
"""A statement by itself."""

NO_LOCK: Final = Statement("SELECT 1")
"""The first statement of a transaction that needs no lock."""

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
            if libpq.sqlstate_of(failures.cause_of(busy.__cause__)) != IDLE:
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
        self._address = failures.address_of(engine.url)
        self._schema_is_current = False

    @contextmanager
    def transaction(self, first: Statement, **parameters: object) -> Iterator[Session]:
        """Run the body in one transaction that begins with the statement `first`, and commit it.

        Raises:
            StoreError: see `failures`; before COMMIT was sent, nothing was changed.
        """
        started = monotonic()
        with self._begun(libpq.WRITING, first, parameters) as (session, driver):
            yield session
            try:
                driver.settle()
            except libpq.CommitLost as lost:
                raise failures.outcome_unknown(self._address, monotonic() - started) from lost

    @contextmanager
    def snapshot(self, first: Statement, **parameters: object) -> Iterator[Session]:
        """Run the body in a transaction that only reads, all of it as of one moment: that of the statement `first`.

        What was read is true whatever becomes of the transaction: a server may have ended it while the body worked on
        what it had read. It is committed all the same, because the driver forgets its prepared statements with a
        rollback.
        """
        with self._begun(_SNAPSHOT, first, parameters) as (session, driver):
            yield session
            with suppress(*failures.FAILURES):
                driver.commit()

    def answer(self, statement: Statement, **parameters: object) -> Sequence[Found]:
        """Return the rows of one statement in autocommit, which may be repeated without harm; one round trip."""
        with self._begun(_ALONE, statement, parameters) as (session, driver):
            # Behind a pooler there is a transaction, for its settings; else this sends nothing.
            driver.commit()
            return session.first

    @contextmanager
    def _begun(
        self, mode: libpq.Mode, first: Statement, parameters: Mapping[str, object]
    ) -> Iterator[tuple[Session, libpq.Connection]]:
        """Lend a session in a transaction whose first statement was run, and the connection that it is over."""
        self.require_schema()
        started = monotonic()
        with self._translating(started):
            lent, rows = self._with_first(mode, first, parameters)
            driver = driver_of(lent)
            session = Session(driver, self.answer, self._read_rules, rows)
            try:
                yield session, driver
            finally:
                session.end()
                _give_back(lent)

    def _with_first(
        self, mode: libpq.Mode, first: Statement, parameters: Mapping[str, object], *, is_again: bool = False
    ) -> tuple[PoolProxiedConnection, Sequence[Found]]:
        """Return a connection in a transaction whose first statement was run, and the rows of that.

        A pooled connection may have died since it was used last. It is found here, before anything was asked that
        changes something, and replaced once, with all that are as old.
        """
        try:
            lent = self._engine.raw_connection()
            try:
                driver = driver_of(lent)
                driver.take_mode(mode)
                driver.begin()
                return lent, driver.run(first.numbered, first.bound(parameters)).fetchall()
            except BaseException:
                _give_back(lent)
                raise
        except failures.FAILURES as error:
            cause = failures.cause_of(error)
            if is_again or not (libpq.is_lost(cause) or libpq.sqlstate_of(cause) in _REPLACED):
                raise
        self._engine.dispose()
        return self._with_first(mode, first, parameters, is_again=True)

    @contextmanager
    def _translating(self, started: float) -> Iterator[None]:
        try:
            yield
        except failures.FAILURES as error:
            if libpq.sqlstate_of(failures.cause_of(error)) in failures.UNDEFINED:
                self._schema_is_current = False
                self.require_schema()
            raise failures.before_commit(error, self._address, monotonic() - started) from error
        except UnicodeEncodeError as error:
            raise failures.unstorable() from error

    def require_schema(self) -> None:
        """Check whether the schema is this program's: once, and again after something was found to be missing."""
        if self._schema_is_current:
            return
        started = monotonic()
        try:
            require_current(self._engine)
        except failures.FAILURES as error:
            raise failures.before_commit(error, self._address, monotonic() - started) from error
        self._schema_is_current = True


def _give_back(lent: PoolProxiedConnection) -> None:
    """Give a connection back to the pool, what was not committed rolled back; a broken one is thrown away."""
    try:
        driver = driver_of(lent)
        driver.rollback()
        driver.take_mode(libpq.WRITING)
    except failures.FAILURES:
        lent.invalidate()
    lent.close()
