from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.errors import CheckpointNotUsable, UnknownCheckpoint
from airflow_kcr.protocol.region import events, retention
from airflow_kcr.protocol.region.commands import KillRegion, PinCheckpoint, Reconcile, RetireCheckpoints
from airflow_kcr.protocol.region.rows import CheckpointState, PersonResetState, Requester, RequestState, RestorePoint
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import RetentionRules
from airflow_kcr.protocol.targets import ToCheckpoint, ToCurrent, ToInitial, ToRun
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, RequestId
from tests.support.driver import Driver
from tests.support.judging import happened, judge, open_checkpoint
from tests.support.scripts import boundary, checkpoints_of_ten, hourly, located, rewind, running

HOUR = timedelta(hours=1)


def keeping(driver: Driver, keep: int = 1, max_age: timedelta | None = None) -> Region:
    """Return the driver's region with other retention rules."""
    region = driver.held
    rules = replace(region.rules, retention=RetentionRules(keep=keep, max_age=max_age))
    return replace(region, spec=replace(region.spec, rules=rules))


def due(driver: Driver, keep: int = 1, max_age: timedelta | None = None) -> tuple[CheckpointNumber, ...]:
    after = retention.retire(keeping(driver, keep, max_age), driver.clock.now)
    found = [event.body for event in after.events if isinstance(event.body, events.CheckpointsRetired)]
    return found[0].sequences if found else ()


# -- by count and age -------------------------------------------------------------------------------------------------


def test_the_oldest_beyond_the_count_go() -> None:
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 5)
    assert due(driver, keep=3) == tuple(checkpoints[:2])
    assert due(driver, keep=5) == due(driver, keep=50) == ()


def test_whatever_the_count_the_restore_point_and_what_it_was_built_from_stay() -> None:
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 4)
    assert due(driver, keep=1) == tuple(checkpoints[:2])
    kept = retention.protected(driver.region)
    assert kept[checkpoints[-1]] == "it is the restore point"
    assert kept[checkpoints[-2]] == f"the restore point {checkpoints[-1]} was built from it"


def test_what_is_older_than_the_age_goes() -> None:
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 2)
    driver.wait(3_600)
    checkpoints += [driver.checkpoint(f"later-{n}") for n in range(2)]
    assert due(driver, keep=50, max_age=HOUR / 2) == tuple(checkpoints[:2])
    assert due(driver, keep=50, max_age=2 * HOUR) == ()


def test_an_aborted_checkpoint_goes_when_enough_newer_complete_ones_are_there_or_by_age() -> None:
    driver = running()
    driver.request_checkpoint("aborted")
    aborted = open_checkpoint(driver)
    driver.wait(181)
    assert due(driver, keep=1) == ()
    assert due(driver, keep=50, max_age=timedelta(0)) == ()
    driver.clock.advance(1)
    assert due(driver, keep=50, max_age=timedelta(0)) == (aborted,)
    driver.heartbeat()
    checkpoints_of_ten(driver, 2)
    assert aborted in due(driver, keep=2)
    assert aborted not in due(driver, keep=3)


def test_a_region_without_a_checkpoint_retires_nothing() -> None:
    assert due(running()) == ()
    assert retention.protected(Driver().region) == {}


# -- what must stay ---------------------------------------------------------------------------------------------------


def test_the_newest_usable_one_stays_even_where_the_restore_point_is_a_reset() -> None:
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 3)
    rewind(driver, ToCurrent())
    newest = driver.region.checkpoints[max(driver.region.offsets)].sequence
    assert newest not in checkpoints
    assert retention.protected(driver.region)[newest] == "it is the newest usable one"


def test_what_is_open_or_not_published_stays() -> None:
    driver = running()
    driver.process()
    driver.request_checkpoint("n")
    sequence = open_checkpoint(driver)
    assert sequence is not None
    assert retention.protected(driver.region)[sequence] == "it is open"
    driver.complete()
    unpublished = replace(driver.region, restore_point=RestorePoint(CheckpointNumber(1), Epoch(1)))
    assert retention.protected(unpublished)[sequence] == "it is not published yet"


