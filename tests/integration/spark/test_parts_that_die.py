"""Spark's JVM is killed, frozen or slow in each state of its members, and its Python processes where they matter.

The region's other member has no Spark; it shows that others take over, without a second JVM.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from airflow_kcr.protocol.region.commands import RequestCheckpoint
from airflow_kcr.protocol.region.rows import CheckpointState
from airflow_kcr.protocol.values import RequestId
from tests.support.faults import Note, finished, judged, owners, passed, resets
from tests.support.members import Lend, Live, Process

LEASE = 6.0
SPEC = f"""\
batch: {{target: 2s, min_records: 50, max_records: 500, timeout: 60s}}
timeouts: {{lease: {LEASE:g}s, renew: 1s, session: 20s, relaunch: 10s, reset: 90s, drain: 80s, commit: 20s, close: 5s}}
"""
WITHIN = 400.0

SEEN = 5.0
"""Seconds within which a process whose JVM is gone is over, or has seen that it is frozen, on a busy machine."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(500)]


@dataclass(slots=True)
class Region:
    """A region of two members: one on Spark, and one without."""

    live: Live
    spark: Process

    @property
    def jvm(self) -> psutil.Process:
        """The JVM of the member on Spark."""
        children = psutil.Process(self.spark.process.pid).children(recursive=True)
        (java,) = [child for child in children if child.name() == "java"]
        return java

    @property
    def daemon(self) -> psutil.Process:
        """Spark's Python daemon, which has a guard and workers as its children."""
        children = [child for child in self.jvm.children() if child.status() != psutil.STATUS_ZOMBIE]
        (daemon,) = [child for child in children if any("kcr_python_daemon" in a for a in child.cmdline())]
        return daemon

    def reached(self, gate: str) -> None:
        """Wait until the member on Spark waits at a gate."""
        self.live.until(lambda: self.spark.reached(gate), f"at {gate}", WITHIN)

    def another(self) -> None:
        """Start the member without Spark, and wait until each has a partition."""
        self.live.hosting = "tests.support.member_process"
        self.live.start(1)
        self.live.shared(0, 1, within=WITHIN)

    def phase(self) -> CheckpointState | None:
        """Where the open checkpoint stands."""
        checkpoint = self.live.region().checkpoint
        return None if checkpoint is None else checkpoint.state


def idle(region: Region) -> None:
    """All is processed."""
    region.another()
    region.live.fill(60)
    finished(region.live, WITHIN)


def starting(region: Region) -> None:
    """Spark has started; the members have not."""
    region.reached("starting")


def warming(region: Region) -> None:
    """The members have their partitions, and Spark is being got ready."""
    region.reached("warming")
    region.another()


def busy(region: Region) -> None:
    """A Python worker has a record."""
    region.another()
    region.spark.gate("worker")
    region.live.fill(60)
    region.reached("worker")


def draining(region: Region) -> None:
    """The same, and a checkpoint waits for it."""
    busy(region)
    region.live.handle(RequestCheckpoint(request_id=RequestId("the drain")))
    region.live.until(lambda: region.phase() is CheckpointState.DRAINING, "draining")


def resetting(region: Region) -> None:
    """The files are about to be reset."""
    idle(region)
    region.spark.gate("resetting")
    region.live.reset()
    region.reached("resetting")


STATES: dict[Callable[[Region], None], str] = {
    idle: "",
    starting: "starting",
    warming: "warming",
    busy: "",
    draining: "",
    resetting: "",
}
"""How to get there, and the gate at which the process is to wait from its beginning."""

in_each_state = pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)


@pytest.fixture
def region(state: Callable[[Region], None], lend_on_spark: Lend, tmp_path: Path) -> Iterator[Region]:
    """A region whose member on Spark is in a state."""
    group = f", static_membership: false, sinks: {{out: {{kind: files, path: '{tmp_path}/out'}}}}"
    with lend_on_spark(members=2, spec=SPEC, group=group) as one:
        gate = STATES[state]
        found = Region(one, one.start(0, gates=(gate,) if gate else ()))
        if not gate:
            one.until(lambda: "Spark is ready" in found.spark.said(), "Spark ready", WITHIN)
        state(found)
        yield found


