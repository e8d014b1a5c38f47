"""Foreign consumers in the group of a region that works, and what other programs write into its commit metadata.

What each policy promises, and the way out that it names; a note that is no member's is reported, never taken over, and
removed as the halt says. Real broker, real store, members in a process of their own, and the watch that their
application runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from confluent_kafka import Consumer

from airflow_kcr.api import Region
from airflow_kcr.api.clusters import real_reader
from airflow_kcr.api.group_watch import GroupWatch
from airflow_kcr.api.validation import validate
from airflow_kcr.errors import KcrError
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.commands import KillRegion, RequestCheckpoint
from airflow_kcr.protocol.region.rows import HaltReason, RegionState, ResetCause
from airflow_kcr.protocol.rules import ForeignConsumerPolicy
from airflow_kcr.protocol.values import CheckpointNumber, GroupId, GroupPartition, Offset, RequestId, TopicName
from airflow_kcr.spec import RegionSpec
from tests.integration.members.conftest import DYNAMIC, in_both_protocols
from tests.support.driver import START, STOP
from tests.support.faults import Note, checkpoints, finished, halted, judged, resets, told, up
from tests.support.kafka import QUIESCED, groups_at
from tests.support.kafka_tool import console_consumer, consumer_groups
from tests.support.load import steadily
from tests.support.members import BRISK, QUICK, Lend, Live, Process

pytestmark = pytest.mark.timeout(300)


PARTITIONS = 6


STEADY = """\
checkpoint: {every: 15s, grace: 500ms}
batch: {target: 500ms, min_records: 50, max_records: 500, timeout: 60s}
timeouts: {lease: 5s, renew: 1s, session: 9s, relaunch: 5s, reset: 200s, drain: 90s, commit: 10s, close: 4s}
"""
"""A phase may last until a JVM has started beside it, and a look at a group is over before the next checkpoint."""

PHASES = {"processing": "processing", "drain": "contributing", "reset": "resetting", "starting": "claimed"}
"""The phases of a region, and the gate at which it is held in each."""


PROTOCOLS: Mapping[str, dict[str, str | int]] = {
    "classic": {"partition.assignment.strategy": "range", "session.timeout.ms": 6000},
    "consumer": {"group.protocol": "consumer"},
}
"""How an intruder takes part in a group."""


@contextmanager
def watched(lend: Lend, policy: ForeignConsumerPolicy, times: str = BRISK) -> Iterator[Live]:
    """Lend a region of two members that has read and checkpointed its first records, and whose group is looked at."""
    spec = f"{times}foreign_consumers: {policy}\nmax_failures: 1\n"
    with lend(members=2, partitions=PARTITIONS, spec=spec) as one:
        up(one, (0, 1), each=50)
        newest: Callable[[], CheckpointNumber] = lambda: CheckpointNumber(one.region().next_sequence - 1)  # noqa: E731
        stored = RegionSpec.from_json(one.region().spec.text)
        with real_reader(stored, GroupId(one.group)) as reader:
            watch = GroupWatch(
                one.store, one.name, one.region().rules.groups, lambda _, __: nullcontext(reader), newest
            )
            watch.start()
            try:
                yield one
            finally:
                watch.end()
                watch._thread.join(30)


@contextmanager
def intruder(one: Live, protocol: str = "classic") -> Iterator[Consumer]:
    """Lend a foreign consumer in the group, which reads what Kafka gives it."""
    settings = {
        "group.id": one.group,
        "client.id": "somebody-elses",
        "enable.auto.commit": False,
        **PROTOCOLS[protocol],
    }
    consumer = Consumer({**one.kafka.settings, **QUIESCED, **settings})
    consumer.subscribe([one.topic])
    try:
        yield consumer
    finally:
        consumer.close()


def taken_by(one: Live, consumer: Consumer) -> set[int]:
    """The partitions that the consumer owns, once it owns its third and the members have claimed the others."""

    def settled() -> bool:
        consumer.poll(0)
        held = {p.partition for p in consumer.assignment()}
        return len(held) == PARTITIONS // 3 and set(one.owners()) == set(range(PARTITIONS)) - held

    one.until(settled, "partitions with the intruder, the others claimed", 90)
    return {p.partition for p in consumer.assignment()}


def positions(one: Live) -> dict[int, int]:
    return {p.partition: int(c.position or 0) for p, c in one.region().claims.items()}


def are_at(one: Live, partitions: set[int], total: int) -> bool:
    return all(positions(one)[n] == total for n in partitions)


def beside(one: Live, consumer: Consumer, condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition while a consumer takes part in its group."""

    def holds() -> bool:
        consumer.poll(0)
        return condition()

    one.until(holds, what, 90)


