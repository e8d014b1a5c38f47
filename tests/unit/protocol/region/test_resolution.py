from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.errors import CheckpointNotUsable, InvalidTarget, UnknownCheckpoint
from airflow_kcr.protocol.offsets import OffsetMap, SeekMap, SeekSource
from airflow_kcr.protocol.region import lookup, plans
from airflow_kcr.protocol.region.commands import RetireCheckpoints
from airflow_kcr.protocol.region.rows import CheckpointState, Contribution, PersonReset, PersonResetState, Requester
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.scopes import EVERYTHING, Scope, parse_scope
from airflow_kcr.protocol.targets import (
    ByDuration,
    FromFile,
    ShiftBy,
    Target,
    ToCheckpoint,
    ToCurrent,
    ToDatetime,
    ToEarliest,
    ToInitial,
    ToLatest,
    ToOffset,
    ToRun,
)
from airflow_kcr.protocol.values import CheckpointNumber, Incarnation, Offset, RequestId
from tests.support.driver import Driver
from tests.support.judging import judge, open_checkpoint, positions
from tests.support.scripts import boundary, checkpoints_of_ten, hourly, located, rewind, running

MINUTE = timedelta(minutes=1)


def wanted(
    driver: Driver, target: Target, *, scope: Scope = EVERYTHING, forward: bool = False, allow_partial: bool = False
) -> PersonReset:
    return PersonReset(
        request_id=RequestId("r"),
        target=target,
        scope=scope,
        state=PersonResetState.WAITING,
        requester=Requester(),
        requested_at=driver.clock.now,
        order=0,
        forward=forward,
        allow_partial=allow_partial,
    )


def usable(driver: Driver, reset: PersonReset) -> None:
    lookup.require_usable(driver.region, driver.clock.now, reset)


def offsets(driver: Driver, target: Target, *, scope: Scope = EVERYTHING, read: bool = True) -> list[int | None]:
    """Return where each partition would resume, from where it is now; `read`: with the logs' bounds."""
    current = OffsetMap({p: c.position for p, c in driver.region.claims.items() if c.position is not None})
    seen = driver.logs if read else {}
    found = plans.seek_map(driver.region, driver.clock.now, wanted(driver, target, scope=scope), current, seen)
    return [found[p].offset for p in sorted(found)]


def run_of(driver: Driver, run: str, *, hours: float | None = None) -> CheckpointNumber:
    """Process ten more records of every partition and make the checkpoint of a DAG run."""
    driver.process()
    at = None if hours is None else boundary(hours)
    number = driver.region.counter
    driver.request_checkpoint(f"{run}-{number}", boundary=at, requester=Requester(dag_id="checkpoint", run_id=run))
    sequence = driver.complete()
    driver.publish()
    return sequence


# -- which checkpoint -------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_meant_by_its_sequence() -> None:
    driver = running()
    checkpoint = checkpoints_of_ten(driver, 1)[0]
    assert lookup.target_checkpoint(driver.region, wanted(driver, ToCheckpoint(sequence=checkpoint))) == checkpoint
    with pytest.raises(UnknownCheckpoint, match="no checkpoint 99; its newest are"):
        lookup.target_checkpoint(driver.region, wanted(driver, ToCheckpoint(sequence=CheckpointNumber(99))))
    assert lookup.target_checkpoint(driver.region, wanted(driver, ToInitial())) is None


def test_a_run_is_its_newest_complete_checkpoint_on_the_path() -> None:
    driver = running()
    run_of(driver, "r1")
    again = run_of(driver, "r1")
    run_of(driver, "r2")
    assert lookup.target_checkpoint(driver.region, wanted(driver, ToRun(dag_id="checkpoint", run_id="r1"))) == again


@pytest.mark.parametrize(("dag", "run"), [("checkpoint", "r9"), ("other", "r1")])
def test_a_run_without_a_checkpoint_on_the_path_is_none(dag: str, run: str) -> None:
    driver = running()
    run_of(driver, "r1")
    with pytest.raises(UnknownCheckpoint, match=f"on the current timeline belongs to the run {run} of DAG"):
        lookup.target_checkpoint(driver.region, wanted(driver, ToRun(dag_id=dag, run_id=run)))


def test_a_run_whose_only_checkpoint_was_undone_has_none() -> None:
    driver = running()
    first = run_of(driver, "r1")
    second = run_of(driver, "r2")
    rewind(driver, ToCheckpoint(sequence=first))
    undone = (
        f"its checkpoint, checkpoint {second}, was undone by a reset, which opened timeline 2; clear the task "
        "that asked"
    )
    with pytest.raises(UnknownCheckpoint, match=undone):
        lookup.target_checkpoint(driver.region, wanted(driver, ToRun(dag_id="checkpoint", run_id="r2")))


