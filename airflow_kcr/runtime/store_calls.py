"""A member's commands to the store, one after the other, each until it is answered (docs/reference/states.md).

A refusal is an answer. A store that is away, busy, or whose answer was lost is none: it recognises what it has done, so
the same command is given again until there is one. Meanwhile the member hears that the store is lost.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from airflow_kcr.errors import KcrError, RefusedError, SchemaMissing, SchemaTooNew, SchemaTooOld, StoreError
from airflow_kcr.ports import MemberStore
from airflow_kcr.protocol.commands import Command
from airflow_kcr.protocol.member import events
from airflow_kcr.runtime.clocks import Clock, Seconds
from airflow_kcr.runtime.identity import Identity
from airflow_kcr.runtime.workers import Worker

_LOG = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0

_FINAL: Final = (SchemaMissing, SchemaTooOld, SchemaTooNew)
"""Asking again is of no use; a person has to do something."""


class StoreCalls:
    """The commands of one member, in the order in which it gave them.

    Args:
        store: handles them.
        who: the member.
        deliver: takes the answers; from any thread.
        failed: told what can't be answered; from any thread.
        clock: the member's.
        silence: how long a command may go without an answer before the store counts as lost.
    """

    def __init__(
        self,
        store: MemberStore,
        who: Identity,
        deliver: Callable[[events.Event], None],
        failed: Callable[[BaseException], None],
        clock: Clock,
        silence: timedelta,
    ) -> None:
        self._store, self._who = store, who
        self._deliver, self._clock, self._silence = deliver, clock, silence.total_seconds()
        self._stopping = threading.Event()
        self._asked_at: Seconds | None = None
        self._lost = False
        self._worker = Worker(f"{who.member} store", failed)

    def ask(self, command: Command[object]) -> None:
        """Give a command, and deliver what becomes of it as `Answered` or `Refused`; returns at once."""
        self._worker.post(lambda: self._ask(command))

    def is_silent(self) -> bool:
        """Whether the command that is under way has had no answer for too long: a frozen server says nothing."""
        asked_at = self._asked_at
        return asked_at is not None and self._clock() - asked_at >= self._silence

    def end(self, timeout: float) -> bool:
        """End after the commands given so far, or give them up after `timeout` seconds; return whether all were."""
        self._worker.end()
        if self._worker.join(timeout):
            return True
        self._stopping.set()
        return False

    def _ask(self, command: Command[object]) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            sent_at = self._asked_at = self._clock()
            answer: events.Event
            try:
                result = self._store.handle(self._who.region, command)
                answer = events.Answered(command=command, result=result, sent_at=sent_at)
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
                level = logging.DEBUG if isinstance(error, RefusedError) else logging.WARNING
                _LOG.log(level, "%s: %s was refused: %s", self._who.member, type(command).__name__, error)
                answer = events.Refused(command=command, error=error)
            finally:
                self._asked_at = None
            if self._lost:
                self._lost = False
                self._deliver(events.StoreBack())
            self._deliver(answer)
            return
