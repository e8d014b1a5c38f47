"""What went wrong in the toolkit that this project descends from: each a named regression test.

That is streamsx.kafka's issue tracker and code (`#n`, B1 to B8), as far as a protocol core can have it; one bug is of
Kafka's own tools. Not here, because only an adapter can have it: a group id that changes on restart (#123), transient
errors (#198), poll threads that are dead (#98), and what the producers did (#163 to #196).

Shown where their rules are: a count of records (#45) in `test_batches.py` and `test_reconciliation.py`, a restore point
that stays behind (#53) in `test_completion.py`, batches in a drain (#114) in C43, of an older epoch (#117) in
`test_protocol_properties.py`, numbers with separators (#171) in `test_targets.py` and `test_offsets_csv.py`, requests
that are swallowed (#222) in `test_acknowledgement.py`; one member for the whole region (B2) in C49, completion by a
count (B3) in `test_protocol_properties.py`, members changed in place (B6) in `test_member_product.py`, notifications
that are lost (B7) in `test_presence.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kcr import errors
from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.member.state import State
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap, SeekEntry, SeekMap, SeekSource
from airflow_kcr.protocol.region import commands, rows
from airflow_kcr.protocol.region.commands import Acknowledge, ReportReadBack
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import BatchId, CheckpointNumber, Epoch, EventNumber, Offset
from tests.support import answers
from tests.support.driver import STOP
from tests.support.judging import causes, judge, positions, state
from tests.support.lone_member import MINE, LoneMember, checkpoint_view, claims_of, view_of
from tests.support.scripts import all_crash, checkpoints_of_ten, running

# -- streamsx.kafka: reported ------------------------------------------------------------------------------------------


def test_114_a_draining_member_prepares_its_sinks_only_when_its_batch_is_over() -> None:
    alone = LoneMember().in_batch()
    draining = replace(
        view_of(claims_of()), state=rows.RegionState.DRAINING, checkpoint=checkpoint_view(rows.CheckpointState.DRAINING)
    )
    alone.see(replace(draining, counter=EventNumber(11)))
    assert not [
        e for e in alone.wait(10) if isinstance(e, messages.PrepareSinks | commands.Contribute | messages.PlanRanges)
    ]
    alone.feed(messages.BatchEnded(batch=BatchId("b1")))
    assert alone.wanted(commands.FinishBatch)
    alone.feed(answers.batch_accepted(batch=BatchId("b1")))
    moved = replace(draining, claims=claims_of(position=10), counter=EventNumber(12))
    wanted = [*alone.last, *alone.feed(answers.view_read(view=moved)), *alone.wait(2)]
    assert [e.sequence for e in wanted if isinstance(e, messages.PrepareSinks)] == [2]


def test_124_a_partition_that_was_added_since_the_checkpoint_is_read_after_a_restart_of_static_members() -> None:
    driver = running()
    driver.process()
    driver.checkpoint("n1")
    added = driver.partition(4)
    all_crash(driver)
    driver.grow(added, end=1_000)
    for member in driver.all_members():
        driver.join(member)
    driver.spread()
    driver.finish_reset()
    assert positions(driver) == [10, 10, 10, 10, 0]
    driver.process()
    checkpoint = driver.checkpoint("n2")
    assert driver.region.offsets[checkpoint][added] == 10
    judge(driver)


def test_148_a_death_and_a_rebalance_in_a_reset_do_not_lead_to_a_checkpoint_that_lacks_offsets() -> None:
    driver = running(partitions=6, members=3)
    driver.process()
    driver.checkpoint("n1")
    driver.process()
    driver.start_batch(driver.member(0))
    driver.request_reset(driver.member(1), rows.ResetCause.BATCH_FAILED, "it raised")
    asked = driver.request_checkpoint("n2")
    assert state(driver) is rows.RegionState.RESETTING
    # In the middle of it one member dies, and Kafka moves partitions.
    driver.claim(driver.member(1))
    driver.acknowledge(driver.member(1))
    all_crash(driver, [driver.member(0)])
    driver.claim(driver.member(1), [driver.partition(n) for n in (0, 1, 2)])
    driver.claim(driver.member(2), [driver.partition(n) for n in (3, 4, 5)])
    driver.finish_reset()
    assert positions(driver) == [10] * 6
    assert driver.region.requests[asked.request_id].state is rows.RequestState.OPEN
    checkpoint = driver.complete()
    assert driver.region.offsets[checkpoint].keys() == set(driver.logs)
    driver.crash(driver.member(2))
    driver.recover()
    assert positions(driver) == [10] * 6
    judge(driver)


def test_155_a_revoke_and_an_assignment_in_different_polls_do_not_lose_the_seek_of_a_reset() -> None:
    alone = LoneMember().processing()
    alone.feed(messages.Notice.REVOKED)
    # The reset comes between the two callbacks.
    resetting = replace(view_of(), epoch=Epoch(2), state=rows.RegionState.RESETTING, acknowledged=False)
    alone.see(replace(resetting, counter=EventNumber(20)))
    assert not alone.wanted(messages.ResetSinks)
    alone.assign(MINE, assignment=2)
    assert [e.claim.assignment for e in alone.wanted(messages.ClaimAssignment)] == [2]
    back = claims_of(epoch=2, position=3, resume=3)
    alone.grant(replace(resetting, claims=back, counter=EventNumber(21)), assignment=2)
    assert [dict(e.resume) for e in alone.wanted(messages.ResetSinks)] == [dict.fromkeys(MINE, 3)]
    assert dict(alone.member.positions) == dict.fromkeys(MINE, 3)


def test_158_a_commit_that_fails_ends_no_process_and_begins_no_reset() -> None:
    alone = LoneMember().processing()
    alone.feed(messages.RangesPlanned(batch=BatchId("none"), ranges={}))
    alone.see(replace(view_of(claims_of(position=10, resume=10)), commit=CheckpointNumber(2), counter=EventNumber(11)))
    wanted = [*alone.feed(messages.CommitAnswered(sequence=CheckpointNumber(2), offsets=EMPTY)), *alone.wait(5)]
    wanted += alone.feed(answers.view_read(view=alone.view))
    assert alone.state is State.PROCESSING
    assert [e for e in wanted if isinstance(e, messages.PlanRanges)]
    assert messages.GroupRequest.LEAVE not in alone.all
    assert not [e for e in alone.all if isinstance(e, commands.RequestReset | messages.EndProcess)]


# -- streamsx.kafka: seen in its code ----------------------------------------------------------------------------------


def test_b1_a_partition_first_seen_after_the_checkpoint_is_rewound_to_its_beginning_at_every_reset() -> None:
    driver = running()
    driver.process()
    driver.checkpoint("n1")
    added = driver.partition(4)
    driver.grow(added, start=5, end=1_000)
    driver.claim(driver.member(1), [*driver.processes[driver.member(1)].assigned, added])
    for _ in range(2):
        driver.process()
        assert driver.region.claims[added].position == 15
        driver.crash(driver.member(0))
        driver.recover()
        assert positions(driver) == [10, 10, 10, 10, 5]
        assert driver.region.seek[added] == SeekEntry(offset=Offset(5), source=SeekSource.INITIAL, current=Offset(15))
    judge(driver)


def test_b4_a_rebalance_that_every_member_notices_is_one_reset() -> None:
    driver = running(partitions=6, members=3)
    batches = [driver.start_batch(member) for member in driver.all_members()]
    for shift in (1, 2):
        for member in driver.all_members():
            taken = [driver.partition((2 * member.index + shift * 2 + n) % 6) for n in (0, 1)]
            driver.insist(member, taken)
    for batch in batches:
        driver.discard(batch)
    driver.finish_reset()
    assert causes(driver)[1:] == [rows.ResetCause.CLAIM]
    judge(driver)


def test_b5_an_assignment_without_a_revoke_before_it_is_claimed_and_positioned_like_any_other() -> None:
    alone = LoneMember().processing()
    alone.assign(MINE[:1], assignment=2)
    assert alone.state is State.JOINING
    assert [(e.claim.assignment, e.partitions) for e in alone.wanted(messages.ClaimAssignment)] == [
        (2, frozenset(MINE[:1]))
    ]
    alone.grant(replace(view_of(claims_of(MINE[:1], position=4, resume=4)), counter=EventNumber(11)), assignment=2)
    assert dict(alone.member.positions) == {MINE[0]: 4}


# -- Kafka's tools ---------------------------------------------------------------------------------------------------


def test_kafka_15917_a_reset_of_an_empty_group_moves_the_epoch_first_so_that_a_zombie_can_commit_nothing() -> None:
    driver = running()
    checkpoints = checkpoints_of_ten(driver, 2)
    zombie = driver.processes[driver.member(0)]
    caller = driver.caller(zombie.member)
    all_crash(driver)
    driver.handle(STOP)
    before = driver.region.epoch
    seek = SeekMap(
        {p: SeekEntry(offset=o, source=SeekSource.MERGED) for p, o in driver.region.offsets[checkpoints[0]].items()}
    )
    driver.reset(ToCheckpoint(sequence=checkpoints[0]), resolved=seek)
    assert (state(driver), driver.region.epoch) == (rows.RegionState.STOPPED, before + 1)
    told = OffsetMap({p: Offset(999) for p in zombie.assigned})
    for sequence in checkpoints:
        with pytest.raises(errors.CheckpointRefused):
            driver.handle(
                ReportReadBack(sequence=sequence, member=zombie.member, incarnation=zombie.incarnation, offsets=told)
            )
    with pytest.raises(errors.FencedError):
        driver.handle(Acknowledge(caller=caller))
    driver.up()
    assert positions(driver) == [10] * 4
    judge(driver)
