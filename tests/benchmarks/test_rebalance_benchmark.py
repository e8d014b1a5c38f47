"""What a rebalance costs a region: Kafka's two protocols side by side on one broker, static members and dynamic ones.

Two members, four partitions, records all the time. A member joins, leaves in good order, or is killed and started again
at once. Both protocols have the same session.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from airflow_kcr.embedded.servers import SETTINGS
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import Batch, Outcome, RegionState
from airflow_kcr.protocol.values import Incarnation, MemberId
from tests.benchmarks.figures import Report, Scale
from tests.support.kafka import Kafka
from tests.support.members import Live, Process, live

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]

SPEC = f"""\
checkpoint: {{every: 2s, grace: 300ms}}
batch: {{target: 300ms, min_records: 20, max_records: 500, timeout: 12s}}
timeouts: {{lease: 4s, renew: 1s, session: {SETTINGS["group.consumer.session.timeout.ms"]}ms, relaunch: 4s, reset: 20s,
  drain: 15s, commit: 6s, close: 4s, retry: 300ms}}
"""
KINDS = {
    "classic, static": "",
    "classic, dynamic": ", static_membership: false",
    "consumer, static": ", protocol: consumer",
    "consumer, dynamic": ", protocol: consumer, static_membership: false",
}
PARTITIONS = 4
PERIOD = 0.1
"""Seconds between two productions of a few records to every partition."""

SETTLING = 6.0
"""Seconds of work before anything happens, and after it."""


def joins(region: Live, _: list[Process]) -> None:
    """Another member, started from nothing."""
    region.start(1)
    region.shared(0, 1)


def leaves(region: Live, members: list[Process]) -> None:
    """One is asked to end."""
    members[1].terminate()
    region.until(lambda: region.owners() == dict.fromkeys(range(PARTITIONS), 0), "handed over", 60)


def dies(region: Live, members: list[Process]) -> None:
    """One is killed, and started again at once."""
    members[1].kill()
    before = _newest(region)
    region.start(1)
    region.until(lambda: any(batch.started_at > before for batch in _of(region, 1)), "back at work", 120)
    region.shared(0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one rebalance cost; times in seconds, between the ends of accepted batches if nothing else is said."""

    without: float
    """The longest without one in the group."""

    worst: float
    """The longest without one in the partition that waited longest."""

    handed_over: float
    """From the last end before, in a partition that moved, to the start of its new owner's first batch; the longest."""

    kept_before: float
    """The longest in a partition that kept its owner, before anything happened."""

    kept: float
    """The same from then on."""

    resets: float
    again: float
    """Offsets processed more than once."""


def test_rebalances(
    kafka: Kafka, durable_store: str, tmp_path: Path, scale: Scale, report: Callable[[str], Report]
) -> None:
    found = defaultdict[tuple[str, str], list[Cost]](list)
    for number in range(scale.rounds):
        for happens in (joins, leaves, dies):
            for place, (kind, group) in enumerate(KINDS.items()):
                folder = tmp_path / f"{happens.__name__}-{number}-{place}"
                folder.mkdir()
                with live(
                    kafka, durable_store, folder, members=2, partitions=PARTITIONS, spec=SPEC, group=group
                ) as region:
                    found[happens.__name__, kind].append(cost(region, happens))
    report("rebalances").table(
        "a member of two joins, leaves or is killed and started again, under load; medians",
        (
            "",
            "protocol, members",
            "s without a batch",
            "s of the worst partition",
            "s to the new owner's first batch",
            "s of those kept, before",
            "s of those kept",
            "resets",
            "offsets again",
        ),
        [(*what, *map(median, zip(*map(astuple, costs), strict=True))) for what, costs in sorted(found.items())],
    )


@pytest.mark.parametrize("session", [6_000, 45_000])
def test_a_kill_by_the_groups_session(
    session: int, kafka: Kafka, durable_store: str, tmp_path: Path, scale: Scale, report: Callable[[str], Report]
) -> None:
    """Static ids or dynamic ones, and what a group's session (ms) that is lowered saves; 45 s is Kafka's own."""
    spec = SPEC.replace(f"session: {SETTINGS['group.consumer.session.timeout.ms']}ms", f"session: {session}ms")
    spec = spec.replace("reset: 20s", "reset: 60s")
    found = defaultdict[str, list[Cost]](list)
    for number in range(scale.rounds):
        for place, (kind, group) in enumerate(KINDS.items()):
            if "protocol: consumer" not in group:
                continue
            folder = tmp_path / f"{session}-{number}-{place}"
            folder.mkdir()
            with live(kafka, durable_store, folder, members=2, partitions=PARTITIONS, spec=spec, group=group) as region:
                limit_session(kafka, region.group, session)
                found[kind].append(cost(region, dies))
    report(f"kills by session {session}").table(
        f"a member of two is killed and started again, the group's session is {session} ms; medians",
        ("protocol, members", "s without a batch", "s of the worst partition", "resets", "offsets again"),
        [
            (kind, *(median(getattr(one, name) for one in costs) for name in ("without", "worst", "resets", "again")))
            for kind, costs in sorted(found.items())
        ],
    )


