"""What metrics cost: a backlog read with and without them, and processor time of members that have nothing to do.

With them, the members' process is scraped and sends over OTLP far more often than anyone would, so that their cost can
be told from the noise.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic
from unittest.mock import patch
from urllib.request import urlopen

import pytest

from airflow_kcr.metrics.declared import MEMBER_METRICS, MemberFacts
from airflow_kcr.metrics.outlets import OTLP, published
from tests.benchmarks.contenders import Reading, ledger, rates
from tests.benchmarks.figures import Report, Scale, in_turns, ratio
from tests.benchmarks.lab import PARTITIONS, Filled, Hosted, Lab, fixed
from tests.benchmarks.test_idle_benchmark import resting
from tests.support.counted_process import counted_process
from tests.support.kafka import Kafka
from tests.support.members import Live, live
from tests.support.otlp_receiver import METRICS, OtlpReceiver
from tests.unit.metrics.test_exporter import free_port

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]

RECORDS, BATCH = 2_400_000, 60_000
USUAL = 15.0
"""Seconds between two scrapes of Prometheus."""

EVERY = 1.0
"""Seconds between two scrapes of members that read a backlog."""

EVERY_IDLE = 0.1
"""Seconds between two scrapes of members that have nothing to read: many, as one of them takes about a millisecond."""

LEAST = 0.98
"""Of the throughput without metrics."""

MOST = 0.001
"""Of a core."""


def test_a_backlog_that_is_scraped(lab: Lab, scale: Scale, report: Callable[[str], Report]) -> None:
    found = report("metrics-backlog")
    topic = lab.filled(scale.of(RECORDS, BATCH), 100)
    with_them, without = "scraped once a second, and sent once a second", "without metrics"
    race = in_turns(
        {without: partial(read, lab, topic, is_told=False), with_them: partial(read, lab, topic, is_told=True)},
        scale.rounds,
    )
    found.medians(
        f"{PARTITIONS} partitions, records of 100 B, batches of {BATCH:,}: records per second of a member",
        "metrics",
        {name: rates(readings) for name, readings in race.items()},
    )
    found.at_least("with metrics, to without", ratio(rates(race[with_them]), rates(race[without])), LEAST)


def test_idle_members_that_are_scraped(
    kafka: Kafka, durable_store: str, tmp_path: Path, scale: Scale, report: Callable[[str], Report]
) -> None:
    found = report("metrics-idle")
    with_them, without = "scraped ten times a second", "without metrics"
    taken: dict[str, list[float]] = {without: [], with_them: []}
    for number in range(scale.rounds):
        for name, values in taken.items():
            folder = tmp_path / f"{number}-{len(values)}-{name[:4]}"
            folder.mkdir()
            with live(kafka, durable_store, folder, members=3, partitions=6, spec="\n") as region:
                values.append(idle(region, durable_store, is_told=name == with_them))
    found.medians(
        "three members in one application that have read everything, an engine without Spark: % of a core that its "
        "Python processes take",
        "metrics",
        {name: [100 * value for value in values] for name, values in taken.items()},
    )
    each = (median(taken[with_them]) - median(taken[without])) * EVERY_IDLE
    found.table("processor time of a scrape", ("ms",), [(1_000 * each,)])
    found.at_most(f"a scrape each {USUAL:g} s, of {100 * MOST:g} % of a core", each / USUAL / MOST, 1)


def read(lab: Lab, topic: Filled, *, is_told: bool) -> Reading:
    """Let a member read a topic, and be asked for its metrics meanwhile, or not."""
    with lab.hosted(topic, batch=fixed(BATCH)) as hosted:
        with told(hosted) if is_told else ExitStack():
            hosted.until_consumed()
        return ledger(hosted.store.batches(hosted.name))


@contextmanager
def told(hosted: Hosted) -> Iterator[None]:
    """Have the metrics of members go out both ways."""

    def facts() -> Iterator[MemberFacts]:
        return (MemberFacts(region=hosted.name, snapshot=one) for one in hosted.member_pool.snapshots())

    port = free_port()
    with OtlpReceiver() as receiver, ExitStack() as stack:
        sending = {OTLP[0]: f"{receiver.url}{METRICS}", "OTEL_METRIC_EXPORT_INTERVAL": "1000"}
        stack.enter_context(patch.dict(os.environ, sending))
        with published(MEMBER_METRICS, facts, port), scraped(port, EVERY):
            yield


@contextmanager
def scraped(port: int, every: float) -> Iterator[None]:
    """Scrape a port again and again, with so many seconds between, until the end of the block."""
    ending = threading.Event()

    def scrape() -> None:
        while not ending.wait(every):
            with urlopen(f"http://localhost:{port}/metrics", timeout=10) as answer:
                assert b"kcr_batch_records_total" in answer.read()

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join(10)


def idle(region: Live, store: str, *, is_told: bool) -> float:
    """Return which share of a core members take that have nothing to read."""
    port = free_port() if is_told else None
    with (
        (region.folder / "log").open("w") as log,
        counted_process(store, region.name, region.group, 0, 1, 2, log=log, metrics_port=port) as one,
    ):
        region.until_running()
        region.shared(0, 1, 2)
        with ExitStack() if port is None else scraped(port, EVERY_IDLE):
            resting(region, None)
            before, began = one.count(), monotonic()
            resting(region, None)
            return (one.count().cpu - before.cpu) / (monotonic() - began)
