"""Consumers as Airflow starts them: tasks with a supervisor each, real spark-submit, real broker, real store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from airflow_kcr.embedded.jars import QUICK_START
from airflow_kcr.embedded.processes import happened
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import Outcome
from airflow_kcr.protocol.values import MemberId
from tests.support.airflow_home import connection_json
from tests.support.consume_pipeline import OUTPUT
from tests.support.faults import told
from tests.support.kafka import Kafka
from tests.support.member_accounts import Account
from tests.support.members import TOP, Live, live
from tests.support.plain_engine import read_output

SPEC = """\
batch: {target: 500ms, min_records: 50, max_records: 200, timeout: 60s}
timeouts: {lease: 6s, renew: 1s, session: 60s, relaunch: 45s, reset: 100s, drain: 90s, commit: 10s, close: 6s}
"""
RECORDS = 750
"""Of each partition, for some seconds of work."""

SPARK_SUBMIT = "org.apache.spark.deploy.SparkSubmit"

CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": " ".join(QUICK_START),
    "spark.ui.port": "0",
}


@dataclass(slots=True, kw_only=True)
class Task:
    """One try of a task."""

    supervisor: subprocess.Popen[bytes]
    folder: Path
    arguments: Mapping[str, object]
    """Of `consume_task`."""

    environment: Mapping[str, str]
    seen: set[int] = field(default_factory=set)
    """Every process that belonged to it, at some look."""

    @property
    def pid(self) -> int:
        """Of the task's process."""
        return int((self.folder / "task.pid").read_text())

    @property
    def ended(self) -> dict[str, Any] | None:
        """How it ended; None: it has not, or that is unknown."""
        file = self.folder / "ended.json"
        return json.loads(file.read_text()) if file.exists() else None

    @property
    def xcoms(self) -> dict[str, Any]:
        """What it has pushed."""
        file = self.folder / "xcoms.json"
        return json.loads(file.read_text()) if file.exists() else {}

    @property
    def application(self) -> dict[str, Any]:
        """What its driver has said of itself."""
        return dict(self.xcoms.get("kcr_application", {}))

    @property
    def driver(self) -> int:
        """Process id of the driver."""
        return int(self.application["pid"])

    @property
    def jvm(self) -> int:
        """Process id of spark-submit's JVM."""
        return psutil.Process(self.driver).ppid()

    def said(self) -> str:
        """The task's log."""
        file = self.folder / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    def is_running(self) -> bool:
        """Whether its process is there."""
        return _runs(self.pid)

    def kill_from_the_page(self) -> None:
        """Mark it failed, or clear it: the supervisor sends SIGTERM to its group, and SIGKILL five seconds later."""
        self.supervisor.terminate()

    def kill(self) -> None:
        """SIGKILL of its group, the supervisor's last word, or the kernel's."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


@dataclass(slots=True, kw_only=True)
class Consumers:
    """A region and the tasks that consume for it."""

    live: Live
    jars: tuple[Path, ...]
    folder: Path
    tasks: list[Task] = field(default_factory=list)

    @property
    def output(self) -> Path:
        """What the pipelines write."""
        return self.folder / "output.jsonl"

    def start(
        self,
        *indexes: int,
        try_number: int = 1,
        task_id: str = "consume",
        kind: str = "consume",
        master: str = "local[2,2]",
        environment: Mapping[str, str] | None = None,
        **options: Any,  # noqa: ANN401
    ) -> Task:
        """Start a try of a task that hosts members (`consume`), carries a run out (`run`), or recomputes one."""
        operator = {
            "region": self.live.name,
            **({"group_id": self.live.group, "indexes": indexes} if indexes else {}),
            "jars": ",".join(map(str, self.jars)),
            "conf": CONF,
            **options,
        }
        arguments = {"kind": kind, "task_id": task_id, "try_number": try_number, "operator": operator}
        environ = {
            **os.environ,
            "PYTHONPATH": str(TOP),
            "AIRFLOW_CONN_KCR_DEFAULT": connection_json(self.live.url),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": master}),
            OUTPUT: str(self.output),
            **(environment or {}),
        }
        return self._started(arguments, environ)

    def resume(self, task: Task, event: Mapping[str, object]) -> Task:
        """Have a deferred task go on, which its trigger has told this."""
        assert task.ended is not None
        then = {"method": task.ended["method"], "kwargs": {"event": event, **task.ended["kwargs"]}}
        return self._started({**task.arguments, **then}, task.environment)

    def _started(self, arguments: Mapping[str, object], environ: Mapping[str, str]) -> Task:
        folder = self.folder / f"task-{len(self.tasks) + 1}"
        folder.mkdir()
        text = json.dumps({**arguments, "folder": str(folder)})
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "tests.support.consume_task", "supervise", text],
            cwd=TOP,
            env=environ,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        task = Task(supervisor=supervisor, folder=folder, arguments=arguments, environment=environ)
        self.tasks.append(task)
        return task

    def until(self, condition: Callable[[], bool], what: str, within: float = 180.0) -> None:
        """Wait for a condition, or fail with what the tasks said; on the way no member may live twice."""

        def is_so() -> bool:
            self.look()
            return condition()

        if not happened(is_so, within=within, pause=0.1):
            said = "\n".join(f"--- {task.folder.name} {task.ended}\n{task.said()[-3000:]}" for task in self.tasks)
            region = self.live.region()
            raise AssertionError(f"not within {within} s: {what}; {region.state}, epoch {region.epoch}\n{said}")

    def until_hosting(self, task: Task, *indexes: int) -> None:
        """Wait until a task's application has its members registered, and the region runs."""
        wanted = {str(self.live.member(index)) for index in indexes}
        self.until(lambda: set(task.application.get("members", ())) == wanted, f"hosting {indexes}")
        self.live.until_running(within=120)

    def until_written(self, more: int, within: float = 180.0) -> None:
        """Wait until N further records are written: a member is in the middle of its work."""
        there = self.lines()
        self.until(lambda: self.lines() >= there + more, f"{more} more records written", within)

    def until_gone(self, task: Task, within: float = 120.0) -> None:
        """Wait until driver, JVM and task are gone."""
        self.look()
        self.until(lambda: not any(map(_runs, task.seen)), "everything of the task gone", within)

    def work(self) -> None:
        """Return when an application is in the middle of its work."""
        self.live.fill(RECORDS)
        self.until_written(200)

    def undone(self, incarnation: int) -> list[str]:
        """Return the batches of an incarnation that did not count, or count no more.

        Members that come back one after the other may begin a reset by their claims, on a busy machine; what the
        drained ones did is not touched by that.
        """
        batches = [batch for batch in self.live.store.batches(self.live.name) if batch.incarnation == incarnation]
        assert batches
        return [batch.batch for batch in batches if batch.outcome is not Outcome.DONE or batch.undone_from]

    def lines(self) -> int:
        """How many lines of output there are."""
        return len(read_output([self.output]))

    def look(self) -> None:
        """Remember which processes there are."""
        for task in self.tasks:
            task.seen |= self.belonging(task)

    def belonging(self, task: Task) -> set[int]:
        """The processes of a task: its own, its application's."""
        found = {task.pid} if (task.folder / "task.pid").exists() else set()
        application = task.application
        if application.get("pid"):
            found.add(int(application["pid"]))
        for pid in tuple(found):
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                found |= {child.pid for child in process.children(recursive=True)}
                above = process.parent()
                if pid == application.get("pid") and above is not None and SPARK_SUBMIT in above.cmdline():
                    found.add(above.pid)
        return found

    def left(self) -> set[int]:
        """Processes of the tasks that still run."""
        self.look()
        return {pid for task in self.tasks for pid in task.seen if _runs(pid)}

    def account(self) -> Account:
        """Judge the history, and the output by counting."""
        return self.live.account(rows=read_output([self.output]))

    def incarnations(self, member: MemberId) -> list[events.MemberRegistered]:
        """Every start of a member."""
        return [body for body in told(self.live, events.MemberRegistered) if body.member == member]

    def end(self) -> None:
        """End what is left."""
        self.look()
        for task in self.tasks:
            task.supervisor.kill()
            task.supervisor.wait(30)
        for pid in self.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def consumers(kafka: Kafka, url: str, folder: Path, jars: tuple[Path, ...], *, members: int = 1) -> Iterator[Consumers]:
    """Lend a region of two partitions, and tasks for it; at the end all of their processes are ended."""
    pipeline = "tests.support.consume_pipeline:process"
    with live(kafka, url, folder, members=members, partitions=2, spec=SPEC, pipeline=pipeline) as region:
        one = Consumers(live=region, jars=jars, folder=folder)
        try:
            yield one
        finally:
            one.end()


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
