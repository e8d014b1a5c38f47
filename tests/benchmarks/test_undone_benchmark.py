"""What a reset costs by the batches that it undoes, and a batch by the resets that came after it.

Whole transactions, their COMMIT waiting for the disk, over the Unix socket of a server on the same machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from statistics import median

import psycopg
import pytest

from airflow_kcr.protocol.region.commands import KillRegion, RequestReset
from airflow_kcr.protocol.region.rows import ResetCause
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import GroupId, RegionName
from airflow_kcr.store.postgres import PostgresTransactions
from tests.benchmarks.figures import Report, Scale, ratio, spread
from tests.benchmarks.lab import new_store
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.long_ledger import Statistics, fill
from tests.support.processor_time import ProcessorTime, Times
from tests.support.tied import Postgres

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
def driver_over(url: str, name: str = GROUP) -> Iterator[tuple[Driver, ProcessorTime]]:
    # A long lease, so that nothing expires while a slow machine is measured; the connections keep their own times.
    groups = {GroupId(name): group_rules(name, members=1)}
    rules = RegionRules(groups=groups, timeouts=Timeouts(lease=timedelta(hours=1)))
    with PostgresTransactions.connect(url, lambda _: rules) as store:
        clock = ProcessorTime(store._engine)
        driver = Driver(partitions=PARTITIONS, rules=rules, transactions=store, name=RegionName(name))
        for partition in driver.logs:
            driver.grow(partition, end=1_000_000_000)
        driver.up()
        yield driver, clock
        driver.handle(KillRegion())
        for member in driver.all_members():
            driver.leave(member)


def execute(url: str, statement: str, **values: int | str) -> None:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(statement.encode(), values or None)


def test_a_reset_by_the_batches_since_its_target(
    durable_server: Postgres, scale: Scale, report: Callable[[str], Report]
) -> None:
    found: dict[int, list[Times]] = {}
    with ExitStack() as stores:
        measured: dict[int, tuple[Driver, ProcessorTime]] = {}
        for size in (100, 100_000, 1_000_000):
            url = stores.enter_context(new_store(durable_server))
            driver, clock = stores.enter_context(driver_over(url))
            batches = scale.of(size, 100)
            fill(url, driver, batches, Statistics.FRESH)
            measured[batches], found[batches] = (driver, clock), []
        execute(durable_server.url(), "CHECKPOINT")  # else what was filled in is written meanwhile
        for _ in range(1 + BEGINS):
            for batches, (driver, clock) in measured.items():
                caller = driver.caller(driver.member(0))
                begin = RequestReset(caller=caller, cause=ResetCause.LEASE_LOST, detail="to measure")
                found[batches].append(clock.of(partial(driver.handle, begin)))
    shown = report("reset-undoes")
    shown.table(
        f"{PARTITIONS} partitions: a reset begins, by the batches of {PARTITIONS} ranges since its target, ms in turns",
        ("batches", "the first one", "median of the next", "smallest to largest", "of processor time"),
        [
            (size, first.taken, median(took(next_)), spread(took(next_)), median(worked(next_)))
            for size, (first, *next_) in found.items()
        ],
    )
    fewest, *more = found
    for size in more:
        goal = f"{size:,} batches, to {fewest}: processor time"
        shown.at_most(goal, ratio(worked(found[size][1:]), worked(found[fewest][1:])), 1.2)


def took(times: Iterable[Times]) -> list[float]:
    return [one.taken for one in times]


def worked(times: Iterable[Times]) -> list[float]:
    return [one.worked for one in times]


def test_a_batch_by_the_resets_after_it(durable_store: str, scale: Scale, report: Callable[[str], Report]) -> None:
    looks: dict[tuple[int, str], tuple[ProcessorTime, Callable[[], object]]] = {}
    with ExitStack() as regions:
        for kind, every in (("each further on", 2**31), ("every tenth of them further back", 10)):
            for size in (10, 10_000):
                name = f"r{len(looks)}"
                driver, clock = regions.enter_context(driver_over(durable_store, name))
                driver.process()
                execute(durable_store, _RESETS, resets=scale.of(size, 10), every=every, name=name)
                store, oldest = driver.store, driver.batches[0].batch
                looks[scale.of(size, 10), kind] = clock, partial(store.batch, driver.name, oldest)
        found: dict[tuple[int, str], list[Times]] = {about: [] for about in looks}
        for _ in range(LOOKS):
            for about, (clock, look) in looks.items():
                found[about].append(clock.of(look))
    shown = report("resets-after-a-batch")
    shown.table(
        f"{PARTITIONS} partitions: the oldest batch is read, by the resets after it, in turns, ms",
        ("resets", "where they went", "median", "smallest to largest", "of processor time"),
        [
            (resets, kind, median(took(times)), spread(took(times)), median(worked(times)))
            for (resets, kind), times in found.items()
        ],
    )
    few, many, *_ = found.values()
    shown.at_most("10,000 resets each further on, to 10: processor time", ratio(worked(many), worked(few)), 1.2)
