"""How much a statement of the store touches, as the server itself counts it: what time can't tell on a busy machine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import RawCursor, sql
from psycopg._queries import PostgresRawQuery
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus

from airflow_kcr import libpq

if TYPE_CHECKING:
    from psycopg.rows import TupleRow

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


def _explained(driver: psycopg.Connection, statement: bytes, parameters: Sequence[object]) -> sql.Composed:
    """Prepare a statement as `counted`, with the types that the driver gives its parameters; return its EXPLAIN."""
    query = PostgresRawQuery(Transformer(driver))
    query.convert(statement, parameters)
    prepared = driver.pgconn.prepare(b"counted", query.query, query.types)
    if prepared.status != ExecStatus.COMMAND_OK:
        raise AssertionError(prepared.error_message.decode())
    bound = sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Literal, parameters))) if parameters else sql.SQL("")
    return sql.SQL("EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE counted {}").format(bound)


@contextmanager
def touched() -> Iterator[Counter[str]]:
    """Count, by statement, the rows that whatever runs meanwhile makes the server touch.

    Each statement is run twice: explained and undone first, and then as it is. It is explained as a prepared one, as
    which the driver runs it from the sixth time on: with the plan that serves whatever it is asked about.
    """
    counted = Counter[str]()

    def explain(driver: libpq.Connection, statement: bytes, parameters: Sequence[object]) -> None:
        begin, undo = ("BEGIN", "ROLLBACK") if driver.autocommit else ("SAVEPOINT plan", "ROLLBACK TO plan")
        driver.execute(begin)
        found = driver.execute(_explained(driver, statement, parameters)).fetchone()
        driver.execute(b"DEALLOCATE counted")
        driver.execute(undo)
        if found is None:
            raise AssertionError(statement)
        plans = json.loads(found[0]) if isinstance(found[0], str) else found[0]
        counted[" ".join(statement.decode().split())] += rows_of(plans[0]["Plan"])

    with before_statements(explain):
        yield counted


@contextmanager
def statements() -> Iterator[list[str]]:
    """Note every statement that whatever runs meanwhile sends."""
    run: list[str] = []
    with before_statements(lambda _driver, statement, _parameters: run.append(statement.decode())):
        yield run


@contextmanager
def before_statements(do: Callable[[libpq.Connection, bytes, Sequence[object]], None]) -> Iterator[None]:
    """Do something before each statement of a store: with its connection, its text, and its parameters."""
    run = libpq.Connection.run

    def noted(driver: libpq.Connection, statement: bytes, parameters: Sequence[object]) -> RawCursor[TupleRow]:
        do(driver, statement, parameters)
        return run(driver, statement, parameters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(libpq.Connection, "run", noted)
        yield