@in_each_state
@pytest.mark.parametrize(
    ("how", "within", "why"),
    [
        # A batch may find out by itself.
        pytest.param(signal.SIGKILL, SEEN, "Spark's JVM is gone|Spark does not answer any more", id="killed"),
        pytest.param(signal.SIGSTOP, LEASE + SEEN, "Spark's JVM had not answered for 6 s, and was killed", id="frozen"),
    ],
)
def test_members_end_with_their_jvm_and_others_take_over(
    state: Callable[[Region], None],
    region: Region,
    how: signal.Signals,
    within: float,
    why: str,
    record_property: Note,
) -> None:
    jvm, spark, one = region.jvm, region.spark, region.live
    began = time.monotonic()
    jvm.send_signal(how)
    one.until(lambda: re.search(why, spark.said()) is not None, f"{why!r} in the log", within)
    record_property("noticed after", time.monotonic() - began)
    for gate in list(spark.gates.glob("*.reached")):
        spark.open(gate.stem)
    assert spark.wait(within) != 0
    record_property("ended after", time.monotonic() - began)
    one.until(lambda: spark.left_behind() == [], "nothing left behind", SEEN)
    if state is starting:
        return
    one.until(lambda: owners(one) == {1}, "taken over", WITHIN)
    record_property("taken over after", time.monotonic() - began)
    one.fill(60)
    finished(one, WITHIN)
    judged(one, record_property)


def idle_daemon(region: Region) -> psutil.Process:
    """The daemon, which has to start a worker for the next task: those that were idle are gone."""
    found = region.daemon
    for one in found.children():
        if os.getpgid(one.pid) == found.pid:
            one.kill()
    return found


def busy_daemon(region: Region) -> psutil.Process:
    """The daemon whose worker has a record."""
    return region.daemon


def worker(region: Region) -> psutil.Process:
    """The worker that has a record."""
    return psutil.Process(int((region.spark.gates / "worker.pid").read_text()))


@pytest.mark.parametrize(
    ("part", "state"),
    [(idle_daemon, idle), (busy_daemon, busy), (worker, busy), (worker, draining)],
    ids=["daemon, idle", "daemon, busy", "worker, busy", "worker, draining"],
)
@pytest.mark.parametrize("how", [pytest.param(signal.SIGKILL, id="killed"), pytest.param(signal.SIGSTOP, id="frozen")])
def test_a_python_process_is_replaced(
    part: Callable[[Region], psutil.Process],
    state: Callable[[Region], None],
    region: Region,
    how: signal.Signals,
    record_property: Note,
) -> None:
    spark, one = region.spark, region.live
    victim = part(region)
    began = time.monotonic()
    victim.send_signal(how)
    spark.open("worker")
    one.fill(60)
    finished(one, WITHIN)
    record_property("processed after", time.monotonic() - began)
    assert resets(one) == []
    assert spark.running
    # A frozen daemon that no task needs meanwhile is killed after its time-out, and not before.
    one.until(lambda: not victim.is_running() or victim.status() == psutil.STATUS_ZOMBIE, "killed", WITHIN)
    judged(one, record_property)


@in_each_state
def test_a_jvm_that_is_slow_is_left_alone(
    state: Callable[[Region], None], region: Region, record_property: Note
) -> None:
    jvm, spark, one = region.jvm, region.spark, region.live
    for _ in range(3):
        jvm.suspend()
        one.until(passed(LEASE * 0.6), "slow for a while")
        jvm.resume()
        one.until(passed(2.5), "an answer")
    for gate in list(spark.gates.glob("*.reached")):
        spark.open(gate.stem)
    if state is starting:
        region.another()
    one.fill(60)
    finished(one, WITHIN)
    assert spark.running
    assert one.region().members[one.member(0)].incarnation == 1
    assert os.getsid(jvm.pid) == spark.process.pid
    judged(one, record_property)
