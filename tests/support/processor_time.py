"""The processor time of what a store is asked: of this process, and of those of the server that answer it.

What a machine does beside that is not in it, so that it can be compared where the time of the clock tells nothing.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter, process_time_ns
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Engine, event

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg


class Times(NamedTuple):
    """Milliseconds of a call."""

    taken: float
    worked: float
    """Of processor time, here and in the server."""


class ProcessorTime:
    """A clock that goes on while this process, or a server process behind an engine's connections, works.

    Args:
        engine: of a store on this machine; the connections that it has are closed, so that all of them are known.
    """

    def __init__(self, engine: Engine) -> None:
        self._backends: set[int] = set()
        event.listen(engine, "connect", self._note)
        engine.dispose()

    def __call__(self) -> float:
        """Return how many milliseconds it has gone on since some moment."""
        served = (Path(f"/proc/{backend}/schedstat").read_text("ascii") for backend in self._backends)
        return (process_time_ns() + sum(int(text.split()[0]) for text in served)) / 1e6

    def of(self, call: Callable[[], object]) -> Times:
        """Return how long a call takes."""
        began, worked = perf_counter(), self()
        call()
        return Times((perf_counter() - began) * 1000, self() - worked)

    def _note(self, connection: psycopg.Connection, *_: object) -> None:
        self._backends.add(connection.info.backend_pid)
