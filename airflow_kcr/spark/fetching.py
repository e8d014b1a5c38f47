"""The cache of jars that Spark fetches by their Maven coordinates, filled by one process at a time.

Spark has Ivy fetch `spark.jars.packages` while it starts, into a cache that all applications of a user share, and Ivy
does not share it: of two that start together and miss the same jar, each may find what the other has half written, and
dies. So the first application fetches alone. A mark in the cache says that a set of coordinates is there: those that
come later need not wait for each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from airflow_kcr.errors import ConfigurationError, ServiceFailed
from airflow_kcr.file_locks import locked

PACKAGES: Final = "spark.jars.packages"
FOLDER: Final = "spark.jars.ivy"
FETCHED_WITHIN: Final = 900.0
"""Seconds that one process may take to fetch; who waits for it longer gives up."""

_USUAL: Final = ".ivy2.5.2"


def folder_of(conf: Mapping[str, str]) -> Path:
    """Return the folder of the cache: as the settings say, else Spark's own in the home folder."""
    chosen = conf.get(FOLDER)
    return Path(chosen).expanduser() if chosen else Path.home() / _USUAL


@contextmanager
def fetched_alone(conf: Mapping[str, str], within: float = FETCHED_WITHIN) -> Iterator[None]:
    """Let no other process of this project fetch jars during the block, unless they are there; mark them at its end.

    Args:
        conf: settings of Spark, with the coordinates to fetch; without any there is nothing to wait for.
        within: seconds to wait for another process.

    Raises:
        ConfigurationError: the cache can't be written.
        ServiceFailed: another process has been fetching for too long.
    """
    coordinates, folder = conf.get(PACKAGES, ""), folder_of(conf)
    mark = folder / f".kcr-{hashlib.sha256(coordinates.encode()).hexdigest()[:16]}"
    if not coordinates or mark.exists():
        yield
        return
    late = ServiceFailed(
        f"another process has been fetching jars into {folder} for {within:g} s; wait for it, or end it: the lock "
        f"{folder / '.kcr-lock'} ends with it"
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".kcr-lock").touch()
    except OSError as error:
        raise ConfigurationError(
            f"Spark fetches jars into {folder}, which can't be written ({error.strerror}); name another folder in "
            f"{FOLDER}"
        ) from error
    with locked(folder / ".kcr-lock", within=within, late=lambda: late):
        yield
        mark.touch()
