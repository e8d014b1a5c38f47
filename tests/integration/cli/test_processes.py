"""`kcr` as a process of its own: what it imports, what it writes where, and what Ctrl-C ends."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_kcr.protocol.region.commands import KillRegion
from tests.support.driver import START, Driver
from tests.support.live_region import live_region

DEADLINE = 60
KCR = [sys.executable, "-c", "from airflow_kcr.cli import main; main()"]
HEAVY = ("confluent_kafka", "pyspark", "sqlalchemy", "psycopg", "pandas", "alembic", "pendulum", "yaml")


@pytest.fixture
def driver(database_url: str) -> Iterator[Driver]:
    with live_region(database_url) as driver:
        yield driver


@pytest.fixture
def environment(database_url: str) -> dict[str, str]:
    return {**os.environ, "KCR_STORE_URL": database_url, "PYTHONPATH": str(Path(__file__).parents[3])}


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*KCR, *arguments], env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
    )


@contextmanager
def running(environment: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command that is going on; it is gone at the end of the block."""
    process = subprocess.Popen(
        [*KCR, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


HELPS = ("--help", "--version", "region --help", "region drain --help", "events --help")


def test_help_imports_nothing_heavy() -> None:
    program = (
        f"import sys\nfrom airflow_kcr.cli import main\nfor asked in {HELPS}:\n    sys.argv = ['kcr', *asked.split()]\n"
        "    try:\n        main()\n    except SystemExit as end:\n        assert not end.code, (asked, end.code)\n"
        f"    print('LOADED', asked, [name for name in {HEAVY} if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert ran.returncode == 0, ran.stderr
    loaded = [line for line in ran.stdout.splitlines() if line.startswith("LOADED")]
    assert loaded == [f"LOADED {asked} []" for asked in HELPS]


def test_a_result_in_a_pipe_is_json_and_nothing_else(environment: dict[str, str], driver: Driver) -> None:
    ran = run(environment, "region", "show", "flights")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["region"] == "flights"


def test_a_terminal_gets_a_table(environment: dict[str, str], driver: Driver) -> None:
    driver.up()
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*KCR, "region", "show", "flights"], env={**environment, "TERM": "dumb", "COLUMNS": "120"}, stdout=theirs
    ) as process:
        os.close(theirs)
        text = _read_all(ours)
        assert process.wait(DEADLINE) == 0
    assert "g[0]" in text
    assert "t 0-1" in text
    assert "{" not in text


def test_who_is_missing_is_shown_at_a_terminal_and_ctrl_c_gives_it_back(
    environment: dict[str, str], driver: Driver
) -> None:
    ours, theirs = pty.openpty()
    command = [*KCR, "region", "start", "flights", "--skip-topic-check", "--wait"]
    terminal = {**environment, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, env=terminal, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while b"g[1] is not there" not in shown:
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        text = shown.decode() + _read_all(ours)
        assert process.wait(DEADLINE) == 130
    assert "waiting for flights to run (starting)" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is there again"
    assert "the wait ended" in text


@pytest.mark.parametrize(("answer", "status", "left"), [("n", 1, ["flights"]), ("y", 0, [])])
def test_a_person_is_asked_before_a_region_is_deleted(
    environment: dict[str, str], driver: Driver, answer: str, status: int, left: list[str]
) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    ran = subprocess.run(
        [*KCR, "region", "delete", "flights"],
        env=environment,
        stdin=theirs,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    os.close(theirs)
    os.close(ours)
    assert ran.returncode == status
    assert "Delete region flights" in ran.stderr
    assert list(driver.store.names()) == left


def _read_all(descriptor: int) -> str:
    """Return what is written to a terminal until its other end is closed."""
    found = b""
    while True:
        try:
            part = os.read(descriptor, 4096)
        except OSError:  # how Linux says that a terminal's other end is closed
            part = b""
        if not part:
            os.close(descriptor)
            return found.decode()
        found += part


def _said(process: subprocess.Popen[str], what: str) -> str:
    """Return the first line on standard error that has these words."""
    assert process.stderr is not None
    return next(line for line in process.stderr if what in line)


def test_ctrl_c_ends_the_wait_and_not_the_region(environment: dict[str, str], driver: Driver) -> None:
    with running(environment, "region", "start", "flights", "--skip-topic-check", "--wait") as process:
        assert "g[0] is not there" in _said(process, "waiting for")
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert out == ""
    assert "the wait ended, region flights goes on" in said
    assert "Traceback" not in said
    assert (driver.region.state, driver.region.desired_state) == ("starting", "running")


def test_progress_goes_to_standard_error_and_the_result_to_standard_output(
    environment: dict[str, str], driver: Driver
) -> None:
    with running(environment, "region", "start", "flights", "--skip-topic-check", "--wait") as process:
        assert "flights to run (starting)" in _said(process, "waiting for")
        for member in driver.all_members():
            driver.join(member)
        driver.spread()
        driver.finish_reset()
        out, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0
    assert json.loads(out)["state"] == "running"


def test_events_are_followed_as_they_happen(environment: dict[str, str], driver: Driver) -> None:
    with running(environment, "events", "flights", "--follow", "-o", "json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["kind"] == "RegionCreated"
        driver.handle(START)
        assert json.loads(process.stdout.readline())["kind"] == "DesiredStateChanged"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert "Traceback" not in said


def test_a_reader_that_goes_away_is_no_disaster(environment: dict[str, str], driver: Driver) -> None:
    with running(environment, "events", "flights", "--follow", "-o", "json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        deadline = time.monotonic() + DEADLINE
        while process.poll() is None and time.monotonic() < deadline:
            driver.handle(START)
            driver.handle(KillRegion())
            time.sleep(0.1)  # the other process has to get its turn
        assert "Traceback" not in process.stderr.read()
        process.stdout = None
    assert process.returncode == 1


def test_names_of_regions_are_completed_from_the_store(environment: dict[str, str], driver: Driver) -> None:
    shell = {"_KCR_COMPLETE": "complete_bash", "COMP_WORDS": "kcr region show fl", "COMP_CWORD": "3"}
    program = "from airflow_kcr.cli import app; app(prog_name='kcr')"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, **shell},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert ran.stdout.split() == ["flights"], ran.stderr
    away = {**environment, **shell, "KCR_STORE_URL": "postgresql://127.0.0.1:1/kcr"}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=away, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert (ran.stdout.strip(), ran.stderr) == ("", "")