def test_a_run_with_checkpoints_of_several_boundaries_is_refused_with_their_list() -> None:
    driver = hourly()
    checkpoints = []
    for hours in (1, 2):
        located(driver, boundary(hours), 10 * hours)
        checkpoints.append(run_of(driver, "r1", hours=hours))
    with pytest.raises(CheckpointNotUsable, match="several checkpoints") as refused:
        lookup.target_checkpoint(driver.region, wanted(driver, ToRun(dag_id="checkpoint", run_id="r1")))
    assert all(f"{checkpoint} (boundary " in refused.value.message for checkpoint in checkpoints)
    assert "name one of them" in refused.value.message


# -- may it be used? --------------------------------------------------------------------------------------------------


def test_a_scope_or_file_that_names_what_the_region_does_not_have_is_refused() -> None:
    driver = running()
    with pytest.raises(InvalidTarget, match="topic u"):
        usable(driver, wanted(driver, ToInitial(), scope=parse_scope(topics=["u"])))
    strange = FromFile(entries=OffsetMap({driver.partition(9): Offset(1)}))
    with pytest.raises(InvalidTarget, match="the file names g:t-9, which the region does not have"):
        usable(driver, wanted(driver, strange))
    outside = FromFile(entries=OffsetMap({driver.partition(1): Offset(1)}))
    with pytest.raises(InvalidTarget, match="the file names g:t-1, out of the scope"):
        usable(driver, wanted(driver, outside, scope=parse_scope(topics=["t:0"])))
    usable(driver, wanted(driver, outside))


def test_a_time_in_the_future_is_refused() -> None:
    driver = running()
    usable(driver, wanted(driver, ToDatetime(instant=driver.clock.now)))
    with pytest.raises(InvalidTarget, match="in the future"):
        usable(driver, wanted(driver, ToDatetime(instant=driver.clock.now + MINUTE)))


def test_a_retired_checkpoint_is_gone() -> None:
    driver = hourly(keep=1)
    checkpoints = checkpoints_of_ten(driver, 3)
    driver.handle(RetireCheckpoints())
    with pytest.raises(CheckpointNotUsable, match="is retired; its offsets are gone"):
        usable(driver, wanted(driver, ToCheckpoint(sequence=checkpoints[0])))


def test_an_open_or_aborted_checkpoint_only_by_name() -> None:
    driver = running()
    driver.process()
    driver.request_checkpoint("n")
    driver.contribute(driver.member(0))
    sequence = open_checkpoint(driver)
    assert sequence is not None
    with pytest.raises(CheckpointNotUsable, match="is draining, not complete; allow_partial"):
        usable(driver, wanted(driver, ToCheckpoint(sequence=sequence)))
    usable(driver, wanted(driver, ToCheckpoint(sequence=sequence), allow_partial=True))
    driver.wait(181)
    with pytest.raises(CheckpointNotUsable, match="is aborted, not complete"):
        usable(driver, wanted(driver, ToCheckpoint(sequence=sequence)))


def test_what_is_missing_is_counted_beyond_the_first_ten_and_nothing_where_nothing_is() -> None:
    driver = running(partitions=12)
    checkpoint = checkpoints_of_ten(driver, 1)[0]
    row = driver.region.checkpoints[checkpoint]
    assert lookup.missing_text(driver.region, row) == "nothing"
    earlier = {p: replace(c, position=Offset(0)) for p, c in driver.region.claims.items()}
    text = lookup.missing_text(replace(driver.region, claims=earlier), row)
    assert text.count("[0, 10)") == 10
    assert text.endswith(" and 2 more")
    unknown = {p: replace(c, position=None) for p, c in driver.region.claims.items()}
    assert lookup.missing_text(replace(driver.region, claims=unknown), row) == "nothing"


# -- the whole map ----------------------------------------------------------------------------------------------------


def test_every_kind_of_target_in_scope_and_the_others_where_they_are() -> None:
    driver = running(partitions=2)
    checkpoint = checkpoints_of_ten(driver, 1)[0]
    driver.process()
    only_first = parse_scope(topics=["t:0"])
    file = FromFile(entries=OffsetMap({driver.partition(0): Offset(13)}))
    expected: list[tuple[Target, int]] = [
        *((ToCheckpoint(sequence=checkpoint), 10), (ToInitial(), 0), (ToEarliest(), 0), (ToLatest(), 1_000)),
        *((ToOffset(offset=Offset(7)), 7), (ShiftBy(by=-3), 17), (file, 13), (ToCurrent(), 20)),
    ]
    for target, place in expected:
        assert offsets(driver, target, scope=only_first) == [place, 20], target


def test_a_time_is_for_the_owners_to_look_up() -> None:
    driver = running(partitions=2)
    driver.process()
    target = ToDatetime(instant=driver.clock.now)
    assert offsets(driver, target, scope=parse_scope(topics=["t:0"])) == [None, 10]