def named(one: Live) -> str:
    with Region(one.name, one.store) as region:
        return region.show().note


@pytest.mark.long
@in_both_protocols
@pytest.mark.parametrize("intruders", PROTOCOLS)
def test_warn_goes_on_with_the_rest_through_a_reset_and_checkpoints_name_what_is_not_owned(
    lend: Lend, record_property: Note, intruders: str
) -> None:
    with watched(lend, ForeignConsumerPolicy.WARN) as one:
        with intruder(one, intruders) as consumer:
            held = taken_by(one, consumer)
            own = set(range(PARTITIONS)) - held
            beside(one, consumer, lambda: "somebody-elses" in named(one), "named in the region's note")
            one.reset()
            beside(one, consumer, lambda: one.region().state is RegionState.RUNNING, "running")
            for total in (80, 110, 140):
                one.fill(30)
                beside(one, consumer, partial(are_at, one, own, total), f"the others at {total}")
                request_id = RequestId(f"beside-{total}")
                one.handle(RequestCheckpoint(request_id=request_id))
                beside(one, consumer, partial(is_published, one, request_id), f"the checkpoint at {total}")
                newest = checkpoints(one)[-1]
                assert {p.partition for p in newest.inexact} == held
                assert all("consumer somebody-elses on host" in why for why in newest.inexact.values())
                at = {p.partition: int(o) for p, o in one.region().offsets[newest.sequence].items()}
                assert at == {n: total if n in own else 50 for n in range(PARTITIONS)}
            note = named(one)
            assert "consumer somebody-elses on host" in note
            assert "(policy warn)" in note
            assert "end it, then its partitions come back by themselves" in note
        one.until(lambda: set(one.owners()) == set(range(PARTITIONS)), "all partitions back", 90)
        finished(one, within=90)
        assert not checkpoints(one)[-1].inexact
        assert not told(one, events.Halted)
        assert one.region().failures == 0
        assert not [body for body in resets(one) if body.cause is ResetCause.ATTEMPT_EXPIRED]
        one.until(lambda: "somebody-elses" not in named(one), "found clean")
        judged(one, record_property)


def is_published(one: Live, request_id: RequestId) -> bool:
    """Whether the checkpoint of a request id is published; asked again where the last rebalance aborted it."""
    request = one.handle(RequestCheckpoint(request_id=request_id))
    row = None if request.sequence is None else one.region().checkpoints.get(request.sequence)
    return row is not None and row.published_at is not None


