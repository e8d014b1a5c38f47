"""Watches the parts that an application can't do without, also while nothing is asked of them.

A part that is gone, or has not answered for as long as a lease, ends the members: this incarnation can do nothing
without it, and its partitions would stand still for as long as its lease is renewed. The members leave their group, so
that others take over as soon as the lease is over, and the process starts anew. The store and Kafka are no such parts:
members wait for them.

A thread of ours that ends by an error is such a part, too: whatever it was to do is not done any more, and it was the
only one to notice.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from traceback import walk_tb
from typing import Final

from airflow_kcr.driver.member_pool import MemberPool
from airflow_kcr.driver.parent_watchdog import GRACE
from airflow_kcr.driver.task import process_state
from airflow_kcr.spark.engine import EngineLost
from airflow_kcr.spark.pulse import Pulse

POLL_PERIOD: Final = 0.5
"""Seconds between two looks at the parts."""

_PACKAGE: Final = __name__.partition(".")[0]
_LOG = logging.getLogger(__name__)


class Watch:
    """Watches Spark's JVM and the members' loops, and ends the members when one of them is gone or silent.

    Args:
        pulse: the JVM's.
        end_process: ends this process at once, with a reason.
    """

    def __init__(self, pulse: Pulse, end_process: Callable[[str], None]) -> None:
        self.pulse, self._end_process = pulse, end_process
        self._within: timedelta | None = None
        self._pool: MemberPool | None = None
        self._is_ending = False
        self._silences: dict[str, tuple[int, float]] = {}
        """For each part, how often it had answered when it was last looked at, and the seconds since it did."""

        self._over = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch for as long as the block lasts."""
        before = threading.excepthook
        threading.excepthook = partial(self._thread_trouble, before)
        self.pulse.start()
        threading.Thread(target=self._run, name="watches the parts", daemon=True).start()
        try:
            yield
        finally:
            threading.excepthook = before
            self._over.set()
            self.pulse.end()

    def begin(self, within: timedelta) -> None:
        """Have an application start.

        Args:
            within: how long a part may be silent.
        """
        self._within, self._is_ending = within, False

    @contextmanager
    def holding(self, pool: MemberPool) -> Iterator[None]:
        """Watch members, too; after the block their application ends, and what goes then was to go."""
        self._pool = pool
        try:
            yield
        finally:
            self._is_ending, self._pool = True, None

    def _run(self) -> None:
        while not self._over.wait(POLL_PERIOD):
            why = self._jvm_trouble() or self._loop_trouble()
            if why and not self._may_go():
                self._end(why)
                return

    def _end(self, why: str) -> None:
        pool = self._pool
        if pool is not None:
            _LOG.critical("the members end: %s", why)
            pool.fail(EngineLost(why))
            if self._over.wait(pool.close_time + GRACE):
                return
        if not self._over.is_set():
            self._end_process(why)

    def _may_go(self) -> bool:
        """Whether the members end already, and tell the store before they go: Ctrl-C ends the JVM at the same time."""
        pool = self._pool
        return self._is_ending or (pool is not None and pool.is_ending)

    def _jvm_trouble(self) -> str:
        pulse, within = self.pulse, self._within
        if pulse.pid is not None and process_state(pulse.pid) is None:
            return "Spark's JVM is gone"
        if pulse.is_stopped and self._pool is not None:
            return "Spark has stopped"
        if within is None or not pulse.is_connected or not self._is_silent("jvm", pulse.answers, within):
            return ""
        # It would outlive this process, and where spark-submit has started it, its caller would wait for ever.
        if pulse.pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pulse.pid, signal.SIGKILL)
        return f"Spark's JVM had not answered for {within.total_seconds():g} s, and was killed"

    def _loop_trouble(self) -> str:
        pool, within = self._pool, self._within
        if pool is None or within is None or pool.is_ending:
            return ""
        for host in pool.hosts:
            # The end of a member takes no turns, and has its own time.
            limit = within + host.who.timeouts.close
            if host.wait(0) is None and self._is_silent(str(host.who.member), host.turns, limit):
                return f"the loop of {host.who.member} has not taken a turn for {limit.total_seconds():g} s"
        return ""

    def _thread_trouble(
        self, say: Callable[[threading.ExceptHookArgs], object], error: threading.ExceptHookArgs
    ) -> None:
        """Say how a thread has ended; end the members, if it is one of ours."""
        say(error)
        modules = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.exc_traceback))
        if any(module.startswith(f"{_PACKAGE}.") for module in modules) and not self._may_go():
            name = "?" if error.thread is None else error.thread.name
            self._end(f"the thread {name!r} has ended: {error.exc_type.__name__}")

    def _is_silent(self, part: str, answers: int, within: timedelta) -> bool:
        """Whether a part has not answered for so long; time in which this process itself was frozen does not count."""
        last, seconds = self._silences.get(part, (answers, 0.0))
        seconds = seconds + POLL_PERIOD if answers == last else 0.0
        self._silences[part] = answers, seconds
        return seconds > within.total_seconds()
