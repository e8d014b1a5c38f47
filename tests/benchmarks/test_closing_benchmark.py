"""What closing a history costs: batches a second, bytes in the archive, and what the store's tables come to.

Measures and prints; asserts no time. Run with `pytest -m benchmark -s tests/benchmarks`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from time import perf_counter

import psycopg
import pytest

from airflow_kcr import check_history
from airflow_kcr.api import archives
from airflow_kcr.api.archives import WholeHistory
from airflow_kcr.api.verdict import ArchiveFolder, Verdict
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.store.postgres import PostgresTransactions
from tests.support.driver import GROUP, Driver, group_rules

pytestmark = [pytest.mark.benchmark, pytest.mark.postgres, pytest.mark.timeout(3600)]

WIDTH = 10
_MORE = """
    WITH begun AS (
        INSERT INTO kcr.batch (region_id, batch_id, group_id, member_index, incarnation, epoch, timeline, sequence,
                               started_at, started_after, outcome, finished_at, finished_after)
        SELECT r.id, 'long-' || n, 'g', 0, 1, r.epoch, r.timeline, r.next_sequence, now(), r.counter, 'done',
               now(), r.counter
        FROM kcr.region r, generate_series(%(first)s::bigint, %(last)s::bigint) n
        RETURNING number, region_id, CAST(substr(batch_id, 6) AS bigint) AS place
    )
    INSERT INTO kcr.batch_range (batch_number, region_id, group_id, topic, partition, from_offset, to_offset)
    SELECT b.number, b.region_id, c.group_id, c.topic, c.partition, b.place * 10, b.place * 10 + 10
    FROM begun b JOIN kcr.claim c USING (region_id)
"""
_MOVE = "UPDATE kcr.claim SET position = %(to)s, started_to = %(to)s"
_SIZES = """
    SELECT pg_total_relation_size('kcr.batch') + pg_total_relation_size('kcr.batch_range')
           + pg_total_relation_size('kcr.event')
"""
_TABLES = ("kcr.batch", "kcr.batch_range", "kcr.event")


class Region:
    """A region of one member that goes on in large steps, each closed by a checkpoint and a certificate."""

    def __init__(self, store: PostgresTransactions, url: str, rules: RegionRules) -> None:
        self.driver = Driver(partitions=6, rules=rules, transactions=store)
        self.driver.up()
        self.connection = psycopg.connect(url.replace("+psycopg", ""), autocommit=True)
        self.done = 0

    def step(self, batches: int) -> None:
        """Do N batches and a checkpoint, and certify them."""
        first, self.done = self.done, self.done + batches
        self.connection.execute(_MORE, {"first": first, "last": self.done - 1})
        self.connection.execute(_MOVE, {"to": self.done * WIDTH})
        for partition in self.driver.logs:
            self.driver.grow(partition, end=self.done * WIDTH)
        self.driver.heartbeat()
        self.driver.checkpoint(f"n{self.done}")
        verdict = Verdict.of(self.driver.name, self.driver.store.chronicle(self.driver.name))
        assert verdict.violations == ()

    def close(self, root: Path) -> archives.Closing:
        region, now = self.driver.store.read(self.driver.name)
        chronicle = self.driver.store.chronicle(self.driver.name)
        return archives.close(region, chronicle, root, now, timedelta(microseconds=1))

    def vacuum(self) -> None:
        """What autovacuum does by and by."""
        for table in _TABLES:
            self.connection.execute(f"VACUUM {table}".encode())

    def size(self) -> float:
        """Return the megabytes of the ledger and the events, with their indexes."""
        row = self.connection.execute(_SIZES).fetchone()
        assert row is not None
        return float(row[0]) / 1e6

    def wal(self) -> int:
        row = self.connection.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture
def region(database_url: str) -> Iterator[Region]:
    rules = RegionRules(groups={GROUP: group_rules(members=1)}, timeouts=Timeouts(lease=timedelta(hours=5)))
    with PostgresTransactions.connect(database_url, lambda _: rules) as store:
        made = Region(store, database_url, rules)
        yield made
        made.connection.close()


@pytest.mark.parametrize("batches", [100_000])
def test_closing_a_long_history(region: Region, tmp_path: Path, batches: int) -> None:
    region.step(batches)
    region.step(10)
    before, wal = region.size(), region.wal()
    started = perf_counter()
    made = region.close(tmp_path)
    took = perf_counter() - started
    wal = region.wal() - wal
    assert made.batches > batches - 100
    after = region.size()
    region.vacuum()
    archived = sum(path.stat().st_size for path in made.archived)
    started = perf_counter()
    subprocess.run(
        [sys.executable, check_history.__file__, str(made.archived[0].parent)], check=True, stdout=subprocess.DEVNULL
    )
    checked = perf_counter() - started
    chronicle = region.driver.store.chronicle(region.driver.name)
    folder = ArchiveFolder(root=tmp_path, region=region.driver.name, first=chronicle.certificates()[0].digest)
    started = perf_counter()
    assert Verdict.of(region.driver.name, WholeHistory(chronicle, folder), from_start=True).violations == ()
    proved = perf_counter() - started
    print(  # noqa: T201 (a benchmark prints)
        f"\nclosing {batches:,} batches of 6 ranges: {took:.1f} s ({batches / took:,.0f} a second), "
        f"{archived / 1e6:.2f} MB archived ({archived / batches:.0f} bytes a batch), {wal / 1e6:.0f} MB of WAL; "
        f"tables {before:.1f} MB before, {after:.1f} MB just after, {region.size():.1f} MB after VACUUM; "
        f"checker {checked:.1f} s, verify --from-start {proved:.1f} s"
    )


@pytest.mark.parametrize("closes", [True, False])
def test_the_tables_of_a_region_that_is_closed_all_the_time(region: Region, tmp_path: Path, *, closes: bool) -> None:
    sizes = []
    for _ in range(12):
        region.step(10_000)
        if closes:
            region.close(tmp_path)
        region.vacuum()
        sizes.append(f"{region.size():.1f}")
    print(f"\n12 times 10,000 batches, {'closed' if closes else 'kept'}: {' '.join(sizes)} MB")  # noqa: T201
