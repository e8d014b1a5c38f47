"""A region that makes no progress though it should is named within two of its checkpoint periods, for each cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.region import commands, lag, liveness
from airflow_kcr.protocol.region.lag import STANDING, LagFinding
from airflow_kcr.protocol.region.rows import ResetCause
from airflow_kcr.protocol.region.waits import Rule
from airflow_kcr.protocol.rules import CheckpointMode, CheckpointRules, RegionRules
from airflow_kcr.protocol.values import Offset, TopicId
from airflow_kcr.schedules import Every
from tests.support.driver import GROUP, Driver, group_rules
from tests.unit.protocol.region.test_lag import STEADY, samples

PERIOD = timedelta(minutes=10)

Cause = Callable[[Driver], object]


def region(mode: CheckpointMode = CheckpointMode.AUTO) -> Driver:
    """A region at work, which checkpoints every ten minutes."""
    rules = CheckpointRules(schedule=Every(PERIOD), mode=mode)
    driver = Driver(rules=RegionRules(groups={GROUP: group_rules()}, checkpoint=rules))
    driver.up()
    driver.process()
    return driver


def two_periods_later(driver: Driver) -> LagFinding:
    """The verdict if nothing else happens: who lives renews its lease, records are left, no position moves."""
    found, now = driver.store.read(driver.name)
    later = now + 2 * PERIOD
    alive = {m: replace(row, until=later + PERIOD) for m, row in found.leases.items() if m in driver.processes}
    found = replace(found, leases=dict(found.leases) | alive)
    waits = liveness.judge(found, later, driver.store.seen(driver.name))
    return lag.judge(found, later, waits, samples(driver, [STEADY] * 11, later))[driver.partition(0)]


def all_members_die(driver: Driver) -> None:
    for member in driver.all_members():
        driver.vanish(member)


def a_member_dies(driver: Driver) -> None:
    driver.vanish(driver.member(0))


def the_jvm_dies(driver: Driver) -> None:
    lack(driver, "Spark has no executor")


def kafka_throttles(driver: Driver) -> None:
    driver.start_batch(driver.member(0))
    lack(driver, "Kafka throttles what it reads, by a quota")


def lack(driver: Driver, what: str) -> None:
    for member, process in driver.processes.items():
        lease = driver.region.rules.timeouts.lease
        driver.handle(commands.Renew(member=member, incarnation=process.incarnation, lease=lease, lacks=what))


def the_sink_is_locked_for_a_batch(driver: Driver) -> None:
    driver.start_batch(driver.member(0))


def the_sink_is_locked_for_a_checkpoint(driver: Driver) -> None:
    driver.request_checkpoint("n")
    driver.complete()


def a_record_is_poison(driver: Driver) -> None:
    """The batch with it fails after each reset, until the region halts."""
    for _ in range(driver.region.rules.max_failures):
        driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED, "ValueError: poison")
        driver.finish_reset()
    driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED, "ValueError: poison")


def what_is_to_be_read_is_gone(driver: Driver) -> None:
    log = LogBounds(start=Offset(400), end=Offset(1_000), topic_id=TopicId("id-1"))
    caller = driver.caller(driver.member(0))
    driver.handle(commands.ReportOutOfRange(caller=caller, observed={driver.partition(0): log}))


def no_member_owns_a_partition(driver: Driver) -> None:
    driver.leave(driver.member(0))


NAMED: dict[Cause, str] = {
    all_members_die: "members: no member lives; start them",
    a_member_dies: "is not covered (last owner: g[0])",
    the_jvm_dies: "Spark has no executor",
    kafka_throttles: "Kafka throttles what it reads, by a quota",
    the_sink_is_locked_for_a_batch: "runs for longer than",
    the_sink_is_locked_for_a_checkpoint: "is complete and not published yet",
    a_record_is_poison: "person: the region is halted",
    what_is_to_be_read_is_gone: "person: the region is halted",
    no_member_owns_a_partition: "is not covered (last owner: g[0])",
}


@pytest.mark.parametrize("cause", NAMED, ids=lambda cause: cause.__name__)
def test_what_keeps_a_region_from_its_records_is_named_within_two_periods(cause: Cause) -> None:
    driver = region()
    cause(driver)
    found = two_periods_later(driver)
    assert found.verdict in STANDING, found.text()
    assert NAMED[cause] in found.what
    assert found.to_do


def test_so_is_a_dag_that_airflow_does_not_run() -> None:
    driver = region(CheckpointMode.DAG_RUN)
    driver.wait(PERIOD.total_seconds())
    found = two_periods_later(driver)
    assert found.verdict in STANDING, found.text()
    assert "until a DAG run asks for its checkpoint" in found.what
    assert found.to_do == lag.TO_DO[Rule.RUN]


def test_a_region_that_reads_is_not_named() -> None:
    driver = region()
    found, now = driver.store.read(driver.name)
    waits = liveness.judge(found, now, driver.store.seen(driver.name))
    rows = [(1_000, 100 * number) for number in range(9)]
    assert lag.judge(found, now, waits, samples(driver, rows, now))[driver.partition(0)].what == ""