def test_a_pinned_one_stays_and_counts() -> None:
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 4)
    driver.handle(PinCheckpoint(sequence=checkpoints[0], label="golden", reason="audited"))
    assert retention.protected(driver.region)[checkpoints[0]] == "it is pinned as golden"
    assert due(driver, keep=1) == (checkpoints[1],)
    assert due(driver, keep=4) == ()
    driver.handle(PinCheckpoint(sequence=checkpoints[0], label="", reason=""))
    assert due(driver, keep=1) == tuple(checkpoints[:2])


def test_what_was_kept_goes_later_out_of_order_and_only_once() -> None:
    driver = hourly(keep=2)
    checkpoints = checkpoints_of_ten(driver, 2)
    driver.handle(PinCheckpoint(sequence=checkpoints[0], label="golden", reason="audited"))
    checkpoints += [driver.checkpoint(f"later-{n}") for n in range(2)]

    def retired() -> list[tuple[CheckpointNumber, ...]]:
        driver.handle(RetireCheckpoints())
        return [event.sequences for event in happened(driver, events.CheckpointsRetired)]

    assert retired() == [(checkpoints[1],)], "the middle one first"
    driver.handle(PinCheckpoint(sequence=checkpoints[0], label="", reason=""))
    assert retired() == [(checkpoints[1],), (checkpoints[0],)], "then the older one"
    assert retired() == [(checkpoints[1],), (checkpoints[0],)]
    with pytest.raises(CheckpointNotUsable, match="is retired"):
        driver.reset(ToCheckpoint(sequence=checkpoints[0]))
    judge(driver)


def test_one_that_is_being_restored_stays_and_so_does_what_the_restore_point_was_built_from() -> None:
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 4)
    driver.reset(ToCheckpoint(sequence=checkpoints[0]), request_id="r")
    assert retention.protected(driver.region)[checkpoints[0]] == "reset r goes to it"
    driver.complete()
    driver.finish_reset()
    assert driver.region.person_resets[RequestId("r")].state is PersonResetState.DONE
    restore_point = driver.region.restore_sequence
    assert (
        retention.protected(driver.region)[checkpoints[0]]
        == f"the restore point, reset {restore_point}, was built from it"
    )
    assert checkpoints[0] not in due(driver, keep=1)
    judge(driver)


def test_whatever_a_run_may_mean_stays_until_its_reset_is_done() -> None:
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 3)
    driver.process()
    driver.request_checkpoint("r1", requester=Requester(dag_id="checkpoint", run_id="r1"))
    checkpoints.append(driver.complete())
    driver.publish()
    assert checkpoints[0] in due(driver)
    driver.reset(ToRun(dag_id="checkpoint", run_id="r1"), request_id="r")
    assert due(driver) == ()
    driver.complete()
    driver.finish_reset()
    assert checkpoints[0] in due(driver)


def test_a_reset_to_no_checkpoint_keeps_none() -> None:
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 3)
    driver.reset(ToInitial())
    assert checkpoints[0] not in retention.protected(driver.region)


# -- what goes --------------------------------------------------------------------------------------------------------


def test_offsets_and_contributions_go_the_digest_and_the_answer_stay() -> None:
    driver = hourly(keep=2)
    checkpoints = checkpoints_of_ten(driver, 1)
    digest = driver.region.checkpoints[checkpoints[0]].digest
    checkpoints += [driver.checkpoint(f"later-{n}") for n in range(3)]
    region = driver.region
    assert [region.checkpoints[c].state for c in checkpoints[:2]] == [CheckpointState.RETIRED] * 2
    assert region.checkpoints[checkpoints[0]].digest == digest
    for table in (region.offsets, region.frozen, {s for s, _ in region.contributions}):
        assert not set(checkpoints[:2]) & set(table)
        assert set(checkpoints[2:]) <= set(table)
    assert region.requests[RequestId("n0")].state is RequestState.ANSWERED
    assert happened(driver, events.CheckpointsRetired) == [
        events.CheckpointsRetired(sequences=(c,)) for c in checkpoints[:2]
    ]
    judge(driver)


