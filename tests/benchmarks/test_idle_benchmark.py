"""What an application of three members takes that have nothing to do: processor time of its Python processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median
from time import monotonic

import pytest

from airflow_kcr.protocol.region.commands import RequestCheckpoint
from airflow_kcr.protocol.values import RequestId
from tests.benchmarks.figures import Report, Scale
from tests.support.counted_process import counted_process
from tests.support.kafka import Kafka
from tests.support.members import Live, live

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]

SECONDS = 15.0
"""That are measured, after as many in which all processes have come to rest."""

CHECKPOINT_EVERY = 5.0
MOST = 0.03
"""Of a core."""


def test_an_idle_application(
    kafka: Kafka, durable_store: str, tmp_path: Path, scale: Scale, report: Callable[[str], Report]
) -> None:
    found = report("idle")
    cases = {"no checkpoint": None, f"a checkpoint each {CHECKPOINT_EVERY:g} s": CHECKPOINT_EVERY}
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(scale.rounds):
        for place, (name, every) in enumerate(cases.items()):
            folder = tmp_path / f"{number}-{place}"
            folder.mkdir()
            with live(kafka, durable_store, folder, members=3, partitions=6, spec="\n") as region:
                taken[name].append(idle(region, durable_store, every))
    found.medians(
        "three members in one application that have read everything, an engine without Spark: % of a core that its "
        "Python processes take",
        "",
        {name: [100 * value for value in values] for name, values in taken.items()},
    )
    for name, values in taken.items():
        found.at_most(f"{name}, of {100 * MOST:g} % of a core", median(values) / MOST, 1)


def idle(region: Live, store: str, every: float | None) -> float:
    """Return which share of a core members take that have nothing to read."""
    with (
        (region.folder / "log").open("w") as log,
        counted_process(store, region.name, region.group, 0, 1, 2, log=log) as one,
    ):
        region.until_running()
        region.shared(0, 1, 2)
        resting(region, every)
        before, began = one.count(), monotonic()
        resting(region, every)
        return (one.count().cpu - before.cpu) / (monotonic() - began)


def resting(region: Live, every: float | None) -> None:
    """Let time pass, with a checkpoint now and then."""
    until, never = monotonic() + SECONDS, threading.Event()
    for number in count():
        left = until - monotonic()
        if left <= 0:
            return
        if every is not None:
            region.handle(RequestCheckpoint(request_id=RequestId(f"{region.name}-{until}-{number}")))
        never.wait(min(left, every or left))
