"""Options and arguments that many commands share, and their parsers."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.times import parse_duration, parse_instant

if TYPE_CHECKING:
    from airflow_kcr.api import Region
    from airflow_kcr.spec import RegionSpec
    from airflow_kcr.store.regions import RegionStore

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

    from airflow_kcr.confidential import names_secret

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