def aligned(driver: Driver, hour: int) -> CheckpointNumber:
    """Make the checkpoint of a boundary, which lies ten records further on than the one before it."""
    located(driver, boundary(hour), 10 * hour)
    driver.process()
    driver.request_checkpoint(f"hour-{hour}-{len(driver.events)}", boundary=boundary(hour))
    sequence = driver.complete()
    driver.publish()
    return sequence


def known(driver: Driver) -> list[float]:
    """Return the hours whose boundaries have their places stored, all partitions of each."""
    hours = sorted((at - boundary(0)) / HOUR for _, _, at in driver.region.boundary_offsets)
    assert hours == sorted([*set(hours)] * len(driver.logs))
    return sorted(set(hours))


def test_where_a_boundary_falls_goes_with_the_checkpoints_up_to_it() -> None:
    driver = hourly(keep=2)
    for hour in range(1, 6):
        aligned(driver, hour)
        located(driver, boundary(hour + 1), 10 * hour + 10)
    assert known(driver) == [4, 5, 6]
    judge(driver)


def test_a_boundary_that_is_come_to_again_after_a_reset_keeps_its_places() -> None:
    driver = hourly(keep=50)
    checkpoints = [aligned(driver, hour) for hour in range(1, 6)]
    rewind(driver, ToCheckpoint(sequence=checkpoints[1]))
    newer = [driver.checkpoint(f"without-a-boundary-{n}") for n in range(2)]
    located(driver, boundary(3), 31)
    keep_fewer(driver, 1)
    driver.handle(RetireCheckpoints())
    assert held(driver) == newer, "what the reset undid is retired"
    assert known(driver) == [3, 4, 5], "and its boundaries lie before the region again"
    assert {row.offset for key, row in driver.region.boundary_offsets.items() if key[2] == boundary(3)} == {30}
    judge(driver)


def test_a_checkpoint_that_is_being_restored_keeps_the_places_after_it() -> None:
    driver = hourly(keep=50)
    checkpoints = [aligned(driver, hour) for hour in range(1, 6)]
    driver.process()
    driver.reset(ToCheckpoint(sequence=checkpoints[1]))
    keep_fewer(driver, 1)
    driver.handle(RetireCheckpoints())
    assert checkpoints[2] not in held(driver)
    assert known(driver) == [2, 3, 4, 5]
    driver.complete()
    driver.finish_reset()
    assert driver.held.next_boundary == boundary(3)
    judge(driver)


def test_many_places_of_boundaries_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "RETIRED_AT_ONCE", 4)
    driver = hourly(keep=50)
    for hour in range(-5, 0):  # what an older version has left
        located(driver, boundary(hour), 0)
    checkpoints = [aligned(driver, hour) for hour in range(1, 5)]
    keep_fewer(driver, 1)
    seen = []
    for _ in range(2):
        driver.handle(Reconcile())
        seen.append((held(driver), known(driver)))
    assert seen == [
        (checkpoints[1:], [-3, -2, -1, 1, 2, 3, 4]),
        (checkpoints[2:], [-1, 1, 2, 3, 4]),
    ]
    judge(driver)


# -- by itself --------------------------------------------------------------------------------------------------------


def held(driver: Driver) -> list[CheckpointNumber]:
    return [s for s, row in sorted(driver.region.checkpoints.items()) if row.is_complete]


def keep_fewer(driver: Driver, keep: int) -> None:
    """Change the region's retention, as a changed spec does at once; what follows from it is not done yet."""
    rules = keeping(driver, keep).rules
    driver.change(lambda region, now: replace(region, spec=replace(region.spec, rules=rules), retire_at=now))


def test_many_go_in_pieces_each_in_a_transaction_of_its_own_and_the_next_is_due_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention, "RETIRED_AT_ONCE", 12)  # three checkpoints of four partitions
    driver = hourly(keep=50)
    checkpoints = checkpoints_of_ten(driver, 12)
    keep_fewer(driver, 2)
    rounds = []
    for _ in range(4):
        driver.handle(Reconcile())
        rounds.append(held(driver)[0])
        if len(rounds) < 4:
            assert driver.region.reconcile_at == driver.clock.now + timedelta(milliseconds=100)
    assert rounds == [checkpoints[3], checkpoints[6], checkpoints[9], checkpoints[10]]
    assert [len(e.sequences) for e in happened(driver, events.CheckpointsRetired)] == [3, 3, 3, 1]
    driver.handle(Reconcile())
    assert driver.region.reconcile_at is None or driver.region.reconcile_at > driver.clock.now + timedelta(seconds=1)
    judge(driver)


