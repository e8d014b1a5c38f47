"""What members' processes say of a spec that waits, for tests whose members have no application that would look."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_kcr.protocol.commands import ReportSpecChecks
from airflow_kcr.protocol.region.rows import SpecCheck
from airflow_kcr.protocol.region.state import live_members
from airflow_kcr.protocol.values import Incarnation, MemberId, RegionName
from airflow_kcr.store.regions import RegionStore


def accept(store: RegionStore, name: RegionName) -> None:
    """Have every living member say that it can run under the spec that waits."""
    region, now = store.read(name)
    say(store, name, live_members(region, now))


def say(store: RegionStore, name: RegionName, members: Iterable[MemberId], refusal: str = "") -> None:
    """Have members, by their newest incarnations, say what they find of the spec that waits, or of the one in force."""
    region, _ = store.read(name)
    spec = region.next_spec or region.spec
    newest = {m: row.incarnation for m, row in region.members.items()}
    found = tuple(
        SpecCheck(
            member=m,
            revision=spec.revision,
            digest=spec.digest,
            refusal=refusal,
            incarnation=newest.get(m, Incarnation(0)),
        )
        for m in members
    )
    store.handle(name, ReportSpecChecks(checks=found))
