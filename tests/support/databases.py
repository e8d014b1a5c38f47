"""Statements that a test runs on a database itself."""

from __future__ import annotations

from typing import Any

import psycopg
from sqlalchemy.engine import make_url


def libpq(url: str) -> str:
    """A URL of SQLAlchemy as libpq takes it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def execute(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements, each of which is committed by itself, and return the rows of the last."""
    rows: list[tuple[Any, ...]] = []
    with psycopg.connect(libpq(url), autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
            rows = cursor.fetchall() if cursor.description else []
    return rows
