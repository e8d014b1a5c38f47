"""What the upgrade to revision 0015 takes, which renames every event: in pieces, and again after an interruption."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

import psycopg
import pytest
from sqlalchemy import Engine, event

from airflow_kcr.errors import StoreError
from airflow_kcr.protocol.region.events import CommitResolved
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.values import EventNumber
from airflow_kcr.store import schema_upgrade
from airflow_kcr.store.postgres import PostgresTransactions
from tests.benchmarks.figures import Report, Scale
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.earlier_schema import WORDS, execute, take_back_to
from tests.support.long_history import live_through, number_beyond

pytestmark = [pytest.mark.benchmark, pytest.mark.postgres, pytest.mark.timeout(3600)]

PARTITIONS = 12

_MORE_EVENTS = b"""
    INSERT INTO kcr.event (region_id, number, at, epoch, timeline, kind, body)
    SELECT r.id, n, now(), 1, 1, 'CheckpointRequested', jsonb_build_object('request_id', 'boundary:' || n,
        'purpose', 'boundary', 'boundary', to_char(now(), 'YYYY-MM-DD"T"HH24:MI:SS"+00:00"'))
    FROM kcr.region r, generate_series(%(first)s::bigint, %(last)s) n
"""


_BROKEN = """
    CREATE FUNCTION kcr.broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'interrupted'; END $$;
    CREATE TRIGGER broken BEFORE DELETE ON kcr.certificate EXECUTE FUNCTION kcr.broken()
"""


@contextmanager
def statements_timed() -> Iterator[list[tuple[float, str]]]:
    """Note how many seconds each statement takes."""
    took: list[tuple[float, str]] = []
    began: list[float] = []

    def before(*_: object) -> None:
        began.append(perf_counter())

    def after(*about: object) -> None:
        took.append((perf_counter() - began.pop(), " ".join(str(about[2]).split())))

    event.listen(Engine, "before_cursor_execute", before)
    event.listen(Engine, "after_cursor_execute", after)
    try:
        yield took
    finally:
        event.remove(Engine, "before_cursor_execute", before)
        event.remove(Engine, "after_cursor_execute", after)


def test_the_upgrade_that_renames_events(
    empty_database_url: str, scale: Scale, report: Callable[[str], Report]
) -> None:
    events, checkpoints = scale.of(1_000_000, 100), scale.of(100_000, 100)
    schema_upgrade.upgrade(empty_database_url)
    rules = RegionRules(groups={GROUP: group_rules(members=3)})
    with PostgresTransactions.connect(empty_database_url, lambda _: rules) as store:
        driver = Driver(partitions=PARTITIONS, rules=rules, transactions=store)
        number_beyond(empty_database_url, events)
        driver.up()
        driver.process()
        driver.checkpoint("first")
        live_through(empty_database_url, checkpoints)
    with psycopg.connect(empty_database_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(_MORE_EVENTS, {"first": checkpoints + 1, "last": events})
    take_back_to(empty_database_url, f"{int(WORDS) - 1:04d}")
    execute(empty_database_url, _BROKEN)
    began = perf_counter()
    with statements_timed() as pieces, pytest.raises(StoreError, match="P0001"):
        schema_upgrade.upgrade(empty_database_url)
    renamed = perf_counter() - began
    execute(empty_database_url, "DROP FUNCTION kcr.broken CASCADE")
    began = perf_counter()
    with statements_timed() as again:
        schema_upgrade.upgrade(empty_database_url)
    resumed = perf_counter() - began
    since_lock = again[next(i for i, (_, statement) in enumerate(again) if statement.startswith("LOCK TABLE")) :]
    with PostgresTransactions.connect(empty_database_url, lambda _: rules) as store:
        (newest,) = store.events(driver.name, EventNumber(store.read(driver.name)[0].counter - 1), 1)
        assert isinstance(newest.body, CommitResolved)
    shown = report("upgrade")
    shown.table(
        f"{events:,} events, {checkpoints:,} checkpoints: the upgrade from before revision {WORDS}, interrupted when "
        "every event is renamed, and gone on with; s",
        ("events renamed", "longest piece", "gone on with, whole", "of it under locks"),
        [(renamed, max(took for took, _ in pieces), resumed, sum(took for took, _ in since_lock))],
    )
