"""The guard of Spark's Python daemon, beside a process that starts it as the daemon does, and has a child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import psutil
import pytest

from airflow_kcr.embedded.processes import happened
from tests.support.runtime_fakes import eventually

WITHIN = 20.0
STOPPED_FOR = 0.6

GUARDED = f"""\
import subprocess, sys
from airflow_kcr.spark import kcr_python_daemon
kcr_python_daemon.LOOK_PERIOD, kcr_python_daemon.STOPPED_FOR = 0.1, {STOPPED_FOR}
kcr_python_daemon.start_guard()
child = subprocess.Popen(["sleep", "1000"])
print(child.pid, flush=True)
try:
    sys.stdin.read()
finally:
    child.kill()
"""


@dataclass(frozen=True, slots=True)
class Guarded:
    """A process with a guard, and its child."""

    process: subprocess.Popen[str]
    child: psutil.Process

    @property
    def guard(self) -> psutil.Process:
        (found,) = (one for one in psutil.Process(self.process.pid).children() if one.pid != self.child.pid)
        return found


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    command = [sys.executable, "-c", GUARDED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        yield Guarded(process, child)
        process.kill()
        with suppress(psutil.NoSuchProcess):
            child.kill()


def is_over(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_daemon_that_is_frozen_is_killed_and_its_guard_ends_with_it(guarded: Guarded) -> None:
    guard = guarded.guard
    os.kill(guarded.process.pid, signal.SIGSTOP)
    assert guarded.process.wait(WITHIN) == -signal.SIGKILL
    eventually(lambda: is_over(guard), "the end of the guard")


def test_a_worker_that_is_frozen_is_killed_alone(guarded: Guarded) -> None:
    guarded.child.suspend()
    eventually(lambda: is_over(guarded.child), "the end of the worker")
    assert guarded.process.poll() is None


def test_one_that_is_slow_is_left_alone(guarded: Guarded) -> None:
    for _ in range(5):
        guarded.child.suspend()
        threading.Event().wait(STOPPED_FOR / 2)
        guarded.child.resume()
        assert not happened(lambda: is_over(guarded.child), within=STOPPED_FOR / 2)
    assert guarded.process.poll() is None
