"""What a checkpoint costs: where members are idle, and where they have a backlog to read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from statistics import median
from time import perf_counter

import pytest

from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.commands import PinCheckpoint, ReadRegion, RequestCheckpoint
from airflow_kcr.protocol.region.rows import Committed
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import (
    EventNumber,
    GroupPartition,
    RequestId,
)
from tests.benchmarks.contenders import Reading, ledger, member, rates, shown
from tests.benchmarks.figures import Report, Scale, in_turns, ratio
from tests.benchmarks.lab import PARTITIONS, Filled, Hosted, Lab, fixed
from tests.contract.kafka.members import Member, Members
from tests.support.kafka import Kafka

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]

CHECKPOINTS = 3
"""Checkpoints of one round; with five rounds, fifteen."""

TURNS = 3
"""Readings of a backlog for each round: two that differ by a few percent are told apart by fifteen, not by five."""

PAUSE = 0.3
"""Seconds between two measurements, in which all notified processes are done with the last one."""

STEPS = (
    ("requested", events.CheckpointRequested),
    ("opened", events.CheckpointOpened),
    ("first part stored", events.Contributed),
    ("complete", events.CheckpointCompleted),
    ("published", events.CheckpointPublished),
    ("first commit read-back stored", events.CommitReadBack),
    ("committed", events.CommitResolved),
)


@pytest.mark.parametrize("members", [1, 3])
def test_a_checkpoint_of_idle_members(lab: Lab, scale: Scale, report: Callable[[str], Report], members: int) -> None:
    found = report(f"checkpoint-of-{members}")
    topic = lab.filled(PARTITIONS * 100, 100)
    checkpoints, views, writes, kept, commits, steps = [], [], [], [], [], []
    with (
        lab.hosted(topic, batch="target: 500ms", members=members) as hosted,
        committing(lab.kafka, topic.name) as (committer, held),
    ):
        hosted.until_ready()
        hosted.until_consumed()
        for number in range(CHECKPOINTS * scale.rounds + 1):
            millis, told = _checkpoint(hosted, f"n{number}")
            view, write = _round_trips(hosted, f"n{number}")
            read = _millis(partial(committer.held, held))
            commit = _millis(partial(committer.commit, dict.fromkeys(held, number + 1)))
            if number:  # the first warms up
                checkpoints.append(millis)
                steps.append(told)
                views.append(view)
                writes.append(write)
                kept.append(read)
                commits.append(commit)
    beside = [write + commit for write, commit in zip(writes, commits, strict=True)]
    # Request, part and commit read-back are stored, the region is looked at before the part and before the commit, and
    # what Kafka holds is read for the part: each waits for the one before it.
    chain = [3 * w + 2 * v + r + c for w, v, r, c in zip(writes, views, kept, commits, strict=True)]
    found.medians(
        f"a checkpoint of {members} idle member(s), {PARTITIONS} partitions: ms",
        "what",
        {
            "from the request to committed": checkpoints,
            "a look at the region in the store": views,
            "a store transaction that writes": writes,
            "a look at what Kafka holds": kept,
            "a commit to Kafka, read back": commits,
            "one transaction and one commit": beside,
            "what a checkpoint waits for: 3 transactions, 2 looks at the store, one at Kafka, a commit": chain,
        },
    )
    found.table(
        f"steps of a checkpoint of {members} idle member(s): ms since the request, by the store's clock, medians",
        tuple(name for name, _ in STEPS),
        [tuple(median(told[name] for told in steps) for name, _ in STEPS)],
    )
    found.at_most(f"{members} member(s): to one store transaction and one commit", ratio(checkpoints, beside), 1.5)


@contextmanager
def committing(kafka: Kafka, topic: str) -> Iterator[tuple[Member, frozenset[GroupPartition]]]:
    """Lend a control consumer of a group of its own, which commits as members do, and its partitions."""
    members = Members(kafka.settings)
    try:
        member = members.make(kafka.group_id("bench"), topic=topic, timeouts=Timeouts()).joined()
        yield member, member.heard.holds
    finally:
        members.end()


def _millis(call: Callable[[], object]) -> float:
    """Return how many milliseconds a call takes."""
    began = perf_counter()
    call()
    return (perf_counter() - began) * 1000


def _checkpoint(hosted: Hosted, request_id: str) -> tuple[float, dict[str, float]]:
    """Checkpoint, and return how many milliseconds it took, and when after the request each step was there."""
    store, name = hosted.store, hosted.name
    after = store.read(name)[0].counter
    threading.Event().wait(PAUSE)
    began = datetime.now(UTC)
    store.handle(name, RequestCheckpoint(request_id=RequestId(request_id)))
    seen: list[events.Event] = []

    def resolved() -> bool:
        seen[:] = store.events(name, EventNumber(after))
        return any(isinstance(one.body, events.CommitResolved) for one in seen)

    # Looked at from beside, seldom: the times are those of the events.
    threading.Event().wait(PAUSE)
    hosted.until(resolved, f"checkpoint {request_id} committed", 60)
    end = next(one for one in seen if isinstance(one.body, events.CommitResolved))
    assert isinstance(end.body, events.CommitResolved)
    assert end.body.committed is Committed.YES
    return (end.at - began) / timedelta(milliseconds=1), {
        step: (next(one.at for one in seen if isinstance(one.body, kind)) - began) / timedelta(milliseconds=1)
        for step, kind in STEPS
    }


def _round_trips(hosted: Hosted, label: str) -> tuple[float, float]:
    """Return the milliseconds of a member's look at its region, and of a transaction that writes under its lock."""
    store, name = hosted.store, hosted.name
    restore_point = store.read(name)[0].restore_sequence
    assert restore_point is not None
    threading.Event().wait(PAUSE)
    seen = _millis(partial(store.handle, name, ReadRegion(member=hosted.member_pool.hosts[0].who.member)))
    threading.Event().wait(PAUSE)
    reason = "a transaction that writes a row and an event"
    pin = PinCheckpoint(sequence=restore_point, label=label, reason=reason)
    pinned = _millis(partial(store.handle, name, pin))
    threading.Event().wait(PAUSE)
    return seen, pinned


