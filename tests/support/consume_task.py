"""A task that hosts members, or carries a run out, as Airflow's task runner has it, without an Airflow server.

`python -m tests.support.consume_task supervise JSON` is the supervisor: it starts the task in a process group of its
own, and waits for it. The task answers SIGTERM with `on_kill`, as the task runner does, and goes on. How it ended, and
the XComs that it pushed, are in files of its folder.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

POLL_PERIOD = 0.1
KILLED_AFTER = 5.0
"""Seconds after which Airflow's supervisor follows SIGTERM with SIGKILL."""


def supervise(text: str) -> int:
    """Start the task, and wait for it."""
    folder = Path(json.loads(text)["folder"])
    with (folder / "log").open("ab") as log:
        task = subprocess.Popen(
            [sys.executable, "-m", "tests.support.consume_task", "task", text],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    (folder / "task.pid").write_text(str(task.pid))
    killed = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: killed.set())
    while task.poll() is None and not killed.wait(POLL_PERIOD):
        pass
    if task.poll() is None:
        os.killpg(task.pid, signal.SIGTERM)
        try:
            task.wait(KILLED_AFTER)
        except subprocess.TimeoutExpired:
            os.killpg(task.pid, signal.SIGKILL)
    return task.wait()


def run(text: str) -> int:
    """Run the operator."""
    from airflow.providers.common.compat.sdk import TaskDeferred
    from airflow.sdk.bases.operator import ExecutorSafeguard

    from airflow_kcr.operators.consume import KcrConsumeOperator
    from airflow_kcr.operators.interval import KcrIntervalOperator
    from airflow_kcr.operators.recompute import KcrRecomputeOperator
    from tests.support.airflow_tasks import FakeTask, task_context

    class WritingTask(FakeTask):
        """A task instance whose XComs a test can read from outside."""

        def xcom_push(self, key: str, value: object) -> None:
            """Keep it in the file, whole or not at all."""
            super().xcom_push(key, value)
            (folder / "xcoms.new").write_text(json.dumps(self.xcoms))
            (folder / "xcoms.new").replace(folder / "xcoms.json")

    arguments: dict[str, Any] = json.loads(text)
    folder = Path(arguments["folder"])
    kinds = {"consume": KcrConsumeOperator, "run": KcrIntervalOperator, "recompute": KcrRecomputeOperator}
    operator = kinds[arguments["kind"]](task_id=arguments["task_id"], **arguments["operator"])
    instance = WritingTask(task_id=arguments["task_id"], try_number=arguments["try_number"])

    context = task_context(instance)

    def on_term(number: int, frame: FrameType | None) -> None:
        operator.on_kill()

    signal.signal(signal.SIGTERM, on_term)
    ExecutorSafeguard.tracker.set(operator)
    try:
        resume = getattr(operator, arguments.get("method", "execute"))
        result = resume(context, **arguments.get("kwargs", {}))
        if result is not None:
            instance.xcom_push("return_value", result)
        ended: dict[str, Any] = {"state": "success"}
    except TaskDeferred as deferred:
        path, values = deferred.trigger.serialize()
        then = {"method": deferred.method_name, "kwargs": deferred.kwargs or {}}
        ended = {"state": "deferred", "trigger": path, "values": values, **then}
    except Exception as error:  # noqa: BLE001 - told in the file
        ended = {"state": type(error).__name__, "message": str(error)}
    (folder / "ended.new").write_text(json.dumps(ended))
    (folder / "ended.new").replace(folder / "ended.json")
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
    os.environ.setdefault("AIRFLOW__CORE__UNIT_TEST_MODE", "False")
    sys.exit({"supervise": supervise, "task": run}[sys.argv[1]](sys.argv[2]))
