"""Whether Spark has an executor, and one that is ready, before a batch starts: without one it would only time out.

A cluster may have no room, a pod may stay pending, and with dynamic allocation an application that had nothing to do
has none by rights. In each case one is asked for by the job that gets Spark ready, and no batch starts before it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from airflow_kcr.ports import nothing
from airflow_kcr.spark.pulse import Pulse
from airflow_kcr.spark.reads import RECORD

NAMED_AFTER: Final = 15.0
"""Seconds without an executor after which Spark itself complains."""

ASKED_EVERY: Final = 10.0
"""Seconds at least between two jobs that ask for one: such a job may fail at once, as without brokers."""

WARM_WITHIN: Final = 60.0
"""Seconds that the members wait until Spark is ready; then they begin, and their first batch pays for what is left."""

_SPARK_SAYS: Final = (
    "Initial job has not accepted any resources; check your cluster UI to ensure that workers are registered and have "
    "sufficient resources"
)
"""What Spark logs then, as long as no executor has come and gone."""

_LET_GO: Final = "Executor killed by driver."
"""What Spark says of an executor that dynamic allocation has let go."""

_LONGEST: Final = 500

_LOG = logging.getLogger(__name__)


class Executors:
    """The executors of an application, as its members ask for them; from any thread, and nothing here waits.

    Args:
        pulse: knows how many there are.
        warm_up: gets them ready, waiting for the first one, and returns how many bytes a record has, 0 where there is
            none; what it raises is logged, and blocks nothing.
        waits_for: says what those wait for that the cluster has no place for, as far as it tells; it may take seconds.
    """

    def __init__(self, pulse: Pulse, warm_up: Callable[[], int], waits_for: Callable[[], str] = nothing) -> None:
        self.record = RECORD
        """How many bytes a record has, as far as is known."""

        self._pulse, self._warm_up, self._waits_for = pulse, warm_up, waits_for
        self._lock = threading.Lock()
        self._lacking_since: float | None = None
        self._is_named = False
        self._heard, self._heard_at = "", -ASKED_EVERY
        self._ask()

    def are_ready(self) -> bool:
        """Whether batches may begin: Spark is ready, or the wait for it, which starts with an executor, is over."""
        if self._asked.is_set():
            return True
        if self.lack():
            self._ready_by = time.monotonic() + WARM_WITHIN
        return time.monotonic() >= self._ready_by

    def lack(self) -> str:
        """Return what is lacking to run a task, and ask Spark for it; empty: nothing is."""
        with self._lock:
            if self._pulse.executors != 0:
                self._found()
                return ""
            now = time.monotonic()
            since = self._lacking_since = now if self._lacking_since is None else self._lacking_since
            if self._asked.is_set() and now - self._asked_at >= ASKED_EVERY:
                self._ask()
            if now - self._heard_at >= ASKED_EVERY:
                self._heard_at = now
                threading.Thread(target=self._hear, name="asks for executors", daemon=True).start()
            if now - since < NAMED_AFTER:
                return "Spark has no executor yet"
            loss = "" if self._pulse.loss == _LET_GO else self._pulse.loss
            why = f"Spark has no executor: {(self._heard or loss)[:_LONGEST] or _SPARK_SAYS}"
            if not self._is_named:
                self._is_named = True
                _LOG.warning("no batch can run: %s", why)
            return why

    def _ask(self) -> None:
        """Have Spark got ready, in a thread of its own; what asks for an executor where there is none."""
        self._asked_at, self._asked = time.monotonic(), threading.Event()
        self._ready_by = self._asked_at + WARM_WITHIN
        threading.Thread(target=self._warm, args=(self._asked,), name="warms Spark up", daemon=True).start()

    def _warm(self, asked: threading.Event) -> None:
        began = time.monotonic()
        try:
            self.record = self._warm_up() or RECORD
        except Exception as error:  # noqa: BLE001 (the first batch meets it again, and says what it means)
            _LOG.info("Spark could not be warmed up, the first batch takes longer: %s: %s", type(error).__name__, error)
        else:
            _LOG.info("Spark is ready after %.1f s", time.monotonic() - began)
        finally:
            asked.set()

    def _hear(self) -> None:
        self._heard = self._waits_for()

    def _found(self) -> None:
        if self._is_named:
            _LOG.info("Spark has an executor, batches can run")
        self._lacking_since, self._is_named, self._heard = None, False, ""
