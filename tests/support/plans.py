"""How much a statement of the store touches, as the server itself counts it: what time can't tell on a busy machine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg._queries import PostgresQuery
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus
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
def nothing_pruned(url: str) -> Iterator[None]:
    """Keep the server from pruning dead rows meanwhile, so that each page holds as many in every run.

    Otherwise it does so by chance: a transaction of any other test on the same server keeps it from that. How many
    pages a short table has decides whether it is walked through.
    """
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute(b"SELECT pg_current_xact_id()")
        yield


def _explained(driver: psycopg.Connection, statement: str, parameters: dict[str, Any]) -> sql.Composed:
    """Prepare a statement as `counted`, with the types that the driver gives its parameters; return its EXPLAIN."""
    query = PostgresQuery(Transformer(driver))
    query.convert(statement, parameters or None)
    prepared = driver.pgconn.prepare(b"counted", query.query, query.types)
    if prepared.status != ExecStatus.COMMAND_OK:
        raise AssertionError(prepared.error_message.decode())
    # Each value as often as the driver binds it: in the order of its placeholders.
    values = sql.SQL(", ").join(sql.Literal(parameters[name]) for name in query._order or ())
    bound = sql.SQL("({})").format(values) if query._order else sql.SQL("")
    return sql.SQL("EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE counted {}").format(bound)


@contextmanager
def touched() -> Iterator[Counter[str]]:
    """Count, by statement, the rows that whatever runs meanwhile makes the server touch.

    Each statement is run twice: explained and undone first, and then as it is. It is explained as a prepared one, as
    which the driver runs it from the sixth time on: with the plan that serves whatever it is asked about.
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
        found = driver.execute(_explained(driver, statement, parameters)).fetchone()
        driver.execute(b"DEALLOCATE counted")
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
