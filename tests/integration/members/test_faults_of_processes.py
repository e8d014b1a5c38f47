"""Processes that host members are killed or frozen, at each place where one can be, and come back.

Real broker, real store, members in processes of their own with an engine without Spark. Judged by the invariants over
the history, and by counting what was written: nothing missing, nothing accepted twice, and nothing written again but
what R8 accounts for. Where a process can be is in docs/reference/states.md.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import Batch, Checkpoint, CheckpointState, Outcome, RegionState, ResetCause
from airflow_kcr.protocol.values import BatchId, Incarnation
from tests.integration.members.conftest import DYNAMIC, in_both_protocols
from tests.support import faults
from tests.support.driver import START
from tests.support.faults import Note, checkpoints, finished, halted, held_at, resets, told, up
from tests.support.member_accounts import Place, judged
from tests.support.members import BRISK, PATIENT, Lend, Live

pytestmark = pytest.mark.timeout(180)

EVERY_FIVE_SECONDS = f"checkpoint: {{every: 5s, grace: 500ms}}\n{BRISK}"
CONSUMER = ", protocol: consumer"
SOAK = (pytest.mark.soak, pytest.mark.timeout(300))


def settled(region: Live, record_property: Note, fault: str) -> None:
    """Wait until everything is processed and a checkpoint holds it, and judge."""
    record_property("fault", fault)
    finished(region, 90)
    faults.judged(region, record_property)
    ends = region.kafka.ends(region.topic)
    assert region.kafka.committed(region.group) == {(region.topic, n): end for n, end in ends.items()}


def test_three_processes_share_the_work_and_everything_is_processed_once(lend: Lend, record_property: Note) -> None:
    with lend() as region:
        up(region, (0,), (1,), (2,), each=300)
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


def approaches(region: Live) -> bool:
    """Whether a checkpoint is open whose boundary has passed, and for which batches still run."""
    checkpoint = region.region().checkpoint
    return (
        checkpoint is not None and checkpoint.boundary is not None and checkpoint.state is CheckpointState.APPROACHING
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("everybody", "gate", "group"),
    [
        pytest.param(False, "processing", "", id="one, processing"),
        pytest.param(False, "processing", CONSUMER, id="one, processing, consumer protocol"),
        pytest.param(False, "processing", CONSUMER + DYNAMIC, id="one, processing, consumer protocol, dynamic"),
        pytest.param(True, "processing", "", id="all, processing", marks=SOAK),
        pytest.param(False, "approaching", "", id="one, approaching", marks=SOAK),
        pytest.param(True, "approaching", "", id="all, approaching"),
        pytest.param(False, "committing", "", id="one, contributed"),
        pytest.param(True, "committing", "", id="all, contributed", marks=SOAK),
        pytest.param(False, "resetting", "", id="one, resetting", marks=SOAK),
        pytest.param(True, "resetting", "", id="all, resetting"),
        pytest.param(False, "claimed", "", id="one, claimed"),
        pytest.param(True, "claimed", "", id="all, claimed", marks=SOAK),
    ],
)
def test_nothing_is_lost_and_only_what_a_reset_went_back_over_is_repeated_after_a_kill(
    lend: Lend, record_property: Note, everybody: bool, gate: str, group: str
) -> None:
    with lend(spec=EVERY_FIVE_SECONDS if group or gate == "approaching" else BRISK, group=group) as region:
        processes = up(region, (0,), (1, 2))
        victims = processes if everybody else processes[:1]
        held_at(region, "processing" if gate == "approaching" else gate, *victims, each=150)
        if gate == "approaching":
            region.until(lambda: approaches(region), "a checkpoint that approaches its boundary")
        for victim in victims:
            victim.kill()
        region.start(*range(3) if everybody else [0])
        region.fill(20)
        settled(region, record_property, f"kill -9 of {'all' if everybody else 'one'}, {gate}{group}")
        assert region.kafka.group(region.group).type.name == ("CONSUMER" if group else "CLASSIC")
        # Kafka keeps the place of the one that was killed until its session is over.
        region.shared(0, 1, 2)


# -- frozen, wherever it stands ----------------------------------------------------------------------------------------


def late_words(region: Live, after: int, incarnation: Incarnation) -> list[str]:
    """What the store took from an incarnation of member 0 after an event: events, and batches that counted."""
    kinds = (events.Claimed, events.Acknowledged, events.Contributed, events.CommitReadBack)
    member = region.member(0)
    said = [e.body for e in region.events(after) if isinstance(e.body, kinds)]
    heard = [type(body).__name__ for body in said if (body.member, body.incarnation) == (member, incarnation)]
    ended = [
        f"batch {row.batch}"
        for row in region.store.batches(region.name)
        if (row.member, row.incarnation) == (member, incarnation)
        and row.outcome in {Outcome.DONE, Outcome.UNDONE}
        and row.finished_after is not None
        and row.finished_after >= after
    ]
    return heard + ended


@pytest.mark.timeout(240)
@in_both_protocols
@pytest.mark.parametrize(
    ("gate", "group"),
    [
        pytest.param("processing", "", id="the end of a batch, static", marks=pytest.mark.long),
        pytest.param("processing", DYNAMIC, id="the end of a batch, dynamic", marks=SOAK),
        pytest.param("contributing", "", id="a contribution, static", marks=SOAK),
        pytest.param("contributing", DYNAMIC, id="a contribution, dynamic", marks=pytest.mark.long),
        pytest.param("committing", "", id="a commit, static"),
        pytest.param("committing", DYNAMIC, id="a commit, dynamic", marks=SOAK),
    ],
)
def test_what_a_thawed_process_says_is_refused_and_it_comes_back_as_a_new_incarnation(
    lend: Lend, record_property: Note, gate: str, group: str
) -> None:
    """Others have its partitions meanwhile, in a newer epoch: all that it was about to say comes too late."""
    with lend(group=group) as region:
        frozen, _ = up(region, (0,), (1, 2))
        held_at(region, gate, frozen)
        incarnation = region.region().members[region.member(0)].incarnation
        frozen.freeze()
        region.fill(60)
        region.until(
            lambda: set(region.owners().values()) == {1, 2} and region.region().state is RegionState.RUNNING,
            "taken over by the others",
        )
        finished(region)
        committed = region.kafka.committed(region.group)
        last = region.region().counter
        frozen.open(gate)
        frozen.thaw()

        def is_back() -> bool:
            assert region.kafka.committed(region.group) == committed, "a late commit moved Kafka back"
            return set(region.owners().values()) == {0, 1, 2}

        region.until(is_back, "member 0 is back")
        assert late_words(region, last, incarnation) == []
        assert region.region().members[region.member(0)].incarnation > incarnation
        region.fill(60)
        settled(region, record_property, f"SIGSTOP beyond session and lease before {gate}, SIGCONT{group}")


# -- back, in time or not ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_static_member_that_is_back_within_its_session_keeps_its_partitions_and_the_others_hear_nothing(
    lend: Lend, record_property: Note
) -> None:
    with lend(spec=PATIENT) as region:
        victim, _ = up(region, (0,), (1, 2))
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
    return {body.member.index for body in told(region, events.Claimed, after) if epoch in (None, body.epoch)}


@pytest.mark.soak
@pytest.mark.parametrize("group", [pytest.param("", id="static"), pytest.param(DYNAMIC, id="dynamic")])
def test_the_partitions_of_a_member_that_stays_away_go_to_the_others_until_it_is_back(
    lend: Lend, record_property: Note, group: str
) -> None:
    with lend(group=group) as region:
        victim, _ = up(region, (0,), (1, 2))
        region.fill(60)
        victim.kill()
        region.shared(1, 2)
        region.until(region.consumed, "consumed by the others")
        region.start(0)
        region.shared(0, 1, 2)
        region.fill(60)
        settled(region, record_property, f"restart beyond the session{group}")


@pytest.mark.long
def test_three_members_of_one_process_that_dies_and_that_come_back_one_by_one_are_one_reset(
    lend: Lend, record_property: Note
) -> None:
    with lend(spec=PATIENT) as region:
        (all_three,) = up(region, (0, 1, 2))
        held_at(region, "processing", all_three, each=150)
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
        slow, _ = up(region, (0,), (1,))
        before = region.region()
        held_at(region, "processing", slow)
        over = time.monotonic() + 1.2 * before.rules.timeouts.max_poll_interval.total_seconds()
        region.until(lambda: time.monotonic() > over, "longer than the poll interval")
        slow.open("processing")
        settled(region, record_property, "a batch longer than max.poll.interval")
        assert claimers(region, before.counter) == set()
        assert resets(region, before.counter) == []


@pytest.mark.long
def test_members_without_a_partition_take_part_in_checkpoints_and_stand_in(lend: Lend, record_property: Note) -> None:
    with lend(partitions=2) as region:
        processes = up(region, (0,), (1,), (2,))
        owners = set(region.owners().values())
        assert len(owners) == 2
        checkpoint = region.checkpoint()
        parts = told(region, events.Contributed)
        assert {part.member.index for part in parts if part.sequence == checkpoint.sequence} == {0, 1, 2}
        region.fill(60)
        processes[owners.pop()].kill()
        settled(region, record_property, "more members than partitions, an owner killed")


# -- checkpoints by count ----------------------------------------------------------------------------------------------

EACH, COUNT, BATCH = 500, 600, 100
"""Records of each of the six partitions, of a checkpoint, and the most of one batch."""


def by_count(region: Live) -> list[Checkpoint]:
    """The complete checkpoints that the region has made as its count was reached, in order."""
    return [row for row in checkpoints(region) if row.request_id.startswith("records:")]


@pytest.mark.long
def test_members_together_make_a_checkpoint_at_the_count_also_after_one_was_killed(
    lend: Lend, record_property: Note
) -> None:
    def totals() -> list[int]:
        """The offsets of each checkpoint by count, over all partitions together."""
        now = region.region()
        return [sum(now.offsets[row.sequence].values()) for row in by_count(region)]

    spec = BRISK.replace("max_records: 500", f"max_records: {BATCH}") + f"checkpoint: {{records: {COUNT}}}\n"
    with lend(spec=spec) as region:
        killed, *_ = [region.start(index) for index in range(3)]
        region.until_running()
        region.shared(0, 1, 2)
        region.fill(EACH)
        region.until(lambda: len(by_count(region)) >= 2, "two checkpoints by count")
        killed.kill()
        region.start(0)
        region.until(region.consumed, "everything consumed")
        region.until(lambda: 6 * EACH - totals()[-1] < COUNT, "all checkpoints by count")
        ends = totals()
        found = [after - before for before, after in zip([0, *ends], ends, strict=False)]
        record_property("widths", found)
        # Each member but the first may have started a batch that the others did not see yet.
        assert all(COUNT <= width <= COUNT + 2 * BATCH for width in found), found
        settled(region, record_property, "kill -9 of one, checkpoints by count")


# -- batches that fail, or never end -----------------------------------------------------------------------------------


@pytest.mark.long
def test_a_poison_record_halts_the_region_and_a_repaired_pipeline_goes_on_from_the_restore_point(
    lend: Lend, record_property: Note
) -> None:
    with lend(spec=f"max_failures: 2\n{BRISK}", members=2) as region:
        region.fill(200)
        processes = [region.start(index, poison=((1, 120),)) for index in range(2)]
        assert "can't be processed" in halted(region).text
        failed = [reset for reset in resets(region) if reset.cause is ResetCause.BATCH_FAILED]
        assert len(failed) == 2, "one reset for each allowed failure; the third one halts"
        for one in processes:
            one.gate("fixed")
        region.handle(START)
        settled(region, record_property, "a poison record, three failures, repaired")


@pytest.mark.long
def test_a_process_whose_batch_does_not_hear_its_cancellation_ends_itself_and_the_region_recovers(
    lend: Lend, record_property: Note
) -> None:
    with lend(spec=BRISK.replace("timeout: 12s", "timeout: 3s")) as region:
        hung, _ = up(region, (0,), (1, 2))
        held_at(region, "hung", hung, each=150)
        assert hung.wait(60) == 70
        assert "did not quiesce after its cancellation" in hung.said()
        region.start(0)
        settled(region, record_property, "a batch that hangs and hears no cancellation")
        assert ResetCause.BATCH_TIMEOUT in {reset.cause for reset in resets(region)}
