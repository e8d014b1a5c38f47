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
from airflow_kcr.protocol.region.commands import ReportOutOfRange
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


def sink_is_locked_for_a_batch(driver: Driver) -> None:
    driver.start_batch(driver.member(0))


def sink_is_locked_for_a_checkpoint(driver: Driver) -> None:
    driver.request_checkpoint("n")
    driver.complete()


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
    driver.report_partitions(driver.member(0))


def member_leaves(driver: Driver) -> None:
    driver.leave(driver.member(0))


def no_member_starts_a_batch(driver: Driver) -> None:
    """Whatever keeps them from it; nothing else would be said."""


CAUSES: dict[Callable[[Driver], None], tuple[LagVerdict, Rule, str]] = {
    member_dies: (LagVerdict.STOPPED, Rule.PARTITIONS, "is not covered (last owner: g[0])"),
    member_leaves: (LagVerdict.STOPPED, Rule.PARTITIONS, "is not covered (last owner: g[0])"),
    all_members_die: (LagVerdict.STOPPED, Rule.MEMBERS, "no member lives; start them"),
    sink_is_locked_for_a_batch: (LagVerdict.STALLED, Rule.BATCH, "runs for longer than"),
    sink_is_locked_for_a_checkpoint: (LagVerdict.STALLED, Rule.PUBLISH, "is complete and not published yet"),
    no_executor_has_room: (LagVerdict.STALLED, Rule.ENGINE, "no executor"),
    quota_holds_reads_back: (LagVerdict.STALLED, Rule.ENGINE, "a quota"),
    record_fails_each_batch: (LagVerdict.STOPPED, Rule.PERSON, "the region is halted"),
    base_is_gone: (LagVerdict.STOPPED, Rule.PERSON, "the region is halted"),
    no_member_owns_a_partition: (LagVerdict.STOPPED, Rule.PARTITIONS, "no member owns g:t-9"),
    no_member_starts_a_batch: (LagVerdict.STALLED, Rule.CHECKPOINT, "approaches its boundary"),
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


def named(driver: Driver) -> LagFinding:
    """The verdict at the half of a period at which something is named, or two periods later."""
    began, found = driver.clock(), verdict(driver)
    while found.verdict not in lag.STANDING and driver.clock() < began + 2 * HOUR:
        driver.wait(1_800)
        found = verdict(driver)
    return found


@pytest.mark.parametrize("cause", CAUSES, ids=[cause.__name__ for cause in CAUSES])
def test_it_is_named_within_two_periods(cause: Callable[[Driver], None]) -> None:
    driver = hourly(mode=CheckpointMode.AUTO)
    driver.process()
    found = verdict(driver)
    assert (found.verdict, found.what) == (LagVerdict.OK, "")
    cause(driver)
    found = named(driver)
    expected, rule, said = CAUSES[cause]
    assert (found.verdict, found.to_do) == (expected, lag.TO_DO[rule]), found.text()
    assert found.what.startswith(f"{rule}: ")
    assert said in found.what
    assert found.since is not None or rule in {Rule.PERSON, Rule.ENGINE}


def test_so_is_a_dag_that_airflow_does_not_run() -> None:
    driver = hourly(mode=CheckpointMode.DAG_RUN)
    driver.wait(HOUR.total_seconds())
    found = named(driver)
    assert (found.verdict, found.to_do) == (LagVerdict.STOPPED, lag.TO_DO[Rule.RUN])
    assert "until a DAG run asks for its checkpoint" in found.what
