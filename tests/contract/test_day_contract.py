"""Some minutes of a region in which the server looks at its tables, as its autovacuum does on a real day.

The clock is moved by hand: a batch starts each 2 s, leases are renewed each 4 s, and a checkpoint is made each minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import Engine, text

from airflow_kcr.protocol.region.commands import FinishBatch, ReadRegion, Reconcile, StartBatch
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.values import BatchId, Epoch, GroupPartition, MemberId, Offset, Range
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.plans import keep_unknown
from tests.support.stores import postgres_store

pytestmark = pytest.mark.postgres

_LATER = b"UPDATE test_clock.hands SET instant = instant + interval '2 seconds'"

PARTITIONS = 12
BATCH = timedelta(seconds=2)
RENEWAL = timedelta(seconds=4)
MINUTE = timedelta(minutes=1)
CLEANING = timedelta(minutes=10)


@dataclass(slots=True)
class Life:
    """A region that is up, and what its members do.

    Args:
        driver: of the region.
        server: its database, for the clock and what autovacuum does.
    """

    driver: Driver
    server: psycopg.Connection
    epoch: Epoch
    lived: timedelta = timedelta()
    held: dict[MemberId, dict[GroupPartition, Offset]] = field(default_factory=dict)
    batches: int = 0

    def live(self, span: timedelta) -> None:
        """Let the region live for that long."""
        end = self.lived + span
        while self.lived < end:
            self.lived += BATCH
            self.server.execute(_LATER)
            if not self.lived % RENEWAL:
                self.driver.heartbeat()
            self._process()
            if not self.lived % MINUTE:
                self._checkpoint()
            if not self.lived % CLEANING:
                self.server.execute("VACUUM (ANALYZE)")

    def _process(self) -> None:
        driver = self.driver
        member = sorted(driver.processes)[self.batches % len(driver.processes)]
        if member not in self.held:
            self.held[member] = {p: claim.position or Offset(0) for p, claim in driver.claims(member).items()}
        ranges = {p: Range(offset, Offset(offset + 10)) for p, offset in self.held[member].items()}
        self.batches += 1
        batch, process = BatchId(f"day-{self.batches}"), driver.processes[member].incarnation
        driver.handle(StartBatch(batch=batch, member=member, incarnation=process, epoch=self.epoch, ranges=ranges))
        driver.handle(FinishBatch(batch=batch, member=member, incarnation=process))
        self.held[member] = {p: range_.to for p, range_ in ranges.items()}

    def _checkpoint(self) -> None:
        self.driver.checkpoint(f"after {self.lived}")
        self.driver.handle(ReadRegion(member=self.driver.member(0)))
        self.driver.handle(Reconcile())


@contextmanager
def life(url: str) -> Iterator[tuple[Life, Engine]]:
    """Lend a region of three members that is up, and the engine of its store."""
    keep_unknown(url)
    rules = RegionRules(groups={GROUP: group_rules(members=3)})
    plain = url.replace("+psycopg", "")
    with postgres_store(url, lambda _: rules) as transactions, psycopg.connect(plain, autocommit=True) as server:
        driver = Driver(partitions=PARTITIONS, rules=rules, transactions=transactions)
        for partition in driver.logs:
            driver.grow(partition, end=1_000_000_000)
        driver.up()
        yield Life(driver, server, driver.held.epoch), transactions._engine


# name: plans — of each prepared statement, how often it was planned anew for what it was asked about.
_PLANS = text("SELECT statement, generic_plans, custom_plans FROM pg_prepared_statements WHERE statement LIKE '%kcr.%'")


@pytest.mark.long
def test_statements_are_planned_once_however_often_the_server_looks_at_its_tables(database_url: str) -> None:
    with life(database_url) as (region, engine):
        region.live(11 * MINUTE)
        with engine.connect() as connection:
            plans = connection.execute(_PLANS).all()
    assert len(plans) >= 10
    assert {" ".join(statement.split())[:100]: custom for statement, _, custom in plans if custom} == {}
