from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.driver import task as task_module
from airflow_kcr.driver.task import Task, process_state
from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import ConfigurationError

WITHIN = 30.0


def task_of(process: subprocess.Popen[bytes]) -> Task:
    state = process_state(process.pid)
    assert state is not None
    return Task(pid=process.pid, started=state.started, parent=state.parent)


def test_a_task_survives_the_way_through_the_environment() -> None:
    task = Task.of_this_process("dag/run/consume/0/try 1", timedelta(seconds=7.5))
    assert Task.from_environment(task.environment()) == task
    assert not task.is_gone()


def test_where_no_task_started_the_application_there_is_none() -> None:
    assert Task.from_environment({}) is None


@pytest.mark.parametrize(("name", "value"), [("KCR_TASK_PID", "me"), ("KCR_TASK_GONE_DRAIN", "soon")])
def test_what_no_task_writes_is_refused_with_the_names(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=r"KCR_TASK_PID.*are numbers"):
        Task.from_environment({"KCR_TASK_PID": "1", name: value})


def test_a_process_that_ended_is_gone_even_before_it_is_buried(process: subprocess.Popen[bytes]) -> None:
    task = task_of(process)
    assert not task.is_gone()
    os.kill(process.pid, signal.SIGKILL)
    assert happened(task.is_gone, within=WITHIN)
    process.wait()
    assert task.is_gone()


def test_another_process_of_the_same_id_is_not_the_task(process: subprocess.Popen[bytes]) -> None:
    task = task_of(process)
    assert replace(task, started=task.started + 1).is_gone()


def test_a_task_without_its_supervisor_is_gone(process: subprocess.Popen[bytes]) -> None:
    task = task_of(process)
    assert task.parent == os.getpid()
    assert replace(task, parent=task.parent + 1).is_gone()


def test_without_a_proc_file_system_the_process_id_has_to_do(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_module, "process_state", task_module._state_without_proc)
    task = Task(pid=process.pid, started=5, parent=6)
    assert not task.is_gone()
    process.kill()
    process.wait()
    assert task.is_gone()


def test_a_program_may_have_brackets_in_its_name() -> None:
    program = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'a) S (b', 0, 0, 0); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        state = process_state(process.pid)
        process.kill()
    assert state is not None
    assert state.parent == os.getpid()
