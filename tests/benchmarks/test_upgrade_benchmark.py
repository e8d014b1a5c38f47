"""What upgrades of a store take that has lived for years: in pieces, while leases are renewed, and interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from statistics import median
from time import perf_counter

import psycopg
import pytest
from sqlalchemy import Engine, event

from airflow_kcr.errors import StoreError
from airflow_kcr.protocol.region.events import CommitResolved
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import EventNumber
from airflow_kcr.store import schema_upgrade
from airflow_kcr.store.postgres import PostgresTransactions
from tests.benchmarks.figures import Report, Scale
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.earlier_schema import WORDS, execute, take_back_to
from tests.support.long_history import live_through, number_beyond
from tests.support.long_ledger import Statistics, fill

pytestmark = [pytest.mark.benchmark, pytest.mark.postgres, pytest.mark.timeout(3600)]

PARTITIONS = 12

# A long lease, so that nothing expires while a slow machine is measured.
RULES = RegionRules(groups={GROUP: group_rules(members=3)}, timeouts=Timeouts(lease=timedelta(hours=5)))

YEARS = "0009"
"""The first revision of those that let a region live for years."""

# Members go on to renew while the store is upgraded; by the statement alone, as no program works with what is between.
_RENEW = b"""
    UPDATE kcr.lease l SET valid_until = clock_timestamp() + interval '5 hours'
    FROM kcr.region r WHERE r.id = l.region_id
"""
PAUSE = 0.1
"""Seconds between two renewals."""

# What a ledger of then says by itself: every tenth batch was undone.
_UNDONE = "UPDATE kcr.batch SET outcome = 'undone' WHERE mod(number, 10) = 0 AND outcome IS NOT NULL"

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


@contextmanager
def renewals(url: str) -> Iterator[list[float]]:
    """Renew all leases again and again meanwhile, and note how many seconds each time takes."""
    took: list[float] = []
    over = threading.Event()

    def renew() -> None:
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
            while not over.wait(PAUSE):
                began = perf_counter()
                connection.execute(_RENEW)
                took.append(perf_counter() - began)

    with ThreadPoolExecutor(1) as threads:
        renewing = threads.submit(renew)
        try:
            yield took
        finally:
            over.set()
        renewing.result()


def fill_years(url: str, partitions: int, *, events: int, checkpoints: int, batches: int) -> Driver:
    """Give the newest schema a region of years; return what drove it, over a store that is closed."""
    schema_upgrade.upgrade(url)
    with PostgresTransactions.connect(url, lambda _: RULES) as store:
        driver = Driver(partitions=partitions, rules=RULES, transactions=store)
        number_beyond(url, events)
        driver.up()
        if batches:
            fill(url, driver, batches, Statistics.FRESH)
        else:
            driver.process()
        driver.checkpoint("first")
        live_through(url, checkpoints)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(_MORE_EVENTS, {"first": checkpoints + 1, "last": events})
    return driver


def test_the_upgrade_from_before_regions_lived_for_years(
    empty_database_url: str, scale: Scale, report: Callable[[str], Report]
) -> None:
    url, partitions = empty_database_url, 3
    events, checkpoints, batches = scale.of(1_000_000, 100), scale.of(100_000, 100), scale.of(1_000_000, 100)
    driver = fill_years(url, partitions, events=events, checkpoints=checkpoints, batches=batches)
    take_back_to(url, f"{int(YEARS) - 1:04d}")
    execute(url, _UNDONE)
    execute(url, "ANALYZE")
    began = perf_counter()
    with renewals(url) as renewed, statements_timed() as pieces:
        schema_upgrade.upgrade(url)
    took = perf_counter() - began
    with PostgresTransactions.connect(url, lambda _: RULES) as store:
        assert store.read(driver.name)[0].counter > events
        assert sum(1 for _ in islice(store.batches(driver.name), 10)) == 10
    shown = report("upgrade-years")
    shown.table(
        f"{events:,} events, {checkpoints:,} checkpoints, {batches:,} batches of {partitions} ranges: the upgrade from "
        f"before revision {YEARS}, while leases are renewed; s",
        ("whole", "statements", "longest renewal", "renewals", "median renewal"),
        [(took, len(pieces), max(renewed), len(renewed), median(renewed))],
    )
    shown.table(
        "its longest statements; s",
        ("statement", "s"),
        [(f"`{statement[:100]}`", seconds) for seconds, statement in sorted(pieces, reverse=True)[:8]],
    )


def test_the_upgrade_that_renames_events(
    empty_database_url: str, scale: Scale, report: Callable[[str], Report]
) -> None:
    events, checkpoints = scale.of(1_000_000, 100), scale.of(100_000, 100)
    driver = fill_years(empty_database_url, PARTITIONS, events=events, checkpoints=checkpoints, batches=0)
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
    with PostgresTransactions.connect(empty_database_url, lambda _: RULES) as store:
        (newest,) = store.events(driver.name, EventNumber(store.read(driver.name)[0].counter - 1), 1)
        assert isinstance(newest.body, CommitResolved)
    shown = report("upgrade")
    shown.table(
        f"{events:,} events, {checkpoints:,} checkpoints: the upgrade from before revision {WORDS}, interrupted when "
        "every event is renamed, and gone on with; s",
        ("events renamed", "longest piece", "gone on with, whole", "of it under locks"),
        [(renamed, max(took for took, _ in pieces), resumed, sum(took for took, _ in since_lock))],
    )
