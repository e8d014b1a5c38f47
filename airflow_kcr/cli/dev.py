"""`kcr dev`, `demo`, `store` and `doctor`: services on this machine, the store's schema, whether members can run."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_kcr.cli.endings import reported
from airflow_kcr.cli.group import CHECKED
from airflow_kcr.cli.inputs import spec_in
from airflow_kcr.cli.options import OptionalUrl, Output, Url
from airflow_kcr.cli.results import Result, note, show

if TYPE_CHECKING:
    from airflow_kcr.embedded.demo.performance import Summary
    from airflow_kcr.embedded.demo.stage import Audience, Tell
    from airflow_kcr.embedded.services import Service
    from airflow_kcr.store.schema_upgrade import SchemaStatus


# `kcr dev` and `kcr demo`

app = typer.Typer(
    name="dev",
    help="Run Kafka, Postgres, Spark and Airflow on this machine for development.",
    no_args_is_help=True,
)

Folder = Annotated[
    Path | None,
    typer.Option(
        envvar="KCR_DEV_FOLDER",
        help="The folder for the services' state, data and logs.",
        show_default="airflow-kcr/dev in ~/.local/state",
        show_envvar=True,
    ),
]


Without = Annotated[
    list[str] | None,
    typer.Option(metavar="SERVICE", help="Don't start this service, airflow or spark; may be repeated."),
]


@app.command()
@reported
def up(folder: Folder = None, without: Without = None, output: Output = None) -> None:
    """Start the services that aren't running, with their previous data, and leave them running.

    The first run downloads Kafka and Spark's Kafka connector from Maven Central, about 45 MB.

    Example: kcr dev up --without airflow
    """
    from airflow_kcr.embedded import services

    where = _absolute(folder)
    show(_answer(where, services.up(where, note, tuple(without or ()))), output)


@app.command()
@reported
def down(folder: Folder = None, output: Output = None) -> None:
    """Stop all services; keep their data.

    Example: kcr dev down
    """
    from airflow_kcr.embedded import services

    where = _absolute(folder)
    show(_answer(where, services.down(where, note)), output)


@app.command()
@reported
def status(folder: Folder = None, output: Output = None) -> None:
    """Show which services are running, and their addresses.

    Example: kcr dev status -o json
    """
    from airflow_kcr.embedded import services

    where = _absolute(folder)
    show(_answer(where, services.status(where)), output)


def _absolute(folder: Path | None) -> Path:
    from airflow_kcr.embedded.services import default_folder

    return default_folder() if folder is None else folder.expanduser().absolute()


def _answer(folder: Path, running: Mapping[str, Service]) -> Result:
    from airflow_kcr.embedded import services

    shown = {"kafka": "kafka", "store": "postgres", "spark": "spark", "airflow": "airflow"}
    rows = [
        {"service": name, "up": service in running, "address": running[service].address if service in running else None}
        for name, service in shown.items()
    ]
    return Result(document=services.document(folder, running), columns=("service", "up", "address"), rows=rows)


# `kcr demo`: the main job on real data, with everything real, and everything checked at the end.


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
        summary = perform(stack.enter_context(screen()), home, keep=keep)
    show(_outcome(summary), output)
    if keep:
        _tell_where(home)
    if not summary.verdict.sound:
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


def _outcome(summary: Summary) -> Result:
    verdict = summary.verdict
    intervals = [
        {
            "interval": f"{one.start:%H:%M:%S} to {one.end:%H:%M:%S}",
            "run": one.run or None,
            "checkpoint": None if one.sequence is None else f"{one.timeline}.{one.sequence}",
            "in checkpoint": one.in_checkpoint,
            "in topic": one.in_topic,
            "same": one.sound,
        }
        for one in verdict.intervals
    ]
    facts: dict[str, object] = {
        "flights": str(summary.produced),
        **{one.name: f"{'passed' if one.passed else 'FAILED'}: {one.detail}" for one in verdict.checks},
        "times": ", ".join(f"{name} {seconds:.0f} s" for name, seconds in summary.seconds.items()),
        "in all": f"{sum(summary.seconds.values()):.0f} s",
        "result": "no differences" if verdict.sound else "DIFFERENCES",
    }
    document = {
        "sound": verdict.sound,
        "records": summary.produced.records,
        "intervals": intervals,
        "checks": [{"name": one.name, "passed": one.passed, "detail": one.detail} for one in verdict.checks],
        "seconds": {name: round(seconds, 1) for name, seconds in summary.seconds.items()},
    }
    columns = ("interval", "run", "checkpoint", "in checkpoint", "in topic", "same")
    return Result(
        document=document,
        columns=columns,
        rows=intervals,
        facts=facts,
    )


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


# `kcr store` and `kcr doctor`

store_app = typer.Typer(name="store", help="Create, upgrade and show the region store's schema.", no_args_is_help=True)


@store_app.command()
@reported
def upgrade(store: Url, output: Output = None) -> None:
    """Create the store's schema, or upgrade it to the newest revision; change nothing if it is current.

    Example: kcr store upgrade --store postgresql://kcr@localhost/kcr
    """
    from airflow_kcr.store import schema_upgrade

    show(_schema(schema_upgrade.upgrade(_checked(store))), output)


@store_app.command("status")
@reported
def schema_status(store: Url, output: Output = None) -> None:
    """Show the store's schema revision and the one this program needs; exit with status 4 if they differ.

    Example: kcr store status
    """
    from airflow_kcr.store import schema_upgrade
    from airflow_kcr.store.postgres.revision import require_revision

    found = schema_upgrade.status(_checked(store))
    show(_schema(found), output)
    require_revision(found.current)


def _checked(store: str) -> str:
    from airflow_kcr.api import store_url

    return store_url(store).render_as_string(hide_password=False)


def _schema(found: SchemaStatus) -> Result:
    document = {"current": found.current, "needed": found.head, "is_current": found.is_current}
    return Result(document=document, columns=tuple(document), rows=[document])


# `kcr doctor`: whether members of a region can run on this machine.


@reported
def doctor(
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            help="A region spec, to check its store, pipeline, sinks, broker, rights and topics too; - reads standard "
            "input.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    store: OptionalUrl = None,
    output: Output = None,
) -> None:
    """Check whether members can run on this machine, and say what to do; change nothing.

    Checks Python, PySpark, Java and Airflow; with KCR_STORE_URL or --store, the region store; with --file, everything
    that the members of that region need, whether it is declared or not. The checks of its groups are those of kcr group
    validate. Exits with status 0 if every check passes or only warns, and with 1 if a check fails or can't be made.

    Example: kcr doctor

    Example: kcr doctor -f flights.yaml
    """
    from airflow_kcr.driver.parts import examine
    from airflow_kcr.protocol.evidence import CheckVerdict

    spec = None if file is None else spec_in(file)
    found = list(examine(spec, store))
    rows = [{**asdict(one), "verdict": str(one.verdict)} for one in found]
    show(Result(document=rows, columns=CHECKED, rows=rows), output)
    if any(one.verdict in {CheckVerdict.FAILED, CheckVerdict.UNKNOWN} for one in found):
        raise typer.Exit(1)
