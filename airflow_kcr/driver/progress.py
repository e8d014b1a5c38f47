"""What an application shows of its members while they work: a table on a terminal, else a line now and then.

It goes to standard error; standard output is for results.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from airflow_kcr.protocol.values import MemberId
from airflow_kcr.runtime.leases import Clock, Seconds, boot_time
from airflow_kcr.runtime.metrics import UNKNOWN, Counts, Snapshot

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
    """Sequence and state of the open checkpoint, empty without one."""

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
        known, machine = UNKNOWN not in one.lag.values(), one.machine
        why, checkpoint = machine.lacks or machine.why, None if machine.view is None else machine.view.checkpoint
        return MemberProgress(
            member=str(machine.member),
            state=f"{machine.state} ({why})" if why else str(machine.state),
            partitions=len(machine.positions),
            records_per_second=self._rate(machine.member, one.counts.records),
            lag=sum(one.lag.values()) if known else None,
            checkpoint="" if checkpoint is None else f"{checkpoint.sequence} {checkpoint.state}",
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
