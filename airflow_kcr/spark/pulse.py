"""Asking Spark's JVM whether it is well, while nothing else asks it for anything."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from airflow_kcr.spark import jvm

if TYPE_CHECKING:
    from pyspark import SparkContext

PERIOD: Final = 1.0
"""Seconds between an answer and the next question."""

GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
"""Set where `spark-submit` has started this process: its JVM is the parent."""

_LOG = logging.getLogger(__name__)


class Pulse:
    """Asks the JVM of this process again and again, in a thread of its own: a frozen JVM keeps that for ever.

    Args:
        environ: says whether there is a JVM before this process has connected with it.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self.pid: int | None = os.getppid() if environ.get(GATEWAY) else None
        """The JVM's process; None: there is none yet."""

        self.is_connected = False
        """Whether there is a JVM that can be asked."""

        self.answers = 0
        """How often it has answered."""

        self.is_stopped = False
        """Whether it has stopped Spark by itself, as it does when a cluster's master ends the application."""

        self.executors: int | None = None
        """How many Spark has; None: not known yet, or the driver itself is the executor."""

        self.loss = ""
        """Why the executor that went last has gone, where there is none any more."""

        self._over = threading.Event()

    def start(self) -> None:
        """Begin; returns at once."""
        threading.Thread(target=self._run, name="asks Spark's JVM", daemon=True).start()

    def end(self) -> None:
        """End with the present question; returns at once."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(PERIOD):
            machine = jvm.connected()
            if machine is not None:
                self._ask(machine)

    def _ask(self, machine: jvm.JavaObject) -> None:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        try:
            if not self.is_connected:
                self.is_connected, self.pid = True, jvm.own_process() or self.pid
                # The parent may be a shell between the JVM and this process.
                self.pid = int(machine.java.lang.ProcessHandle.current().pid())
            context = jvm.active_context()
            if context is None:
                self.is_stopped = False
                machine.java.lang.System.currentTimeMillis()
            else:
                self.is_stopped = bool(jvm.scala_context(context).isStopped())
                if not self.is_stopped:
                    self._count(context)
        except (Py4JError, OSError) as error:
            _LOG.debug("Spark's JVM has not answered: %s", error)
        else:
            self.answers += 1

    def _count(self, context: SparkContext) -> None:
        before, self.executors = self.executors, jvm.executors(context)
        if self.executors == 0 and before != 0:
            self.loss = jvm.newest_loss(context)
