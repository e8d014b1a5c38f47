"""Partitions and topics that come and go under running members, and while members are down.

Real broker, real store, members in processes of their own. A static member that comes back within its session gets its
old assignment, whatever was added, and partitions in it may no longer exist: then Kafka never rebalances by itself, and
what is new is read only because the region found out.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_kcr.api import Region
from airflow_kcr.api.clusters import real_reader
from airflow_kcr.api.validation import validate
from airflow_kcr.protocol.evidence import CheckVerdict
from airflow_kcr.protocol.region import coverage, events
from airflow_kcr.protocol.region.rows import HaltReason, RegionState, RequestState, ResetCause
from airflow_kcr.protocol.validation import Check, Question
from airflow_kcr.protocol.values import GroupId, GroupPartition, MemberId, TopicName
from tests.conftest import StartKafka
from tests.integration.members.conftest import in_both_protocols
from tests.support.driver import PAUSE, START
from tests.support.faults import (
    Note,
    ask,
    checkpoints,
    finished,
    halted,
    held_at,
    judged,
    recreate,
    resets,
    start_offsets,
    stored,
    told,
    up,
)
from tests.support.kafka import Kafka, KafkaSet
from tests.support.member_accounts import Place
from tests.support.members import PATIENT, QUICK, Lend, Live

pytestmark = pytest.mark.timeout(240)

EARLIEST = f"out_of_range: earliest\nbeyond_end: earliest\n{PATIENT}"
LONG_BATCHES = PATIENT.replace("timeout: 12s", "timeout: 60s").replace("drain: 15s", "drain: 90s")
PATTERN = "pattern: '^{topic}.*'"

# -- added under running members ---------------------------------------------------------------------------------------


@pytest.mark.long
@in_both_protocols
def test_partitions_added_between_checkpoints_are_picked_up_from_their_beginning(
    lend: Lend, record_property: Note
) -> None:
    with lend(members=2, partitions=2, spec=QUICK) as region:
        up(region, (0, 1))
        for total in (4, 6):
            region.kafka.add_partitions(region.topic, total)
            region.fill(50)
            finished(region)
            newest = checkpoints(region)[-1]
            assert len(region.region().offsets[newest.sequence]) == total
        assert start_offsets(region) == {(region.topic, n): 0 for n in range(6)}
        judged(region, record_property)


@in_both_protocols
def test_a_checkpoint_is_never_complete_without_partitions_that_were_added_while_it_drained(
    lend: Lend, record_property: Note
) -> None:
    with lend(members=2, partitions=2, spec=QUICK) as region:
        stuck = region.start(0)
        region.start(1)
        region.shared(0, 1)  # or the checkpoint would also be aborted by member 1, which comes later
        held_at(region, "processing", stuck, each=100)
        request_id = ask(region, "checkpoint-of-both")
        region.until(lambda: region.region().state is RegionState.DRAINING, "draining")
        region.kafka.add_partitions(region.topic, 4)
        region.kafka.fill(region.topic, {2: 30, 3: 30})
        region.until(
            lambda: bool(told(region, events.CheckpointAborted)), "the checkpoint aborted by the claim of what is new"
        )
        # The claim's reset ends the batch that held the drain up, so the next checkpoint may be there at once.
        stuck.open("processing")
        region.until(lambda: region.is_committed(request_id), "the checkpoint, asked for once")
        sequence = region.region().requests[request_id].sequence
        assert sequence is not None
        assert sequence not in {one.sequence for one in told(region, events.CheckpointAborted)}
        assert {p.partition for p in region.region().offsets[sequence]} == {0, 1, 2, 3}
        finished(region)
        judged(region, record_property)


@pytest.mark.long
def test_a_new_topic_that_matches_the_pattern_is_picked_up(lend: Lend, record_property: Note) -> None:
    with lend(members=2, partitions=2, spec=QUICK, subscription=PATTERN) as region:
        kafka = region.kafka
        up(region, (0, 1))
        more = kafka.topic(2, name=f"{region.topic}-more")
        kafka.fill(more, {0: 70, 1: 70})
        region.until(lambda: region.consumed(more), "the new topic consumed")
        region.fill(20)
        finished(region)
        assert {p.topic for p in region.region().offsets[checkpoints(region)[-1].sequence]} == {region.topic, more}
        assert set(start_offsets(region).values()) == {0}
        judged(region, record_property, {r.place for topic in (region.topic, more) for r in stored(kafka, topic)})


# -- while members are down --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_checkpoint_waits_for_partitions_that_nobody_has_and_names_them(lend: Lend, record_property: Note) -> None:
    with lend(members=2, partitions=2, spec=QUICK) as region:
        _, gone = up(region, (0,), (1,))
        lost = {p for p, c in region.region().claims.items() if c.owner is not None and c.owner.index == 1}
        gone.kill()
        region.until(lambda: missing(region).keys() == lost, "the partitions of member 1 missed")
        request_id = ask(region, "checkpoint-while-away")
        assert set(missing(region).values()) == {region.member(1)}
        assert region.region().requests[request_id].state is RequestState.QUEUED
        assert not region.is_committed(request_id)
        region.start(1)
        region.until(lambda: region.is_committed(request_id), "the checkpoint, asked for once")
        sequence = region.region().requests[request_id].sequence
        assert sequence is not None
        assert region.region().offsets[sequence].keys() >= lost
        judged(region, record_property)


def missing(region: Live) -> dict[GroupPartition, MemberId | None]:
    """The partitions without coverage now, with who had them last."""
    return coverage.missing(*region.store.read(region.name))


def added(region: Live) -> None:
    """Two partitions are added."""
    region.kafka.add_partitions(region.topic, 4)
    region.fill(30)


def added_as_the_coordinator_moves(region: Live) -> None:
    """The same, and of three brokers the one dies that coordinates the group."""
    assert isinstance(region.kafka, KafkaSet)
    region.kafka.coordinator(region.group).kill()
    added(region)


def matched(region: Live) -> None:
    """Another topic is made that the pattern matches."""
    region.kafka.fill(region.kafka.topic(2, name=f"{region.topic}-fresh"), {0: 10, 1: 10})


def made_anew(region: Live) -> None:
    """The topic is made anew with more partitions."""
    region.kafka.delete_topic(region.topic)
    region.kafka.topic(4, name=region.topic)
    region.fill(5)


@pytest.mark.long
@pytest.mark.parametrize("change", [added, added_as_the_coordinator_moves, matched, made_anew])
def test_what_is_added_while_the_only_member_is_down_is_read_when_it_is_back(
    lend: Lend, kafka: Kafka, kafka_set: StartKafka, record_property: Note, change: Callable[[Live], None]
) -> None:
    broker = kafka_set(3) if change is added_as_the_coordinator_moves else kafka
    reads = PATTERN if change is matched else "topics: [{topic}]"
    spec = EARLIEST if change is made_anew else PATIENT
    with lend(kafka=broker, members=1, partitions=2, spec=spec, subscription=reads) as region:
        (first,) = up(region, (0,), each=20)
        first.kill()
        change(region)
        region.start(0)
        region.until(lambda: owned(region) == 4 and all_read(region), "all partitions owned and read", 120)
        region.checkpoint()
        assert change is made_anew or told(region, events.PartitionsUnowned), "the region never knew"
        if change in (added, added_as_the_coordinator_moves):
            judged(region, record_property)


def owned(region: Live) -> int:
    """How many partitions, of whichever topic, a member has."""
    return sum(claim.owner is not None for claim in region.region().claims.values())


def all_read(region: Live) -> bool:
    """Whether the logs of all claimed topics are processed to their ends."""
    return all(map(region.consumed, {str(p.topic) for p in region.region().claims}))


@pytest.mark.long
@pytest.mark.parametrize("gate", [pytest.param("", id="starting"), "resetting", "contributing"])
def test_partitions_added_in_any_phase_with_a_member_down_are_read(
    lend: Lend, record_property: Note, gate: str
) -> None:
    with lend(members=2, partitions=2, spec=PATIENT) as region:
        if gate:
            first, second = up(region, (0,), (1,), each=20)
            held_at(region, gate, first, each=20)
        else:
            first, second = region.start(0, gates=("resetting",)), region.start(1)
            region.until(lambda: first.reached("resetting"), "held as it starts")
        second.kill()
        added(region)
        first.open(gate or "resetting")
        region.start(1)
        finished(region, 120)
        assert set(region.owners()) == set(range(4))
        judged(region, record_property)


@pytest.mark.long
def test_partitions_that_no_member_owns_are_counted_as_lag_and_fail_the_validation(lend: Lend) -> None:
    # The member has a batch at work meanwhile, and joins anew between two batches only.
    with lend(members=1, partitions=2, spec=LONG_BATCHES) as region:
        (first,) = up(region, (0,), each=20)
        first.kill()
        added(region)
        second = region.start(0, gates=("processing",))
        region.until(lambda: len(coverage.unowned(region.region())) == 2, "two partitions without an owner", 90)
        with Region(region.name, region.store) as opened:
            lags = {row.partition.partition: (row.lag, row.member) for row in opened.lag()}
        assert [lags[n] for n in (2, 3)] == [(30, None), (30, None)]
        region.until(lambda: claims_of(region).verdict is CheckVerdict.FAILED, "the validation fails")
        assert f"{region.topic}-2 has had no owner since" in claims_of(region).detail
        second.open("processing")
        finished(region, 90)
        assert claims_of(region).verdict is CheckVerdict.OK
        assert {row.lag for row in Region(region.name, region.store).lag()} == {0}


def claims_of(region: Live) -> Check:
    """What the validation says of the claims."""
    found = validate(region.store, region.name, real_reader)
    return next(check for check in found.checks if check.question is Question.CLAIMS)


# -- gone --------------------------------------------------------------------------------------------------------------


def gone(live: Live) -> set[GroupPartition]:
    """The partitions of which the region was told that the brokers have them no more."""
    return {p for body in told(live, events.PartitionsGone) for p in body.partitions}


@in_both_protocols
@pytest.mark.long
@pytest.mark.parametrize("down", [(0,), (0, 1)], ids=["one of two", "all"])
def test_a_topic_made_anew_with_fewer_partitions_while_members_are_down_is_read(
    lend: Lend, down: tuple[int, ...]
) -> None:
    with lend(members=2, partitions=4, spec=EARLIEST) as region:
        processes = up(region, (0,), (1,), each=20)
        for index in down:
            processes[index].kill()
        region.kafka.delete_topic(region.topic)
        region.kafka.topic(2, name=region.topic)
        region.fill(5)
        for index in down:
            region.start(index)
        lost = {GroupPartition(GroupId(region.group), TopicName(region.topic), n) for n in (2, 3)}
        region.until(lambda: gone(region) == lost and region.consumed(), "the new topic read", 120)
        region.until(lambda: set(region.owners()) == {0, 1}, "two partitions owned", 60)
        region.checkpoint()


@pytest.mark.long
@in_both_protocols
@pytest.mark.parametrize("is_down", [True, False], ids=["its reader down", "its reader alive"])
def test_a_listed_topic_that_is_deleted_is_given_up_and_the_others_are_read(
    lend: Lend, kafka: Kafka, is_down: bool
) -> None:
    other = kafka.topic(2)
    with lend(members=1, partitions=2, spec=PATIENT, subscription=f"topics: [{{topic}}, {other}]") as region:
        first = region.start(0)
        region.shared(0)
        kafka.fill(other, {0: 10, 1: 10})
        region.until(lambda: region.consumed(other), "both read")
        if is_down:
            first.kill()
        kafka.delete_topic(other)
        region.fill(20)
        if is_down:
            region.start(0)
        finished(region, 120)
        region.until(lambda: {p.topic for p in gone(region)} == {other}, "the topic given up", 60)
        region.checkpoint()


# -- a log that is another one, or has lost what was to be read --------------------------------------------------------


@pytest.mark.long
@in_both_protocols
def test_a_topic_that_was_recreated_halts_the_region_and_nothing_of_the_new_one_is_read(
    lend: Lend, record_property: Note
) -> None:
    with lend(members=2, partitions=2, spec=QUICK) as region:
        up(region, (0, 1))
        recreate(region, 150)
        halt = halted(region)
        assert halt.reason is HaltReason.OUT_OF_RANGE
        assert "deleted and created again" in halt.text
        assert any("beyond_end" in choice for choice in halt.choices)
        assert not [row for row in region.written() if row.value.startswith("new:")]
        nothing_wrong(region, record_property)


def nothing_wrong(region: Live, record_property: Note) -> None:
    """Judge a region whose records are not all there any more."""
    account = region.account(frozenset())
    assert not account.violations
    assert not account.kept_twice
    record_property("written again", account.repeated)


def overtaken(region: Live) -> set[Place]:
    """Have retention overtake the positions of a region whose checkpoint lies at 100.

    Returns:
        The records that are left.
    """
    up(region, (0, 1), each=100)
    region.handle(PAUSE)
    region.fill(100)
    region.kafka.delete_records(region.topic, {0: 150})
    kept = {record.place for record in stored(region.kafka, region.topic)}
    region.handle(START)
    return kept


def test_retention_that_overtakes_a_position_halts_the_region_with_the_choices(
    lend: Lend, record_property: Note
) -> None:
    with lend(members=2, partitions=2, spec=QUICK) as region:
        overtaken(region)
        halt = halted(region)
        assert halt.reason is HaltReason.OUT_OF_RANGE
        assert "retention overtook" in halt.text
        assert len(halt.choices) > 1
        assert region.region().failures == 0
        nothing_wrong(region, record_property)


@pytest.mark.parametrize(
    ("policy", "resumes_at"), [("earliest", 150), pytest.param("latest", 200, marks=pytest.mark.long)]
)
def test_retention_that_overtakes_a_position_is_a_reset_with_its_own_map_where_that_is_wanted(
    lend: Lend, record_property: Note, policy: str, resumes_at: int
) -> None:
    with lend(members=2, partitions=2, spec=f"{QUICK}out_of_range: {policy}\n") as region:
        left = overtaken(region)
        region.until(lambda: bool(resets(region)), "a reset")
        finished(region)
        (reset,) = resets(region)
        assert reset.cause is ResetCause.OUT_OF_RANGE
        at = {p.partition: entry.offset for p, entry in reset.seek.items()}
        assert at[0] == resumes_at
        first = {(region.topic, 0, n) for n in range(100)}
        judged(region, record_property, {p for p in left if p[1] == 1 or p[2] >= resumes_at} | first)


@pytest.mark.long
def test_a_restore_point_that_retention_has_overtaken_halts_at_once_and_burns_no_attempt(
    lend: Lend, record_property: Note
) -> None:
    with lend(members=2, partitions=2, spec=QUICK) as region:
        stuck = region.start(0)
        region.start(1)
        # Else a member that comes late makes the region go back to its restore point before anything is overtaken.
        region.shared(0, 1)
        region.fill(100)
        region.until(region.consumed, "everything consumed")
        region.kafka.delete_records(region.topic, {0: 50, 1: 50})
        held_at(region, "processing", stuck, each=10)
        # Its batch is never ended, so the region goes back to the restore point, which is not in the log any more.
        stuck.kill()
        region.start(0)
        assert halted(region).reason is HaltReason.OUT_OF_RANGE
        assert region.region().failures == 0
        assert {body.attempt for body in resets(region)} == {1}
        nothing_wrong(region, record_property)
