"""A process that closes a history, and comes to its end, or to that of its rights, at a moment that is told.

python -m tests.support.killed_closing URL FOLDER MOMENT
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from gzip import GzipFile
from itertools import count
from pathlib import Path
from typing import Final

from airflow_kcr.api import archives, verdict
from airflow_kcr.errors import KcrError
from airflow_kcr.ports import Certificate, Dropped
from airflow_kcr.protocol.values import CheckpointNumber, RegionName
from airflow_kcr.spec import RegionSpec
from airflow_kcr.store.postgres import PostgresTransactions, chronicle
from airflow_kcr.store.postgres.chronicle import PostgresChronicle

MOMENTS: Final = ("writing", "written", "renamed", "noted", "second noted", "dropping", "dropped events")
"""Where it may be killed: some lines are written; all are, under another name; under the name; the store knows of the
file, or of a second one; after a piece of the events; after those and a piece of the batches."""

NOBODY: Final = 65_534


def die() -> None:
    """End as kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)


def arrange(moment: str) -> None:
    """Die at a moment."""
    match moment:
        case "writing":
            at_call(GzipFile, "write", 5)
        case "written":
            at_call(Path, "replace", 1)
        case "renamed":
            at_call(verdict, "_force", 1)
        case "noted":
            after_call(PostgresChronicle, "archived", 1)
        case "second noted":
            after_call(PostgresChronicle, "archived", 2)
        case _:
            while_dropping(events=moment == "dropping")


def at_call(owner: object, name: str, place: int) -> None:
    """Die instead of a call, counted from 1."""
    real, calls = getattr(owner, name), count(1)
    setattr(owner, name, lambda *given: die() if next(calls) == place else real(*given))


def after_call(owner: object, name: str, place: int) -> None:
    """Die once a call is over, counted from 1."""
    real, calls = getattr(owner, name), count(1)

    def called(*given: object) -> None:
        real(*given)
        if next(calls) == place:
            die()

    setattr(owner, name, called)


def while_dropping(*, events: bool) -> None:
    """Die after the first piece of events, or of batches."""
    real = PostgresChronicle.drop

    def drop(self: PostgresChronicle, closed: Certificate, floor: CheckpointNumber) -> Iterator[Dropped]:
        for dropped in real(self, closed, floor):
            if dropped.events if events else dropped.batches:
                die()
            yield dropped

    PostgresChronicle.drop = drop  # type: ignore[method-assign]


def without_rights(close: Callable[[], object]) -> None:
    """Call as a user who may not write where this user may; a connection is open already."""
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
    try:
        close()
    finally:
        os.seteuid(os.getuid())


def main(url: str, root: Path, moment: str) -> int:
    """Close what is certified; 1 where that is refused."""
    chronicle.PIECE = 20  # type: ignore[misc]
    name = RegionName("flights")
    with PostgresTransactions.connect(url, lambda text: RegionSpec.from_json(text).rules()) as store:
        region, now = store.read(name)

        def close() -> None:
            archives.close(region, store.chronicle(name), root, now, timedelta(microseconds=1))

        try:
            if moment == "rights":
                store.names()
                without_rights(close)
            else:
                arrange(moment)
                close()
        except KcrError as error:
            sys.stderr.write(error.message)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
