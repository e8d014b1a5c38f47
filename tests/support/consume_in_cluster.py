"""Consumers in deploy mode `cluster`, whichever the cluster: hand-over, deferral, and what is consumed meanwhile.

What stands for Airflow is a supervisor and a task, as in `test_consume_processes`, and the deferred task's trigger.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_kcr.protocol.region.rows import Outcome
from airflow_kcr.triggers.payloads import Status, TriggerAnswer
from airflow_kcr.triggers.waits import RegionTrigger
from tests.support.consume import Consumers, Task
from tests.support.driver import STOP

SPEC = """\
batch: {target: 500ms, min_records: 50, max_records: 200, timeout: 60s}
timeouts: {lease: 6s, renew: 1s, session: 60s, relaunch: 45s, reset: 100s, drain: 90s, commit: 10s, close: 6s}
"""
PIPELINE = "tests.support.consume_pipeline:process"
RECORDS = 750
"""Of each partition, for some seconds of work."""

COMING = 400.0
"""Seconds for a hand-over, and for the driver's start in its container."""


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

    @abstractmethod
    def executors(self) -> set[str]:
        """Return the executors that run."""

    def hand_over(self, try_number: int = 1) -> Task:
        """Start a try, and return when the cluster has taken its application and its member has come."""
        found, before = self.found, len(self.found.incarnations(self.found.live.member(0)))
        task = found.start(0, try_number=try_number, deploy_mode="cluster", **self.options())
        found.until(lambda: task.ended is not None, "the application handed over", COMING)
        assert task.ended is not None
        assert task.ended["state"] == "deferred", task.said()
        member = found.live.member(0)
        found.until(lambda: len(found.incarnations(member)) > before, "its member has come", COMING)
        found.live.until_running(within=120)
        return task

    def application(self, task: Task) -> str:
        """The cluster's name for a task's application."""
        return str(task.application["application"])

    def work(self) -> None:
        """Return when an application is in the middle of its work."""
        self.found.live.fill(RECORDS)
        self.found.until_written(200)

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

    def replaces(self, lose: Callable[[str], None]) -> Task:
        """Hand a task over and lose its one executor; return the task when Spark has another one."""
        task = self.hand_over()
        self.work()
        (lost,) = self.executors()
        lose(lost)
        self.found.until(lambda: bool(self.executors() - {lost}), "another executor")
        return task

    def goes_on(self, task: Task) -> None:
        """See work go on to the end, in the same process."""
        self.work()
        assert len(self.found.incarnations(self.found.live.member(0))) == 1
        self.finish(task)

    def is_taken_over_after(self, lose: Callable[[Task], None]) -> None:
        """Lose an application: its task fails, and the next try goes on to the end."""
        first = self.hand_over()
        self.work()
        lose(first)
        self.until_over(first)
        assert not self.ended(first)
        assert self.answer(first).status is not Status.REACHED
        self.found.until(lambda: not self.executors(), "its executors over")
        second = self.hand_over(try_number=2)
        self.work()
        self.finish(second)


def trigger(task: Task) -> RegionTrigger:
    """Return the trigger of a deferred task, as a triggerer makes it."""
    assert task.ended is not None
    return RegionTrigger(**task.ended["values"])


def undone(found: Consumers, incarnation: int) -> list[str]:
    """Return the batches of an incarnation that did not count, or count no more."""
    batches = [batch for batch in found.live.store.batches(found.live.name) if batch.incarnation == incarnation]
    assert batches
    return [batch.batch for batch in batches if batch.outcome is not Outcome.DONE or batch.undone_from]
