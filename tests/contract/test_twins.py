"""Whole stories told to both stores at once: after every verb the regions, events and ledgers are the same."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest

from airflow_kcr.errors import BatchRefused
from airflow_kcr.protocol.region import commands, retention
from airflow_kcr.protocol.region.rows import BoundaryOffset, RegionState, ResetCause
from airflow_kcr.protocol.rules import (
    CheckpointMode,
    CheckpointRules,
    Delivery,
    ForeignConsumerPolicy,
    OutOfRangePolicy,
    RegionRules,
    RetentionRules,
)
from airflow_kcr.protocol.targets import ToCheckpoint, ToEarliest
from airflow_kcr.protocol.values import DesiredState, Offset, RequestId
from airflow_kcr.schedules import Every
from tests.contract.conftest import Drive
from tests.support.driver import GROUP, group_rules
from tests.support.random_scripts import PARTITIONS, USUAL, VERBS, EveryMinute, Script
from tests.support.scripts import HOUR, all_crash, located

pytestmark = pytest.mark.postgres


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
    driver.handle(
        commands.PinCheckpoint(sequence=driver.held.restore_sequence or second, label="kept", reason="to look at")
    )


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
    driver.handle(commands.ReportOutOfRange(caller=driver.caller(driver.member(0)), observed=driver.logs))
    driver.reset(ToEarliest(), forced=True)
    driver.finish_reset()
    assert not driver.held.skips
    driver.process()


def test_retention_forgets_where_old_boundaries_fall(drive_twins: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "RETIRED_AT_ONCE", 4)
    checkpoint = CheckpointRules(schedule=Every(HOUR), mode=CheckpointMode.DAG_RUN)
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
    driver.handle(commands.RetireCheckpoints())
    hours = sorted((at - first) / timedelta(hours=1) for _, _, at in driver.region.boundary_offsets)
    assert hours == [hour for hour in (2, 3, 4) for _ in driver.logs]


def test_boundaries_hold_the_members_until_the_run_asks(drive_twins: Drive) -> None:
    checkpoint = CheckpointRules(schedule=Every(HOUR), mode=CheckpointMode.DAG_RUN)
    driver = drive_twins(rules=RegionRules(groups={GROUP: group_rules()}, checkpoint=checkpoint))
    driver.up()
    boundary = driver.held.next_boundary
    assert boundary is not None
    for member in sorted(driver.processes):
        found = {p: BoundaryOffset(offset=Offset(10), inexact="") for p in driver.claims(member)}
        driver.handle(commands.StoreBoundaryOffsets(caller=driver.caller(member), boundary=boundary, found=found))
    driver.process()
    driver.request_checkpoint("n1", boundary=boundary)
    driver.complete()
    assert driver.held.next_boundary == boundary + timedelta(hours=1)


def test_a_checkpoint_by_count_sees_every_claim(drive_twins: Drive) -> None:
    rules = RegionRules(groups={GROUP: group_rules(members=1)}, checkpoint=CheckpointRules(records=40))
    driver = drive_twins(rules=rules)
    driver.up()
    driver.process()
    driver.handle(commands.Reconcile())
    driver.complete()
    driver.publish()
    driver.process(width=5)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 12))])
def test_whatever_happens_to_a_region(drive_twins: Drive, seed: int) -> None:
    chance = Random(seed)
    policies = [ForeignConsumerPolicy.WARN, ForeignConsumerPolicy.FAIL]
    rules = RegionRules(
        groups={GROUP: group_rules(members=2, delivery=chance.choice(list(Delivery)))},
        checkpoint=CheckpointRules(schedule=chance.choice([None, EveryMinute()])),
        out_of_range=chance.choice(list(OutOfRangePolicy)),
        beyond_end=chance.choice(list(OutOfRangePolicy)),
        retention=RetentionRules(keep=chance.randrange(1, 4)),
        foreign_consumers=chance.choice(policies),
    )
    script = Script(drive_twins(partitions=PARTITIONS, rules=rules))
    script.run(("up", 0, 0, 0))
    verbs = [*USUAL * 8, *(verb for verb in VERBS if verb != "change_spec")]
    for _ in range(60):
        a, b, c = (chance.randrange(8) for _ in range(3))
        script.run((chance.choice(verbs), a, b, c))


def test_no_batch_crosses_the_boundary_of_a_run_that_waits(drive_twins: Drive) -> None:
    driver = drive_twins()
    first = driver.store.read(driver.name)[1]
    second = first + timedelta(milliseconds=1)
    for number, until in enumerate((first, second)):
        run = commands.Run(request_id=RequestId(f"r{number}"), boundary=until)
        driver.store.handle(driver.name, run)
    for member in driver.all_members():
        driver.join(member)
    driver.spread()
    driver.finish_reset()
    located(driver, first, 10)
    driver.process()
    driver.handle(commands.Reconcile())
    driver.complete()  # unpublished: the second one's can't be opened yet
    assert driver.held.open_checkpoint is None
    located(driver, second, 20)
    with pytest.raises(BatchRefused, match="crosses the boundary"):
        driver.start_batch(driver.member(0), 11)
    driver.process()
    driver.publish()
    driver.handle(commands.Reconcile())
    driver.complete()
    assert driver.held.desired_state is DesiredState.STOPPED


def test_the_applications_of_a_run_up_to_now_agree_on_one_boundary(drive_twins: Drive) -> None:
    driver = drive_twins()
    first = driver.store.read(driver.name)[1]
    for until in (first, first + timedelta(milliseconds=1)):
        run = commands.Run(request_id=RequestId("r"), boundary=until, is_up_to_now=True)
        driver.store.handle(driver.name, run)
    assert driver.held.requests[RequestId("r")].boundary == first


def test_a_run_whose_members_went_before_it_was_published_has_them_come_once_more(drive_twins: Drive) -> None:
    driver = drive_twins()
    run = commands.Run(request_id=RequestId("r"), boundary=driver.store.read(driver.name)[1])
    driver.store.handle(driver.name, run)
    for member in driver.all_members():
        driver.join(member)
    driver.spread()
    driver.finish_reset()
    located(driver, run.boundary, 10)
    driver.process()
    driver.handle(commands.Reconcile())
    driver.complete()
    all_crash(driver)
    driver.handle(commands.Reconcile())
    assert driver.held.state is RegionState.STOPPED
    driver.store.handle(driver.name, run)
    for member in driver.all_members():
        driver.join(member)
    driver.spread()
    driver.finish_reset()
    driver.complete()
    assert driver.held.desired_state is DesiredState.STOPPED
