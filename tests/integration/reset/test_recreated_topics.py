"""A topic that was deleted and made anew: every way out that the halt names is taken, and ends in a region that works.

Real broker, real store, members in a process of their own. The new log is shorter than the old one was, so a number
that is computed from offsets of both shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_kcr.api import Region, ResetRequest
from airflow_kcr.errors import CheckpointNotUsable, InvalidTarget
from airflow_kcr.goals import STOPPED
from airflow_kcr.protocol import targets
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import HaltReason, RegionState
from airflow_kcr.protocol.rules import OutOfRangePolicy
from airflow_kcr.protocol.values import Offset
from tests.support.faults import checkpoints, finished, halted, recreate, told, up
from tests.support.kafka import Record
from tests.support.members import Lend, Live

pytestmark = pytest.mark.timeout(240)

WITHIN = timedelta(seconds=60)
OLD, NEW = 100, 30
"""Records of each partition, before and after."""

ALL = {(n, o) for n in range(2) for o in range(NEW)}


@contextmanager
def made_anew(lend: Lend, new: int = NEW) -> Iterator[tuple[Live, Region]]:
    """Lend a region that read and checkpointed all of its topic, and is halted as the topic was made anew."""
    with lend(members=2, partitions=2) as one, Region(one.name, one.store) as region:
        up(one, (0, 1), each=OLD)
        recreate(one, new)
        halted(one)
        yield one, region


def stopped(one: Live, region: Region) -> None:
    """Stop the region, and wait until its members have ended."""
    region.stop()
    region.wait_for(STOPPED)
    for process in one.processes:
        process.wait(30)


def read_anew(one: Live) -> set[tuple[int, int]]:
    """Partition and offset of every record of the new topic that was written."""
    return {(row.partition, row.offset) for row in one.written() if row.value.startswith("new:")}


def goes_on(one: Live, expected: set[tuple[int, int]]) -> None:
    """See the region work: it reads what was expected of the new topic, a checkpoint holds it, it halted once only."""
    one.until(lambda: one.region().state is RegionState.RUNNING, "running")
    finished(one)
    assert read_anew(one) == expected
    one.kafka.produce(one.topic, [Record(value=b"new:later", partition=n) for n in (0, 1)])
    finished(one)
    ends = one.kafka.ends(one.topic)
    assert read_anew(one) == expected | {(n, ends[n] - 1) for n in (0, 1)}
    assert len(told(one, events.Halted)) == 1
    with Region(one.name, one.store) as region:
        assert not region.verify().violations
        assert {(row.lag, row.trouble) for row in region.lag()} == {(0, "")}


def since_a_moment_ago(region: Region) -> targets.Target:
    return targets.ToDatetime(instant=datetime.now(UTC) - timedelta(hours=1))


def from_file(region: Region, offset: int) -> targets.Target:
    text = "".join(f"{topic_of(region)},{partition},{offset}\n" for partition in (0, 1))
    return region.resets.request("from-file", text).target


TARGETS: dict[str, tuple[Callable[[Region], targets.Target], int]] = {
    "to-earliest": (lambda _: targets.ToEarliest(), 0),
    "to-latest": (lambda _: targets.ToLatest(), NEW),
    "to-offset": (lambda _: targets.ToOffset(offset=Offset(20)), 20),
    "to-datetime": (since_a_moment_ago, 0),
    "by-duration": (lambda _: targets.ByDuration(back=timedelta(hours=1)), 0),
    "from-file": (
        lambda region: region.resets.request("from-file", f"{topic_of(region)},0,10\n{topic_of(region)},1,10\n").target,
        10,
    ),
}


def topic_of(region: Region) -> str:
    (group,) = region.spec().groups
    return group.topics[0]


@pytest.mark.long
@pytest.mark.parametrize("name", TARGETS)
def test_a_forced_reset_to_a_place_in_the_new_log_goes_on_there(lend: Lend, name: str) -> None:
    target, at = TARGETS[name]
    with made_anew(lend) as (one, region):
        plan = region.resets.plan(ResetRequest(target=target(region)))
        assert [(line.target, line.replay, line.skip, line.recreated) for line in plan.entries] == [
            (at, None, None, True)
        ] * 2
        assert (plan.totals.replay, plan.totals.skip, plan.totals.unreachable, plan.totals.moved) == (0, 0, 0, 2)
        region.resets.apply(plan, "the topic was made anew", forced=True)
        assert region.resets.wait_for(plan.plan, WITHIN).state == "done"
        goes_on(one, {(n, o) for n, o in ALL if o >= at})


@pytest.mark.long
@pytest.mark.parametrize("policy", [OutOfRangePolicy.EARLIEST, OutOfRangePolicy.LATEST])
def test_another_policy_then_a_resume_goes_on_there(lend: Lend, policy: OutOfRangePolicy) -> None:
    with made_anew(lend) as (one, region):
        region.apply(replace(region.spec(), beyond_end=policy))
        region.resume()
        goes_on(one, ALL if policy is OutOfRangePolicy.EARLIEST else set())


@pytest.mark.long
def test_the_region_is_deleted_and_declared_anew(lend: Lend) -> None:
    with made_anew(lend) as (one, region):
        spec = region.spec()
        stopped(one, region)
        region.delete()
        region.apply(spec)
        region.start()
        one.start(0, 1)
        one.until(lambda: one.region().state is RegionState.RUNNING, "running")
        finished(one)
        assert read_anew(one) == ALL
        assert not told(one, events.Halted)


@pytest.mark.long
def test_a_stopped_region_is_reset_without_force(lend: Lend) -> None:
    with made_anew(lend) as (one, region):
        stopped(one, region)
        plan = region.resets.plan(ResetRequest(target=targets.ToOffset(offset=Offset(20))))
        assert region.resets.apply(plan, "the topic was made anew").state == "done"
        region.start()
        one.start(0, 1)
        goes_on(one, {(n, o) for n, o in ALL if o >= 20})


@pytest.mark.long
def test_what_belongs_to_the_old_topic_is_no_place_in_the_new_one(lend: Lend) -> None:
    # The new log has the old offsets too, of other records.
    with made_anew(lend, new=2 * OLD) as (one, region):
        newest, counter = checkpoints(one)[-1].sequence, region.counter()
        for target in (targets.ToCheckpoint(sequence=newest), targets.ToInitial()):
            plan = region.resets.plan(ResetRequest(target=target))
            assert [line.unreachable for line in plan.entries] == [True, True], target
            with pytest.raises(CheckpointNotUsable, match=r"deleted and created again.*--to-earliest"):
                region.resets.apply(plan, "back", forced=True)
        with pytest.raises(InvalidTarget, match="has no position in this log"):
            region.resets.plan(ResetRequest(target=targets.ShiftBy(by=-10)))
        assert region.counter() == counter

        assert {(row.lag, row.log_end) for row in region.lag()} == {(None, 2 * OLD)}
        assert all("deleted and created again" in row.trouble for row in region.lag())
        assert {str(row.finding) for row in region.checkpoints.compare(newest)} == {"recreated"}
        assert halted(one).reason is HaltReason.OUT_OF_RANGE

        # And once the region has gone on there, the old checkpoint is still of the old topic.
        plan = region.resets.plan(ResetRequest(target=targets.ToLatest()))
        region.resets.apply(plan, "go on", forced=True)
        region.resets.wait_for(plan.plan, WITHIN)
        goes_on(one, set())
        with pytest.raises(CheckpointNotUsable, match="deleted and created again"):
            region.resets.plan(ResetRequest(target=targets.ToCheckpoint(sequence=newest)))
        initial = region.resets.plan(ResetRequest(target=targets.ToInitial()))
        assert [(line.target, line.unreachable) for line in initial.entries] == [(0, False)] * 2
