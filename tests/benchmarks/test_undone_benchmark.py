"""What a reset costs by the batches that it undoes, and a batch by the resets that came after it.

Whole transactions, their COMMIT waiting for the disk, over the Unix socket of a server on the same machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from statistics import median
from time import perf_counter

import psycopg
import pytest

from airflow_kcr.protocol.commands import KillRegion, RequestReset
from airflow_kcr.protocol.region.rows import ResetCause
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import GroupId, RegionName
from airflow_kcr.store.postgres import PostgresTransactions
from tests.benchmarks.figures import Report, Scale, ratio, spread
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.long_ledger import Statistics, fill

pytestmark = [pytest.mark.benchmark, pytest.mark.postgres, pytest.mark.timeout(3600)]

PARTITIONS = 12
BEGINS = 15
LOOKS = 200

_RESETS = """
    WITH many AS (
        INSERT INTO kcr.reset (region_id, epoch, sequence, timeline, cause, state, started_at, attempt, must_publish,
                               detail)
        SELECT r.id, r.epoch + n, r.next_sequence + n, r.timeline, 'batch_failed', 'done', now(), 1, '[]', ''
        FROM kcr.region r, generate_series(1, %(resets)s) n WHERE r.name = %(name)s
        RETURNING region_id, epoch
    )
    INSERT INTO kcr.seek_offset (region_id, epoch, group_id, topic, partition, next_offset, source, rewinds, recreated)
    SELECT m.region_id, m.epoch, c.group_id, c.topic, c.partition, 10 * m.epoch, 'merged', m.epoch %% %(every)s = 0, ''
    FROM many m JOIN kcr.claim c USING (region_id)
"""


@contextmanager
def driver_over(url: str, name: str = GROUP) -> Iterator[Driver]:
    # A long lease, so that nothing expires while a slow machine is measured; the connections keep their own times.
    groups = {GroupId(name): group_rules(name, members=1)}
    rules = RegionRules(groups=groups, timeouts=Timeouts(lease=timedelta(hours=1)))
    with PostgresTransactions.connect(url, lambda _: rules) as store:
        driver = Driver(partitions=PARTITIONS, rules=rules, transactions=store, name=RegionName(name))
        for partition in driver.logs:
            driver.grow(partition, end=1_000_000_000)
        driver.up()
        yield driver
        driver.handle(KillRegion())
        for member in driver.all_members():
            driver.leave(member)


def execute(url: str, statement: str, **values: int | str) -> None:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(statement.encode(), values or None)


def timed(call: Callable[[], object]) -> float:
    """Return how many milliseconds a call takes."""
    began = perf_counter()
    call()
    return (perf_counter() - began) * 1000


def test_a_reset_by_the_batches_since_its_target(
    durable_store: str, scale: Scale, report: Callable[[str], Report]
) -> None:
    found: dict[int, list[float]] = {}
    first: dict[int, float] = {}
    for size in (100, 100_000, 1_000_000):
        batches = scale.of(size, 100)
        execute(durable_store, "TRUNCATE kcr.region, kcr.batch, kcr.batch_range CASCADE")
        with driver_over(durable_store) as driver:
            fill(durable_store, driver, batches, Statistics.FRESH)

            def begin(driver: Driver = driver) -> None:
                caller = driver.caller(driver.member(0))
                driver.handle(RequestReset(caller=caller, cause=ResetCause.LEASE_LOST, detail="to measure"))

            first[batches] = timed(begin)
            found[batches] = [timed(begin) for _ in range(BEGINS)]
    shown = report("reset-undoes")
    shown.table(
        f"{PARTITIONS} partitions: a reset begins, by the batches of {PARTITIONS} ranges since its target, ms",
        ("batches", "the first one", "median of the next", "smallest to largest"),
        [(size, first[size], median(times), spread(times)) for size, times in found.items()],
    )
    fewest, *more = found
    for size in more:
        shown.at_most(f"{size:,} batches, to {fewest}", ratio(found[size], found[fewest]), 1.2)


def test_a_batch_by_the_resets_after_it(durable_store: str, scale: Scale, report: Callable[[str], Report]) -> None:
    looks: dict[tuple[int, str], Callable[[], object]] = {}
    execute(durable_store, "TRUNCATE kcr.region, kcr.batch, kcr.batch_range CASCADE")
    with ExitStack() as regions:
        for kind, every in (("each further on", 2**31), ("every tenth of them further back", 10)):
            for size in (10, 10_000):
                name = f"r{len(looks)}"
                driver = regions.enter_context(driver_over(durable_store, name))
                driver.process()
                execute(durable_store, _RESETS, resets=scale.of(size, 10), every=every, name=name)
                store, oldest = driver.store, driver.batches[0].batch
                looks[scale.of(size, 10), kind] = partial(store.batch, driver.name, oldest)
        found: dict[tuple[int, str], list[float]] = {about: [] for about in looks}
        for _ in range(LOOKS):
            for about, look in looks.items():
                found[about].append(timed(look))
    shown = report("resets-after-a-batch")
    shown.table(
        f"{PARTITIONS} partitions: the oldest batch is read, by the resets after it, in turns, ms",
        ("resets", "where they went", "median", "smallest to largest"),
        [(resets, kind, median(times), spread(times)) for (resets, kind), times in found.items()],
    )
    few, many, *_ = found.values()
    shown.at_most("10,000 resets each further on, to 10", ratio(many, few), 1.2)
