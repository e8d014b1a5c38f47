"""What processes say that can't start members with the spec in force, for tests that have no application."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_kcr.protocol.region.commands import ReportStartFailures
from airflow_kcr.protocol.region.rows import StartFailure
from airflow_kcr.protocol.values import MemberId, RegionName
from airflow_kcr.store.regions import RegionStore


def say(store: RegionStore, name: RegionName, members: Iterable[MemberId], refusal: str) -> None:
    """Have processes say why they can't start these members."""
    spec = store.read(name)[0].spec
    found = (StartFailure(member=m, revision=spec.revision, digest=spec.digest, refusal=refusal) for m in members)
    store.handle(name, ReportStartFailures(failures=tuple(found)))