@pytest.mark.long
@in_both_protocols
@pytest.mark.parametrize("way", ["remove", ForeignConsumerPolicy.WARN])
def test_fail_halts_and_each_way_out_that_it_names_goes_on(lend: Lend, way: str) -> None:
    with (
        watched(lend, ForeignConsumerPolicy.FAIL) as one,
        Region(one.name, one.store) as region,
    ):
        with intruder(one) as consumer:
            beside(one, consumer, lambda: one.region().state is RegionState.HALTED, "halted")
            halt = halted(one)
            assert halt.reason is HaltReason.FOREIGN_CONSUMER
            assert "consumer somebody-elses on host" in halt.text
            if way == ForeignConsumerPolicy.WARN:
                region.apply(replace(region.spec(), foreign_consumers=ForeignConsumerPolicy.WARN))
                region.resume()
                one.fill(30)
                own = set(range(PARTITIONS)) - taken_by(one, consumer)
                beside(one, consumer, partial(are_at, one, own, 80), "the rest")
        if way == "remove":
            one.until(lambda: not any(o for o in looked(one)), "gone from the group", 60)
            region.resume()
            one.fill(30)
        finished(one, within=90)
        assert len(told(one, events.Halted)) == 1


def looked(one: Live) -> tuple[object, ...]:
    """Who is in the groups, looked at now."""
    found = validate(one.store, one.name, real_reader)
    return tuple(o for strangers in found.foreign_consumers.values() for o in strangers)


# -- Kafka's own consumer, in each phase of a region that works --------------------------------------------------------


def brought_into(one: Live, phase: str) -> Process:
    """Have a region be in a phase and stay there, and return the process whose gate holds it."""
    gate = PHASES[phase]
    if phase == "starting":
        one.handle(STOP)
        assert one.processes[-1].wait(90) == 0
        one.handle(START)
        one.start(0, 1, gates=(gate,))
    else:
        one.processes[-1].gate(gate)  # batches and checkpoints come by themselves
    if phase == "reset":
        one.reset()
    process = one.processes[-1]
    one.until(lambda: process.reached(gate), f"held in {phase}", 90)
    return process


def has_joined(one: Live) -> bool:
    return any("console-consumer" in member.client_id for member in one.kafka.group(one.group).members)


def noticed_after(one: Live, number: int) -> int | None:
    """How many checkpoints were completed after an event until a foreign consumer was found; None: none was."""
    completed = 0
    for event in one.events(number):
        completed += isinstance(event.body, events.CheckpointCompleted)
        if isinstance(event.body, events.ForeignConsumersChanged):
            return completed
    return None


def meets_an_intruder(one: Live, region: Region, phase: str, note: Note) -> None:
    """Have Kafka's own consumer join in a phase, and do what the region then says."""
    process, policy = brought_into(one, phase), one.region().rules.foreign_consumers
    held = one.region().counter
    with console_consumer(one.kafka.bootstrap_servers, one.topic, one.group):
        one.until(lambda: has_joined(one), f"it joins in {phase}", 90)
        process.open(PHASES[phase])
        one.until(lambda: noticed_after(one, held) is not None, f"noticed in {phase}", 90)
        completed = noticed_after(one, held)
        assert completed in {0, 1}
        note(f"checkpoints before it was noticed, {phase}", completed)
        if policy is ForeignConsumerPolicy.FAIL:
            one.until(lambda: one.region().state is RegionState.HALTED, "halted", 90)
            message, told_to = region.show().halted, "remove the foreign consumer, then resume"
        else:
            one.until(lambda: "console-consumer" in region.show().note, "named in the region's note", 90)
            message, told_to = region.show().note, "end it, then its partitions come back by themselves"
        assert "consumer console-consumer on host" in message
        assert told_to in message
    if policy is ForeignConsumerPolicy.FAIL:
        one.until(lambda: not looked(one), "gone from the group", 60)
        region.resume()
    one.until(lambda: is_whole(one), f"all partitions back after {phase}", 90)


def is_whole(one: Live) -> bool:
    now = one.region()
    return (
        now.state is RegionState.RUNNING and set(one.owners()) == set(range(PARTITIONS)) and not now.foreign_consumers
    )


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("policy", ForeignConsumerPolicy)
def test_kafkas_own_consumer_that_joins_in_any_phase_is_noticed_within_a_checkpoint_and_costs_no_record(
    lend: Lend, record_property: Note, policy: ForeignConsumerPolicy
) -> None:
    with watched(lend, policy, STEADY) as one, Region(one.name, one.store) as region:
        with steadily(one.kafka, one.topic, PARTITIONS, every=0.2):
            for phase in PHASES:
                meets_an_intruder(one, region, phase, record_property)
        halts = len(PHASES) if policy is ForeignConsumerPolicy.FAIL else 0
        assert len(told(one, events.Halted)) == halts
        finished(one, within=120)
        judged(one, record_property)


