"""Which tests kill a mutant: a plugin of pytest that collects tests once, and runs each mutant's in a forked process.

A first child runs every test, and notes which functions each of them calls. For a mutant only these tests are run, the
shortest first, with the changed code in the function's place. Where some tests may go, a mutant that one of them kills
is shown to the others.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Final, Generic, Self, TypeVar, cast

import pytest
from _pytest.runner import runtestprotocol

from tests.mutation.mutants import Mutant

A = TypeVar("A")

Place = tuple[str, str]
"""A function: its file, and its qualified name."""

SLACK: Final = 20.0
"""Seconds that a mutant's tests may take beyond three times what they take without it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant.

    Attributes:
        tests: How many tests call its function.
        killers: The tests that failed; the first alone unless all were asked for.
        is_over: Whether it was stopped for running too long, which kills it too.
    """

    mutant: Mutant
    tests: int
    killers: tuple[str, ...] = ()
    is_over: bool = False

    @property
    def survives(self) -> bool:
        """Return whether no test noticed it."""
        return not self.killers and not self.is_over


@dataclass(slots=True)
class _Calls:
    """The functions that each test calls, and the seconds it takes."""

    of: dict[str, set[Place]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


class Killing:
    """Runs mutants instead of tests.

    Args:
        mutants: The mutants, in any order.
        root: The folder of the modules, whose calls are noted.
        at_once: How many processes run them.
        finds_all: Run all of a mutant's tests, not only up to the first that fails.
        going: Tests that may go, by their names without parameters.
        tell: Called with each verdict.
    """

    def __init__(
        self,
        mutants: Iterable[Mutant],
        *,
        root: Path,
        at_once: int,
        finds_all: bool,
        tell: Callable[[Verdict], None],
        going: frozenset[str] = frozenset(),
    ) -> None:
        self._mutants = list(mutants)
        self._root = str(root)
        self._at_once = at_once
        self._finds_all = finds_all
        self._tell = tell
        self._going = going

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run every mutant against the collected tests that call its function."""
        items = {item.nodeid: item for item in session.items}
        with _Child(lambda: self._calls(session.items)) as child:
            calls = child.result(timeout=None)
        if calls is None:
            raise pytest.UsageError("the process that runs the tests on the package as it is has ended")
        if calls.failed:
            raise pytest.UsageError(f"fails on the package as it is: {', '.join(calls.failed)}")
        tests = defaultdict[Place, list[str]](list)
        for test in sorted(calls.of, key=calls.seconds.__getitem__):
            for place in calls.of[test]:
                tests[place].append(test)
        functions = _functions(self._root)
        gc.freeze()  # a collection in a child would copy every page of this process
        running = set[_Run]()
        waiting = iter(self._mutants)
        while True:
            while len(running) < self._at_once and (mutant := next(waiting, None)) is not None:
                place = str(mutant.file), mutant.function
                if called := tests.get(place):
                    chosen = [items[test] for test in called]
                    until = time.monotonic() + 3 * sum(calls.seconds[test] for test in called) + SLACK
                    work = partial(self._killers, mutant, chosen, functions[place])
                    running.add(_Run(_Child(work), mutant, len(called), until))
                else:
                    self._tell(Verdict(mutant, 0))
            if not running:
                return True
            for run in _ended(running):
                running.remove(run)
                with run.child as child:
                    killers = child.result(timeout=0)
                self._tell(Verdict(run.mutant, run.tests, killers or (), is_over=killers is None))

    def _calls(self, items: list[pytest.Item]) -> _Calls:
        found = _Calls()
        for item, after in _with_next(items):
            called: set[Place] = set()

            def note(frame: FrameType, event: str, _: object, called: set[Place] = called) -> None:
                if event == "call" and frame.f_code.co_filename.startswith(self._root):
                    called.add((frame.f_code.co_filename, _outermost(frame.f_code)))

            began = time.monotonic()
            sys.setprofile(note)
            threading.setprofile(note)
            try:
                fails = _fails(item, after)
            finally:
                sys.setprofile(None)
                threading.setprofile(None)
            found.of[item.nodeid], found.seconds[item.nodeid] = called, time.monotonic() - began
            if fails:
                found.failed.append(item.nodeid)
        return found

    def _killers(self, mutant: Mutant, items: list[pytest.Item], functions: list[FunctionType]) -> tuple[str, ...]:
        for function in functions:
            function.__code__ = mutant.code
        if not self._going:
            return _failing(items, at_most=None if self._finds_all else 1)
        going = [item for item in items if without_parameters(item.nodeid) in self._going]
        if not (first := _failing(going, at_most=1)):
            return ()
        others = _failing([item for item in items if item not in going], at_most=1)
        return first + others if others else _failing(going)


def without_parameters(test: str) -> str:
    """Return the name of a test's function."""
    return test.partition("[")[0]


def _failing(items: list[pytest.Item], *, at_most: int | None = None) -> tuple[str, ...]:
    for first in items[:1]:
        first.session._setupstate.teardown_exact(first)  # of what was run before, and stopped at
    return tuple(islice((item.nodeid for item, after in _with_next(items) if _fails(item, after)), at_most))


def _fails(item: pytest.Item, after: pytest.Item | None) -> bool:
    return any(report.failed for report in runtestprotocol(item, log=False, nextitem=after))


def _with_next(items: list[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    return zip(items, [*items[1:], None], strict=False)


def _outermost(code: CodeType) -> str:
    """Return the name of the function of a module, or the method, that a code is part of."""
    return code.co_qualname.partition(".<locals>")[0]


def _functions(root: str) -> Mapping[Place, list[FunctionType]]:
    """Return the functions of the package by their place; a decorated one is found behind its decorator."""
    found = defaultdict[Place, list[FunctionType]](list)
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename.startswith(root):
            found[each.__code__.co_filename, each.__code__.co_qualname].append(each)
    return found


class _Child(Generic[A]):
    """A forked process that answers with one value."""

    def __init__(self, work: Callable[[], A]) -> None:
        self._read, write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._read)
            os.setpgid(0, 0)  # so that what a test leaves behind goes with it
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(work(), pipe)
            os._exit(0)
        os.close(write)

    def fileno(self) -> int:
        return self._read

    def result(self, timeout: float | None) -> A | None:
        """Return its answer; None where it has none in time."""
        ready, _, _ = select.select([self._read], [], [], timeout)
        if not ready:
            return None
        with os.fdopen(os.dup(self._read), "rb") as pipe:
            data = pipe.read()
        return cast("A", pickle.loads(data)) if data else None  # its own process wrote it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._read)
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """A mutant whose tests are running, and the monotonic time until which they may."""

    child: _Child[tuple[str, ...]]
    mutant: Mutant
    tests: int
    until: float

    def fileno(self) -> int:
        return self.child.fileno()


def _ended(running: set[_Run]) -> list[_Run]:
    """Wait for a run that answers; return those that did, or whose time is over."""
    first = min(run.until for run in running)
    answered, _, _ = select.select(running, [], [], max(0.0, first - time.monotonic()))
    return answered or [run for run in running if run.until <= time.monotonic()]
