"""Regions of a store: the way into it, and what people name in a region."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from airflow_kcr.api.clusters import Clusters
from airflow_kcr.api.views import RegionSummary
from airflow_kcr.errors import ConfigurationError, KcrError
from airflow_kcr.protocol.region.lag import LagSample
from airflow_kcr.protocol.region.liveness import Seen
from airflow_kcr.protocol.region.rows import Requester
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import GroupId, Offset, RegionName, TopicName, TopicPartition
from airflow_kcr.spec import stored_spec
from airflow_kcr.store.regions import RegionStore


@dataclass(frozen=True)
class Handle:
    """One region of a store, by its name: where it is, how Kafka is reached, and who acts."""

    store: RegionStore
    name: RegionName
    clusters: Clusters
    requester: Requester

    def read(self) -> Region:
        """Return the region as stored."""
        return self.store.read(self.name)[0]


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


def connect(url: URL) -> RegionStore:
    """Return the store at a URL, which the caller closes; nothing is connected yet."""
    return RegionStore.connect(url, lambda text: stored_spec(text).rules())


@contextmanager
def opened(given: str | URL | None = None) -> Iterator[RegionStore]:
    """Lend the store at a URL (absent: of `KCR_STORE_URL`).

    Raises:
        ConfigurationError: see `store_url`.
    """
    with connect(given if isinstance(given, URL) else store_url(given)) as store:
        yield store


def look(store: RegionStore, name: RegionName) -> tuple[Region, datetime, Seen, tuple[LagSample, ...]]:
    """Return a region, the store's clock, and what its verdicts need beside it; Kafka is not asked.

    Raises:
        UnknownRegion: there is no such region.
    """
    region, now, seen = store.look(name)
    return region, now, seen, store.recent_lag(name, now)


def regions(store: RegionStore) -> tuple[RegionSummary, ...]:
    """Return every region of a store, in the order of their names; one that is deleted meanwhile is left out."""
    return store.survey(RegionSummary.of)


def names_for_completion(given: str | None = None) -> tuple[str, ...]:
    """Return the names of a store's regions for a shell that completes a word: soon, or none at all.

    Completion shows no errors and doesn't wait for a server that is away.
    """
    try:
        url = store_url(given)
        with opened(url.update_query_dict({"connect_timeout": str(COMPLETION_TIMEOUT)})) as store:
            return tuple(store.names())
    except KcrError:
        return ()


# What people name in words: the groups of a region, and single records.

_RECORD: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249}):(?P<partition>[0-9]{1,10}):(?P<offset>[0-9]{1,19})")


def record_named(text: str) -> tuple[TopicPartition, Offset] | None:
    """Return topic and partition, and the offset, of a text `TOPIC:PARTITION:OFFSET`; None: it is not of that form."""
    match = _RECORD.fullmatch(text)
    if match is None:
        return None
    return TopicPartition(TopicName(match["topic"]), int(match["partition"])), Offset(int(match["offset"]))


def require_groups(region: Region, groups: Collection[str]) -> None:
    """Refuse names of groups that a region does not have.

    Raises:
        ConfigurationError: it has no group of one of these names.
    """
    known = region.rules.groups.keys()
    strange = sorted(set(map(GroupId, groups)) - known)
    if strange:
        raise ConfigurationError(f"region {region.name} has no group {strange[0]}; it has: {', '.join(sorted(known))}")
