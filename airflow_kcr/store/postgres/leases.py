"""Members' leases, renewed for all members of a process in one statement, without a region's lock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from airflow_kcr.errors import RefusedError, UnknownMember, UnknownRegion
from airflow_kcr.ports import Heartbeats, Renewal
from airflow_kcr.protocol.region.commands import Heartbeat
from airflow_kcr.protocol.values import RegionName
from airflow_kcr.store.postgres.connections import Connections
from airflow_kcr.store.postgres.statements import load

SQL: Final = load("leases")


def renew(
    connections: Connections, renewals: Collection[Renewal], known: Callable[[], Iterable[RegionName]]
) -> Heartbeats:
    """Renew leases; see `RegionStore.renew`.

    Args:
        connections: of the store.
        renewals: each once.
        known: asked for the names of all regions, where one is not there.
    """
    asked = [*dict.fromkeys(renewals)]
    if not asked:
        return {}
    commands = [one.command for one in asked]
    marks = [command.newest for command in commands]
    rows = connections.answer(
        SQL["renew"],
        regions=[one.region for one in asked],
        groups=[command.member.group for command in commands],
        indexes=[command.member.index for command in commands],
        incarnations=[command.incarnation for command in commands],
        leases=[command.lease for command in commands],
        newest=[mark and mark.number for mark in marks],
        newest_at=[mark and mark.at for mark in marks],
        lacks=[command.lacks for command in commands],
    )
    found: dict[Renewal, Heartbeat | RefusedError] = {}
    for place, held, *columns in rows:
        one, heartbeat = asked[place - 1], Heartbeat(*columns)
        if not heartbeat.incarnation:
            found[one] = UnknownMember(
                f"{one.command.member} is not registered in region {one.region}; register it first"
            )
        elif heartbeat.renewed or not held:
            found[one] = heartbeat
    there = {asked[row[0] - 1] for row in rows}
    return {**found, **{one: _unknown(one, known) for one in asked if one not in there}}


def _unknown(renewal: Renewal, known: Callable[[], Iterable[RegionName]]) -> UnknownRegion:
    return UnknownRegion(f"there is no region {renewal.region!r} in this store; it has: {', '.join(known()) or 'none'}")
