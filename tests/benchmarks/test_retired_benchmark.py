"""What a checkpoint that is retired leaves in the store for good, of a region with scheduled boundaries.

Events and the ledger are apart: closing a history takes them away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from statistics import median

import psycopg
import pytest

from airflow_kcr.protocol.region.commands import StoreBoundaryOffsets
from airflow_kcr.protocol.region.rows import BoundaryOffset
from airflow_kcr.protocol.rules import CheckpointMode, CheckpointRules, RegionRules, RetentionRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import GroupId, Offset, RegionName
from airflow_kcr.schedules import Every
from airflow_kcr.store.postgres import PostgresTransactions
from tests.benchmarks.figures import Report, Scale, spread
from tests.support.driver import Driver, group_rules

pytestmark = [pytest.mark.benchmark, pytest.mark.postgres, pytest.mark.timeout(3600)]

PARTITIONS = 12
REGIONS = 3
KEPT = 5
STEP = timedelta(seconds=1)
_TABLES = b"""
    SELECT c.oid::regclass::text FROM pg_class c
    WHERE c.relnamespace = 'kcr'::regnamespace AND c.relkind = 'r'
      AND c.relname NOT IN ('event', 'batch', 'batch_range', 'alembic_version')
"""


@contextmanager
def a_region(url: str, name: str, rules: RegionRules) -> Iterator[Driver]:
    """A region that is up."""
    with PostgresTransactions.connect(url, lambda _: rules) as store:
        driver = Driver(partitions=PARTITIONS, rules=rules, transactions=store, name=RegionName(name))
        driver.up()
        yield driver


def live(driver: Driver, checkpoints: int) -> None:
    """Make checkpoints of one boundary after the other, each of which members find first."""
    for _ in range(checkpoints):
        boundary = driver.held.next_boundary
        assert boundary is not None
        for member in driver.all_members():
            found = {p: BoundaryOffset(offset=c.position or Offset(0)) for p, c in driver.claims(member).items()}
            driver.handle(StoreBoundaryOffsets(caller=driver.caller(member), boundary=boundary, found=found))
        driver.request_checkpoint(f"of {boundary}", boundary=boundary)
        driver.complete()
        driver.publish()
        for member in driver.all_members():
            driver.read_back(member)


def bytes_of(url: str) -> int:
    """Return the size of the tables without closing, with their indexes and without free room."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        total = 0
        for (table,) in connection.execute(_TABLES).fetchall():
            connection.execute(f"VACUUM FULL {table}".encode())
            row = connection.execute("SELECT pg_total_relation_size(%s::regclass)", [table]).fetchone()
            total += 0 if row is None else int(row[0])
    return total


def test_what_a_retired_checkpoint_leaves(durable_store: str, scale: Scale, report: Callable[[str], Report]) -> None:
    checkpoints = scale.of(200, 10)
    rows: list[float] = []
    for number in range(REGIONS):
        name = f"leaves-{number}"
        rules = RegionRules(
            groups={GroupId(name): group_rules(name, members=2)},
            checkpoint=CheckpointRules(schedule=Every(STEP), mode=CheckpointMode.DAG_RUN),
            retention=RetentionRules(keep=KEPT),
            timeouts=Timeouts(lease=timedelta(hours=5)),
        )
        with a_region(durable_store, name, rules) as driver:
            live(driver, 2 * KEPT)
            before = bytes_of(durable_store)
            live(driver, checkpoints)
            rows.append((bytes_of(durable_store) - before) / checkpoints / PARTITIONS)
    shown = report("retired")
    shown.table(
        f"{checkpoints} checkpoints at scheduled boundaries, {PARTITIONS} partitions, {KEPT} kept: bytes that each "
        f"retired one leaves for good, tables and indexes, by partition; {REGIONS} regions",
        ("bytes", "smallest to largest"),
        [(median(rows), spread(rows))],
    )
    shown.at_most("bytes of a retired checkpoint and partition, of 64", median(rows) / 64, 1)
