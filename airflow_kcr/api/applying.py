"""Applying a spec: a region is created, or changed as far as it may be (design section 6, end).

What may change while members run counts at once, the rest at the next cut with a restart of the members; in a stopped
region all of it counts at once. A group's id and its cluster never change: that would be another region.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_kcr.errors import RegionExists, UnknownRegion
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.values import RegionName, region_name
from airflow_kcr.spec import Difference, RegionSpec, TakesEffect, differences, split
from airflow_kcr.store.regions import RegionStore, SpecUpdate


class Change(StrEnum):
    """What became of a spec."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What applying a spec does, or did."""

    region: str
    change: Change
    differences: tuple[Difference, ...] = ()
    """Every field that differs from what is in force, with when it counts."""

    def to_json(self) -> dict[str, object]:
        """Return it as in `region apply`."""
        return {
            "region": self.region,
            "change": str(self.change),
            "differences": [{"field": d.path, "takes_effect": str(d.takes_effect)} for d in self.differences],
        }


def compared(store: RegionStore, spec: RegionSpec) -> Applied:
    """Return what applying a spec would do now; changes nothing.

    Raises:
        RegionExists: it would need another region; the message names the fields.
    """
    name = region_name(spec.region)
    try:
        region, _ = store.read(name)
    except UnknownRegion:
        return Applied(region=name, change=Change.CREATED)
    return _compared(region, spec)


def apply(store: RegionStore, spec: RegionSpec) -> Applied:
    """Create the region of a spec, or change it; the same spec again changes nothing.

    Raises:
        RegionExists: a difference is one that needs another region; the message names the fields. Nothing is changed.
        GroupInOtherRegion: one of its groups belongs to another region, which the message names.
    """
    plan = compared(store, spec)
    name = RegionName(plan.region)
    if plan.change is Change.CREATED:
        store.declare(name, Spec(text=spec.to_json_text(), rules=spec.rules()))
        return plan
    if plan.change is Change.CHANGED:
        region, _ = store.read(name)
        store.change_spec(name, _update(region, spec))
    return plan


def _compared(region: StoredRegion, spec: RegionSpec) -> Applied:
    found = tuple(differences(RegionSpec.from_json(region.spec.text), spec))
    refused = [d.path for d in found if d.takes_effect is TakesEffect.REFUSED]
    if refused:
        raise RegionExists(
            f"region {region.name} exists, and {', '.join(refused)} can't change in it; make another region, "
            "with a name and groups of its own, or write what it has"
        )
    if region.state is RegionState.STOPPED:
        found = tuple(Difference(d.path, TakesEffect.AT_ONCE) for d in found)
    wanted = spec.to_json_text()
    # A changed spec may be waiting already; the same again changes nothing, the one in force takes it back.
    waiting = region.spec.text if region.next_spec is None else region.next_spec.text
    change = Change.UNCHANGED if wanted == waiting else Change.CHANGED
    return Applied(region=region.name, change=change, differences=found)


def _update(region: StoredRegion, spec: RegionSpec) -> SpecUpdate:
    parts = split(RegionSpec.from_json(region.spec.text), spec)
    newest = region.spec.revision if region.next_spec is None else region.next_spec.revision
    at_once = region.spec
    if parts.at_once.to_json_text() != region.spec.text:
        newest += 1
        at_once = _stored(parts.at_once, newest)
    return SpecUpdate(at_once=at_once, later=None if parts.later is None else _stored(parts.later, newest + 1))


def _stored(spec: RegionSpec, revision: int) -> Spec:
    return Spec(text=spec.to_json_text(), rules=spec.rules(), revision=revision)
