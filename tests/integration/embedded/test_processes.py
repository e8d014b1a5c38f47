"""Services' processes: what becomes of them when they, or we, end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from airflow_kcr.embedded import processes
from airflow_kcr.embedded.processes import Launch, Program, ServiceProcess, happened, start_detached
from airflow_kcr.errors import ServiceFailed
from tests.support.tied import start_tied

READY = "echo ready; "
# A service with a child of its own, that says which.
FAMILY = "sleep 100 & echo child $!; wait"
DEAF = "trap '' TERM; echo ready; while :; do sleep 1; done"

LAUNCHES = pytest.mark.parametrize("launch", [start_tied, start_detached])


def program(log: Path, *command: str) -> Program:
    return Program(name="the service", command=command, log=log)


def run(launch: Launch, folder: Path, script: str, words: str = "ready") -> ServiceProcess:
    child = launch(program(folder / "logs" / "service.log", "/bin/sh", "-c", script))
    child.wait_until(lambda: child.has_logged(words), within=10)
    return child


def child_of(child: ServiceProcess) -> int:
    return int(child.log.read_text().split("child ")[1].split()[0])


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = {process.pid for process in psutil.process_iter()}
    yield
    mine = psutil.Process()

    def left() -> list[psutil.Process]:
        return [one for one in mine.children(recursive=True) if one.pid not in before]

    assert happened(lambda: not left(), within=10), left()


@LAUNCHES
def test_a_stopped_service_takes_along_what_it_started(launch: Launch, tmp_path: Path) -> None:
    child = run(launch, tmp_path, FAMILY, "child")
    inner = child_of(child)
    child.stop()
    assert gone(child.pid)
    assert gone(inner)


@LAUNCHES
def test_a_killed_service_takes_along_what_it_started(launch: Launch, tmp_path: Path) -> None:
    child = run(launch, tmp_path, FAMILY, "child")
    inner = child_of(child)
    child.kill()
    assert not child.alive
    assert gone(inner)


@LAUNCHES
def test_what_a_dead_service_has_left_is_ended_too(launch: Launch, tmp_path: Path) -> None:
    child = run(launch, tmp_path, FAMILY, "child")
    inner = child_of(child)
    os.kill(child.pid, signal.SIGKILL)
    assert happened(lambda: not child.alive, within=10)
    assert not gone(inner)
    child.stop()
    assert gone(inner)


@LAUNCHES
def test_a_service_that_does_not_listen_is_killed(launch: Launch, tmp_path: Path) -> None:
    child = run(launch, tmp_path, DEAF)
    child.stop(within=0.2)
    assert not child.alive


@LAUNCHES
def test_a_suspended_service_can_be_stopped(launch: Launch, tmp_path: Path) -> None:
    child = run(launch, tmp_path, "sleep 100 & trap 'echo asked; exit' TERM; echo ready; wait")
    child.signal_all(signal.SIGSTOP)
    assert happened(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED, within=10)
    child.stop()
    assert not child.alive
    assert child.has_logged("asked")


@LAUNCHES
@pytest.mark.timeout(60)
def test_a_shell_that_says_nothing_is_not_waited_for_without_end(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "SHELL_WITHIN", 0.3)
    monkeypatch.setattr(processes, "_DETACH", "kill -STOP $$; " + processes._DETACH)
    with pytest.raises(ServiceFailed, match=r"could not be started: .* timed out after 0\.3 seconds"):
        run(launch, tmp_path, READY)


def test_a_service_that_ends_says_so_with_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServiceFailed, match=r"the service ended; the end of its log .*:\nno such thing"):
        run(start_tied, tmp_path, "echo no such thing; exit 3")


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    child = start_tied(program(tmp_path / "log", str(tmp_path / "nothing-here")))
    with pytest.raises(ServiceFailed, match=r"(?s)the service ended.*nothing-here.*not found"):
        child.wait_until(lambda: False, within=10)


def test_a_service_that_is_not_ready_in_time_is_stopped(tmp_path: Path) -> None:
    child = start_tied(program(tmp_path / "log", "/bin/sleep", "100"))
    with pytest.raises(ServiceFailed, match=r"was not ready within 0\.1 s"):
        child.wait_until(lambda: False, within=0.1)
    assert not child.alive


def test_only_what_was_logged_since_the_start_counts(tmp_path: Path) -> None:
    run(start_tied, tmp_path, READY + "sleep 100").stop()
    with pytest.raises(ServiceFailed, match="the service ended"):
        run(start_tied, tmp_path, "exit 0")


def test_another_process_with_the_pid_of_a_recorded_one_is_left_alone(tmp_path: Path) -> None:
    child = run(start_tied, tmp_path, READY + "sleep 100")
    former = ServiceProcess(child.pid, child.pid, child.started - 3600)
    former.stop()
    former.kill()
    former.signal_all(signal.SIGKILL)
    assert not former.alive
    assert child.alive
    child.stop()


# What starts a service and then waits, to be killed.
STARTER = """
import sys, threading, time
from pathlib import Path
from airflow_kcr.embedded.processes import Program, start_detached
from tests.support.tied import start_tied

def start():
    log = Path(sys.argv[2])
    command = ["/bin/sh", "-c", "sleep 100 & echo child $!; wait"]
    child = globals()[sys.argv[1]](Program(name="s", command=command, log=log))
    child.wait_until(lambda: child.has_logged("child"), within=10)
    kept.append(child)
    print(child.pid, child.group, child.started, flush=True)

kept = []
starting = threading.Thread(target=start)
starting.start()
starting.join()
time.sleep(100)
"""


def starter(launch: str, log: Path, top: Path) -> tuple[subprocess.Popen[str], ServiceProcess]:
    process = subprocess.Popen(
        [sys.executable, "-c", STARTER, launch, str(log)],
        env={**os.environ, "PYTHONPATH": str(top)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    pid, group, started = process.stdout.readline().split()
    return process, ServiceProcess(int(pid), int(group), float(started))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_tied_service_ends_with_the_process_that_started_it_but_not_with_the_thread(
    number: signal.Signals, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    process, recorded = starter("start_tied", tmp_path / "log", pytestconfig.rootpath)
    inner = int((tmp_path / "log").read_text().split("child ")[1])
    assert recorded.alive  # the thread that started it is gone
    process.send_signal(number)
    process.communicate(timeout=500)
    assert happened(lambda: not recorded.alive and gone(inner), within=10)


def test_a_detached_service_outlives_the_process_that_started_it(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    process, recorded = starter("start_detached", tmp_path / "log", pytestconfig.rootpath)
    inner = int((tmp_path / "log").read_text().split("child ")[1])
    process.kill()
    process.communicate(timeout=500)
    assert recorded.alive
    recorded.stop()
    assert gone(recorded.pid)
    assert gone(inner)