def test_a_backlog_with_a_checkpoint_each_second(lab: Lab, scale: Scale, report: Callable[[str], Report]) -> None:
    found = report("checkpoints-in-a-backlog")
    topic, batch = lab.filled(scale.of(2_400_000, 60_000), 100), 60_000
    checkpoints: list[int] = []
    with_checkpoints, without, readings = "a checkpoint each second", "no checkpoint", TURNS * scale.rounds
    contenders: dict[str, Callable[[], Reading]] = {
        without: partial(member, lab, topic, batch),
        with_checkpoints: lambda: _read_and_checkpoint(lab, topic, batch, checkpoints),
    }
    race = in_turns(contenders, readings)
    found.table(
        f"{topic.records:,} records of 100 B in batches of {batch:,}, {readings} readings: records per second",
        ("", "checkpoints a round", "median", "smallest to largest"),
        [(name, median(checkpoints) if name == with_checkpoints else 0, *row) for name, _, *row in shown(race, rates)],
    )
    found.at_least(
        "with a checkpoint each second, to without", ratio(rates(race[with_checkpoints]), rates(race[without])), 0.9
    )


def _read_and_checkpoint(lab: Lab, topic: Filled, batch: int, checkpoints: list[int]) -> Reading:
    with lab.hosted(topic, batch=fixed(batch)) as hosted:
        over = threading.Event()
        asking = threading.Thread(target=_ask, args=(hosted, over, _request_ids()))
        hosted.until_ready()
        asking.start()
        try:
            hosted.until_consumed()
        finally:
            over.set()
            asking.join(30)
        checkpoints.append(
            sum(
                isinstance(e.body, events.CheckpointCompleted)
                for e in hosted.store.events(hosted.name, EventNumber(0), 10_000)
            )
        )
        return ledger(hosted.store.batches(hosted.name))


def _request_ids() -> Iterator[RequestId]:
    return (RequestId(f"second-{number}") for number in count())


def _ask(hosted: Hosted, over: threading.Event, request_ids: Iterator[RequestId]) -> None:
    while not over.wait(1):
        hosted.store.handle(hosted.name, RequestCheckpoint(request_id=next(request_ids)))