def limit_session(kafka: Kafka, group: str, session: int) -> None:
    """Have the broker keep the partitions of a group's silent member for so many milliseconds."""
    entry = ConfigEntry("consumer.session.timeout.ms", str(session), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    for altered in kafka.admin.incremental_alter_configs([resource]).values():
        altered.result(30)


def cost(region: Live, happens: Callable[[Live, list[Process]], None]) -> Cost:
    """Have something happen to a region that works, and return what it cost."""
    members = [region.start(index) for index in ((0,) if happens is joins else (0, 1))]
    region.until(lambda: len(region.owners()) == PARTITIONS, "owned", 60)
    region.shared(*range(len(members)))
    with produced(region) as working:
        region.until(lambda: len(_accepted(region)) >= PARTITIONS, "at work", 60)
        working(SETTLING)
        counter, since, before = region.region().counter, _newest(region), region.owners()
        happens(region, members)
        region.until(lambda: region.region().state is RegionState.RUNNING, "running", 60)
        region.until(lambda: len(region.owners()) == PARTITIONS, "owned again", 120)
        after = region.owners()
        working(SETTLING)
    begun = [event for event in region.events(counter) if isinstance(event.body, events.ResetBegun)]
    done = _accepted(region)
    each = [[batch for batch in done if any(p.partition == n for p in batch.ranges)] for n in range(PARTITIONS)]
    # The member of index 0 is there all the time.
    kept = [each[n] for n in range(PARTITIONS) if before[n] == after[n] == 0]
    moved = [each[n] for n in range(PARTITIONS) if not before[n] == after[n] == 0]
    return Cost(
        without=_longest(done, since),
        worst=max(_longest(batches, since) for batches in each),
        handed_over=max((_handed_over(batches, since) for batches in moved), default=0.0),
        kept_before=max((_longest(batches, _first(done), since) for batches in kept), default=0.0),
        kept=max((_longest(batches, since) for batches in kept), default=0.0),
        resets=float(len(begun)),
        again=float(region.account().repeated),
    )


@contextmanager
def produced(region: Live) -> Iterator[Callable[[float], object]]:
    """Produce all the time; gives what waits for so many seconds."""
    over = threading.Event()

    def produce() -> None:
        while not over.wait(PERIOD):
            region.fill(4)

    producing = threading.Thread(target=produce, daemon=True)
    producing.start()
    yield over.wait
    over.set()
    producing.join()


def _newest(region: Live) -> datetime:
    return max(batch.started_at for batch in region.store.batches(region.name))


def _accepted(region: Live) -> list[Batch]:
    return [batch for batch in region.store.batches(region.name) if batch.outcome in {Outcome.DONE, Outcome.UNDONE}]


def _of(region: Live, index: int) -> list[Batch]:
    return [batch for batch in region.store.batches(region.name) if batch.member.index == index]


def _longest(batches: list[Batch], since: datetime, until: datetime | None = None) -> float:
    """Return the longest time between the ends of two batches, the first of which may be from before."""
    ends = sorted(batch.finished_at for batch in batches if batch.finished_at is not None)
    gaps = ((b - a).total_seconds() for a, b in pairwise(ends) if b > since and (until is None or b <= until))
    return max(gaps, default=0.0)


def _first(batches: list[Batch]) -> datetime:
    return min(batch.finished_at for batch in batches if batch.finished_at is not None)


def _handed_over(batches: list[Batch], since: datetime) -> float:
    """Return the time between the last end by the owner before and the start of the first batch of the next one."""
    ordered = sorted(batches, key=lambda batch: batch.started_at)
    for one, next_one in pairwise(ordered):
        if next_one.started_at > since and _owner(one) != _owner(next_one) and one.finished_at is not None:
            return (next_one.started_at - one.finished_at).total_seconds()
    return 0.0


def _owner(batch: Batch) -> tuple[MemberId, Incarnation]:
    return batch.member, batch.incarnation
