"""What `kcr verify` costs: batches a second, memory, and going on from a certificate.

Measures and prints; asserts no time. Run with `pytest -m benchmark -s tests/benchmarks`.
"""

from __future__ import annotations

from datetime import timedelta
from resource import RUSAGE_SELF, getrusage
from statistics import median
from time import perf_counter, process_time

import pytest

from airflow_kcr.api.verdict import Verdict
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.store.postgres import PostgresTransactions
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.long_ledger import Statistics, fill

pytestmark = [pytest.mark.benchmark, pytest.mark.postgres, pytest.mark.timeout(3600)]

ROUNDS = 3


def peak() -> float:
    """Return how many megabytes this process has had at most."""
    return getrusage(RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("batches", [10_000, 100_000])
def test_judging_a_long_history(database_url: str, batches: int) -> None:
    rules = RegionRules(groups={GROUP: group_rules(members=1)}, timeouts=Timeouts(lease=timedelta(hours=5)))
    with PostgresTransactions.connect(database_url, lambda _: rules) as store:
        driver = Driver(partitions=6, rules=rules, transactions=store)
        driver.up()
        fill(database_url, driver, batches, Statistics.FRESH)
        before = peak()
        whole, worked, further = [], [], []
        for _ in range(ROUNDS):
            started, begun = perf_counter(), process_time()
            verdict = Verdict.of(driver.name, driver.store.chronicle(driver.name), from_start=True)
            whole.append(perf_counter() - started)
            worked.append(process_time() - begun)
            assert (verdict.checked_batches, verdict.violations) == (batches, ())
            started = perf_counter()
            Verdict.of(driver.name, driver.store.chronicle(driver.name))
            further.append(perf_counter() - started)
        print(  # noqa: T201 (a benchmark prints)
            f"\nverify, {batches:,} batches of 6 ranges: {batches / median(whole):,.0f} a second, "
            f"{median(worked) / batches * 1e6:.0f} µs of processor time each, {peak() - before:+.0f} MB at the peak; "
            f"going on from a certificate: {median(further) * 1000:.0f} ms"
        )