def test_so_is_a_log_whose_boundaries_nobody_has_brought() -> None:
    driver = running(partitions=2)
    checkpoint = checkpoints_of_ten(driver, 1)[0]
    assert offsets(driver, ToEarliest(), read=False) == [None, None]
    assert offsets(driver, ShiftBy(by=-3), read=False) == [None, None]
    assert offsets(driver, ToCurrent(), read=False) == [10, 10]
    assert offsets(driver, ToInitial(), read=False) == [0, 0]
    assert offsets(driver, ToCheckpoint(sequence=checkpoint), read=False) == [10, 10]


def test_out_of_scope_a_partition_without_a_position_keeps_its_initial_offset() -> None:
    driver = running(partitions=2)
    found = plans.seek_map(
        driver.region,
        driver.clock.now,
        wanted(driver, ToEarliest(), scope=parse_scope(topics=["t:0"])),
        OffsetMap(),
        {},
    )
    kept = found[driver.partition(1)]
    assert (kept.offset, kept.source) == (0, SeekSource.INITIAL)


def test_a_checkpoint_that_the_log_no_longer_has_is_not_clamped_but_refused() -> None:
    driver = running(partitions=2)
    checkpoint = checkpoints_of_ten(driver, 1)[0]
    driver.grow(driver.partition(0), start=11, end=99)
    with pytest.raises(CheckpointNotUsable, match=r"1 partition\(s\) can't go there, the log has moved on: g:t-0"):
        offsets(driver, ToCheckpoint(sequence=checkpoint))


def test_a_duration_is_fixed_once_and_other_targets_stay_as_they_are() -> None:
    now = boundary(5)
    assert ByDuration(back=5 * MINUTE).anchored(now) == ToDatetime(instant=now - 5 * MINUTE)
    for target in (ToDatetime(instant=boundary(1)), ToInitial()):
        assert target.anchored(now) is target


# -- incomplete checkpoints -------------------------------------------------------------------------------------------


def half_contributed(driver: Driver) -> tuple[Region, CheckpointNumber]:
    """Let one of two members contribute to a checkpoint."""
    driver.request_checkpoint("half")
    driver.contribute(driver.member(0))
    sequence = open_checkpoint(driver)
    assert sequence is not None
    return driver.region, sequence


def test_the_gaps_of_an_incomplete_checkpoint_are_filled_from_the_complete_one_before_it() -> None:
    driver = running(partitions=2)
    checkpoints_of_ten(driver, 1)
    driver.process()
    region, sequence = half_contributed(driver)
    found, fills = plans.checkpoint_offsets(region, sequence, region.universe())
    assert found == OffsetMap({driver.partition(0): Offset(20)})
    assert (fills[driver.partition(1)].offset, fills[driver.partition(1)].source) == (
        10,
        SeekSource.PREVIOUS_CHECKPOINT,
    )


def test_then_from_the_committed_offsets_that_were_seen() -> None:
    driver = running(partitions=2)
    driver.process()
    region, sequence = half_contributed(driver)
    seen = Contribution(
        incarnation=Incarnation(1),
        offsets=OffsetMap({driver.partition(0): Offset(10)}),
        committed=OffsetMap({driver.partition(0): Offset(4), driver.partition(1): Offset(5)}),
        bounds={},
        contributed_at=driver.clock.now,
    )
    region = replace(region, contributions={(sequence, driver.member(0)): seen})
    _, fills = plans.checkpoint_offsets(region, sequence, region.universe())
    assert (fills[driver.partition(1)].offset, fills[driver.partition(1)].source) == (5, SeekSource.COMMITTED)


def test_an_aborted_checkpoint_is_used_with_its_gaps_marked() -> None:
    driver = running(partitions=2)
    checkpoints_of_ten(driver, 1)
    driver.process()
    _, sequence = half_contributed(driver)
    driver.wait(181)
    assert driver.region.checkpoints[sequence].state is CheckpointState.ABORTED
    driver.process()
    driver.reset(ToCheckpoint(sequence=sequence), allow_partial=True)
    driver.complete()
    sources = [driver.region.seek[p].source for p in sorted(driver.region.seek)]
    assert positions(driver) == [20, 10]
    assert sources == [SeekSource.MERGED, SeekSource.PREVIOUS_CHECKPOINT]
    driver.finish_reset()
    judge(driver)


def test_a_complete_checkpoint_has_no_gaps_and_no_target_none() -> None:
    driver = running()
    checkpoint = checkpoints_of_ten(driver, 1)[0]
    known = driver.region.universe()
    assert plans.checkpoint_offsets(driver.region, checkpoint, known) == (
        driver.region.offsets[checkpoint],
        SeekMap({}),
    )
    assert plans.checkpoint_offsets(driver.region, None, known) == (None, SeekMap({}))
