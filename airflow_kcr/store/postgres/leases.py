"""Renewals: one statement for all members of a process, whichever regions they are in, and no region lock.

An expired lease is not revived, nor one of another incarnation. The statement waits for no row: a lease that another
transaction writes at that moment, a takeover for instance, is skipped and has no answer. So one member never keeps the
others of its process from being renewed, and two processes that renew the same rows never wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from sqlalchemy import text

from airflow_kcr.errors import RefusedError, UnknownMember, UnknownRegion
from airflow_kcr.ports import Heartbeats, Renewal
from airflow_kcr.protocol.commands import Heartbeat
from airflow_kcr.protocol.values import RegionName
from airflow_kcr.store.postgres.connections import Connections
from airflow_kcr.store.postgres.session import array

# name: renew_leases — answered, renewed or not, with what tells a member whether anything is worth reading. A lease
# that is `held` and not renewed was being written. What is `free` was judged as it was locked, and stays so. A region
# that is not there has no row, a member that is not there has no incarnation.
_RENEW: Final = text("""
    WITH asked AS (
        SELECT u.place, u.incarnation, u.lease, r.id AS region_id, u.group_id, u.member_index,
               r.counter, r.epoch, r.reconcile_at
        FROM unnest(CAST(:regions AS text[]), CAST(:groups AS text[]), CAST(:indexes AS bigint[]),
                    CAST(:incarnations AS bigint[]), CAST(:leases AS interval[]))
            WITH ORDINALITY AS u (region, group_id, member_index, incarnation, lease, place)
        JOIN kcr.region r ON r.name = u.region
    ), held AS (
        SELECT a.place FROM asked a JOIN kcr.lease l USING (region_id, group_id, member_index, incarnation)
        WHERE l.valid_until > clock_timestamp()
    ), free AS (
        SELECT a.place, a.region_id, a.group_id, a.member_index, a.incarnation, a.lease
        FROM asked a JOIN kcr.lease l USING (region_id, group_id, member_index, incarnation)
        WHERE l.valid_until > clock_timestamp()
        FOR NO KEY UPDATE OF l SKIP LOCKED
    ), renewed AS (
        UPDATE kcr.lease l SET valid_until = clock_timestamp() + f.lease
        FROM free f
        WHERE l.region_id = f.region_id AND l.group_id = f.group_id AND l.member_index = f.member_index
        RETURNING f.place
    )
    SELECT a.place, clock_timestamp(), a.counter, a.epoch, m.incarnation, a.reconcile_at,
           a.place IN (SELECT place FROM renewed), a.place IN (SELECT place FROM held)
    FROM asked a
    LEFT JOIN kcr.member m USING (region_id, group_id, member_index)
""")


def renew(
    connections: Connections, renewals: Collection[Renewal], known: Callable[[], Iterable[RegionName]]
) -> Heartbeats:
    """Renew leases; see `ports.Transactions.renew`.

    Args:
        connections: of the store.
        renewals: each once.
        known: asked for the names of all regions, where one is not there.
    """
    asked = [*dict.fromkeys(renewals)]
    if not asked:
        return {}
    rows = connections.answer(
        _RENEW,
        regions=array([one.region for one in asked]),
        groups=array([one.member.group for one in asked]),
        indexes=array([one.member.index for one in asked]),
        incarnations=array([one.incarnation for one in asked]),
        leases=[one.lease for one in asked],
    )
    found: dict[Renewal, Heartbeat | RefusedError] = {}
    for place, now, counter, epoch, incarnation, reconcile_at, renewed, held in rows:
        one = asked[place - 1]
        if incarnation is None:
            found[one] = UnknownMember(f"{one.member} is not registered in region {one.region}; register it first")
        elif renewed or not held:
            found[one] = Heartbeat(
                now=now,
                counter=counter,
                epoch=epoch,
                incarnation=incarnation,
                renewed=renewed,
                reconcile_at=reconcile_at,
            )
    there = {asked[row[0] - 1] for row in rows}
    return {**found, **{one: _unknown(one, known) for one in asked if one not in there}}


def _unknown(renewal: Renewal, known: Callable[[], Iterable[RegionName]]) -> UnknownRegion:
    return UnknownRegion(f"there is no region {renewal.region!r} in this store; it has: {', '.join(known()) or 'none'}")
