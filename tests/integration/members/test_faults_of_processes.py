"""Processes that host members are killed, at each place where one can be, and come back (docs/reference/states.md).

Real broker, real store, members in processes of their own with an engine without Spark. Judged by the invariants over
the history, and by counting what was written: nothing missing, nothing accepted twice, and nothing written again but
what R8 accounts for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TypeAlias

import pytest

from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.commands import RequestCheckpoint
from airflow_kcr.protocol.region.rows import Batch, CheckpointState, ResetCause
from airflow_kcr.protocol.values import BatchId, RequestId
from tests.support import faults
from tests.support.driver import START
from tests.support.faults import Note, finished
from tests.support.member_accounts import Place, judged
from tests.support.members import BRISK, PATIENT, Live, Process

pytestmark = pytest.mark.timeout(180)

Lend: TypeAlias = Callable[..., AbstractContextManager[Live]]
Stage: TypeAlias = Callable[[Live, list[Process]], None]

EVERY_FIVE_SECONDS = f"checkpoint: {{every: 5s, grace: 500ms}}\n{BRISK}"
DYNAMIC = ", static_membership: false"


def settled(region: Live, record_property: Note, fault: str) -> None:
    """Wait until everything is processed and a checkpoint holds it, and judge."""
    record_property("fault", fault)
    finished(region, 90)
    faults.judged(region, record_property)
    ends = region.kafka.ends(region.topic)
    assert region.kafka.committed(region.group) == {(region.topic, n): end for n, end in ends.items()}


def running(region: Live, *started: tuple[int, ...]) -> list[Process]:
    """Start processes of these members, and bring them to a first checkpoint with something in it."""
    processes = [region.start(*indexes) for indexes in started]
    everybody = [index for indexes in started for index in indexes]
    holders = min(len(everybody), region.kafka.partitions(region.topic))
    region.until(lambda: len(set(region.owners().values())) == holders, "shared")
    region.fill(60)
    finished(region)
    return processes


def resets(region: Live, after: int) -> list[events.ResetBegun]:
    """The resets that began after an event."""
    return [event.body for event in region.events(after) if isinstance(event.body, events.ResetBegun)]


def test_three_processes_share_the_work_and_everything_is_processed_once(lend: Lend, record_property: Note) -> None:
    with lend() as region:
        for index in range(3):
            region.start(index)
        region.shared(0, 1, 2)
        region.fill(300)
        settled(region, record_property, "none")
        assert region.account().repeated == 0
        judges_the_judge(region)


def judges_the_judge(region: Live) -> None:
    """Have found what nothing accounts for: written twice, by an unknown batch, or started again without a reset."""
    history, rows = region.store.history(region.name), region.written()
    first = rows[0]
    place = (first.topic, first.partition, first.offset)

    def unexplained(batches: list[Batch], batch: str) -> frozenset[Place]:
        more = [*rows, replace(first, batch=batch)]
        return judged(replace(history, batches=batches), (), more, set()).unexplained

    batches = list(history.batches)
    again = next(replace(b, batch=BatchId("again")) for b in batches if b.batch == first.batch)
    assert unexplained(batches, first.batch) == {place}
    assert unexplained(batches, "nobody's") == {place}
    assert unexplained([*batches, again], "again") == {place}


# -- killed, wherever it stands ----------------------------------------------------------------------------------------


def _all_at(region: Live, processes: list[Process], gate: str, provoke: Callable[[], object]) -> None:
    for one in processes:
        one.gate(gate)
    provoke()
    region.until(lambda: all(one.reached(gate) for one in processes), f"at {gate}")


def processing(region: Live, victims: list[Process]) -> None:
    """In a batch that has started."""
    _all_at(region, victims, "processing", lambda: region.fill(150))


def approaching(region: Live, victims: list[Process]) -> None:
    """In a batch before a boundary that has passed."""
    _all_at(region, victims, "processing", lambda: region.fill(150))

    def approaches() -> bool:
        checkpoint = region.region().checkpoint
        return (
            checkpoint is not None
            and checkpoint.boundary is not None
            and checkpoint.state is CheckpointState.APPROACHING
        )

    region.until(approaches, "a checkpoint that approaches its boundary")


def contributed(region: Live, victims: list[Process]) -> None:
    """After the completion of a checkpoint, before its commit."""
    region.fill(150)
    region.until(region.consumed, "consumed")
    request_id = RequestId("the checkpoint that is not committed")
    _all_at(region, victims, "committing", lambda: region.handle(RequestCheckpoint(request_id=request_id)))

    def is_complete() -> bool:
        state = region.region()
        sequence = state.requests[request_id].sequence
        return sequence is not None and state.checkpoints[sequence].is_complete

    region.until(is_complete, "complete")


def resetting(region: Live, victims: list[Process]) -> None:
    """In a reset, before the sinks have done it; with work to be replayed."""
    region.fill(150)
    region.until(region.consumed, "consumed")
    _all_at(region, victims, "resetting", region.reset)


def claimed(region: Live, victims: list[Process]) -> None:
    """In a reset, claimed and not acknowledged; with work to be replayed."""
    region.fill(150)
    region.until(region.consumed, "consumed")
    _all_at(region, victims, "claimed", region.reset)


SOAK = (pytest.mark.soak, pytest.mark.timeout(300))


@pytest.mark.long
@pytest.mark.parametrize(
    ("everybody", "stage"),
    [
        pytest.param(False, processing, id="one, processing"),
        pytest.param(True, processing, id="all, processing", marks=SOAK),
        pytest.param(False, approaching, id="one, approaching", marks=SOAK),
        pytest.param(True, approaching, id="all, approaching"),
        pytest.param(False, contributed, id="one, contributed"),
        pytest.param(True, contributed, id="all, contributed", marks=SOAK),
        pytest.param(False, resetting, id="one, resetting", marks=SOAK),
        pytest.param(True, resetting, id="all, resetting"),
        pytest.param(False, claimed, id="one, claimed"),
        pytest.param(True, claimed, id="all, claimed", marks=SOAK),
    ],
)
def test_nothing_is_lost_and_only_what_a_reset_went_back_over_is_repeated_after_a_kill(
    lend: Lend, record_property: Note, everybody: bool, stage: Stage
) -> None:
    with lend(spec=EVERY_FIVE_SECONDS if stage is approaching else BRISK) as region:
        processes = running(region, (0,), (1, 2))
        victims = processes if everybody else processes[:1]
        stage(region, victims)
        for victim in victims:
            victim.kill()
        region.start(*range(3) if everybody else [0])
        who = "all" if everybody else "one"
        settled(region, record_property, f"kill -9 of {who}, {stage.__name__}")


@pytest.mark.long
@pytest.mark.parametrize("group", [", protocol: consumer", f", protocol: consumer{DYNAMIC}"], ids=["static", "dynamic"])
def test_a_member_that_is_killed_returns_and_nothing_is_lost(lend: Lend, record_property: Note, group: str) -> None:
    with lend(members=2, partitions=4, spec=EVERY_FIVE_SECONDS, group=group) as region:
        victim, _ = running(region, (0,), (1,))
        processing(region, [victim])
        victim.kill()
        region.start(0)
        region.fill(100)
        settled(region, record_property, "kill -9 of one of the consumer protocol")
        assert region.kafka.group(region.group).type.name == "CONSUMER"
        # Kafka keeps the place of the one that was killed until its session is over.
        region.shared(0, 1)


# -- back, in time or not ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_static_member_that_is_back_within_its_session_keeps_its_partitions_and_the_others_hear_nothing(
    lend: Lend, record_property: Note
) -> None:
    with lend(spec=PATIENT) as region:
        victim, _ = running(region, (0,), (1, 2))
        before, owners = region.region(), region.owners()
        victim.kill()
        region.start(0)
        region.until(lambda: 0 in claimers(region, before.counter), "member 0 back")
        region.fill(60)
        settled(region, record_property, "restart within the session, static")
        assert region.owners() == owners
        assert claimers(region, before.counter, epoch=before.epoch) == {0}
        assert region.account().repeated == 0


def claimers(region: Live, after: int, epoch: int | None = None) -> set[int]:
    """Who claimed anything after an event; in that epoch, or in any."""
    bodies = [event.body for event in region.events(after)]
    claims = [body for body in bodies if isinstance(body, events.Claimed)]
    return {body.member.index for body in claims if epoch in (None, body.epoch)}


@pytest.mark.soak
@pytest.mark.parametrize("group", [pytest.param("", id="static"), pytest.param(DYNAMIC, id="dynamic")])
def test_the_partitions_of_a_member_that_stays_away_go_to_the_others_until_it_is_back(
    lend: Lend, record_property: Note, group: str
) -> None:
    with lend(group=group) as region:
        victim, _ = running(region, (0,), (1, 2))
        region.fill(60)
        victim.kill()
        region.until(lambda: set(region.owners().values()) == {1, 2}, "taken over")
        region.until(region.consumed, "consumed by the others")
        region.start(0)
        region.until(lambda: set(region.owners().values()) == {0, 1, 2}, "shared again")
        region.fill(60)
        settled(region, record_property, f"restart beyond the session, {'dynamic' if group else 'static'}")


@pytest.mark.long
def test_three_members_of_one_process_that_dies_and_that_come_back_one_by_one_are_one_reset(
    lend: Lend, record_property: Note
) -> None:
    with lend(spec=PATIENT) as region:
        (all_three,) = running(region, (0, 1, 2))
        processing(region, [all_three])
        before = region.region()
        all_three.kill()
        for index in range(3):
            region.start(index)
            region.until(lambda: _is_back(region, index), f"member {index} registered")  # noqa: B023 - waited for here
        settled(region, record_property, "a process of three members dies, back one by one")
        begun = resets(region, before.counter)
        assert len(begun) == 1, [(reset.cause, reset.detail) for reset in begun]


def _is_back(region: Live, index: int) -> bool:
    return region.region().members[region.member(index)].incarnation == 2


@pytest.mark.soak
def test_a_member_whose_batch_takes_longer_than_the_poll_interval_stays_in_its_group(
    lend: Lend, record_property: Note
) -> None:
    spec = (
        "batch: {target: 500ms, min_records: 50, max_records: 500, timeout: 60s}\n"
        "timeouts: {lease: 3s, renew: 1s, session: 6s, relaunch: 4s, reset: 6500ms, drain: 5s, commit: 4s, close: 4s,"
        " max_poll_interval: 19500ms, accept_aborted_drain: true}\n"
    )
    with lend(spec=spec, members=2) as region:
        slow, _ = running(region, (0,), (1,))
        before = region.region()
        slow.gate("processing")
        region.fill(60)
        region.until(lambda: slow.reached("processing"), "in the batch")
        over = time.monotonic() + 1.2 * before.rules.timeouts.max_poll_interval.total_seconds()
        region.until(lambda: time.monotonic() > over, "longer than the poll interval")
        slow.open("processing")
        settled(region, record_property, "a batch longer than max.poll.interval")
        assert claimers(region, before.counter) == set()
        assert resets(region, before.counter) == []


@pytest.mark.long
def test_members_without_a_partition_take_part_in_checkpoints_and_stand_in(lend: Lend, record_property: Note) -> None:
    with lend(partitions=2) as region:
        processes = running(region, (0,), (1,), (2,))
        owners = set(region.owners().values())
        assert len(owners) == 2
        checkpoint = region.checkpoint()
        parts = [e.body for e in region.events() if isinstance(e.body, events.Contributed)]
        assert {part.member.index for part in parts if part.sequence == checkpoint.sequence} == {0, 1, 2}
        region.fill(60)
        processes[owners.pop()].kill()
        settled(region, record_property, "more members than partitions, an owner killed")


# -- batches that fail, or never end -----------------------------------------------------------------------------------


@pytest.mark.long
def test_a_poison_record_halts_the_region_and_a_repaired_pipeline_goes_on_from_the_restore_point(
    lend: Lend, record_property: Note
) -> None:
    with lend(spec=f"max_failures: 2\n{BRISK}", members=2) as region:
        region.fill(200)
        processes = [region.start(index, poison=((1, 120),)) for index in range(2)]
        region.until(lambda: region.region().halt is not None, "halted")
        halt = region.region().halt
        assert halt is not None
        assert "can't be processed" in halt.text
        failed = [reset for reset in resets(region, 0) if reset.cause is ResetCause.BATCH_FAILED]
        assert len(failed) == 2, "one reset for each allowed failure; the third one halts"
        for one in processes:
            one.gate("fixed")
        region.handle(START)
        settled(region, record_property, "a poison record, three failures, repaired")


@pytest.mark.long
def test_a_process_whose_batch_does_not_hear_its_cancellation_ends_itself_and_the_region_recovers(
    lend: Lend, record_property: Note
) -> None:
    spec = BRISK.replace("timeout: 12s", "timeout: 3s")
    with lend(spec=spec) as region:
        hung, _ = running(region, (0,), (1, 2))
        hung.gate("hung")
        region.fill(150)
        region.until(lambda: hung.reached("hung"), "hung")
        assert hung.wait(60) == 70
        assert "did not quiesce after its cancellation" in hung.said()
        region.start(0)
        settled(region, record_property, "a batch that hangs and hears no cancellation")
        assert ResetCause.BATCH_TIMEOUT in {reset.cause for reset in resets(region, 0)}
