"""A day of a region in some minutes: the clock is moved by hand, and every verb of the store is real.

A batch starts each 2 s, leases are renewed each 4 s, and a checkpoint is made each minute. Each 10 minutes the server
cleans up and looks at its tables, as its autovacuum does on a real day.

What a call costs is the rows that it makes the server touch, which a busy machine doesn't change.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import quantiles

import psycopg
import pytest
from sqlalchemy import Engine, text

from airflow_kcr.protocol.region.commands import FinishBatch, ReadRegion, Reconcile, StartBatch
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.values import BatchId, Epoch, GroupPartition, MemberId, Offset, Range
from airflow_kcr.store.regions import RegionStore
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.plans import keep_unknown, touched
from tests.support.stores import postgres_store

pytestmark = pytest.mark.postgres

_LATER = b"UPDATE test_clock.hands SET instant = instant + interval '2 seconds'"

PARTITIONS = 12
BATCH = timedelta(seconds=2)
RENEWAL = timedelta(seconds=4)
MINUTE = timedelta(minutes=1)
CLEANING = timedelta(minutes=10)
HOUR = timedelta(hours=1)


DAY = int(os.environ.get("KCR_SOAK_HOURS", "24")) * HOUR
SETTLED = 2 * HOUR
"""Until then tables of a row for each checkpoint are so short that the server walks through them."""

COUNTED = CLEANING
"""How long calls are counted in the morning, and again in the evening."""

VERBS = ("handle", "read")


@contextmanager
def measured(store: RegionStore) -> Iterator[dict[str, list[int]]]:
    """Count meanwhile, by verb or command, the rows that each call makes the server touch, in the order of the calls.

    Args:
        store: whose calls.
    """
    costs: dict[str, list[int]] = defaultdict(list)

    def counted(verb: str, rows: Counter[str]) -> Callable[..., object]:
        call = getattr(store, verb)

        def counting(*args: object, **options: object) -> object:
            before = rows.total()
            answer = call(*args, **options)
            costs[type(args[1]).__name__ if verb == "handle" else verb].append(rows.total() - before)
            return answer

        return counting

    with touched() as rows:
        for verb in VERBS:
            setattr(store, verb, counted(verb, rows))
        try:
            yield costs
        finally:
            for verb in VERBS:
                delattr(store, verb)  # of the object: those of its class are there again


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


def test_every_verb_of_a_life_is_measured(database_url: str) -> None:
    with life(database_url) as (region, _), measured(region.driver.store) as costs:
        region.live(MINUTE)
    assert costs.keys() == {
        "read",
        "Contribute",
        "FinishBatch",
        "PublishCheckpoint",
        "ReadRegion",
        "Reconcile",
        "Renew",
        "ReportReadBack",
        "RequestCheckpoint",
        "StartBatch",
    }
    assert len(costs["StartBatch"]) == len(costs["FinishBatch"]) == MINUTE / BATCH
    assert all(min(rows) > 0 for rows in costs.values())


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


def p99(values: list[int]) -> float:
    return quantiles(values, n=100)[-1]


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_after_a_day_a_verb_touches_what_it_touched_in_the_morning(database_url: str) -> None:
    with life(database_url) as (region, _):
        store = region.driver.store
        region.live(SETTLED)
        with measured(store) as morning:
            region.live(COUNTED)
        region.live(DAY - SETTLED - 2 * COUNTED)
        with measured(store) as evening:
            region.live(COUNTED)
    found = {verb: (p99(first), p99(evening[verb])) for verb, first in morning.items()}
    told = [
        f"{verb}: {first:.0f} and {last:.0f} rows, {len(evening[verb])} calls" for verb, (first, last) in found.items()
    ]
    print("\n".join(told))  # noqa: T201  # to be seen with -s

    assert [verb for verb, (first, last) in found.items() if last > 1.2 * first] == [], "\n".join(told)
