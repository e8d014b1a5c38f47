"""Faults of Kafka under running members: its topics, logs, groups, transactions and brokers.

Real broker, real store, members in processes of their own with an engine without Spark. Judged by the invariants over
the history, and by counting what was written: nothing missing, nothing accepted twice, what is written again explained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from airflow_kcr.protocol.region import coverage, events
from airflow_kcr.protocol.region.commands import RequestCheckpoint
from airflow_kcr.protocol.region.rows import Checkpoint, Committed, HaltReason, RegionState, RequestState, ResetCause
from airflow_kcr.protocol.values import GroupPartition, MemberId, RequestId
from tests.conftest import StartKafka
from tests.integration.members.conftest import in_both_protocols
from tests.support.driver import PAUSE, START
from tests.support.faults import (
    Note,
    Stored,
    checkpoints,
    finished,
    judged,
    needless,
    passed,
    resets,
    start_offsets,
    stored,
    told,
)
from tests.support.kafka import QUIESCED, Kafka, Record
from tests.support.member_accounts import Place
from tests.support.members import QUICK, Live, Process, live

pytestmark = pytest.mark.timeout(240)

OFTEN = "checkpoint: {every: 2s, grace: 500ms}\n"


@pytest.fixture
def region(kafka: Kafka, database_url: str, tmp_path: Path, spoken: str) -> Iterator[Live]:
    """A started region of two members over two partitions."""
    with live(kafka, database_url, tmp_path, members=2, partitions=2, group=spoken) as one:
        yield one


def ask(region: Live, name: str) -> RequestId:
    """Ask for a checkpoint, and return its request id at once."""
    request_id = RequestId(name)
    region.handle(RequestCheckpoint(request_id=request_id))
    return request_id


def halted(region: Live) -> bool:
    return region.region().state is RegionState.HALTED


# -- partitions and topics ---------------------------------------------------------------------------------------------


@pytest.mark.long
@in_both_protocols
def test_partitions_added_between_checkpoints_are_picked_up_from_their_beginning(
    region: Live, record_property: Note
) -> None:
    region.fill(100)
    region.start(0, 1)
    finished(region)
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
    region: Live, record_property: Note
) -> None:
    stuck = region.start(0, gates=("processing",))
    region.start(1)
    region.shared(0, 1)  # or the checkpoint would also be aborted by member 1, which comes later
    region.fill(100)
    region.until(lambda: stuck.reached("processing"), "a batch of member 0")
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
def test_a_checkpoint_waits_for_partitions_that_nobody_has_and_names_them(region: Live, record_property: Note) -> None:
    region.fill(100)
    region.start(0)
    gone = region.start(1)
    region.shared(0, 1)
    finished(region)
    lost = {p for p, c in region.region().claims.items() if c.owner is not None and c.owner.index == 1}
    gone.kill()
    region.until(lambda: missing(region).keys() == lost, "the partitions of member 1 missed")
    request_id = ask(region, "checkpoint-while-away")
    assert set(missing(region).values()) == {next(m for m in region.region().members if m.index == 1)}
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


@pytest.mark.long
def test_a_new_topic_that_matches_the_pattern_is_picked_up(
    kafka: Kafka, database_url: str, tmp_path: Path, record_property: Note
) -> None:
    pattern = "pattern: '^{topic}'"
    with live(kafka, database_url, tmp_path, members=2, partitions=2, subscription=pattern) as region:
        region.fill(100)
        region.start(0, 1)
        finished(region)
        more = kafka.topic(2, name=f"{region.topic}-more")
        kafka.fill(more, {0: 70, 1: 70})
        region.until(lambda: region.consumed(more), "the new topic consumed")
        region.fill(20)
        finished(region)
        assert {p.topic for p in region.region().offsets[checkpoints(region)[-1].sequence]} == {region.topic, more}
        assert set(start_offsets(region).values()) == {0}
        judged(region, record_property, {r.place for topic in (region.topic, more) for r in stored(kafka, topic)})


def recreate(region: Live, each: int) -> None:
    """Delete the topic and make one of the same name at once, with other records."""
    partitions = region.kafka.partitions(region.topic)
    region.kafka.delete_topic(region.topic)
    region.kafka.topic(partitions, name=region.topic)
    records = [Record(value=f"new:{n}".encode(), partition=n) for n in range(partitions) for _ in range(each)]
    region.kafka.produce(region.topic, records)


@pytest.mark.long
@in_both_protocols
def test_a_topic_that_was_recreated_halts_the_region_and_nothing_of_the_new_one_is_read(
    region: Live, record_property: Note
) -> None:
    region.fill(100)
    region.start(0, 1)
    finished(region)
    recreate(region, 150)
    region.until(lambda: halted(region), "halted")
    halt = region.region().halt
    assert halt is not None
    assert halt.reason is HaltReason.OUT_OF_RANGE
    assert "deleted and created again" in halt.text
    assert any("beyond_end" in choice for choice in halt.choices)
    assert not [row for row in region.written() if row.value.startswith("new:")]
    account = region.account(frozenset())
    assert not account.violations
    assert not account.kept_twice
    record_property("written again", account.repeated)


def overtaken(region: Live) -> set[Place]:
    """Have retention overtake the positions of a region whose checkpoint lies at 100.

    Return the records that are left.
    """
    region.fill(100)
    region.start(0, 1)
    finished(region)
    region.handle(PAUSE)
    region.fill(100)
    region.kafka.delete_records(region.topic, {0: 150})
    kept = {record.place for record in stored(region.kafka, region.topic)}
    region.handle(START)
    return kept


def test_retention_that_overtakes_a_position_halts_the_region_with_the_choices(
    region: Live, record_property: Note
) -> None:
    overtaken(region)
    region.until(lambda: halted(region), "halted")
    stored_region = region.region()
    assert stored_region.halt is not None
    assert stored_region.halt.reason is HaltReason.OUT_OF_RANGE
    assert "retention overtook" in stored_region.halt.text
    assert len(stored_region.halt.choices) > 1
    assert stored_region.failures == 0
    account = region.account(frozenset())
    assert not account.violations
    assert not account.kept_twice
    record_property("written again", account.repeated)


@pytest.mark.parametrize(("policy", "resumes_at"), [("earliest", 150), ("latest", 200)])
def test_retention_that_overtakes_a_position_is_a_reset_with_its_own_map_where_that_is_wanted(
    kafka: Kafka, database_url: str, tmp_path: Path, record_property: Note, policy: str, resumes_at: int
) -> None:
    spec = f"{QUICK}out_of_range: {policy}\n"
    with live(kafka, database_url, tmp_path, members=2, partitions=2, spec=spec) as region:
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
    region: Live, record_property: Note
) -> None:
    stuck = region.start(0)
    region.start(1)
    # Else a member that comes late makes the region go back to its restore point before anything is overtaken.
    region.shared(0, 1)
    region.fill(100)
    region.until(region.consumed, "everything consumed")
    region.kafka.delete_records(region.topic, {0: 50, 1: 50})
    stuck.gate("processing")
    region.fill(10)
    region.until(lambda: stuck.reached("processing"), "a batch of member 0")
    # Its batch is never ended, so the region goes back to the restore point, which is not in the log any more.
    stuck.kill()
    region.start(0)
    region.until(lambda: halted(region), "halted")
    halt = region.region().halt
    assert halt is not None
    assert halt.reason is HaltReason.OUT_OF_RANGE
    assert region.region().failures == 0
    assert {body.attempt for body in resets(region)} == {1}
    account = region.account(frozenset())
    assert not account.violations
    record_property("written again", account.repeated)


# -- the group ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_member_whose_static_id_somebody_else_used_takes_its_place_back(region: Live, record_property: Note) -> None:
    # Kafka fences for other reasons too: a broker that restarts has been seen to fence both members at once. The lease
    # says who the member is, so the client that was fenced is replaced, and no process ends.
    region.fill(100)
    members = region.start(0), region.start(1)
    region.shared(0, 1)
    finished(region)
    incarnations = {row.member: row.incarnation for row in region.region().members.values()}
    imposter = Consumer(
        {
            **region.kafka.settings,
            **QUIESCED,
            "group.id": region.group,
            "group.instance.id": f"kcr.{region.name}.{region.group}.0000",
            "partition.assignment.strategy": "range",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
        }
    )
    with closing(imposter):
        imposter.subscribe([region.topic])
        region.until(lambda: polled(imposter), "the imposter assigned")
        region.until(lambda: is_fenced(imposter), "the imposter fenced, as the member took its place back")
        region.fill(50)
        finished(region)
    assert all(member.process.poll() is None for member in members)
    assert {row.member: row.incarnation for row in region.region().members.values()} == incarnations
    assert region.kafka.committed(region.group) == {(region.topic, n): 150 for n in range(2)}
    judged(region, record_property)


def is_fenced(consumer: Consumer) -> bool:
    """Let a consumer take part in its group, and return whether Kafka has just told it that it is out for good."""
    message = consumer.poll(0)
    error = None if message is None else message.error()
    return error is not None and error.name() == "_FATAL"


def polled(consumer: Consumer) -> bool:
    """Let a consumer take part in its group, and return whether it has partitions."""
    consumer.poll(0)
    return bool(consumer.assignment())


# -- transactions and timestamps ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_transactions_around_boundaries_keep_every_checkpoint_exact_and_nothing_open_is_read(
    kafka: Kafka, database_url: str, tmp_path: Path, record_property: Note
) -> None:
    with live(kafka, database_url, tmp_path, members=2, partitions=2, spec=f"{QUICK}{OFTEN}") as region:
        region.fill(50)
        region.start(0, 1)
        region.until(region.consumed, "everything consumed")
        held = kafka.begin_transaction(region.topic, valued("open", 0, 20))
        kafka.fill(region.topic, {0: 30, 1: 30})
        aborted = kafka.begin_transaction(region.topic, valued("aborted", 1, 20))
        aborted.abort()
        begun = datetime.now(UTC)
        region.until(lambda: aligned_since(region, begun) >= 2, "two checkpoints beside an open transaction")
        beside = [
            checkpoint
            for checkpoint in checkpoints(region)
            if checkpoint.boundary is not None and checkpoint.boundary > begun
        ]
        assert {p.partition for checkpoint in beside for p in checkpoint.inexact} == {0}
        assert all(
            "hides the records from 50 on" in why for checkpoint in beside for why in checkpoint.inexact.values()
        )
        done = kafka.begin_transaction(region.topic, valued("committed", 1, 20))
        done.commit()
        region.until(region.consumed, "everything that can be read consumed")
        assert kafka.ends(region.topic)[0] == 50
        assert {c.position for p, c in region.region().claims.items() if p.partition == 0} == {50}
        assert not beyond(region, 50)
        held.commit()
        region.until(lambda: kafka.ends(region.topic)[0] > 50 and region.consumed(), "what the transaction held")
        committed = datetime.now(UTC)
        region.until(lambda: aligned_since(region, committed) >= 1, "a checkpoint behind the transaction")
        finished(region)
        assert not checkpoints(region)[-1].inexact
        assert_exact(
            region, late=lambda row, checkpoint: row.partition == 0 and row.offset >= 50 and row.at < committed
        )
        assert not [row for row in region.written() if row.value.startswith("aborted")]
        judged(region, record_property, {row.place for row in stored(kafka, region.topic)})


@pytest.mark.long
def test_a_record_from_the_far_future_stops_nobody_and_its_checkpoint_says_that_it_is_not_exact(
    kafka: Kafka, database_url: str, tmp_path: Path, record_property: Note
) -> None:
    anything = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    spec = f"{QUICK}{OFTEN}"
    with live(kafka, database_url, tmp_path, members=2, partitions=2, spec=spec, configs=anything) as region:
        region.fill(50)
        region.start(0, 1)
        region.until(region.consumed, "everything consumed")
        future = Record(value=b"0:future", partition=0, timestamp=datetime(2099, 1, 1, tzinfo=UTC))
        kafka.produce(region.topic, [future])
        region.fill(50)
        region.until(region.consumed, "everything consumed, with what lies behind the record")
        region.until(
            lambda: any(checkpoint.inexact for checkpoint in checkpoints(region)), "a checkpoint that is not exact"
        )
        finished(region)
        found = {(p.partition, why) for checkpoint in checkpoints(region) for p, why in checkpoint.inexact.items()}
        assert {partition for partition, _ in found} == {0}
        assert all("at 50" in why and "in the future" in why for _, why in found)
        judged(region, record_property)


def valued(what: str, partition: int, count: int) -> list[Record]:
    return [Record(value=f"{what}:{n}".encode(), partition=partition) for n in range(count)]


def aligned(region: Live) -> list[Checkpoint]:
    """The complete checkpoints of boundaries."""
    return [checkpoint for checkpoint in checkpoints(region) if checkpoint.boundary is not None]


def aligned_since(region: Live, moment: datetime) -> int:
    """How many checkpoints of boundaries after a moment are complete."""
    return sum(checkpoint.boundary is not None and checkpoint.boundary > moment for checkpoint in aligned(region))


def beyond(region: Live, offset: int) -> list[str]:
    """The batches that were started beyond an offset of partition 0."""
    return [
        str(batch.batch)
        for batch in region.store.batches(region.name)
        for p, r in batch.ranges.items()
        if p.partition == 0 and r.to > offset
    ]


def assert_exact(region: Live, late: Callable[[Stored, Checkpoint], bool]) -> None:
    """Every checkpoint of a boundary holds the records before it and none after, but for those not readable then.

    Such a checkpoint names the partition.
    """
    rows = stored(region.kafka, region.topic)
    places = region.region().offsets
    assert aligned(region)
    for checkpoint in aligned(region):
        named = {(str(p.topic), p.partition) for p in checkpoint.inexact}
        at = {(str(p.topic), p.partition): o for p, o in places[checkpoint.sequence].items()}
        assert checkpoint.boundary is not None
        for row in rows:
            if (row.topic, row.partition) not in at:
                continue
            if row.offset < at[row.topic, row.partition]:
                assert row.at < checkpoint.boundary or late(row, checkpoint), (
                    checkpoint.sequence,
                    checkpoint.boundary,
                    row,
                )
            else:
                hidden = late(row, checkpoint) and (row.topic, row.partition) in named
                assert row.at >= checkpoint.boundary or hidden, (checkpoint.sequence, checkpoint.boundary, row)


# -- brokers -----------------------------------------------------------------------------------------------------------


def resolved(region: Live, request_id: RequestId) -> Checkpoint | None:
    """The checkpoint of a request, once it is settled whether Kafka holds it."""
    sequence = region.region().requests[request_id].sequence
    row = None if sequence is None else region.region().checkpoints[sequence]
    return row if row is not None and row.is_complete and row.committed is not Committed.PENDING else None


def about_to_commit(region: Live) -> tuple[Process, RequestId]:
    """Have both members process 200 records of each partition, and stop before they commit the checkpoint of that."""
    region.fill(100)
    both = region.start(0, 1)
    finished(region)
    both.gate("committing")
    region.fill(100)
    region.until(region.consumed, "everything consumed")
    request_id = ask(region, "checkpoint-at-200")
    region.until(lambda: both.reached("committing"), "about to commit")
    return both, request_id


@pytest.mark.long
@in_both_protocols
def test_a_broker_that_restarts_during_the_commit_has_the_checkpoint_afterwards_or_the_checkpoint_says_that_it_has_not(
    kafka_set: StartKafka, database_url: str, tmp_path: Path, record_property: Note, spoken: str
) -> None:
    kafka = kafka_set(1)
    with live(kafka, database_url, tmp_path, members=2, partitions=2, group=spoken) as region:
        both, request_id = about_to_commit(region)
        kafka.broker(1).stop()
        both.open("committing")
        kafka.broker(1).start()
        region.until(lambda: resolved(region, request_id) is not None, "settled what Kafka holds")
        settled = resolved(region, request_id)
        assert settled is not None
        record_property("committed", str(settled.committed))
        expected = {(region.topic, n): 200 for n in range(2)}
        if settled.committed is Committed.YES:
            assert kafka.committed(region.group) == expected
        region.fill(100)
        finished(region)
        assert both.running
        judged(region, record_property)


@pytest.mark.long
@in_both_protocols
def test_a_commit_that_no_broker_answers_fails_visibly_and_fences_nobody(
    kafka_set: StartKafka, database_url: str, tmp_path: Path, record_property: Note, spoken: str
) -> None:
    kafka = kafka_set(1)
    with live(kafka, database_url, tmp_path, members=2, partitions=2, group=spoken) as region:
        both, request_id = about_to_commit(region)
        kafka.broker(1).kill()
        both.open("committing")
        region.until(lambda: resolved(region, request_id) is not None, "settled what Kafka holds")
        settled = resolved(region, request_id)
        assert settled is not None
        assert settled.committed is Committed.NO
        why = [body.why for body in told(region, events.CommitResolved) if body.committed is Committed.NO]
        assert why
        assert all(why)
        # The session is over: both members join again, while the commit that they sent is still on its way.
        region.until(passed(3), "the session over")
        kafka.broker(1).start()
        region.fill(100)
        finished(region)
        assert both.running
        assert checkpoints(region)[-1].committed is Committed.YES
        judged(region, record_property)


@pytest.mark.long
@in_both_protocols
def test_members_go_on_after_their_broker_was_away_in_the_middle_of_their_work(
    kafka_set: StartKafka, database_url: str, tmp_path: Path, record_property: Note, spoken: str
) -> None:
    kafka = kafka_set(1)
    with live(kafka, database_url, tmp_path, members=2, partitions=2, group=spoken) as region:
        region.fill(3000)
        region.start(0, 1)
        region.until(lambda: len(region.written()) > 500, "in the middle")
        kafka.broker(1).kill()
        region.until(passed(10), "10 s without a broker")
        kafka.broker(1).start()
        region.fill(100)
        finished(region)
        judged(region, record_property)


@pytest.mark.long
@pytest.mark.parametrize(
    "session", [pytest.param("20s"), pytest.param("8s", marks=pytest.mark.soak)]
)  # fails over in about 9 s
@in_both_protocols
def test_members_go_on_after_the_broker_that_coordinates_their_group_was_killed(
    kafka_set: StartKafka, database_url: str, tmp_path: Path, record_property: Note, session: str, spoken: str
) -> None:
    kafka = kafka_set(3, settings={"group.consumer.session.timeout.ms": f"{session.removesuffix('s')}000"})
    spec = QUICK.replace("session: 8s", f"session: {session}")
    with live(kafka, database_url, tmp_path, members=3, partitions=6, spec=spec, group=spoken) as region:
        region.fill(50)
        members = [region.start(index) for index in range(3)]
        region.shared(0, 1, 2)
        finished(region)
        before = len(resets(region))
        region.fill(1000)
        region.until(lambda: len(region.written()) > 1000, "in the middle")
        kafka.coordinator(region.group).kill()
        region.fill(300)
        finished(region, within=120)
        assert needless(region, before) == []
        assert all(member.running for member in members)
        record_property("resets by the fault", len(resets(region)) - before)
        judged(region, record_property)
