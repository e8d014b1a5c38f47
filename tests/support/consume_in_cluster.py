"""Consumers in deploy mode `cluster`, whichever the cluster: hand-over, deferral, and what is consumed meanwhile.

What stands for Airflow is a supervisor and a task, as in `test_consume_processes`, and the deferred task's trigger.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from airflow_kcr.triggers.payloads import Status, TriggerAnswer
from airflow_kcr.triggers.waits import RegionTrigger
from tests.support.consume import Consumers, Task
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
