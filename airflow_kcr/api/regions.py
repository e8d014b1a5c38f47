"""Regions of a store: the way into it, what people name in a region, and applying a spec."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from airflow_kcr.api.documents import View
from airflow_kcr.api.views import RegionSummary
from airflow_kcr.errors import ConfigurationError, KcrError, RegionExists, UnknownRegion
from airflow_kcr.protocol.commands import ChangeSpec, DeclareRegion, Reconcile
from airflow_kcr.protocol.region import specs
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.region.state import Region, Spec, live_members
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.values import GroupId, Offset, TopicName, TopicPartition, region_name
from airflow_kcr.spec import Difference, RegionSpec, TakesEffect, differences, split
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


# Applying a spec: a region is created, or changed as far as it may be (docs/reference/states.md).
#
# What may change while members run counts at once, the rest at the next checkpoint with a restart of the members, who
# look first whether they can run under it; where no member lives all of it counts at once. A group's id and its cluster
# never change: that would be another region.


class Change(StrEnum):
    """What became of a spec."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    """It is the one in force."""

    WAITING = "waiting"
    """It was applied before and waits for the next checkpoint."""

    WITHDRAWN = "withdrawn"
    """It is the one in force, and takes back another that waited for the next checkpoint, or that members refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied(View):
    """What applying a spec does, or did."""

    region: str
    change: Change
    differences: tuple[Difference, ...] = ()
    """Every field that differs from what is in force, with when it counts."""

    def facts(self) -> Mapping[str, object]:
        """Return it as in `region apply`."""
        return {
            "region": self.region,
            "change": self.change,
            "differences": [{"field": d.path, "takes_effect": d.takes_effect} for d in self.differences],
        }


def compared(store: RegionStore, spec: RegionSpec) -> Applied:
    """Return what applying a spec would do now; changes nothing.

    Raises:
        RegionExists: it would need another region; the message names the fields.
    """
    name = region_name(spec.region)
    try:
        region, now = store.read(name)
    except UnknownRegion:
        return Applied(region=name, change=Change.CREATED)
    return _compared(region, now, spec)


def apply(store: RegionStore, spec: RegionSpec) -> Applied:
    """Create the region of a spec, or change it; the same spec again changes nothing.

    Raises:
        RegionExists: a difference is one that needs another region; the message names the fields. Nothing is changed.
        GroupInOtherRegion: one of its groups belongs to another region, which the message names.
    """
    name = region_name(spec.region)
    with suppress(UnknownRegion):
        store.handle(name, Reconcile())  # of a spec that waited for members who live no more
    plan = compared(store, spec)
    if plan.change is Change.CREATED:
        store.handle(name, DeclareRegion(spec=Spec(text=spec.to_json_text(), rules=spec.rules())))
        return plan
    if plan.change in {Change.UNCHANGED, Change.WAITING}:
        return plan
    region, _ = store.read(name)
    region = store.handle(name, _update(region, spec))
    return _all_at_once(plan) if region.next_spec is None else plan


def _compared(region: StoredRegion, now: datetime, spec: RegionSpec) -> Applied:
    found = tuple(differences(RegionSpec.from_json(region.spec.text), spec))
    refused = [d.path for d in found if d.takes_effect is TakesEffect.REFUSED]
    if refused:
        raise RegionExists(
            f"region {region.name} exists, and {', '.join(refused)} can't change in it; make another region, "
            "with a name and groups of its own, or write what it has"
        )
    plan = Applied(region=region.name, change=_change(region, spec.to_json_text()), differences=found)
    is_attended = region.state is not RegionState.STOPPED and bool(live_members(region, now))
    return plan if is_attended else _all_at_once(plan)


def _change(region: StoredRegion, wanted: str) -> Change:
    waiting = None if region.next_spec is None else region.next_spec.text
    if wanted == waiting:
        return Change.WAITING
    if wanted != region.spec.text:
        return Change.CHANGED
    return Change.UNCHANGED if waiting is None and not specs.refused(region) else Change.WITHDRAWN


def _all_at_once(plan: Applied) -> Applied:
    """Return the answer where nobody lives who would have to be built anew."""
    return replace(plan, differences=tuple(Difference(d.path, TakesEffect.AT_ONCE) for d in plan.differences))


def _update(region: StoredRegion, spec: RegionSpec) -> ChangeSpec:
    parts = split(RegionSpec.from_json(region.spec.text), spec)
    newest = region.spec.revision if region.next_spec is None else region.next_spec.revision
    at_once = region.spec
    if parts.at_once.to_json_text() != region.spec.text:
        newest += 1
        at_once = _stored(parts.at_once, newest)
    return ChangeSpec(at_once=at_once, later=None if parts.later is None else _stored(parts.later, newest + 1))


def _stored(spec: RegionSpec, revision: int) -> Spec:
    return Spec(text=spec.to_json_text(), rules=spec.rules(), revision=revision)
