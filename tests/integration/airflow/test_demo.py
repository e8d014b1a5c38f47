"""`kcr demo` as a newcomer runs it; minutes long, so not among the tests that always run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.leftovers import left

pytestmark = [pytest.mark.soak, pytest.mark.kafka, pytest.mark.postgres, pytest.mark.timeout(1_500)]


def started(folder: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "airflow_kcr", "demo", "--folder", str(folder), "-o", "json", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_demo_finds_no_difference_and_leaves_nothing_running(tmp_path: Path) -> None:
    demo = started(tmp_path / "demo")
    out, err = demo.communicate(timeout=1_400)
    assert demo.returncode == 0, err[-6_000:]
    found = json.loads(out)
    assert found["sound"]
    assert len(found["intervals"]) >= 4
    assert all(one["passed"] for one in found["checks"])
    assert left(tmp_path / "demo") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_interrupted_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "demo"
    demo = started(folder)
    deadline = time.monotonic() + 300
    while not (folder / "airflow" / "scheduler.log").exists():
        assert time.monotonic() < deadline
        assert demo.poll() is None
        time.sleep(0.2)  # a poll of a condition, with a deadline
    demo.send_signal(number)
    demo.communicate(timeout=500)
    assert demo.returncode not in {0, None}
    assert left(folder) == []
