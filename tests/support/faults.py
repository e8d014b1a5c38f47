"""What tests of faults share: what a log holds, what a region's history shows, and the judgement at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeAlias, TypeVar

from confluent_kafka import Consumer, TopicPartition

from airflow_kcr.errors import StoreError
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.commands import RequestCheckpoint
from airflow_kcr.protocol.region.rows import Checkpoint, Halt, RegionState, ResetCause
from airflow_kcr.protocol.values import AssignmentId, EventNumber, Incarnation, MemberId, RequestId
from tests.support.kafka import QUIESCED, WITHIN, Kafka, Record
from tests.support.member_accounts import Account, Place
from tests.support.members import Live, Process
from tests.support.plain_engine import Written

Note: TypeAlias = Callable[[str, object], None]
"""pytest's `record_property`: what a run showed goes into its report."""

B = TypeVar("B")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One record that a log shows to who reads what is committed."""

    topic: str
    partition: int
    offset: int
    at: datetime
    value: str

    @property
    def place(self) -> Place:
        """Where it is."""
        return self.topic, self.partition, self.offset


def stored(kafka: Kafka, topic: str) -> list[Stored]:
    """Return the records of a topic below its last stable offsets: no aborted ones, no markers of transactions."""
    left = {n: end for n, end in kafka.ends(topic).items() if end > kafka.starts(topic)[n]}
    settings = {"group.id": "nobody", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({**kafka.settings, **QUIESCED, **settings, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, n, kafka.starts(topic)[n]) for n in left])
    found, deadline = [], time.monotonic() + WITHIN
    try:
        while left and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            partition, offset = message.partition() or 0, message.offset() or 0
            if message.error() is None:
                at = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
                value = (message.value() or b"").decode(errors="replace")
                found.append(Stored(topic=topic, partition=partition, offset=offset, at=at, value=value))
            if partition in left and offset + (message.error() is None) >= left[partition]:
                del left[partition]
    finally:
        consumer.close()
    if left:
        raise TimeoutError(f"the records of {topic} could not be read up to {left}")
    return found


def told(live: Live, kind: type[B], after: int = 0) -> list[B]:
    """Return the events of one kind in a region's history, those after an event, in order."""
    found: list[B] = []
    seen = EventNumber(after)
    while page := live.store.events(live.name, seen):
        found += [event.body for event in page if isinstance(event.body, kind)]
        seen = page[-1].number
    return found


def resets(live: Live, after: int = 0) -> list[events.ResetBegun]:
    """Return the resets of a region after an event, but for its start, further attempts included."""
    return [body for body in told(live, events.ResetBegun, after) if body.cause is not ResetCause.START]


def needless(live: Live, before: int) -> list[events.ResetBegun]:
    """Return the resets that an outage did not need: more than one for the fault, or more than one for an assignment.

    How often Kafka assigns partitions depends on how close together the members come back, hence on the machine. What
    the region promises does not: an assignment costs one reset at most.

    Args:
        live: the region.
        before: how many resets it had before the fault.
    """
    found: list[events.ResetBegun] = []
    paid: set[tuple[MemberId, Incarnation, AssignmentId]] = set()
    claimed: events.Claimed | None = None
    by_fault, seen = 0, 0
    for event in live.events():
        if isinstance(event.body, events.Claimed):
            claimed = event.body
        if not isinstance(event.body, events.ResetBegun) or event.body.cause is ResetCause.START:
            continue
        seen += 1
        if seen <= before:
            continue
        if event.body.cause is ResetCause.CLAIM and claimed is not None:
            assignment = (claimed.member, claimed.incarnation, claimed.assignment)
            is_needless = assignment in paid
            paid.add(assignment)
        else:
            is_needless = by_fault > 0
            by_fault += 1
        found += [event.body] if is_needless else []
    return found


def checkpoints(live: Live) -> list[Checkpoint]:
    """Return the complete checkpoints of a region, in order."""
    return [row for _, row in sorted(live.region().checkpoints.items()) if row.is_complete]


def start_offsets(live: Live) -> dict[tuple[str, int], int]:
    """Return where the partitions of a region began, the newest topic of a name counting."""
    found = told(live, events.InitialOffsetsStored)
    return {(p.topic, p.partition): int(o) for body in found for p, o in body.offsets.items()}


def owners(live: Live) -> set[int]:
    """The indexes of the members that hold partitions of a region that runs."""
    now = live.region()
    if now.state is not RegionState.RUNNING:
        return set()
    return {claim.owner.index for claim in now.claims.values() if claim.owner is not None}


