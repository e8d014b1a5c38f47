"""A region that makes no progress though it should is named within two periods of its checkpoints, for each cause.

Each cause is played against a region of two members with a checkpoint every hour, whose records are left to read; what
the causes look like with real parts is in `tests/integration`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.region import lag, liveness
from airflow_kcr.protocol.region.commands import ReportOutOfRange, ReportPartitions
from airflow_kcr.protocol.region.lag import LagFinding, LagPoint, LagSample, LagVerdict
from airflow_kcr.protocol.region.rows import ResetCause
from airflow_kcr.protocol.region.waits import Rule
from airflow_kcr.protocol.rules import CheckpointMode
from airflow_kcr.protocol.values import Offset, TopicId
from tests.support.driver import GROUP, Driver
from tests.support.scripts import HOUR, all_crash, hourly


def member_dies(driver: Driver) -> None:
    all_crash(driver, [driver.member(0)])


def all_members_die(driver: Driver) -> None:
    """So it is, too, where their JVM or their driver dies: members end with it."""
    all_crash(driver)


def sink_is_locked(driver: Driver) -> None:
    driver.start_batch(driver.member(0))


def no_executor_has_room(driver: Driver) -> None:
    driver.start_batch(driver.member(0))
    lacking(driver, "no executor")


def quota_holds_reads_back(driver: Driver) -> None:
    driver.start_batch(driver.member(0))
    lacking(driver, "a quota")


def lacking(driver: Driver, what: str) -> None:
    member = driver.member(0)
    driver.processes[member] = replace(driver.processes[member], lacks=what)


def record_fails_each_batch(driver: Driver) -> None:
    while driver.region.halt is None:
        driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED, "no such column")
        if driver.region.halt is None:
            driver.finish_reset()


def base_is_gone(driver: Driver) -> None:
    member = driver.member(0)
    (partition, *_) = sorted(driver.claims(member))
    read = LogBounds(start=Offset(500), end=Offset(1_000), topic_id=TopicId("id-1"))
    driver.handle(ReportOutOfRange(caller=driver.caller(member), observed={partition: read}))


def no_member_owns_a_partition(driver: Driver) -> None:
    driver.grow(driver.partition(9), end=1_000)
    member = driver.member(0)
    incarnation = driver.processes[member].incarnation
    driver.handle(ReportPartitions(member=member, incarnation=incarnation, partitions=frozenset(driver.logs)))


def no_member_starts_a_batch(driver: Driver) -> None:
    """Whatever keeps them from it; nothing else would be said."""


CAUSES: dict[Callable[[Driver], None], tuple[LagVerdict, Rule]] = {
    member_dies: (LagVerdict.STOPPED, Rule.PARTITIONS),
    all_members_die: (LagVerdict.STOPPED, Rule.MEMBERS),
    sink_is_locked: (LagVerdict.STALLED, Rule.BATCH),
    no_executor_has_room: (LagVerdict.STALLED, Rule.ENGINE),
    quota_holds_reads_back: (LagVerdict.STALLED, Rule.ENGINE),
    record_fails_each_batch: (LagVerdict.STOPPED, Rule.PERSON),
    base_is_gone: (LagVerdict.STOPPED, Rule.PERSON),
    no_member_owns_a_partition: (LagVerdict.STOPPED, Rule.PARTITIONS),
    no_member_starts_a_batch: (LagVerdict.STALLED, Rule.CHECKPOINT),
}


def verdict(driver: Driver) -> LagFinding:
    """The worst verdict on a group whose members, or an exporter, have just sampled its lag."""
    region, now = driver.store.read(driver.name)
    waits = liveness.judge(region, now, driver.store.seen(driver.name))
    points = {
        partition: LagPoint(end=log.end, position=Offset(10), committed=Offset(10))
        for partition, log in driver.logs.items()
    }
    sample = LagSample(group=GROUP, at=now, epoch=region.epoch, points=points)
    return lag.worst(lag.judge(region, now, waits, [sample]).values())


@pytest.mark.parametrize("cause", CAUSES, ids=[cause.__name__ for cause in CAUSES])
def test_it_is_named_within_two_periods(cause: Callable[[Driver], None]) -> None:
    driver = hourly(mode=CheckpointMode.AUTO)
    driver.process()
    assert verdict(driver).verdict is LagVerdict.OK
    cause(driver)
    began, found = driver.clock(), verdict(driver)
    while found.verdict not in lag.STANDING and driver.clock() < began + 2 * HOUR:
        driver.wait(300)
        found = verdict(driver)
    expected, rule = CAUSES[cause]
    assert (found.verdict, found.to_do) == (expected, lag.TO_DO[rule]), found.text()
    assert found.what.startswith(f"{rule}: ")
    assert found.since is not None or rule in {Rule.PERSON, Rule.ENGINE}