# -- notes in the commit metadata --------------------------------------------------------------------------------------


@pytest.fixture
def region(lend: Lend) -> Iterator[Live]:
    with lend(members=1, partitions=1, spec=QUICK, group=DYNAMIC) as one:
        yield one


def stopped(region: Live) -> None:
    """Stop the region, and wait until its members have left."""
    region.handle(STOP)
    for process in region.processes:
        if process.running:
            process.wait(60)


def write(region: Live, offset: int, epoch: int) -> None:
    """Write a note as any client with the right to commit."""
    note = {
        "region": region.name,
        "region_id": region.region().region_id,
        "timeline": 1,
        "sequence": epoch,
        "epoch": epoch,
    }
    place = GroupPartition(GroupId(region.group), TopicName(region.topic), 0)
    with groups_at(region.kafka.settings, timedelta(seconds=20)) as groups:
        region.until(lambda: tried(lambda: groups.require_empty(GroupId(region.group))), "members have left")
        groups.alter(GroupId(region.group), OffsetMap({place: Offset(offset)}), json.dumps(note))


def tried(action: Callable[[], object]) -> bool:
    try:
        action()
    except KcrError:
        return False
    return True


@pytest.mark.long
@pytest.mark.parametrize("way", ["kcr checkpoint repair", "kafka-consumer-groups.sh --delete-offsets"])
def test_a_number_that_no_region_gets_to_is_told_and_the_way_out_that_is_named_leads_out(
    region: Live, way: str
) -> None:
    region.start(0)
    region.until_running()
    if way.startswith("kcr"):
        region.fill(10)
        region.checkpoint()
    else:
        region.handle(KillRegion())  # before its first checkpoint
    stopped(region)
    before = region.region()
    write(region, offset=0, epoch=2**63 - 1)
    for _ in range(2):  # a resume alone does not help, and does no harm
        region.handle(START)
        region.start(0)
        halt = halted(region)
        assert f"epoch {2**63 - 1}, the store has" in halt.text
        assert f"{region.topic}-0" in halt.text
        assert any(way in choice for choice in halt.choices)
        stopped(region)
    restore_point = region.region().restore_sequence
    if way.startswith("kcr"):
        assert restore_point is not None
        with Region(region.name, region.url) as opened:
            region.until(
                lambda: tried(lambda: opened.checkpoints.repair(int(restore_point))), "the restore point is told"
            )
    else:
        arguments = ("--group", region.group, "--topic", region.topic)
        consumer_groups(region.kafka.bootstrap_servers, "--delete-offsets", *arguments)
    region.handle(START)
    region.start(0)
    region.until_running()
    region.fill(20)
    region.until(region.consumed, "all records consumed")  # a checkpoint may fall before what was just produced
    region.checkpoint()
    assert region.region().epoch < before.epoch + 10
    region.require_sound()


@pytest.mark.long
def test_a_number_that_the_region_can_have_reached_is_taken_over_by_the_resume_alone(region: Live) -> None:
    region.start(0)
    region.until_running()
    region.fill(10)
    region.checkpoint()
    stopped(region)
    before = region.region()
    write(region, offset=0, epoch=1000)
    region.handle(START)
    region.start(0)
    halted(region)
    assert region.region().epoch < before.epoch + 10
    region.handle(START)
    region.until_running()
    region.fill(20)
    region.checkpoint()
    after = region.region()
    assert after.epoch > 1000
    assert after.next_sequence > 1000
