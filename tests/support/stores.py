"""Both stores behind one face: fixtures' building blocks for the contract suite.

Time stands still in both until a test moves it. In Postgres by a `clock_timestamp` of our own, found before the real
one because the search path says so: the statements under test stay as they are, and nothing sleeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import create_engine
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.pool import QueuePool

from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.store.postgres import build_engine
from airflow_kcr.store.regions import RegionStore
from tests.support.databases import execute
from tests.support.driver import BEGINNING, Clock
from tests.support.memory import MemoryTransactions

CLOCK = f"""
    CREATE SCHEMA test_clock;
    CREATE TABLE test_clock.hands (instant timestamptz NOT NULL);
    INSERT INTO test_clock.hands VALUES ('{BEGINNING.isoformat()}');
    CREATE FUNCTION test_clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
        'SELECT instant FROM test_clock.hands';
"""


PARENTS = {
    "checkpoint_partition": ("checkpoint", "sequence"),
    "checkpoint_offset": ("checkpoint", "sequence"),
    "contribution_offset": ("contribution", "sequence, group_id, member_index"),
    "read_back": ("checkpoint", "sequence"),
    "seek_offset": ("reset", "epoch"),
}
"""Of the tables that no foreign key keeps from having rows alone: what they belong to, and by which columns."""

ALONE = " UNION ALL ".join(
    f"SELECT '{table}' FROM kcr.{table} LEFT JOIN kcr.{parent} p USING (region_id, {columns}) WHERE p.region_id IS NULL"
    for table, (parent, columns) in PARENTS.items()
)
"""Rows whose checkpoint, contribution or reset isn't there."""


class Specs:
    """Specs of tests: their text is a number, and the rules are kept here instead of being read from a file."""

    def __init__(self) -> None:
        self._rules: list[RegionRules] = []

    def spec(self, rules: RegionRules, revision: int = 1) -> Spec:
        """Return a spec of these rules that `read` knows by its text."""
        self._rules.append(rules)
        return Spec(text=f'{{"test":{len(self._rules) - 1}}}', rules=rules, revision=revision)

    def read(self, spec: str) -> RegionRules:
        """Return the rules behind a text; the drivers' own text means the ones that were noted last."""
        return self._rules[-1] if spec == "{}" else self._rules[int(spec.removeprefix('{"test":').removesuffix("}"))]

    def note(self, rules: RegionRules) -> RegionRules:
        """Remember rules whose spec a driver makes."""
        self._rules.append(rules)
        return rules


class DatabaseClock(Clock):
    """The clock of one test database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        super().__init__(self())

    def __call__(self) -> datetime:
        return self._moment("SELECT test_clock.clock_timestamp()")

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        passed = f"UPDATE test_clock.hands SET instant = instant + interval '{seconds} seconds' RETURNING instant"
        self.now = self._moment(passed)

    def _moment(self, statement: str) -> datetime:
        with self._engine.begin() as connection:
            moment = connection.exec_driver_sql(statement).scalar_one()
        if not isinstance(moment, datetime):
            raise TypeError(moment)
        return moment


@contextmanager
def database_clock(url: str) -> Iterator[DatabaseClock]:
    """The clock of a database that `postgres_store` has prepared, read and moved over one connection."""
    # Without prepared statements, which a pooler between would mix up; pinged, as tests end each other's connections.
    engine = create_engine(url, pool_size=1, pool_pre_ping=True, connect_args={"prepare_threshold": None})
    try:
        yield DatabaseClock(engine)
    finally:
        engine.dispose()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A store under test, its clock, and the specs that it reads."""

    kind: str
    transactions: RegionStore
    clock: Clock
    specs: Specs


@contextmanager
def memory_subject() -> Iterator[Subject]:
    """The store in memory."""
    clock = Clock()
    yield Subject(kind="memory", transactions=MemoryTransactions(clock), clock=clock, specs=Specs())


@contextmanager
def postgres_subject(url: str) -> Iterator[Subject]:
    """The store on Postgres, with a clock moved by hand; fails where a connection of its pool is not given back."""
    specs = Specs()
    with postgres_store(url, specs.read) as store, database_clock(url) as clock:
        yield Subject(kind="postgres", transactions=store, clock=clock, specs=specs)


@contextmanager
def postgres_store(url: str, read_rules: Callable[[str], RegionRules]) -> Iterator[RegionStore]:
    """A store on a database whose clock is moved by hand; fails where a row is left without what it belongs to."""
    execute(url, f"DO $$ BEGIN IF to_regnamespace('test_clock') IS NULL THEN {CLOCK} END IF; END $$")
    engine = build_engine(make_url(url).update_query_dict({"options": "-c search_path=test_clock,pg_catalog"}))
    store = RegionStore(engine, read_rules)
    try:
        yield store
        if isinstance(engine.pool, QueuePool) and engine.pool.checkedout():
            raise AssertionError(f"not every connection was given back: {engine.pool.status()}")
        [(alone,)] = execute(url, f"SELECT string_agg(DISTINCT t, ', ') FROM ({ALONE}) AS alone (t)")
        if alone is not None:
            raise AssertionError(f"rows without what they belong to, in {alone}")
    finally:
        store.close()
        engine.dispose()


@contextmanager
def only_reading(url: str) -> Iterator[URL]:
    """The URL of a store for a user who may read all of it and write nothing."""
    target = make_url(url)
    role = f"reader_{target.database}"
    execute(
        url,
        f"CREATE ROLE {role} LOGIN",
        f"GRANT USAGE ON SCHEMA kcr TO {role}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA kcr TO {role}",
    )
    try:
        yield target.set(username=role)
    finally:
        execute(url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def expire(subject: Subject) -> None:
    """Let time pass until every lease of the subject is over."""
    subject.clock.advance(timedelta(minutes=2).total_seconds())
