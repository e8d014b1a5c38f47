"""Connections of the store's engine, lent for one transaction or one statement, and what may fail on the way.

Every failure leaves here as an error of this project, which says whether anything can have changed (`failures`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from time import monotonic
from typing import Final, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, Executable, text

from airflow_kcr.errors import StoreBusy
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.store.postgres import failures
from airflow_kcr.store.postgres.session import Found, Session
from airflow_kcr.store.schema_upgrade import require_current

# name: no_lock — the first statement of a transaction that needs no lock.
NO_LOCK: Final = text("SELECT 1")

IDLE: Final = "25P03"
"""The server's message about a transaction that stood idle for too long."""

_REPLACED: Final = frozenset({"57P01", "57P02", "57P05", IDLE, "08006", "08003"})
"""What the server says, as its last words, on a connection that it had already ended."""


P = ParamSpec("P")
A = TypeVar("A")


def read_again(read: Callable[P, A]) -> Callable[P, A]:
    """Have a read begin anew, once, where the server has ended its transaction because this process was kept from it.

    On a machine that is busy enough a process gets no turn for longer than a transaction may be idle. A decision is not
    repeated: while it idled it kept others from deciding.
    """

    @wraps(read)
    def begun_anew(*args: P.args, **kwargs: P.kwargs) -> A:
        try:
            return read(*args, **kwargs)
        except StoreBusy as busy:
            if busy.__cause__ is None or failures.sqlstate_of(busy.__cause__) != IDLE:
                raise
        return read(*args, **kwargs)

    return begun_anew


class Connections:
    """Lends connections of one engine.

    Args:
        engine: as `build_engine` makes it.
        read_rules: for the sessions, which build regions from rows.
    """

    def __init__(self, engine: Engine, read_rules: Callable[[str], RegionRules]) -> None:
        self._engine = engine
        self._snapshots = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._read_rules = read_rules
        self._address = failures.Address(engine.url)
        self._schema_is_current = False

    @contextmanager
    def transaction(self, first: Executable, **parameters: object) -> Iterator[Session]:
        """Run the body in one transaction that begins with the statement `first`, and commit it.

        Raises:
            StoreError: see `failures`; before COMMIT was sent, nothing was changed.
        """
        started = monotonic()
        with self._lent(self._engine, first, parameters) as session:
            yield session
            try:
                session.commit()
            except failures.FAILURES as error:
                raise failures.during_commit(error, self._address, monotonic() - started) from error

    @contextmanager
    def snapshot(self, first: Executable, **parameters: object) -> Iterator[Session]:
        """Run the body in a transaction that only reads, all of it as of one moment: that of the statement `first`.

        What was read is true whatever becomes of the transaction: a server may have ended it while the body worked on
        what it had read. It is committed all the same, because the driver forgets its prepared statements with a
        rollback.
        """
        with self._lent(self._snapshots, first, parameters) as session:
            yield session
            with suppress(*failures.FAILURES):
                session.commit()

    @contextmanager
    def _lent(self, engine: Engine, first: Executable, parameters: dict[str, object]) -> Iterator[Session]:
        self.require_schema()
        started = monotonic()
        connection, rows = self._begun(engine, first, parameters, started)
        session = Session(connection, self.answer, self._read_rules, rows)
        try:
            with self._translating(started):
                yield session
        finally:
            session.end()
            _close(connection)

    def _begun(
        self, engine: Engine, first: Executable, parameters: dict[str, object], started: float
    ) -> tuple[Connection, Sequence[Found]]:
        """Return a connection in a transaction whose first statement was run, and the rows of that.

        A pooled connection may have died since it was used last. It is found here, before anything was asked that
        changes something, and replaced once.
        """
        with self._translating(started):
            try:
                return _with_first(engine.connect(), first, parameters)
            except failures.FAILURES as error:
                if not failures.is_lost(error) and failures.sqlstate_of(error) not in _REPLACED:
                    raise
            return _with_first(engine.connect(), first, parameters)

    def answer(self, statement: Executable, **parameters: object) -> Sequence[Found]:
        """Return the rows of one statement in autocommit, which may be repeated without harm; one round trip."""
        self.require_schema()
        started = monotonic()
        connection, rows = self._begun(self._autocommit, statement, parameters, started)
        try:
            with self._translating(started):
                # Behind a pooler there is a transaction, for its settings; else this sends nothing.
                connection.commit()
        finally:
            _close(connection)
        return rows

    @contextmanager
    def _translating(self, started: float) -> Iterator[None]:
        try:
            yield
        except failures.FAILURES as error:
            if failures.sqlstate_of(error) in failures.UNDEFINED:
                self._schema_is_current = False
                self.require_schema()
            raise failures.before_commit(error, self._address, monotonic() - started) from error
        except UnicodeEncodeError as error:
            raise failures.unstorable() from error

    def require_schema(self) -> None:
        """Check whether the schema is this program's: once, and again after something was found to be missing."""
        if self._schema_is_current:
            return
        started = monotonic()
        try:
            require_current(self._engine)
        except failures.FAILURES as error:
            raise failures.before_commit(error, self._address, monotonic() - started) from error
        self._schema_is_current = True


def _with_first(
    connection: Connection, first: Executable, parameters: dict[str, object]
) -> tuple[Connection, Sequence[Found]]:
    try:
        return connection, connection.execute(first, parameters).all()
    except BaseException:
        _close(connection)
        raise


def _close(connection: Connection) -> None:
    """Give a connection back to the pool, what was not committed rolled back; a broken one is thrown away."""
    try:
        connection.rollback()
    except failures.FAILURES:
        connection.invalidate()
    connection.close()
