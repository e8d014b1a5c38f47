"""Consent: a table without history can't be restored, so going back needs the requester's explicit consent.

Only people are asked; an automatic reset goes where it has to, and such a table is right again once
the replay has passed the old position. The question is put twice: when a request is accepted, by its plan, and when it
begins, as a member may have gone on in between.
"""

from __future__ import annotations

from airflow_kcr.errors import UpsertNeedsConsent
from airflow_kcr.protocol.delivery import UpsertSink
from airflow_kcr.protocol.region.rows import PersonReset
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.seek_map import SeekEntry, SeekMap
from airflow_kcr.protocol.targets import FromFile, Needs, ShiftBy, Target, ToLatest, ToOffset
from airflow_kcr.protocol.values import GroupPartition


def not_restored(region: Region, reset: PersonReset, seek: SeekMap) -> tuple[UpsertSink, ...]:
    """Return the sinks whose tables a reset would go back behind, without being able to restore them.

    Args:
        region: the region, for its sinks.
        reset: what is asked for.
        seek: the whole map, with the present positions.
    """
    back = {p.group for p, entry in seek.items() if p in reset.scope and _goes_back(reset.target, p, entry)}
    return tuple(sink for name, group in sorted(region.rules.groups.items()) if name in back for sink in group.upserts)


def require(region: Region, reset: PersonReset, seek: SeekMap) -> None:
    """Refuse to go back behind what can't be restored, unless the requester has consented.

    Raises:
        UpsertNeedsConsent: names the sinks, what it means, and the word that consents.
    """
    if reset.consent_upsert:
        return
    sinks = not_restored(region, reset, seek)
    if sinks:
        raise UpsertNeedsConsent(
            f"{', '.join(map(str, sinks))}: mode upsert keeps no history, so going back can't restore it. Rows that "
            "were replaced stay as they are, and the table mixes old and new until the replay has passed where the "
            f"region {region.name} is now. Nothing was reset; if that is acceptable, apply the plan with "
            "--consent-upsert (consent_upsert=True in Python)"
        )


def _goes_back(target: Target, partition: GroupPartition, entry: SeekEntry) -> bool:
    current = entry.current
    if current is None:
        return False
    # If an owner looks a time up after the start, there is no one left to ask: it counts as going back.
    if entry.offset is not None and Needs.TIME_INDEX not in target.needs:
        return entry.offset < current
    match target:
        case ToLatest():
            return False
        case ToOffset(offset=offset):
            return offset < current
        case ShiftBy(by=by):
            return by < 0
        case FromFile(entries=entries):
            return entries.get(partition, current) < current
        case _:
            return True
