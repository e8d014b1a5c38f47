"""What a reset costs by the batches that it undoes.

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
from airflow_kcr.protocol.values import GroupId
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


@contextmanager
def driver_over(url: str) -> Iterator[tuple[Driver, ProcessorTime]]:
    # A long lease, so that nothing expires while a slow machine is measured; the connections keep their own times.
    groups = {GroupId(GROUP): group_rules(GROUP, members=1)}
    rules = RegionRules(groups=groups, timeouts=Timeouts(lease=timedelta(hours=1)))
    with PostgresTransactions.connect(url, lambda _: rules) as store:
        clock = ProcessorTime(store._engine)
        driver = Driver(partitions=PARTITIONS, rules=rules, transactions=store)
        for partition in driver.logs:
            driver.grow(partition, end=1_000_000_000)
        driver.up()
        yield driver, clock
        driver.handle(KillRegion())
        for member in driver.all_members():
            driver.leave(member)


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
        with psycopg.connect(durable_server.url().replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("CHECKPOINT")  # else what was filled in is written meanwhile
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
