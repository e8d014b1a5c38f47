"""How much a statement of the store touches, as the server itself counts it: what time can't tell on a busy machine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, event

_REMOVED = ("Rows Removed by Filter", "Rows Removed by Join Filter", "Rows Removed by Index Recheck")


def rows_of(plan: dict[str, Any]) -> int:
    """Return how many rows an executed plan has read from wherever they were, again and again where it did so.

    Args:
        plan: a node, as `EXPLAIN (ANALYZE, FORMAT JSON)` has it.
    """
    parts = plan.get("Plans", [])
    read = 0 if parts and plan["Node Type"] != "Materialize" else plan["Actual Rows"]
    own = read + sum(plan.get(removed, 0) for removed in _REMOVED)
    return int(own * plan["Actual Loops"]) + sum(rows_of(part) for part in parts)


def keep_unknown(url: str) -> None:
    """Have the server analyse no table of a store by itself: of one that it knows to be short it reads every row.

    When it comes to that is up to the server, so a test that compares rows of short tables would now and then fail.
    """
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        tables = connection.execute(
            "SELECT c.oid::regclass::text FROM pg_class c "
            "WHERE c.relnamespace = 'kcr'::regnamespace AND c.relkind = 'r'"
        ).fetchall()
        for (table,) in tables:
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())


@contextmanager
def touched() -> Iterator[Counter[str]]:
    """Count, by statement, the rows that whatever runs meanwhile makes the server touch.

    Each statement is run twice: explained and undone first, and then as it is.
    """
    counted = Counter[str]()

    def explain(
        connection: Connection, _cursor: object, statement: str, parameters: dict[str, Any], *_more: object
    ) -> None:
        driver: object = connection.connection.dbapi_connection
        if not isinstance(driver, psycopg.Connection) or statement.lstrip().split()[0] in {"SET", "LISTEN"}:
            return
        begin, undo = ("BEGIN", "ROLLBACK") if driver.autocommit else ("SAVEPOINT plan", "ROLLBACK TO plan")
        driver.execute(begin)
        found = driver.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}".encode(), parameters).fetchone()
        driver.execute(undo)
        if found is None:
            raise AssertionError(statement)
        plans = json.loads(found[0]) if isinstance(found[0], str) else found[0]
        counted[" ".join(statement.split())] += rows_of(plans[0]["Plan"])

    event.listen(Engine, "before_cursor_execute", explain)
    try:
        yield counted
    finally:
        event.remove(Engine, "before_cursor_execute", explain)


@contextmanager
def statements() -> Iterator[list[str]]:
    """Note every statement that whatever runs meanwhile sends."""
    run: list[str] = []

    def note(*about: object) -> None:
        run.append(str(about[2]))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield run
    finally:
        event.remove(Engine, "before_cursor_execute", note)
