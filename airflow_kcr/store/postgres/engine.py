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
    import psycopg

CONNECT_TIMEOUT: Final = 10
"""Seconds in which a server has to answer a new connection, where the URL has no `connect_timeout`."""

POOL_WAIT: Final = 5.0
"""Seconds to wait for a connection of the pool to become free."""


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
    settings = {**limits, "default_transaction_isolation": r"read\ committed", "timezone": "UTC"}
    given = target.query.get("options", ())
    options = [given] if isinstance(given, str) else list(given)
    # Ours come last, because the last one counts.
    options += [f"-c {name}={value}" for name, value in settings.items()]
    engine = create_engine(
        target.update_query_dict({"options": " ".join(options)}),
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

    def check(connection: psycopg.Connection, _record: object) -> None:
        wrong = libpq.settle(connection, limits)
        if wrong:
            connection.close()
            raise StoreRefused(f"the store at {failures.Address(target)} can't be used: {wrong}; nothing was changed")

    event.listen(engine, "connect", check)
    return engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What a Postgres says of itself."""

    version: str
    """As it shows it, such as `16.4 (Debian 16.4-1)`."""

    major: int
    is_standby: bool
    now: datetime
    """Its clock, as it answered; with zone."""


# name: server — what `kcr doctor` looks at.
_SERVER: Final = text("""
    SELECT current_setting('server_version'), current_setting('server_version_num')::int / 10000,
           pg_is_in_recovery(), clock_timestamp()
""")


def server_at(url: str | URL) -> Server:
    """Return what the server at a URL says of itself, over a connection such as every store has.

    Raises:
        StoreError: it can't be reached, or a connection is not what was asked for.
    """
    engine, began = build_engine(url, connections=1), monotonic()
    try:
        with engine.connect() as connection:
            version, major, is_standby, now = connection.execute(_SERVER).one()
    except failures.FAILURES as error:
        raise failures.before_commit(error, failures.Address(engine.url), monotonic() - began) from error
    finally:
        engine.dispose()
    return Server(version=version, major=major, is_standby=is_standby, now=now)


def _milliseconds(span: timedelta) -> int:
    return max(span // timedelta(milliseconds=1), 1)
