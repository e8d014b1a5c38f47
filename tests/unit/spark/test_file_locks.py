from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from airflow_kcr.spark.launch import locked

HOLD = """
import sys
from pathlib import Path
from airflow_kcr.spark.launch import locked
with locked(Path(sys.argv[1]), within=10, late=lambda: TimeoutError()):
    print("held", flush=True)
    sys.stdin.read()
"""


def late() -> Exception:
    return TimeoutError("another process has it")


def test_whoever_waits_too_long_for_a_lock_says_so(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    with (
        locked(path, within=1, late=late),
        pytest.raises(TimeoutError, match="another process has it"),
        locked(path, within=0.2, late=late),
    ):
        pass


def test_a_lock_goes_on_to_whoever_waits_for_it(tmp_path: Path) -> None:
    entered = threading.Event()

    def wait() -> None:
        with locked(tmp_path / "lock", within=20, late=late):
            entered.set()

    waiting = threading.Thread(target=wait)
    with locked(tmp_path / "lock", within=1, late=late):
        waiting.start()
        assert not entered.wait(0.3)
    assert entered.wait(20)
    waiting.join()


def test_a_lock_ends_with_the_process_that_holds_it(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    with locked(tmp_path / "lock", within=20, late=late):
        pass
    holder.communicate()
