"""Upgrades of a region store's schema to the newest revision, and which revision a database has.

Nothing here runs by itself: a program that finds another revision than its own refuses to work
(`revision.require_current`), and a person runs `kcr store upgrade`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from airflow_kcr import libpq
from airflow_kcr.errors import StoreBusy, StoreRefused
from airflow_kcr.floods import unflooded
from airflow_kcr.store.postgres.connections import connect_under, driver_of
from airflow_kcr.store.postgres.failures import address_of, before_commit, cause_of
from airflow_kcr.store.postgres.revision import HEAD, SCHEMA, revision_of, too_new
from airflow_kcr.store.postgres.statements import load

if TYPE_CHECKING:
    from alembic.config import Config

_AGAIN = unflooded(f"{__name__}.again")

SQL: Final = load("upgrade")

_MIGRATIONS: Final = Path(__file__).parent / "migrations"

# Any number does, as long as every upgrade takes the same one: two at once would make every table twice.
_UPGRADE_LOCK: Final = 4_729_370_001

_PAUSE: Final = 0.2
"""Seconds between two tries."""

_LOCK_ATTEMPTS: Final = 30
"""How often a migration is tried while a table is not free; with the pauses some five minutes."""

_LONGEST_PAUSE: Final = 10.0
"""Seconds between two such attempts; the first are a second, two seconds, and so on. Others work meanwhile."""

_CREATE_SCHEMA: Final = text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaStatus:
    """The revision that a database has, and the one that this program needs."""

    current: str | None
    """None: there is no kcr schema, or nothing in it."""

    head: str

    @property
    def is_current(self) -> bool:
        """True if this program can work with it."""
        return self.current == self.head


def upgrade(url: str) -> SchemaStatus:
    """Bring a database to the newest schema, and return what it then has; where it is there already, change nothing.

    Each migration is a transaction; those that convert rows or build indexes of tables that grow do so before it, in
    pieces and without blocking writes. All under one lock: of two upgrades at once, the second finds nothing left to
    do. One that was interrupted has left a revision on the way, which no program works with, and continues from there
    when it is repeated. Programs never wait for long behind a migration that waits for a table: it gives up soon, lets
    them work, and tries again.

    Args:
        url: an SQLAlchemy URL of the store; its user owns the schema, or may create it.

    Raises:
        SchemaTooNew: the database is newer than this program.
        StoreBusy: a table was in use, again and again; the message says by which session.
        StoreRefused: a pooler is in between.
        StoreUnavailable: it can't be reached; the message has its address, never the password.
    """
    from alembic.config import Config

    with _connected(url) as connection:
        _require_own_session(connection)
        _lock(connection)
        current = revision_of(connection)
        if current is not None and int(current) > int(HEAD):
            raise too_new(current)
        connection.execute(_CREATE_SCHEMA)
        connection.commit()
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        config.attributes["connection"] = connection
        _migrate(connection, config)
    return SchemaStatus(current=HEAD, head=HEAD)


def status(url: str) -> SchemaStatus:
    """Return which revision a database has, and which one this program needs.

    Raises:
        StoreUnavailable: it can't be reached; the message has its address, never the password.
    """
    with _connected(url) as connection:
        return SchemaStatus(current=revision_of(connection), head=HEAD)


def _lock(connection: Connection) -> None:
    """Wait until no other upgrade runs, however long it takes, and keep others out.

    The lock is of the session, so that it outlasts the transactions: closing the connection lets go of it.
    """
    while not connection.execute(text(SQL["try_lock"].sql), {"key": _UPGRADE_LOCK}).scalar_one():
        connection.commit()
        time.sleep(_PAUSE)
    connection.commit()


def _migrate(connection: Connection, config: Config) -> None:
    """Run the migrations that are left, each again if it could not get a table for itself."""
    from alembic import command

    for attempt in range(1, _LOCK_ATTEMPTS + 1):
        connection.execute(text(SQL["limits"].sql))
        connection.commit()
        try:
            command.upgrade(config, "head")
        except DBAPIError as error:
            connection.rollback()
            if libpq.sqlstate_of(cause_of(error)) != libpq.LOCK_NOT_AVAILABLE:
                raise
            in_use = _in_use(connection)
            if attempt == _LOCK_ATTEMPTS:
                raise StoreBusy(
                    f"{in_use}; wait for it or end it, then run `kcr store upgrade` again, which continues from there"
                ) from error
            _AGAIN.warning("%s; trying again", in_use)
        else:
            return
        time.sleep(min(attempt, _LONGEST_PAUSE))


def _in_use(connection: Connection) -> str:
    """Return why a migration got no table for itself."""
    found = connection.execute(text(SQL["holder"].sql)).one_or_none()
    revision = revision_of(connection)
    connection.commit()
    what = f"the migration after revision {revision} needs a table that is in use"
    if found is None:
        return what
    process, application, seconds = found
    since = "" if seconds is None else f" for {seconds} s"
    return f"{what}; server process {process} ({application}) has been in a transaction{since}"


def _require_own_session(connection: Connection) -> None:
    """Refuse a pooler: the upgrade's lock is of the session, as it outlasts the transactions of the migrations."""
    if driver_of(connection.connection).is_pooled:
        raise StoreRefused(
            f"the store at {address_of(connection.engine.url)} is behind a pooler, and an upgrade needs a session of "
            f"its own; {libpq.DIRECTLY}; nothing was changed"
        )


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    """Yield a connection, which no transaction outlasts; the driver is psycopg 3, whatever the URL says of Postgres."""
    target = make_url(url).set(drivername="postgresql+psycopg")
    engine = create_engine(target, poolclass=NullPool, hide_parameters=True)
    connect_under(engine, {})
    began = time.monotonic()
    try:
        with engine.connect() as connection:
            yield connection
    except SQLAlchemyError as error:
        raise before_commit(error, address_of(target), time.monotonic() - began) from error
    finally:
        engine.dispose()
