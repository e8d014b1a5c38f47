"""Checkpoints and resets, from the request to the last commit read-back, through the verbs of the region store."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_kcr.errors import CheckpointNotUsable, CheckpointRefused, RegionInState
from airflow_kcr.protocol.region.commands import (
    KillRegion,
    PauseRegion,
    PinCheckpoint,
    Reconcile,
    RepairReadBack,
    RetireCheckpoints,
    StartRegion,
    StopRegion,
)
from airflow_kcr.protocol.region.rows import (
    CheckpointPurpose,
    CheckpointState,
    Committed,
    DesiredState,
    PersonResetState,
    RegionState,
    RequestState,
    ResetCause,
    ResetState,
)
from airflow_kcr.protocol.rules import RegionRules, RetentionRules
from airflow_kcr.protocol.scopes import parse_scope
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import CheckpointNumber, Offset, RequestId
from tests.contract.conftest import Drive
from tests.support.driver import GROUP, group_rules
from tests.support.stores import Subject, expire


def test_a_checkpoint_from_its_request_to_its_last_commit_read_back(drive: Drive) -> None:
    driver = drive()
    driver.up()
    driver.process()
    request = driver.request_checkpoint("n1")
    sequence = request.sequence
    assert sequence is not None
    assert request.state is RequestState.OPEN
    assert driver.region.frozen[sequence] == set(driver.logs)
    driver.contribute(driver.member(0))
    assert driver.held.state is RegionState.DRAINING
    driver.contribute(driver.member(1))
    region = driver.region
    assert region.state is RegionState.RUNNING
    assert region.checkpoints[sequence].state is CheckpointState.COMPLETE
    assert dict(region.offsets[sequence]) == dict.fromkeys(driver.logs, 10)
    assert region.restore_sequence == sequence
    assert region.requests[RequestId("n1")].state is RequestState.ANSWERED
    driver.publish()
    driver.read_back(driver.member(0))
    assert driver.region.checkpoints[sequence].committed is Committed.PENDING
    driver.read_back(driver.member(1))
    checkpoint = driver.region.checkpoints[sequence]
    assert (checkpoint.state, checkpoint.committed) == (CheckpointState.PUBLISHED, Committed.YES)
    assert driver.region.read_backs[sequence] == driver.region.offsets[sequence]
    part = driver.region.contributions[sequence, driver.member(1)]
    assert part.bounds == {p: driver.logs[p] for p in part.offsets}


def test_a_request_id_answers_with_its_checkpoint_however_often_it_is_asked(drive: Drive) -> None:
    driver = drive()
    driver.up()
    sequence = driver.checkpoint("n1")
    driver.process()
    driver.checkpoint("n2")
    assert driver.request_checkpoint("n1").sequence == sequence
    with pytest.raises(CheckpointRefused):
        driver.request_checkpoint("n1", purpose=CheckpointPurpose.DRAIN)


def test_a_commit_read_back_that_differs_is_not_committed_and_can_be_repaired(drive: Drive) -> None:
    driver = drive()
    driver.up()
    driver.process()
    driver.request_checkpoint("n1")
    sequence = driver.complete()
    driver.read_back(driver.member(0), {driver.partition(0): Offset(3)})
    assert driver.region.checkpoints[sequence].committed is Committed.NO
    driver.handle(RepairReadBack(sequence=sequence, offsets=driver.region.offsets[sequence]))
    assert driver.region.checkpoints[sequence].committed is Committed.YES


def test_a_commit_that_never_comes_is_settled_by_time(subject: Subject, drive: Drive) -> None:
    driver = drive()
    driver.up()
    driver.request_checkpoint("n1")
    sequence = driver.complete()
    driver.wait(31)
    assert driver.region.checkpoints[sequence].committed is Committed.NO


def test_the_next_checkpoint_supersedes_the_commit_of_the_last(drive: Drive) -> None:
    driver = drive()
    driver.up()
    driver.request_checkpoint("n1")
    first = driver.complete()
    driver.publish()
    driver.request_checkpoint("n2")
    driver.complete()
    assert driver.region.checkpoints[first].committed is Committed.SUPERSEDED
    with pytest.raises(CheckpointRefused):
        driver.handle(RepairReadBack(sequence=first, offsets=driver.region.offsets[first]))


def test_a_drain_that_takes_too_long_is_aborted_with_who_was_late(subject: Subject, drive: Drive) -> None:
    driver = drive()
    driver.up()
    driver.process()
    driver.request_checkpoint("n1")
    driver.contribute(driver.member(0))
    driver.wait(181)
    request = driver.region.requests[RequestId("n1")]
    assert request.state is RequestState.ABORTED
    assert "g[1]" in request.refusal
    assert driver.region.checkpoints[request.sequence or CheckpointNumber(0)].state is CheckpointState.ABORTED
    assert driver.held.state is RegionState.RUNNING


def test_a_pause_survives_a_reset(drive: Drive) -> None:
    driver = drive()
    driver.up()
    driver.handle(PauseRegion())
    driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED)
    driver.finish_reset()
    assert (driver.held.state, driver.held.desired_state) == (RegionState.RUNNING, DesiredState.PAUSED)
    assert driver.region.resets[driver.held.epoch].state is ResetState.DONE


def test_a_stop_drains_and_the_next_start_resumes_at_its_checkpoint(drive: Drive) -> None:
    driver = drive()
    driver.up()
    driver.process()
    driver.handle(StopRegion())
    sequence = driver.complete()
    driver.publish()
    states = [driver.held.state]
    driver.read_back(driver.member(0))
    driver.read_back(driver.member(1))
    states.append(driver.held.state)
    assert states == [RegionState.DRAINING, RegionState.STOPPED]
    driver.handle(StartRegion())
    driver.finish_reset()
    assert driver.held.restore_sequence == sequence
    assert {c.position for c in driver.held.claims.values()} == {10}


def test_a_stop_without_members_is_stopped_at_once(subject: Subject, drive: Drive) -> None:
    driver = drive()
    driver.up()
    expire(subject)
    driver.handle(StopRegion())
    assert driver.held.state is RegionState.STOPPED
    assert driver.events[-1].kind == "StateChanged"


def test_a_kill_raises_the_epoch_and_leaves_nothing_in_force(drive: Drive) -> None:
    driver = drive()
    driver.up()
    epoch = driver.held.epoch
    driver.handle(KillRegion())
    assert (driver.held.state, driver.held.epoch) == (RegionState.STOPPED, epoch + 1)
    with pytest.raises(RegionInState):
        driver.request_checkpoint("n1")


def test_a_persons_reset_drains_first_and_opens_a_timeline(drive: Drive) -> None:
    driver = drive()
    driver.up()
    driver.process()
    first = driver.checkpoint("n1")
    driver.process()
    timeline = driver.held.timeline
    reset = driver.reset(ToCheckpoint(sequence=first), request_id="r1", scope=parse_scope(topics=["t:0,1"]))
    assert reset.state is PersonResetState.DRAINING
    driver.complete()
    driver.finish_reset()
    region = driver.region
    assert region.person_resets[RequestId("r1")].state is PersonResetState.DONE
    assert region.person_resets[RequestId("r1")].scope == parse_scope(topics=["t:0,1"])
    assert region.timeline == timeline + 1
    assert {p.partition: c.position for p, c in region.claims.items()} == {0: 10, 1: 10, 2: 20, 3: 20}
    assert dict(region.seek_maps[region.epoch].offsets) == {p: c.resume for p, c in region.claims.items()}
    assert region.restore_epoch == region.epoch


def test_a_retired_checkpoint_keeps_its_row_and_digest_but_no_offsets(drive: Drive) -> None:
    rules = RegionRules(groups={GROUP: group_rules()}, retention=RetentionRules(keep=1))
    driver = drive(rules=rules)
    driver.up()
    sequences = []
    for number in range(3):
        driver.process()
        sequences.append(driver.checkpoint(f"n{number}"))
    driver.handle(PinCheckpoint(sequence=sequences[1], label="kept", reason="to look at"))
    driver.handle(RetireCheckpoints())
    region = driver.region
    assert region.checkpoints[sequences[0]].state is CheckpointState.RETIRED
    assert region.checkpoints[sequences[0]].digest
    assert sequences[0] not in region.offsets
    assert sequences[0] not in region.frozen
    assert not any(s == sequences[0] for s, _ in region.contributions)
    assert region.checkpoints[sequences[1]].pinned_as == "kept"
    with pytest.raises(CheckpointNotUsable):
        driver.reset(ToCheckpoint(sequence=sequences[0]))
    before = driver.events
    driver.handle(RetireCheckpoints())
    assert driver.events == before


def test_what_is_due_is_done_once_by_anybody(subject: Subject, drive: Drive) -> None:
    driver = drive()
    driver.up()
    driver.process()
    driver.request_checkpoint("n1")
    expire(subject)
    driver.handle(Reconcile())
    counter = driver.held.counter
    other = subject.transactions
    other.handle(driver.name, Reconcile())
    assert driver.held.counter == counter
    assert driver.held.reconcile_at is None or driver.held.reconcile_at > driver.store.read(driver.name)[1] - timedelta(
        0
    )
