"""The way into a store: its URL, from an argument or the environment, and the regions behind it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from airflow_kcr.api.views import RegionSummary
from airflow_kcr.errors import ConfigurationError, KcrError, UnknownRegion
from airflow_kcr.spec import RegionSpec
from airflow_kcr.store.postgres import PostgresTransactions
from airflow_kcr.store.regions import RegionStore

STORE_VARIABLE: Final = "KCR_STORE_URL"

COMPLETION_TIMEOUT: Final = 2
"""Seconds for a connection on behalf of a shell that completes a word."""

_FORM: Final = "postgresql://USER@HOST:PORT/DATABASE"


def store_url(given: str | None = None, environ: Mapping[str, str] | None = None) -> URL:
    """Return the store's URL.

    Args:
        given: as the caller has it; absent: `KCR_STORE_URL` counts.
        environ: where that is looked up; absent: the environment of this process.

    Raises:
        ConfigurationError: there is none, or it is not the URL of a Postgres; the message never quotes it, as it may
            hold a password.
    """
    text = given or (os.environ if environ is None else environ).get(STORE_VARIABLE, "")
    if not text:
        raise ConfigurationError(f"no store was named; give its URL, or set {STORE_VARIABLE}: {_FORM}")
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # ValueError: a port that is not a number
        # From nothing: the original error quotes the URL.
        raise ConfigurationError(f"the store's URL can't be read; write {_FORM}") from None
    if url.get_backend_name() != "postgresql":
        raise ConfigurationError(f"the store is a Postgres, not {url.get_backend_name()}; write {_FORM}")
    return url


def connect(url: URL) -> PostgresTransactions:
    """Return the transactions of the store at a URL, which the caller closes; nothing is connected yet."""
    return PostgresTransactions.connect(url, lambda text: RegionSpec.from_json(text).rules())


@contextmanager
def opened(given: str | URL | None = None) -> Iterator[RegionStore]:
    """Lend the store at a URL (absent: of `KCR_STORE_URL`).

    Raises:
        ConfigurationError: see `store_url`.
    """
    with connect(given if isinstance(given, URL) else store_url(given)) as transactions:
        yield RegionStore(transactions)


def regions(store: RegionStore) -> tuple[RegionSummary, ...]:
    """Return every region of a store, in the order of their names; one that is deleted meanwhile is left out."""
    found: list[RegionSummary] = []
    for name in store.names():
        try:
            seen = store.seen(name)
            region, now = store.read(name)
        except UnknownRegion:
            continue
        found.append(RegionSummary.of(region, now, seen))
    return tuple(found)


def names_for_completion(given: str | None = None) -> tuple[str, ...]:
    """Return the names of a store's regions for a shell that completes a word: soon, or none at all.

    Whoever presses the tab key wants no error, and does not wait for a server that is away.
    """
    try:
        url = store_url(given)
        with opened(url.update_query_dict({"connect_timeout": str(COMPLETION_TIMEOUT)})) as store:
            return tuple(store.names())
    except KcrError:
        return ()
