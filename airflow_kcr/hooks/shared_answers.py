"""One answer of a server for all who ask it within a second: triggers do, at the same moment, for hundreds of tasks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from time import monotonic
from typing import Final, Generic, TypeVar

from airflow_kcr.errors import KcrError

T = TypeVar("T")

FRESH: Final = 1.0
"""Seconds for which one answer is that to everyone."""


class SharedAnswer(Generic[T]):
    """What a server says, for any thread.

    Args:
        ask: asks it.
    """

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._asking = Lock()
        self._answer: Future[T] = Future()
        self._fresh_until = 0.0

    def get(self) -> T:
        """Return the answer, or raise its error; both may be those that others have been given."""
        with self._asking:
            if monotonic() >= self._fresh_until:
                self._answer = Future()
                try:
                    self._answer.set_result(self._ask())
                except KcrError as error:
                    self._answer.set_exception(error)
                self._fresh_until = monotonic() + FRESH
            return self._answer.result()
