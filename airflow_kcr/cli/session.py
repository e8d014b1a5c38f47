"""Opens a region or the store for one command, under the user's name."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_kcr.api import Region
    from airflow_kcr.store.regions import RegionStore


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


def _user() -> str:
    """Return the name that this process acts under; a container's user may have none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
