"""A thread that does one thing after the other."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeAlias

Task: TypeAlias = Callable[[], None]


class Worker:
    """Runs tasks one after the other in a thread of its own.

    A task that raises is a fault of the program, or one that a member can't answer: it ends the worker and is reported.

    Args:
        name: the thread's.
        failed: told what a task raised, in this thread.
        thread: makes the thread; where tasks run Spark jobs, one that inherits the properties of its maker.
    """

    def __init__(
        self,
        name: str,
        failed: Callable[[BaseException], None],
        thread: Callable[..., threading.Thread] = threading.Thread,
    ) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._failed = failed
        self._thread = thread(target=self._run, name=name)
        self._thread.daemon = True
        self._thread.start()

    def post(self, task: Task) -> None:
        """Have a task done after all that were posted before."""
        self._tasks.put(task)

    def end(self) -> None:
        """End after the tasks that were posted before; returns at once."""
        self._tasks.put(None)

    def join(self, timeout: float) -> bool:
        """Wait until the worker has ended; return whether it has, within `timeout` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except BaseException as error:  # noqa: BLE001 - reported, not swallowed: the worker's owner ends
                self._failed(error)
                return
