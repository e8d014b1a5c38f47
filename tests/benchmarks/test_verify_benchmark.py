"""What `kcr verify` costs: batches a second, and memory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from resource import RUSAGE_SELF, getrusage
from time import perf_counter

import psycopg
import pytest

from airflow_kcr.api.verdict import Verdict
from airflow_kcr.protocol.values import RegionName
from airflow_kcr.store.regions import RegionStore
from tests.benchmarks.figures import Report, Scale
from tests.benchmarks.scripted import rules_of, scripted
from tests.support.long_ledger import Statistics, fill
from tests.support.processor_time import ProcessorTime

pytestmark = [pytest.mark.benchmark, pytest.mark.postgres, pytest.mark.timeout(7200)]

PARTITIONS = 6
BATCHES = (10_000, 100_000, 1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What one proof of a history from its start took, in a process of its own."""

    seconds: float
    worked: float
    """Milliseconds of processor time, here and in the server."""

    peak: float
    """Megabytes that the process had at most."""


def judge(url: str, name: str, batches: int) -> Judged:
    """Prove a history."""
    with RegionStore.connect(url, lambda _: rules_of()) as store:
        clock, region = ProcessorTime(store._engine), RegionName(name)
        began, worked = perf_counter(), clock()
        verdict = Verdict.of(region, store.chronicle(region))
        seconds, worked = perf_counter() - began, clock() - worked
        assert (verdict.checked_batches, verdict.violations) == (batches, ())
    return Judged(seconds=seconds, worked=worked, peak=getrusage(RUSAGE_SELF).ru_maxrss / 1024)


def test_judging_a_long_history(durable_store: str, scale: Scale, report: Callable[[str], Report]) -> None:
    found: dict[int, Judged] = {}
    for size in BATCHES:
        batches = scale.of(size, 100)
        with psycopg.connect(durable_store.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(b"TRUNCATE kcr.region, kcr.batch, kcr.batch_range CASCADE")
        with scripted(durable_store, PARTITIONS, end=1_000) as (driver, _):
            driver.up()
            fill(durable_store, driver, batches, Statistics.FRESH)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
            found[batches] = processes.submit(judge, durable_store, driver.name, batches).result()
    shown = report("verify")
    shown.table(
        f"`kcr verify` over batches of {PARTITIONS} ranges, each history in a process of its own",
        (
            "batches",
            "s",
            "batches a second",
            "processor time of a batch, µs",
            "MB at most",
        ),
        [(n, one.seconds, n / one.seconds, one.worked / n * 1000, one.peak) for n, one in found.items()],
    )
    *_, less, most = found
    shown.at_most(
        f"processor time of a batch, {most:,}, to {less:,}",
        found[most].worked / most / (found[less].worked / less),
        1.2,
    )
    shown.at_most(f"{most:,} batches: memory at most, of 300 MB", found[most].peak / 300, 1)
