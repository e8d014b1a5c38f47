"""A run of an interval, from the start of its process to its end, beside Structured Streaming's `AvailableNow`.

Both are submitted by `spark-submit`, read the same records and write nothing. A run with nothing to read is not
submitted: it is done in the process that would submit it, as the operator does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

import airflow_kcr
from airflow_kcr.api import Region
from airflow_kcr.protocol.region.events import CheckpointRequested, ClusterFound, MemberLeft, ResetDone
from airflow_kcr.protocol.values import EventNumber, RegionName
from tests.benchmarks.figures import Report, spread
from tests.benchmarks.lab import Filled, Lab
from tests.support.members import TOP

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3_600)]

PHASES = (
    "process, modules, a first look at the logs",
    "Spark",
    "members join and claim",
    "Spark asks for an executor",
    "reading",
    "drain, publication, commit, read back",
    "end of the process",
)
SIZE = 1_000
WITHIN = 300.0
ROUNDS = int(os.environ.get("ROUNDS", "3"))
COUNTS = tuple(map(int, os.environ.get("COUNTS", "600000,60000").split(",")))


class Contestants:
    """The two programs over one topic, each with a place to remember where it stands."""

    def __init__(self, lab: Lab, topic: Filled, jars: str, bytecode: Path) -> None:
        self.lab, self.topic, self.jars = lab, topic, jars
        self.made = 0
        # Both find their modules compiled, as an installation has them, whatever the environment of the tests says.
        self.environ = {**os.environ, "KCR_STORE_URL": lab.store_address, "PYTHONPYCACHEPREFIX": str(bytecode)}
        self.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        self.phases = list[list[float]]()
        self.said = ""

    def submit(self, *arguments: str) -> float:
        """Return the seconds from the start of `spark-submit` to its end."""
        environ = {**self.environ, "PYTHONPATH": str(TOP)}
        command = [
            str(Path(sys.executable).with_name("spark-submit")),
            "--master",
            "local[2]",
            "--jars",
            self.jars,
            *arguments,
        ]
        began = time.monotonic()
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=WITHIN, check=False)
        took = time.monotonic() - began
        self.said = done.stderr
        assert done.returncode == 0, done.stdout + done.stderr
        return took

    def run(self, name: str) -> float:
        """Run a region by a submitted application."""
        began = datetime.now(UTC)
        took = self.submit(str(Path(airflow_kcr.__file__).with_name("__main__.py")), "run", name)
        self.phases.append(self.phases_of(RegionName(name), began, took))
        return took

    def phases_of(self, name: RegionName, began: datetime, took: float) -> list[float]:
        """Return the seconds of each of `PHASES`, by what the store has noted of a run."""
        batches = list(self.lab.store.batches(name))
        at = {type(event.body): event.at for event in self.lab.store.events(name, EventNumber(0))}
        read = max(batch.finished_at or batch.started_at for batch in batches)
        marks = [at[ClusterFound], at[CheckpointRequested], at[ResetDone], batches[0].started_at, read, at[MemberLeft]]
        since = [0.0, *((mark - began).total_seconds() for mark in marks), took]
        return [later - earlier for earlier, later in pairwise(since)]

    def rest(self, name: str) -> float:
        """Run a region that has nothing to read, in a process that starts no Spark."""
        code = (
            "import sys; from airflow_kcr.api import Region; "
            "assert Region(sys.argv[1]).prepared_run(request_id=sys.argv[2]).is_done_at_rest()"
        )
        self.made += 1
        began = time.monotonic()
        subprocess.run(
            [sys.executable, "-c", code, name, f"n{self.made}"], env=self.environ, check=True, timeout=WITHIN
        )
        return time.monotonic() - began

    def stream(self, checkpoint: Path) -> float:
        """Read with Structured Streaming."""
        program = str(Path(__file__).with_name("available_now.py"))
        return self.submit(program, self.lab.kafka.bootstrap_servers, self.topic.name, checkpoint.as_uri())


def test_a_run_takes_as_long_as_structured_streaming_and_less_with_nothing_to_read(
    lab: Lab, report: Callable[[str], Report], tmp_path: Path, connector_jars: tuple[Path, ...]
) -> None:
    jars = ",".join(map(str, connector_jars))
    made, rows, phases = report("interval"), [], []
    for records in COUNTS:
        both = Contestants(lab, lab.filled(records, SIZE), jars, tmp_path / "bytecode")
        taken: tuple[list[float], ...] = ([], [], [], [])
        for number in range(ROUNDS + 1):
            name, checkpoint = lab.declared(both.topic), tmp_path / f"{records}-{number}"
            readings = [both.run(name), both.stream(checkpoint), both.rest(name), both.stream(checkpoint)]
            with Region(name, lab.store) as region:
                assert region.verify().violations == ()
                assert sum(region.checkpoints.show(region.show().last_complete or 0).offsets.values()) == records
            if number:  # the first is to warm up
                for known, reading in zip(taken, readings, strict=True):
                    known.append(reading)
        ours, theirs, idle, idle_theirs = taken
        kinds = ((f"{records:,}", ours, theirs, 1.1), (f"none, after {records:,}", idle, idle_theirs, 0.5))
        for what, own, other, most in kinds:
            rows.append((what, spread(own), spread(other)))
            made.at_most(f"{what}: a run beside AvailableNow", median(own) / median(other), most)
        for phase, seconds in zip(PHASES, zip(*both.phases[1:], strict=True), strict=True):
            phases.append((f"{records:,}", phase, f"{median(seconds):.2f}"))
    made.table("A run, by phase", ("records", "phase", "s"), phases)
    made.table("A run, process and all", ("records", "a run, s", "AvailableNow, s"), rows)
