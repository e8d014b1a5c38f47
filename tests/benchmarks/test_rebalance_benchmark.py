"""What a rebalance costs a region: Kafka's two protocols side by side on one broker, static members and dynamic ones.

Two members, four partitions, records all the time. A member joins, leaves in good order, or is killed and started again
at once. Both protocols have the same session.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from airflow_kcr.embedded.kafka import SETTINGS
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import Batch, Outcome, RegionState
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


def test_rebalances(
    kafka: Kafka, durable_store: str, tmp_path: Path, scale: Scale, report: Callable[[str], Report]
) -> None:
    rows = []
    for happens in (joins, leaves, dies):
        found = defaultdict[str, list[tuple[float, float, float, float]]](list)
        for number in range(scale.rounds):
            for place, (kind, group) in enumerate(KINDS.items()):
                folder = tmp_path / f"{happens.__name__}-{number}-{place}"
                folder.mkdir()
                with live(
                    kafka, durable_store, folder, members=2, partitions=PARTITIONS, spec=SPEC, group=group
                ) as region:
                    found[kind].append(cost(region, happens))
        rows += [(happens.__name__, kind, *map(median, zip(*costs, strict=True))) for kind, costs in found.items()]
    report("rebalances").table(
        "a member of two joins, leaves or is killed and started again, under load; medians",
        ("", "protocol, members", "s without a batch", "s of the worst partition", "resets", "offsets again"),
        rows,
    )


def cost(region: Live, happens: Callable[[Live, list[Process]], None]) -> tuple[float, float, float, float]:
    """Return for how long no batch ended in the group, and in the partition with the longest wait; resets; repeats."""
    members = [region.start(index) for index in ((0,) if happens is joins else (0, 1))]
    region.until(lambda: len(region.owners()) == PARTITIONS, "owned", 60)
    region.shared(*range(len(members)))
    with produced(region) as working:
        working(SETTLING)
        counter, since = region.region().counter, _newest(region)
        happens(region, members)
        region.until(lambda: region.region().state is RegionState.RUNNING, "running", 60)
        working(SETTLING)
    begun = [event for event in region.events(counter) if isinstance(event.body, events.ResetBegun)]
    accepted = {Outcome.DONE, Outcome.UNDONE}
    done = [batch for batch in region.store.batches(region.name) if batch.outcome in accepted]
    each = [[batch for batch in done if any(p.partition == n for p in batch.ranges)] for n in range(PARTITIONS)]
    return (
        _longest(done, since),
        max(_longest(batches, since) for batches in each),
        float(len(begun)),
        float(region.account().repeated),
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


def _of(region: Live, index: int) -> list[Batch]:
    return [batch for batch in region.store.batches(region.name) if batch.member.index == index]


def _longest(batches: list[Batch], since: datetime) -> float:
    """Return the longest time between the ends of two batches, the first of which may be from before."""
    ends = sorted(batch.finished_at for batch in batches if batch.finished_at is not None)
    return max(((b - a).total_seconds() for a, b in pairwise(ends) if b > since), default=0.0)
