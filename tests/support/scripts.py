"""Beginnings that many scenarios share: a running region, one with hourly bounds, a rewind carried out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from airflow_kcr.protocol.region.rows import BoundOffset, RegionState
from airflow_kcr.protocol.rules import CutMode, CutRules, RegionRules, RetentionRules
from airflow_kcr.protocol.targets import Target
from airflow_kcr.protocol.values import Epoch, GroupPartition, Lineage, MemberId, Offset, Range, Sequence
from airflow_kcr.schedules import Every
from tests.support.driver import BEGINNING, GROUP, Driver, group_rules
from tests.support.simulation.sinks import FencedSink

HOUR = timedelta(hours=1)


def started(driver: Driver) -> Driver:
    """Start the region with every member, and return its driver."""
    driver.up()
    return driver


def running(*, partitions: int = 4, members: int = 2) -> Driver:
    """Return a running region of one group."""
    return started(Driver(partitions=partitions, members=members))


def hourly(
    *, mode: CutMode = CutMode.DAG_RUN, catchup: bool = False, keep: int = 20, partitions: int = 4, members: int = 2
) -> Driver:
    """Return a running region with a bound every hour, the first of them one hour from now."""
    rules = RegionRules(
        groups={GROUP: group_rules(members=members)},
        cut=CutRules(schedule=Every(HOUR), mode=mode, catchup=catchup),
        retention=RetentionRules(keep=keep),
    )
    return started(Driver(partitions=partitions, rules=rules))


def bound(hours: float) -> datetime:
    """Return the instant so many hours after the beginning."""
    return BEGINNING + hours * HOUR


def located(driver: Driver, instant: datetime, offset: int, *, inexact: str = "") -> None:
    """Let the plans of every member find that a bound falls at `offset` of each partition."""
    for member in sorted(driver.processes):
        found = {p: BoundOffset(offset=Offset(offset), inexact=inexact) for p in driver.claims(member)}
        driver.store.store_bounds(driver.name, driver.caller(member), instant, found)


def cuts_of_ten(driver: Driver, number: int) -> list[Sequence]:
    """Make complete cuts, each with ten more records of every partition."""
    cuts = []
    for n in range(number):
        driver.process()
        cuts.append(driver.cut(f"n{n}"))
    return cuts


def rewind(driver: Driver, target: Target) -> Sequence:
    """Carry out a person's reset of the whole region up to its end, and return its sequence."""
    driver.reset(target)
    driver.complete()
    driver.settle_reset()
    assert driver.region.state is RegionState.RUNNING
    return driver.region.resets[driver.region.epoch].sequence


def all_crash(driver: Driver, members: Iterable[MemberId] | None = None) -> None:
    """Let every process vanish, or those of some members, and their leases run out."""
    for member in tuple(driver.processes) if members is None else members:
        driver.crash(member)
    driver.wait(60)


def published(sink: FencedSink, epoch: Epoch, lineage: Lineage, ranges: Mapping[GroupPartition, Range]) -> bool:
    """Publish whole ranges in a fenced sink, and return whether it let them through."""
    return sink.publish(epoch, lineage, ranges, {p: range_.to for p, range_ in ranges.items()})
