"""Faults of Kafka under running members: its groups, transactions, timestamps and brokers.

Real broker, real store, members in processes of their own with an engine without Spark. Judged by the invariants over
the history, and by counting what was written: nothing missing, nothing accepted twice, what is written again explained.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime

import pytest
from confluent_kafka import Consumer

from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import Checkpoint, Committed
from airflow_kcr.protocol.values import RequestId
from tests.conftest import StartKafka
from tests.integration.members.conftest import in_both_protocols
from tests.support.faults import (
    Note,
    Stored,
    checkpoints,
    finished,
    held_at,
    judged,
    needless,
    passed,
    resets,
    stored,
    told,
    up,
)
from tests.support.kafka import QUIESCED, Kafka, Record
from tests.support.members import QUICK, Lend, Live, Process

pytestmark = pytest.mark.timeout(240)

OFTEN = "checkpoint: {every: 2s, grace: 500ms}\n"


# -- the group ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_member_whose_static_id_somebody_else_used_takes_its_place_back(lend: Lend, record_property: Note) -> None:
    # Kafka fences for other reasons too: a broker that restarts has been seen to fence both members at once. The lease
    # says who the member is, so the client that was fenced is replaced, and no process ends.
    with lend(members=2, partitions=2, spec=QUICK) as region:
        members = up(region, (0,), (1,), each=100)
        incarnations = {row.member: row.incarnation for row in region.region().members.values()}
        settings: dict[str, str | int | bool] = {
            "group.id": region.group,
            "group.instance.id": f"kcr.{region.name}.{region.group}.0000",
            "partition.assignment.strategy": "range",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
        }
        with closing(Consumer({**region.kafka.settings, **QUIESCED, **settings})) as imposter:
            imposter.subscribe([region.topic])
            region.until(lambda: polled(imposter), "the imposter assigned")
            region.until(lambda: is_fenced(imposter), "the imposter fenced, as the member took its place back")
            region.fill(50)
            finished(region)
        assert all(member.running for member in members)
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
    lend: Lend, kafka: Kafka, record_property: Note
) -> None:
    with lend(members=2, partitions=2, spec=f"{QUICK}{OFTEN}") as region:
        region.fill(50)
        region.start(0, 1)
        region.until(region.consumed, "everything consumed")
        held = kafka.begin_transaction(region.topic, valued("open", 0, 20))
        kafka.fill(region.topic, {0: 30, 1: 30})
        aborted = kafka.begin_transaction(region.topic, valued("aborted", 1, 20))
        aborted.abort()
        begun = datetime.now(UTC)
        region.until(lambda: len(aligned(region, begun)) >= 2, "two checkpoints beside an open transaction")
        beside = aligned(region, begun)
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
        region.until(lambda: bool(aligned(region, committed)), "a checkpoint behind the transaction")
        finished(region)
        assert not checkpoints(region)[-1].inexact
        assert_exact(
            region, late=lambda row, checkpoint: row.partition == 0 and row.offset >= 50 and row.at < committed
        )
        assert not [row for row in region.written() if row.value.startswith("aborted")]
        judged(region, record_property, {row.place for row in stored(kafka, region.topic)})


@pytest.mark.long
def test_a_record_from_the_far_future_stops_nobody_and_its_checkpoint_says_that_it_is_not_exact(
    lend: Lend, kafka: Kafka, record_property: Note
) -> None:
    anything = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    with lend(members=2, partitions=2, spec=f"{QUICK}{OFTEN}", configs=anything) as region:
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


def aligned(region: Live, since: datetime) -> list[Checkpoint]:
    """The complete checkpoints of boundaries after a moment."""
    return [row for row in checkpoints(region) if row.boundary is not None and row.boundary > since]


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
    found = aligned(region, datetime.fromtimestamp(0, UTC))
    assert found
    for checkpoint in found:
        named = {(str(p.topic), p.partition) for p in checkpoint.inexact}
        at = {(str(p.topic), p.partition): o for p, o in region.region().offsets[checkpoint.sequence].items()}
        assert checkpoint.boundary is not None
        for row in rows:
            place = (row.topic, row.partition)
            is_inside, is_before = row.offset < at.get(place, 0), row.at < checkpoint.boundary
            excused = late(row, checkpoint) and (is_inside or place in named)
            assert place not in at or is_inside == is_before or excused, (checkpoint, row)


# -- brokers -----------------------------------------------------------------------------------------------------------


def about_to_commit(region: Live) -> tuple[Process, RequestId]:
    """Have both members process 200 records of each partition, and stop before they commit the checkpoint of that."""
    (both,) = up(region, (0, 1), each=100)
    held_at(region, "committing", both, each=100)
    return both, RequestId("held at committing")


def settled(region: Live, request_id: RequestId) -> Checkpoint:
    """Wait until it is settled whether Kafka holds the checkpoint of a request, and return it."""

    def row() -> Checkpoint | None:
        sequence = region.region().requests[request_id].sequence
        found = None if sequence is None else region.region().checkpoints[sequence]
        return found if found and found.is_complete and found.committed is not Committed.PENDING else None

    region.until(lambda: row() is not None, "settled what Kafka holds")
    found = row()
    assert found is not None
    return found


@pytest.mark.long
@in_both_protocols
def test_a_broker_that_restarts_during_the_commit_has_the_checkpoint_afterwards_or_the_checkpoint_says_that_it_has_not(
    lend: Lend, kafka_set: StartKafka, record_property: Note
) -> None:
    kafka = kafka_set(1)
    with lend(kafka=kafka, members=2, partitions=2, spec=QUICK) as region:
        both, request_id = about_to_commit(region)
        kafka.broker(1).stop()
        both.open("committing")
        kafka.broker(1).start()
        committed = settled(region, request_id).committed
        record_property("committed", str(committed))
        if committed is Committed.YES:
            assert kafka.committed(region.group) == {(region.topic, n): 200 for n in range(2)}
        region.fill(100)
        finished(region)
        assert both.running
        judged(region, record_property)


@pytest.mark.long
@in_both_protocols
def test_a_commit_that_no_broker_answers_fails_visibly_and_fences_nobody(
    lend: Lend, kafka_set: StartKafka, record_property: Note
) -> None:
    kafka = kafka_set(1)
    with lend(kafka=kafka, members=2, partitions=2, spec=QUICK) as region:
        both, request_id = about_to_commit(region)
        kafka.broker(1).kill()
        both.open("committing")
        assert settled(region, request_id).committed is Committed.NO
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
    lend: Lend, kafka_set: StartKafka, record_property: Note
) -> None:
    kafka = kafka_set(1)
    with lend(kafka=kafka, members=2, partitions=2, spec=QUICK) as region:
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
    lend: Lend, kafka_set: StartKafka, record_property: Note, session: str
) -> None:
    kafka = kafka_set(3, settings={"group.consumer.session.timeout.ms": f"{session.removesuffix('s')}000"})
    spec = QUICK.replace("session: 8s", f"session: {session}")
    with lend(kafka=kafka, spec=spec) as region:
        members = up(region, (0,), (1,), (2,), each=50)
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
