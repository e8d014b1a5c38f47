"""Asking the store, one request after the other, until it answers (docs/reference/states.md).

A refusal is an answer. A store that is away, busy, or whose answer was lost is none: the verbs recognise what they have
done, so the same request is made again until there is one. Meanwhile the member is told that the store is lost.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeAlias

from airflow_kcr.errors import KcrError, RefusedError, SchemaMissing, SchemaTooNew, SchemaTooOld, StoreError
from airflow_kcr.protocol.member import events
from airflow_kcr.runtime.clocks import Clock, Seconds
from airflow_kcr.runtime.workers import Worker

Ask: TypeAlias = Callable[[], events.Event]
Refused: TypeAlias = Callable[[KcrError], events.Event]

_LOG = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0

_FINAL: Final = (SchemaMissing, SchemaTooOld, SchemaTooNew)
"""Asking again is of no use; a person has to do something."""


class StoreCalls:
    """The requests of one member, in the order in which they were made.

    Args:
        name: the thread's.
        deliver: takes the answers; from any thread.
        failed: told what can't be answered; from any thread.
        clock: the member's.
        silence: how long a request may go without an answer before the store counts as lost.
    """

    def __init__(
        self,
        name: str,
        deliver: Callable[[events.Event], None],
        failed: Callable[[BaseException], None],
        clock: Clock,
        silence: timedelta,
    ) -> None:
        self._deliver, self._clock, self._silence = deliver, clock, silence.total_seconds()
        self._stopping = threading.Event()
        self._asked_at: Seconds | None = None
        self._lost = False
        self._worker = Worker(name, failed)

    def call(self, ask: Ask, refused: Refused | None = None) -> None:
        """Ask, and deliver the answer; a refusal is delivered as `refused` says.

        Args:
            ask: makes the request and returns its answer; it may be made several times.
            refused: makes the answer of a refusal. None: a refusal is a fault.
        """
        self._worker.post(lambda: self._answered(ask, refused))

    def tell(self, ask: Callable[[], object]) -> None:
        """Tell the store something; no answer is awaited, and whether it was of use is for the store to say."""

        def told() -> events.Event:
            ask()
            return events.Tick()

        def not_of_use(error: KcrError) -> events.Event:
            _LOG.log(logging.DEBUG if isinstance(error, RefusedError) else logging.WARNING, "not told: %s", error)
            return events.Tick()

        self._worker.post(lambda: self._answered(told, not_of_use))

    def is_silent(self) -> bool:
        """Whether the request that is under way has had no answer for too long: a frozen server says nothing."""
        asked_at = self._asked_at
        return asked_at is not None and self._clock() - asked_at >= self._silence

    def end(self, timeout: float) -> bool:
        """End after the requests made so far, or give them up after `timeout` seconds; return whether all were made."""
        self._worker.end()
        if self._worker.join(timeout):
            return True
        self._stopping.set()
        return False

    def _answered(self, ask: Ask, refused: Refused | None) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            self._asked_at = self._clock()
            try:
                answer = ask()
            except _FINAL:
                raise
            except StoreError:
                self._lost = True
                self._deliver(events.StoreLost())
                # Members that lost the same store shall not all come back in the same moment.
                self._stopping.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 - nothing depends on the numbers
                pause = min(pause * 2, _LONGEST_PAUSE)
                continue
            except KcrError as error:
                if refused is None:
                    raise
                answer = refused(error)
            finally:
                self._asked_at = None
            if self._lost:
                self._lost = False
                self._deliver(events.StoreBack())
            self._deliver(answer)
            return
