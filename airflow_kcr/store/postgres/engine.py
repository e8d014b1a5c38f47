"""The engine: how every connection to the store is set up.

No connection is checked before it is used: that would be one more round trip for every batch. A pooled connection that
has died is found by the first statement of a transaction, which takes a lock or reads, and is replaced then
(`transactions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Final

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url

from airflow_kcr import libpq
from airflow_kcr.errors import StoreRefused
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.store.postgres import failures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection, Dialect

CONNECT_TIMEOUT: Final = 10
"""Seconds in which a server has to answer a new connection, where the URL has no `connect_timeout`."""

POOL_WAIT: Final = 5.0
"""Seconds to wait for a connection of the pool to become free."""

PLANNER: Final = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "jit": "off"}
"""Every statement names its rows by an index, so one plan serves it whatever it asks about. Left to itself the server
would plan those that a decision reads anew at each call, which takes longer than their rows do. And no table is walked
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
    address = failures.Address(engine.url)

    def connect(_dialect: Dialect, _record: object, _args: object, parameters: dict[str, object]) -> libpq.Connection:
        try:
            return libpq.connect(parameters, settings)
        except libpq.Unsuitable as wrong:
            raise StoreRefused(f"the store at {address} can't be used: {wrong}; nothing was changed") from None

    def begin(connection: Connection) -> None:
        driver_of(connection).begin()

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "begin", begin)


def driver_of(connection: Connection) -> libpq.Connection:
    """Return the driver's connection under one of an engine that `connect_under` has set up."""
    driver: object = connection.connection.dbapi_connection
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
            is_pooled = driver_of(connection).is_pooled
    except failures.FAILURES as error:
        raise failures.before_commit(error, failures.Address(engine.url), monotonic() - began) from error
    finally:
        engine.dispose()
    return Server(version=version, is_standby=is_standby, is_pooled=is_pooled, now=now)


def _milliseconds(span: timedelta) -> str:
    return str(max(span // timedelta(milliseconds=1), 1))
