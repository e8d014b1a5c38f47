"""Which revision of the schema a database has, and whether this program can work with it.

Revisions are numbers in the order of their making, so older and newer can be told apart by a program that has never
heard of the newer one. The migrations make the tables; the snapshot beside their tests shows what they come to.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, Engine, text

from airflow_kcr.errors import SchemaMissing, SchemaTooNew, SchemaTooOld

SCHEMA: Final = "kcr"
VERSION_TABLE: Final = "alembic_version"
HEAD: Final = "0006"
"""The revision that this program works with: that of its newest migration."""

_HAS_VERSION_TABLE: Final = text("SELECT to_regclass(:name) IS NOT NULL")
_VERSION: Final = text("SELECT version_num FROM kcr.alembic_version")


def require_current(engine: Engine) -> None:
    """Refuse a database that this program can't work with.

    Raises:
        SchemaMissing: it has no kcr schema.
        SchemaTooOld: it has an earlier one; the message says how to upgrade.
        SchemaTooNew: it has a later one.
    """
    with engine.connect() as connection:
        require_revision(revision_of(connection))


def require_revision(current: str | None) -> None:
    """Refuse a revision that this program can't work with; see `require_current`."""
    if current is None:
        raise SchemaMissing
    if int(current) < int(HEAD):
        raise SchemaTooOld(
            f"the store's schema is of revision {current}, this program needs {HEAD}; run `kcr store upgrade`"
        )
    if int(current) > int(HEAD):
        raise too_new(current)


def revision_of(connection: Connection) -> str | None:
    """Return the revision of the database behind a connection; None: it has no kcr schema."""
    if not connection.execute(_HAS_VERSION_TABLE, {"name": f"{SCHEMA}.{VERSION_TABLE}"}).scalar_one():
        return None
    found = connection.execute(_VERSION).scalar_one_or_none()
    return None if found is None else str(found)


def too_new(current: str) -> SchemaTooNew:
    """Return the refusal of a revision that is later than this program's."""
    return SchemaTooNew(
        f"the store's schema is of revision {current}, this program knows {HEAD} and earlier; "
        "upgrade airflow-kcr where this program runs"
    )
