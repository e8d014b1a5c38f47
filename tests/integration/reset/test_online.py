"""Resets of a region whose members stay in their group: real broker, real store, every kind of target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from airflow_kcr.api import Plan, Region, ResetRequest, ResetView
from airflow_kcr.errors import CheckpointNotUsable
from airflow_kcr.protocol import targets
from airflow_kcr.protocol.region.commands import RequestCheckpoint
from airflow_kcr.protocol.region.events import ResetBegun
from airflow_kcr.protocol.region.rows import CheckpointState, RegionState, Requester
from airflow_kcr.protocol.scopes import Scope, parse_scope
from airflow_kcr.protocol.values import Offset, RequestId
from tests.support.faults import checkpoints, finished, up
from tests.support.members import BRISK, Lend, Live

WITHIN = timedelta(seconds=60)


@contextmanager
def region_of(one: Live) -> Iterator[Region]:
    with Region(one.name, one.store, requester=Requester(who="pat")) as region:
        yield region


def applied(region: Region, plan: Plan, *, forced: bool = False) -> ResetView:
    region.resets.apply(plan, "to see", forced=forced)
    return region.resets.wait_for(plan.plan, WITHIN)


def resumed_at(one: Live, view: ResetView) -> dict[int, int | None]:
    """Where each partition resumed, as the event of the reset's start has it, and what owners answered later."""
    epoch = view.attempts[-1].epoch
    assert any(isinstance(e.body, ResetBegun) and e.body.epoch == epoch for e in one.events())
    return {p.partition: entry.offset for p, entry in one.region().seek_maps[epoch].items()}


@pytest.mark.long
def test_every_kind_of_target_with_the_members_in_their_group(lend: Lend) -> None:
    with lend(members=2, partitions=4) as one, region_of(one) as region:
        one.fill(200)
        one.start(0, 1)
        one.until(one.consumed, "the first records")
        first = one.handle(
            RequestCheckpoint(request_id=RequestId("checkpoint"), requester=Requester(dag_id="daily", run_id="monday"))
        )
        one.until(lambda: one.is_committed(first.request_id), "the first checkpoint")
        sequence = one.region().requests[first.request_id].sequence
        assert sequence is not None
        between = datetime.now(UTC)
        one.fill(100)
        one.until(one.consumed, "all records")
        members = one.region().members

        def reset(target: targets.Target, *, scope: Scope | None = None) -> dict[int, int | None]:
            plan = region.resets.plan(ResetRequest(target=target, scope=scope or Scope()))
            view = applied(region, plan)
            assert view.state == "done"
            found = resumed_at(one, view)
            assert found == {line.partition.partition: line.target for line in plan.entries}
            one.until(one.consumed, f"all records again after {plan.target}")
            return found

        assert set(reset(targets.ToRun(dag_id="daily", run_id="monday")).values()) == {200}
        assert set(reset(targets.ToCheckpoint(sequence=sequence)).values()) == {200}
        assert set(reset(targets.ToDatetime(instant=between)).values()) == {200}
        assert set(reset(targets.ShiftBy(by=-30)).values()) == {270}
        assert set(reset(targets.ToOffset(offset=Offset(150))).values()) == {150}
        assert set(reset(targets.ToLatest()).values()) == {300}
        assert set(reset(targets.ToCurrent()).values()) == {300}
        assert set(reset(targets.ByDuration(back=timedelta(hours=1))).values()) == {0}
        file = region.resets.request("from-file", f"{one.topic},1,250\n{one.topic},3,20\n").target
        assert reset(file) == {
            0: 300,
            1: 250,
            2: 300,
            3: 20,
        }
        assert reset(targets.ToEarliest(), scope=parse_scope([one.group], [f"{one.topic}:0"])) == {
            0: 0,
            1: 300,
            2: 300,
            3: 300,
        }
        assert set(reset(targets.ToInitial()).values()) == {0}

        assert {m: r.incarnation for m, r in one.region().members.items()} == {
            m: r.incarnation for m, r in members.items()
        }, "nobody left its group"
        one.checkpoint()
        one.require_sound()
        last = region.resets.list()[-1]
        assert (last.requester.who, last.counted and last.counted.replayed) == ("pat", 1_200)


