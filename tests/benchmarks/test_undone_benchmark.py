"""What a reset costs by the batches that it undoes.

Whole transactions, their COMMIT waiting for the disk, over the Unix socket of a server on the same machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from statistics import median

import psycopg
import pytest

from airflow_kcr.protocol.region.commands import RequestReset
from airflow_kcr.protocol.region.rows import ResetCause
from tests.benchmarks.figures import Report, Scale, ratio, spread
from tests.benchmarks.lab import new_store
from tests.benchmarks.scripted import scripted
from tests.support.driver import Driver
from tests.support.long_ledger import Statistics, fill
from tests.support.processor_time import ProcessorTime, Times
from tests.support.tied import Postgres

pytestmark = [pytest.mark.benchmark, pytest.mark.postgres, pytest.mark.timeout(3600)]

PARTITIONS = 12
BEGINS = 15


def test_a_reset_by_the_batches_since_its_target(
    durable_server: Postgres, scale: Scale, report: Callable[[str], Report]
) -> None:
    found: dict[int, list[Times]] = {}
    with ExitStack() as stores:
        measured: dict[int, tuple[Driver, ProcessorTime]] = {}
        for size in (100, 100_000, 1_000_000):
            url = stores.enter_context(new_store(durable_server))
            driver, clock = stores.enter_context(scripted(url, PARTITIONS))
            driver.up()
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
