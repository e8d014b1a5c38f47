"""What a command works on: a region or a store, opened under the user's name, and files that a user names."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_kcr.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_kcr.api import Region
    from airflow_kcr.protocol.region.rows import Requester
    from airflow_kcr.spec import RegionSpec
    from airflow_kcr.store.regions import RegionStore


@contextmanager
def region_of(name: str, store: str) -> Iterator[Region]:
    """Lend a region of the store at a URL.

    Raises:
        ConfigurationError: the URL can't be read, or the name is none.
    """
    from airflow_kcr.api import Region
    from airflow_kcr.protocol.region.rows import Requester

    with Region(name, store, requester=Requester(who=user())) as region:
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


def user() -> str:
    """Return the name that this process acts under; a container's user may have none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def requester(dag_run: str) -> Requester:
    """Return who asks: a DAG run that is named, or the user."""
    from airflow_kcr.protocol.region.rows import Requester

    dag_id, _, run_id = dag_run.partition("/")
    return Requester(who="airflow", dag_id=dag_id, run_id=run_id) if dag_run else Requester(who=user())