@pytest.mark.long
def test_a_checkpoint_that_one_member_never_contributed_to_is_gone_to_with_a_word(lend: Lend) -> None:
    with lend(members=2, partitions=4) as one, region_of(one) as region:
        late, _ = up(one, (1,), (0,), each=200)
        whole = checkpoints(one)[-1].sequence
        one.fill(100)
        one.until(one.consumed, "all records")
        early = {p for p, owner in one.owners().items() if owner == 0}
        late.gate("contributing")
        asked = one.handle(RequestCheckpoint(request_id=RequestId("partial")))
        one.until(lambda: one.member(0) in {m for _, m in one.region().contributions}, "one of two has contributed")
        sequence = one.region().requests[asked.request_id].sequence
        assert sequence is not None
        assert sequence != whole
        late.kill()
        one.until(lambda: one.region().checkpoints[sequence].state is CheckpointState.ABORTED, "given up")
        one.start(1)
        one.shared(0, 1)
        finished(one)

        target = targets.ToCheckpoint(sequence=sequence)
        with pytest.raises(CheckpointNotUsable, match="is aborted, not complete; allow_partial"):
            region.resets.plan(ResetRequest(target=target))
        plan = region.resets.plan(ResetRequest(target=target, allow_partial=True))
        view = applied(region, plan)
        assert view.state == "done"
        assert resumed_at(one, view) == {n: 300 if n in early else 200 for n in range(4)}
        finished(one)
        one.require_sound()


def test_a_poison_record_halts_and_is_skipped_by_name(lend: Lend) -> None:
    spec = BRISK + "max_failures: 1\n"
    with lend(members=2, partitions=2, spec=spec) as one, region_of(one) as region:
        one.fill(300)
        one.start(0, 1, poison=((0, 120),))
        one.until(lambda: one.region().state is RegionState.HALTED, "halted")
        scope = parse_scope([], [one.topic])
        skip = region.resets.request("to-current", skip=[f"{one.topic}:0:120"]).skip
        plan = region.resets.plan(ResetRequest(target=targets.ToCurrent(), scope=scope, skip=skip))
        view = applied(region, plan, forced=True)
        assert (view.state, view.asked is not None and view.asked.forced) == ("done", True)
        one.until(one.consumed, "everything but the record")
        one.checkpoint()
        wanted = {(one.topic, n, o) for n in (0, 1) for o in range(300)} - {(one.topic, 0, 120)}
        one.require_sound(wanted)
        assert (one.topic, 0, 120) not in {(w.topic, w.partition, w.offset) for w in one.written()}


@pytest.mark.long
def test_a_partition_that_is_found_while_a_reset_waits_for_its_turn_is_read_from_its_beginning(lend: Lend) -> None:
    with lend(members=2, partitions=4) as one, region_of(one) as region:
        held, _ = up(one, (0,), (1,), each=100)
        held.gate("resetting")
        first = region.resets.plan(ResetRequest(target=targets.ToOffset(offset=Offset(50))))
        region.resets.apply(first, "to see")
        one.until(lambda: held.reached("resetting"), "the first reset held")
        second = region.resets.plan(ResetRequest(target=targets.ToOffset(offset=Offset(20))))
        region.resets.apply(second, "to see")
        one.kafka.add_partitions(one.topic, 6)
        one.kafka.fill(one.topic, {4: 60, 5: 60})
        one.until(lambda: any(p.partition > 3 for p in one.region().claims), "a new partition found")
        held.open("resetting")
        view = region.resets.wait_for(second.plan, WITHIN)
        assert view.state == "done"
        found = resumed_at(one, view)
        assert {n: found[n] for n in range(4)} == dict.fromkeys(range(4), 20)
        one.until(one.consumed, "all records again")
        one.checkpoint()
        one.require_sound()
        assert {(w.partition, w.offset) for w in one.written() if w.partition > 3} == {
            (number, offset) for number in (4, 5) for offset in range(60)
        }
