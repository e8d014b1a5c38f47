"""`kcr demo`: the main job on real data, with everything real, and everything checked at the end."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_kcr.cli.endings import reported
from airflow_kcr.cli.options import Output
from airflow_kcr.cli.results import Result, note, show

if TYPE_CHECKING:
    from airflow_kcr.embedded.demo.judgement import DemoVerdict
    from airflow_kcr.embedded.demo.play import Audience, Tell

Keep = Annotated[bool, typer.Option("--keep", help="Leave everything running at the end; print addresses and logins.")]
DemoFolder = Annotated[
    Path | None,
    typer.Option(help="The folder for all data and logs; must be empty or not exist yet.", show_default="a new one"),
]


@reported
def demo(keep: Keep = False, folder: DemoFolder = None, output: Output = None) -> None:
    """Run a region on real data and check every record.

    Takes about 5 minutes and 4 to 5 GiB of memory. Starts its own Kafka, Postgres and Airflow and writes flights to a
    topic. Airflow starts the consumers and checkpoints each data interval. The demo then kills a consumer, resets the
    region to an earlier checkpoint through Airflow, and compares the results with Kafka. Exits with status 1 on any
    difference.

    Example: kcr demo --keep
    """
    from airflow_kcr.embedded.demo.performance import own_folder, perform

    with ExitStack() as stack:
        stack.enter_context(_ended_by_signals())
        home = _usable(folder) if folder is not None else stack.enter_context(own_folder(keep=keep))
        verdict, seconds = perform(stack.enter_context(screen()), home, keep=keep)
    show(_outcome(verdict, seconds), output)
    if keep:
        _tell_where(home)
    if not verdict.sound:
        note("the demo found differences: see above what did not pass")
        raise typer.Exit(1)


def _usable(folder: Path) -> Path:
    from airflow_kcr.errors import ConfigurationError

    found = folder.expanduser().absolute()
    if found.exists() and (not found.is_dir() or any(found.iterdir())):
        raise ConfigurationError(f"{found} is not an empty folder; the demo begins with nothing: name another one")
    return found


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Have SIGTERM, or its terminal's end, end the demo as Ctrl-C does: everything that it has started is stopped."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell_where(folder: Path) -> None:
    from airflow_kcr.embedded import services
    from airflow_kcr.embedded.airflow import kept

    running = services.status(folder)
    if "airflow" in running and "kafka" in running:
        note(f"Airflow is at {running['airflow'].address}")
        for user in kept(folder / "airflow").users:
            note(f"  log in as {user.name} ({user.role}) with the password {user.password}")
        note(f"export KCR_STORE_URL={running['postgres'].address} KCR_KAFKA_BOOTSTRAP={running['kafka'].address}")
    note(
        f"the region is stopped; trigger flights_consumers to resume it. To stop everything, run "
        f"`kcr dev down --folder {folder}` and delete that folder"
    )


def _outcome(verdict: DemoVerdict, seconds: Mapping[str, float]) -> Result:
    intervals = [
        {
            "interval": f"{one.start:%H:%M:%S} to {one.end:%H:%M:%S}",
            "run": one.run or None,
            "checkpoint": None if one.checkpoint is None else f"{one.checkpoint.timeline}.{one.checkpoint.sequence}",
            "in checkpoint": one.in_checkpoint,
            "in topic": one.in_topic,
            "same": one.sound,
        }
        for one in verdict.intervals
    ]
    facts: dict[str, object] = {
        "flights": str(verdict.produced),
        **{one.name: f"{'passed' if one.passed else 'FAILED'}: {one.detail}" for one in verdict.checks},
        "times": ", ".join(f"{name} {took:.0f} s" for name, took in seconds.items()),
        "in all": f"{sum(seconds.values()):.0f} s",
        "result": "no differences" if verdict.sound else "DIFFERENCES",
    }
    document = {
        "sound": verdict.sound,
        "records": verdict.produced.records,
        "intervals": intervals,
        "checks": [{"name": one.name, "passed": one.passed, "detail": one.detail} for one in verdict.checks],
        "seconds": {name: round(took, 1) for name, took in seconds.items()},
    }
    columns = ("interval", "run", "checkpoint", "in checkpoint", "in topic", "same")
    return Result(document=document, columns=columns, rows=intervals, facts=facts)


# What the demo shows while it works: a bar for each phase on a terminal, else a line when one begins and ends.


@contextmanager
def screen() -> Iterator[Audience]:
    """Lend whom the demo is shown to: standard error, as it is."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[told]}", style="dim"), console=console) as progress:

        @contextmanager
        def bar(name: str) -> Iterator[Tell]:
            task = progress.add_task(name, total=None, told="")
            yield lambda done, total, text: progress.update(task, completed=done, total=total, told=text)
            progress.update(task, total=1, completed=1, told="")
            progress.stop_task(task)

        yield bar


@contextmanager
def _lines(name: str) -> Iterator[Tell]:
    """Show that a phase begins and ends: lines repeated twice a second don't help."""
    note(f"{name} …")
    begun = time.monotonic()
    yield lambda done, total, text: None
    note(f"{name}: done in {time.monotonic() - begun:.1f} s")
