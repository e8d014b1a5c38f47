"""Consumers in deploy mode `cluster`, whichever the cluster: hand-over, deferral, and what is consumed meanwhile.

What stands for Airflow is a supervisor and a task, as in `test_consume_processes`, and the deferred task's trigger.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pyarrow.dataset

from airflow_kcr.api import Region
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.spec import parse
from airflow_kcr.triggers.payloads import Status, TriggerAnswer
from airflow_kcr.triggers.waits import RegionTrigger
from tests.support.consume import RECORDS, Consumers, Task
from tests.support.driver import STOP

COMING = 400.0
"""Seconds for a hand-over, and for the driver's start in its container."""

TOLD_WITHIN = 15.0
"""Seconds from the end of a driver, as the cluster tells of it, to the next try's turn."""


@dataclass(slots=True, kw_only=True)
class ConsumersInCluster(ABC):
    """A region whose consumers run in a cluster."""

    found: Consumers

    @abstractmethod
    def options(self) -> Mapping[str, Any]:
        """Return what a task says of the cluster: master, settings and environment of its own."""

    @abstractmethod
    def ended(self, task: Task) -> bool | None:
        """Whether the cluster says that a task's application has succeeded; None: it is not over."""

    def hand_over(self, try_number: int = 1) -> Task:
        """Start a try, and return when the cluster has taken its application and its member has come."""
        found, before = self.found, len(self.found.incarnations(self.found.live.member(0)))
        task = found.start(0, try_number=try_number, deploy_mode="cluster", **self.options())
        self.until_deferred(task)
        member = found.live.member(0)
        found.until(lambda: len(found.incarnations(member)) > before, "its member has come", COMING)
        found.live.until_running(within=120)
        return task

    @abstractmethod
    def kill(self, task: Task) -> None:
        """Kill the driver of a task's application."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether neither a driver nor an executor runs in the cluster."""

    def start(self, kind: str, name: str, try_number: int = 1, **options: Any) -> Task:  # noqa: ANN401
        """Start a try of a task that carries a run out or recomputes it, until the cluster has its application."""
        options = {"deploy_mode": "cluster", **self.options(), **options}
        task = self.found.start(kind=kind, task_id=name, try_number=try_number, **options)
        self.until_deferred(task)
        return task

    def until_deferred(self, task: Task) -> None:
        """Wait until a task has handed its application over, and its own process is over."""
        self.found.until(lambda: task.ended is not None, "the application handed over", COMING)
        assert task.ended is not None
        assert task.ended["state"] == "deferred", task.said()
        task.supervisor.wait(30)

    def end(self, task: Task) -> Mapping[str, Any]:
        """Wait for the end of what a task does, whose driver leaves nothing behind, and return its result."""
        assert self.ended(task) is None
        event = self.answer(task)
        assert event.status is Status.REACHED, event
        self.until_over(task)
        assert self.ended(task)
        self.found.until(self.is_empty, "nothing runs any more")
        assert self.found.live.region().state is RegionState.STOPPED
        resumed = self.found.resume(task, event.to_json())
        self.found.until(lambda: resumed.ended is not None, "the task resumed")
        assert resumed.ended == {"state": "success"}, resumed.said()
        return dict(resumed.xcoms["return_value"])

    def require_intervals(self) -> None:
        """Have two intervals run, the second one with a driver that is killed on its way; recompute the first."""
        live = self.found.live
        live.handle(STOP)
        live.until(lambda: live.region().state is RegionState.STOPPED, "stopped")
        lake = self.found.folder / "lake"
        with Region(live.name, live.store) as region:
            spec = region.spec().to_json()
            spec["groups"][0]["sinks"] = {"out": {"kind": "files", "path": str(lake)}}
            region.apply(parse(json.dumps(spec)))

        def records(listed: str) -> Counter[tuple[int, int]]:
            manifests = [json.loads(one.read_text().splitlines()[0]) for one in (lake / listed).rglob("*.json")]
            files = [str(lake / file["path"]) for manifest in manifests for file in manifest["files"]]
            rows = pyarrow.dataset.dataset(files).to_table(["kcr_partition", "kcr_offset"]).to_pylist()
            return Counter((row["kcr_partition"], row["kcr_offset"]) for row in rows)

        def wanted(each: int) -> Counter[tuple[int, int]]:
            return Counter(product(range(2), range(each)))

        live.fill(RECORDS)
        until = datetime.now(UTC).isoformat()
        live.fill(2 * RECORDS)
        first = self.end(self.start("run", "first", until=until))
        assert records("manifests") == wanted(RECORDS)

        killed = self.start("run", "second")
        said = self.watched(killed)
        self.found.until_written(200, COMING)
        self.kill(killed)
        self.until_over(killed)
        assert said.result(TOLD_WITHIN).status is not Status.REACHED
        assert self.found.lines() < 6 * RECORDS
        second = self.end(self.start("run", "second", try_number=2))
        assert second["sequence"] > first["sequence"]
        assert records("manifests") == wanted(3 * RECORDS)
        account = self.found.account()
        assert account.is_sound, account

        again = self.end(self.start("recompute", "again", checkpoint=first["sequence"]))
        assert (again["sequence"], again["revision"]) == (first["sequence"], 1)
        assert records("revisions") == wanted(RECORDS)

    def application(self, task: Task) -> str:
        """The cluster's name for a task's application."""
        return str(task.application["application"])

    def until_over(self, task: Task) -> None:
        """Wait until the cluster has nothing of an application left."""
        self.found.until(lambda: self.ended(task) is not None, "the application over")

    def answer(self, task: Task) -> TriggerAnswer:
        """Return what the trigger of a deferred task says, once it does."""
        made = trigger(task)

        async def main() -> TriggerAnswer:
            async for event in made.run():
                return TriggerAnswer.from_json(event.payload)
            raise AssertionError("the trigger ended without an event")

        return asyncio.run(asyncio.wait_for(main(), COMING))

    def watched(self, task: Task) -> Future[TriggerAnswer]:
        """Return what the trigger of a task will say, which watches from now on."""
        return ThreadPoolExecutor(1, "trigger").submit(self.answer, task)

    def take_over(self) -> None:
        """Have the next try go on, and everything be consumed."""
        second = self.hand_over(try_number=2)
        self.found.work()
        self.finish(second)

    def finish(self, task: Task) -> None:
        """Let everything be consumed, stop the region, and judge."""
        found = self.found
        found.until(found.live.consumed, "everything consumed", within=180)
        found.live.checkpoint()
        found.live.store.handle(found.live.name, STOP)
        assert self.answer(task).status is Status.REACHED
        self.until_over(task)
        assert self.ended(task)
        account = found.account()
        assert account.is_sound, account


def trigger(task: Task) -> RegionTrigger:
    """Return the trigger of a deferred task, as a triggerer makes it."""
    assert task.ended is not None
    return RegionTrigger(**task.ended["values"])
