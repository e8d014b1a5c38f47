"""How much memory a member's Python takes: the same whatever the backlog, as no record ever comes to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from airflow_kcr.embedded.processes import happened
from airflow_kcr.protocol.region.commands import KillRegion
from airflow_kcr.protocol.values import RegionName
from tests.benchmarks.figures import Report, Scale, ratio
from tests.benchmarks.lab import Filled, Lab

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]

TOP = Path(__file__).parents[2]
BACKLOGS = (100_002, 5_000_004)
ROUNDS = 2
"""Fewer than elsewhere: a peak of memory hardly varies, and each takes a JVM of its own."""

MOST = 250.0
"""MiB of the Python side, at most."""

RESULTS_OF_TASKS = "1m"
"""All that Spark lets its tasks send to the driver; what collects any records fails at this."""


def test_a_member_takes_as_much_for_any_backlog(
    lab: Lab, scale: Scale, report: Callable[[str], Report], connector_jars: tuple[Path, ...]
) -> None:
    found = report("memory")
    taken: dict[int, list[float]] = {}
    for _ in range(min(scale.rounds, ROUNDS)):
        for backlog in BACKLOGS:
            topic = lab.filled(scale.of(backlog, 6), 100)
            taken.setdefault(topic.records, []).append(_peak(lab, topic, connector_jars))
    found.medians(
        f"`kcr member run` with a pipeline that does nothing, records of 100 B, default batches, driver.maxResultSize "
        f"{RESULTS_OF_TASKS}: MiB of its Python process, at most (RSS)",
        "backlog",
        {f"{records:,}": values for records, values in taken.items()},
    )
    small, large = taken.values()
    found.at_most("memory for the large backlog, to the small one", ratio(large, small), 1.1)
    found.at_most(f"memory at most, of {MOST:g} MiB", max(*small, *large) / MOST, 1)


def _peak(lab: Lab, topic: Filled, jars: tuple[Path, ...]) -> float:
    """Let a member in a process of its own read a topic; return the most memory that its Python took, in MiB."""
    name = lab.declared(topic)
    command = [sys.executable, "-m", "airflow_kcr", "member", "run", name, "--group", name, "--index", "0"]
    command += ["--store", lab.store_address, "--master", "local[2,4]", "--jars", ",".join(map(str, jars))]
    command += ["--conf", f"spark.driver.maxResultSize={RESULTS_OF_TASKS}", "--conf", "spark.driver.host=127.0.0.1"]
    with (lab.folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=TOP, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            return _watched(lab, topic, process, name)
        finally:
            lab.store.handle(name, KillRegion())
            _end(process)


def _watched(lab: Lab, topic: Filled, process: subprocess.Popen[bytes], name: RegionName) -> float:
    python, peak = psutil.Process(process.pid), 0

    def consumed() -> bool:
        nonlocal peak
        assert process.poll() is None, (lab.folder / f"{name}.log").read_text()[-3000:]
        peak = max(peak, python.memory_info().rss)
        places = [claim.position for claim in lab.store.read(name)[0].claims.values()]
        return len(places) == topic.partitions and sum(place or 0 for place in places) >= topic.records

    assert happened(consumed, within=300)
    return peak / 2**20


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