def test_while_a_reset_goes_to_a_run_nothing_is_due_and_nobody_asks_again_and_again() -> None:
    driver = hourly(keep=50)
    checkpoints = checkpoints_of_ten(driver, 4)
    driver.process()
    driver.request_checkpoint("r1", requester=Requester(dag_id="checkpoint", run_id="r1"))
    driver.complete()
    driver.reset(ToRun(dag_id="checkpoint", run_id="r1"), request_id="r")  # it waits for the publication
    keep_fewer(driver, 1)
    driver.handle(Reconcile())
    assert checkpoints[0] in held(driver)
    assert driver.region.reconcile_at is None or driver.region.reconcile_at > driver.clock.now + timedelta(seconds=1)


def test_a_region_that_does_not_run_keeps_what_there_was_until_somebody_asks() -> None:
    driver = hourly(keep=50)
    checkpoints = checkpoints_of_ten(driver, 4)
    driver.handle(KillRegion())
    keep_fewer(driver, 2)
    driver.handle(Reconcile())
    assert held(driver) == checkpoints
    driver.handle(RetireCheckpoints())
    assert held(driver) == checkpoints[-2:]


# -- pins -------------------------------------------------------------------------------------------------------------


def test_a_pin_has_a_name_and_a_reason_and_is_an_event() -> None:
    driver = running()
    checkpoint = checkpoints_of_ten(driver, 1)[0]
    for _ in range(2):
        driver.handle(PinCheckpoint(sequence=checkpoint, label="golden", reason="audited"))
    row = driver.region.checkpoints[checkpoint]
    assert (row.pinned_as, row.pin_reason) == ("golden", "audited")
    assert happened(driver, events.CheckpointPinned) == [
        events.CheckpointPinned(sequence=checkpoint, name="golden", reason="audited")
    ]


def test_only_what_has_offsets_is_pinned() -> None:
    driver = hourly(keep=1)
    checkpoints = checkpoints_of_ten(driver, 3)
    driver.handle(RetireCheckpoints())
    with pytest.raises(UnknownCheckpoint, match="no checkpoint 99"):
        driver.handle(PinCheckpoint(sequence=CheckpointNumber(99), label="x", reason=""))
    with pytest.raises(CheckpointNotUsable, match="is retired; only a complete one can be pinned"):
        driver.handle(PinCheckpoint(sequence=checkpoints[0], label="x", reason=""))
    driver.request_checkpoint("n")
    with pytest.raises(CheckpointNotUsable, match="is draining"):
        driver.handle(
            PinCheckpoint(sequence=driver.region.open_checkpoint or CheckpointNumber(0), label="x", reason="")
        )


def test_aborted_checkpoints_before_undone_ones_hold_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "RETIRED_AT_ONCE", 8)  # two checkpoints of four partitions
    driver = hourly(keep=50)
    for number in range(5):
        driver.request_checkpoint(f"late-{number}")
        driver.wait(driver.held.rules.timeouts.drain.total_seconds() + 1)
    aborted = [s for s, row in driver.region.checkpoints.items() if row.state is CheckpointState.ABORTED]
    checkpoints = checkpoints_of_ten(driver, 4)
    driver.reset(ToInitial())
    last = driver.complete()
    driver.finish_reset()
    driver.process()
    newest = driver.checkpoint("after")
    assert len(aborted) == 5
    assert {row.undone_by is None for s, row in driver.region.checkpoints.items() if s in checkpoints} == {False}
    keep_fewer(driver, 3)
    driver.handle(RetireCheckpoints())
    assert held(driver) == [checkpoints[-1], last, newest]
    assert {driver.region.checkpoints[s].state for s in aborted} == {CheckpointState.RETIRED}
    pieces = happened(driver, events.CheckpointsRetired)
    assert [len(piece.sequences) for piece in pieces] == [2, 2, 2, 2]
    judge(driver)