def group_size(kafka: Kafka, group: str) -> int:
    """Return how many members the broker counts in a group."""
    return len(kafka.group(group).members)


def said(process: Process, text: str) -> int:
    """Return how often a process has said something."""
    return process.said().count(text)


def passed(seconds: float) -> Callable[[], bool]:
    """Return a condition that holds when N seconds are over: for a fault that has to last."""
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() >= deadline


def up(live: Live, *members: tuple[int, ...], each: int = 60, stores: Sequence[str] = ()) -> list[Process]:
    """Start processes, and bring the region to a checkpoint that has its first records.

    Args:
        live: the region.
        members: the indexes of each process.
        each: records of each partition.
        stores: how the first of them reach the store, where that is not the region's own address.
    """
    ways = [*stores, *[""] * len(members)]
    processes = [live.start(*indexes, store=ways[number]) for number, indexes in enumerate(members)]
    holders = min(sum(map(len, members)), live.kafka.partitions(live.topic))
    live.until(lambda: len(set(live.owners().values())) == holders, "shared")
    live.fill(each)
    finished(live)
    return processes


def ask(live: Live, name: str) -> RequestId:
    """Ask for a checkpoint, and return its request id at once."""
    request_id = RequestId(name)
    live.handle(RequestCheckpoint(request_id=request_id))
    return request_id


def held_at(live: Live, gate: str, *processes: Process, each: int = 60, within: float = 60.0) -> None:
    """Have processes come to a gate, of a batch, a checkpoint or a reset, and wait there.

    Args:
        live: the region, of which everything is processed.
        gate: of `member_process.GATES`.
        processes: that wait.
        each: records of each partition: in the batch that is held, or to be processed before a checkpoint or a reset.
        within: seconds.
    """
    provoke = {
        **dict.fromkeys(("contributing", "committing"), lambda: ask(live, f"held at {gate}")),
        **dict.fromkeys(("resetting", "claimed"), live.reset),
    }.get(gate)
    if provoke is not None:
        live.fill(each)
        live.until(live.consumed, "consumed", within)
    for one in processes:
        one.gate(gate)
    if provoke is None:
        live.fill(each)
    else:
        provoke()
    live.until(lambda: all(one.reached(gate) for one in processes), f"at {gate}", within)


def halted(live: Live, within: float = 60.0) -> Halt:
    """Wait until the region is halted, and return why."""
    live.until(lambda: live.region().state is RegionState.HALTED, "halted", within)
    halt = live.region().halt
    assert halt is not None
    return halt


def recreate(live: Live, each: int) -> None:
    """Delete the topic and make one of the same name at once, with other records, whose values begin with `new:`."""
    partitions = live.kafka.partitions(live.topic)
    live.kafka.delete_topic(live.topic)
    live.kafka.topic(partitions, name=live.topic)
    records = [Record(value=f"new:{n}".encode(), partition=n) for n in range(partitions) for _ in range(each)]
    live.kafka.produce(live.topic, records)


def finished(live: Live, within: float = 60.0) -> None:
    """Wait until everything is processed and in a checkpoint that Kafka has too.

    A reset may come in between, and a checkpoint after it holds less: then another is made.
    """
    deadline = time.monotonic() + within
    while True:
        live.until(lambda: _is_consumed(live), "everything consumed", within)
        live.checkpoint(within)
        newest, ends = checkpoints(live)[-1], live.kafka.ends(live.topic)
        at = {p.partition: o for p, o in live.region().offsets[newest.sequence].items() if p.topic == live.topic}
        if at == ends:
            return
        if time.monotonic() > deadline:
            raise AssertionError(
                f"not within {within} s: a checkpoint of everything; the newest is at {at}, not {ends}"
            )


def _is_consumed(live: Live) -> bool:
    with suppress(StoreError):
        return live.region().state is RegionState.RUNNING and live.consumed()
    return False


def judged(live: Live, note: Note, wanted: Set[Place] | None = None, rows: Sequence[Written] | None = None) -> Account:
    """Judge a region whose members have nothing left to do: sound, so that R8 explains every repetition.

    What the run showed is noted for the table of faults.
    """
    account = live.account(wanted, rows)
    note("lost", len(account.missing | account.not_kept))
    note("repeated", account.repeated)
    note("explained", dict(account.explained))
    note("resets", dict(Counter(str(body.cause) for body in resets(live))))
    assert account.is_sound, replace(account, missing=_some(account.missing), not_kept=_some(account.not_kept))
    return account


def _some(places: Set[Place]) -> frozenset[Place]:
    return frozenset(sorted(places)[:10])
