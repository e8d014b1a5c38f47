"""What every verb costs by the checkpoints that a region has behind it, in turns.

Whole transactions, their COMMIT waiting for the disk, over the Unix socket of a server on the same machine.
"""

from __future__ import annotations

import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from time import perf_counter
from typing import TypeVar

import psycopg
import pytest

from airflow_kcr.api import Region
from airflow_kcr.plugins.overview import Overview
from airflow_kcr.protocol.region.commands import ReadRegion
from airflow_kcr.protocol.region.liveness import NOTHING_SEEN
from airflow_kcr.protocol.region.rows import ResetCause
from tests.benchmarks.figures import Report, Scale, ratio, spread
from tests.benchmarks.scripted import scripted
from tests.support.driver import Driver
from tests.support.long_history import keep, live_through, number_beyond
from tests.support.long_ledger import Statistics
from tests.support.plans import statements
from tests.support.processor_time import ProcessorTime, Times
from tests.support.transfer import transferred

pytestmark = [pytest.mark.benchmark, pytest.mark.postgres, pytest.mark.timeout(3600)]

PARTITIONS = 12
AGES = (1_000, 10_000, 100_000, 1_000_000)
ROUNDS = 15
RESET = 3
"""Rounds between two resets."""

M = TypeVar("M")


@contextmanager
def region_of_age(url: str, checkpoints: int) -> Iterator[tuple[Driver, ProcessorTime]]:
    """A region that is up, with so many checkpoints behind it, beside the others in one store; and its clock."""
    name = f"age-{checkpoints}"
    with scripted(url, PARTITIONS, members=3, name=name) as (driver, clock):
        number_beyond(url, checkpoints, region=name)
        driver.up()
        driver.process()
        driver.checkpoint("first")
        live_through(url, checkpoints, region=name, statistics=Statistics.NONE)
        yield driver, clock


def memory_of(call: Callable[[], object]) -> float:
    """Return how many KiB Python's objects take at most while a call runs, beside those that were there."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] / 1024
    finally:
        tracemalloc.stop()


def kib_of(call: Callable[[], object]) -> float:
    """Return how many KiB a call transfers."""
    return transferred(call) / 1024


def a_round(driver: Driver, number: int, measure: Callable[[Callable[[], object]], M]) -> dict[str, M]:
    """Do what a region does once, and return what was measured of each verb."""
    found: dict[str, M] = {}

    def timed(verb: str, call: Callable[[], object]) -> None:
        found[verb] = measure(call)

    driver.process()
    timed("request", partial(driver.request_checkpoint, f"n{number}"))
    first, *others, last = driver.all_members()
    timed("contribute", partial(driver.contribute, first))
    for member in others:
        driver.contribute(member)
    timed("complete", partial(driver.contribute, last))
    timed("look", partial(driver.handle, ReadRegion(member=first)))
    timed("publish", driver.publish)
    timed("read_back", partial(driver.read_back, first))
    for member in (*others, last):
        driver.read_back(member)
    region = Region(driver.name, driver.store)
    timed("show", region.show)
    timed("20 checkpoints", partial(region.checkpoints.list, last=20))
    if number % RESET == 0:
        timed("reset", partial(driver.request_reset, first, ResetCause.LEASE_LOST, "to measure"))
        driver.finish_reset()
    return found


KEPT = 100_000
"""Checkpoints that a region keeps which is looked at."""

MOST_MS = 100
"""That a look may take."""


def test_looks_at_a_region_that_keeps_all_its_checkpoints(
    durable_store: str, scale: Scale, report: Callable[[str], Report]
) -> None:
    kept = scale.of(KEPT, 100)
    with region_of_age(durable_store, kept) as (driver, _):
        keep(durable_store, kept, PARTITIONS, region=driver.name)
        region = Region(driver.name, driver.store)
        looks: dict[str, Callable[[], object]] = {
            "`checkpoints.list(last=20)`": partial(region.checkpoints.list, last=20),
            "`checkpoints.list(before=500, last=20)`": partial(region.checkpoints.list, before=500, last=20),
            "`resets.list(last=20)`": partial(region.resets.list, last=20),
            "`checkpoints.ways_back(20)`": partial(region.checkpoints.ways_back, 20),
            "`show()`": region.show,
            "the region's page": lambda: Overview.of(*driver.store.read(driver.name), NOTHING_SEEN),
        }
        taken: dict[str, list[float]] = {name: [] for name in looks}
        asked: dict[str, int] = {}
        for number in range(-1, ROUNDS):
            for name, look in looks.items():
                with statements() as run:
                    began = perf_counter()
                    look()
                    took = (perf_counter() - began) * 1000
                asked[name] = len(run)
                if number >= 0:  # the first connects
                    taken[name].append(took)
    shown = report("years-kept")
    shown.table(
        f"{PARTITIONS} partitions, {kept:,} checkpoints that are kept: ms",
        ("look", "statements", "median", "smallest to largest"),
        [(name, asked[name], median(values), spread(values)) for name, values in taken.items()],
    )
    for name, values in taken.items():
        shown.at_most(f"{name}: median, of {MOST_MS} ms", median(values) / MOST_MS, 1)


SIZES = {"messages to and from the store": kib_of, "memory of Python's objects, at most": memory_of}


def test_verbs_by_the_age_of_the_region(durable_store: str, scale: Scale, report: Callable[[str], Report]) -> None:
    ages = [scale.of(age, 100) for age in AGES]
    found: dict[int, defaultdict[str, list[Times]]] = {age: defaultdict(list) for age in ages}
    with ExitStack() as regions:
        drivers = {age: regions.enter_context(region_of_age(durable_store, age)) for age in ages}
        with psycopg.connect(durable_store.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("ANALYZE")
        for number in range(-RESET, ROUNDS):
            for age, (driver, clock) in drivers.items():
                for verb, took in a_round(driver, number, clock.of).items():
                    if number >= 0:  # those before connect, and have their statements planned
                        found[age][verb].append(took)
        sizes = {
            what: {age: a_round(driver, RESET * ROUNDS * place, measure) for age, (driver, _) in drivers.items()}
            for place, (what, measure) in enumerate(SIZES.items(), 1)
        }
    verbs = list(found[ages[0]])
    times, costs = report("years"), report("years-costs")
    for shown, title, kind in (
        (times, "each verb", "taken"),
        (costs, "processor time of each verb, Python's and the server's", "worked"),
    ):
        values = {age: {verb: [getattr(one, kind) for one in found[age][verb]] for verb in verbs} for age in ages}
        shown.table(
            f"{PARTITIONS} partitions, 3 members: {title}, by the checkpoints behind the region, in turns, median ms",
            ("verb", *(f"{age:,}" for age in ages), "smallest to largest, of the oldest"),
            [(verb, *(median(values[age][verb]) for age in ages), spread(values[ages[-1]][verb])) for verb in verbs],
        )
    for verb in verbs:
        oldest, youngest = ([one.worked for one in found[age][verb]] for age in (ages[-1], ages[0]))
        costs.at_most(f"{verb}: processor time, {ages[-1]:,}, to {ages[0]:,}", ratio(oldest, youngest), 1.2)
    for what, of_ages in sizes.items():
        costs.table(
            f"the same regions: {what}, KiB, of one call each",
            ("verb", *(f"{age:,}" for age in ages)),
            [(verb, *(of_ages[age][verb] for age in ages)) for verb in verbs],
        )
        for verb in verbs:
            costs.at_most(
                f"{verb}: {what}, {ages[-1]:,}, to {ages[0]:,}", of_ages[ages[-1]][verb] / of_ages[ages[0]][verb], 1.2
            )
