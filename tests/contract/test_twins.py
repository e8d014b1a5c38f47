"""Whole stories told to both stores at once: after every verb the regions, events and ledgers are the same."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from airflow_kcr.protocol.region import retention
from airflow_kcr.protocol.region.commands import (
    KillRegion,
    PinCheckpoint,
    Reconcile,
    ReportOutOfRange,
    RetireCheckpoints,
    StartRegion,
    StopRegion,
    StoreBoundaryOffsets,
)
from airflow_kcr.protocol.region.rows import BoundaryOffset, CheckpointPurpose, ResetCause
from airflow_kcr.protocol.rules import CheckpointMode, CheckpointRules, Delivery, RegionRules, RetentionRules
from airflow_kcr.protocol.targets import ToCheckpoint, ToEarliest, ToInitial
from airflow_kcr.protocol.values import Offset
from tests.contract.conftest import Drive
from tests.support.driver import GROUP, group_rules
from tests.support.scripts import located

pytestmark = pytest.mark.postgres


class Hourly:
    """A boundary at every full hour."""

    def after(self, instant: datetime) -> datetime:
        return self.at_or_before(instant) + timedelta(hours=1)

    def at_or_before(self, instant: datetime) -> datetime:
        return instant.replace(minute=0, second=0, microsecond=0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hourly)

    def __hash__(self) -> int:
        return 0


@pytest.mark.parametrize("delivery", list(Delivery))
def test_checkpoints_a_reset_in_between_and_a_persons_way_back(drive_twins: Drive, delivery: Delivery) -> None:
    driver = drive_twins(delivery=delivery)
    driver.up()
    driver.process()
    first = driver.checkpoint("n1")
    driver.process()
    running = driver.start_batch(driver.member(0))
    driver.commit_output(running)
    driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED, "it failed")
    driver.finish_reset()
    driver.process()
    second = driver.checkpoint("n2")
    driver.process()
    driver.reset(ToCheckpoint(sequence=first))
    driver.complete()
    driver.finish_reset()
    driver.process()
    driver.checkpoint("n3")
    driver.handle(PinCheckpoint(sequence=driver.held.restore_sequence or second, label="kept", reason="to look at"))


def test_members_that_crash_and_come_back(drive_twins: Drive) -> None:
    driver = drive_twins()
    driver.up()
    driver.process()
    driver.start_batch(driver.member(1))
    driver.crash(driver.member(1))
    driver.recover()
    driver.process()
    driver.leave(driver.member(0))
    driver.checkpoint("n1") if driver.held.open_checkpoint else None
    driver.recover()
    driver.process()


def test_a_topic_that_is_made_anew_takes_its_skips_with_it(drive_twins: Drive) -> None:
    driver = drive_twins()
    driver.up()
    driver.process()
    driver.checkpoint("n1")
    driver.reset(ToEarliest(), forced=True, skip={driver.partition(0): Offset(3), driver.partition(1): Offset(4)})
    driver.finish_reset()
    assert driver.held.skips
    for partition in driver.logs:
        driver.grow(partition, end=5, topic_id="id-2")
    driver.handle(ReportOutOfRange(caller=driver.caller(driver.member(0)), observed=driver.logs))
    driver.reset(ToEarliest(), forced=True)
    driver.finish_reset()
    assert not driver.held.skips
    driver.process()


def test_resets_to_other_places_and_a_skip(drive_twins: Drive) -> None:
    driver = drive_twins()
    driver.up()
    driver.process()
    driver.checkpoint("n1")
    driver.process()
    driver.reset(ToInitial())
    driver.complete()
    driver.finish_reset()
    driver.process()
    driver.reset(ToEarliest(), forced=True, skip={driver.partition(0): Offset(3)})
    driver.finish_reset()
    for member in sorted(driver.processes):
        driver.finish_batch(driver.start_batch(member, width=3))
    driver.process()


def test_retention_forgets_offsets_and_keeps_the_rows(drive_twins: Drive) -> None:
    rules = RegionRules(groups={GROUP: group_rules()}, retention=RetentionRules(keep=2))
    driver = drive_twins(rules=rules)
    driver.up()
    for number in range(4):
        driver.process()
        driver.checkpoint(f"n{number}")
    driver.handle(RetireCheckpoints())
    assert len(driver.region.offsets) == 2
    assert len(driver.region.checkpoints) == 4


def test_retention_forgets_where_old_boundaries_fall(drive_twins: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "RETIRED_AT_ONCE", 4)
    checkpoint = CheckpointRules(schedule=Hourly(), mode=CheckpointMode.DAG_RUN)
    kept = RetentionRules(keep=2)
    driver = drive_twins(rules=RegionRules(groups={GROUP: group_rules()}, checkpoint=checkpoint, retention=kept))
    driver.up()
    first = driver.held.next_boundary
    assert first is not None
    for hour in (-4, -3, -2, -1):
        located(driver, first + timedelta(hours=hour), 0)
    for hour in range(5):
        located(driver, first + timedelta(hours=hour), 10 * hour + 10)
        driver.process()
        driver.request_checkpoint(f"n{hour}", boundary=first + timedelta(hours=hour))
        driver.complete()
        driver.publish()
    driver.handle(RetireCheckpoints())
    hours = sorted((at - first) / timedelta(hours=1) for _, _, at in driver.region.boundary_offsets)
    assert hours == [hour for hour in (2, 3, 4) for _ in driver.logs]


def test_boundaries_hold_the_members_until_the_run_asks(drive_twins: Drive) -> None:
    checkpoint = CheckpointRules(schedule=Hourly(), mode=CheckpointMode.DAG_RUN)
    driver = drive_twins(rules=RegionRules(groups={GROUP: group_rules()}, checkpoint=checkpoint))
    driver.up()
    boundary = driver.held.next_boundary
    assert boundary is not None
    for member in sorted(driver.processes):
        found = {p: BoundaryOffset(offset=Offset(10), inexact="") for p in driver.claims(member)}
        driver.handle(StoreBoundaryOffsets(caller=driver.caller(member), boundary=boundary, found=found))
    driver.process()
    driver.request_checkpoint("n1", boundary=boundary)
    driver.complete()
    assert driver.held.next_boundary == boundary + timedelta(hours=1)


def test_stop_start_and_kill(drive_twins: Drive) -> None:
    driver = drive_twins()
    driver.up()
    driver.process()
    driver.handle(StopRegion())
    driver.complete()
    driver.publish()
    driver.read_back(driver.member(0))
    driver.read_back(driver.member(1))
    driver.handle(StartRegion())
    driver.spread()
    driver.finish_reset()
    driver.process()
    driver.handle(KillRegion())
    driver.handle(StartRegion())
    driver.wait(60)
    driver.request_checkpoint("n1", purpose=CheckpointPurpose.DRAIN)


def test_a_checkpoint_by_count_sees_every_claim(drive_twins: Drive) -> None:
    rules = RegionRules(groups={GROUP: group_rules(members=1)}, checkpoint=CheckpointRules(records=40))
    driver = drive_twins(rules=rules)
    driver.up()
    driver.process()
    driver.handle(Reconcile())
    driver.complete()
    driver.publish()
    driver.process(width=5)
