"""How much goes between a program and its Postgres, as libpq itself tells it: the same on every machine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import IO

import psycopg
from psycopg import pq
from sqlalchemy import Pool, event


def transferred(call: Callable[[], object]) -> int:
    """Return how many bytes messages have, both ways, that a call makes over connections of any pool.

    Args:
        call: what is run; connections that it opens are counted without their start.
    """
    with tempfile.TemporaryFile("w+") as told:

        def begin(connection: psycopg.Connection, *_: object) -> None:
            connection.pgconn.trace(told.fileno())
            connection.pgconn.set_trace_flags(pq.Trace.SUPPRESS_TIMESTAMPS)

        def end(connection: psycopg.Connection | None, *_: object) -> None:
            if connection is not None:
                connection.pgconn.untrace()

        event.listen(Pool, "checkout", begin)
        event.listen(Pool, "checkin", end)
        try:
            call()
        finally:
            event.remove(Pool, "checkout", begin)
            event.remove(Pool, "checkin", end)
        return _sum(told)


def _sum(told: IO[str]) -> int:
    """Return the lengths of all messages: a line each, its second field, to which the type's byte is added."""
    told.seek(0)
    return sum(int(line.split("\t")[1]) + 1 for line in told if line[:2] in {"F\t", "B\t"})
