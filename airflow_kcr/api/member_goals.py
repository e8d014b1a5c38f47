"""What can be waited for about the members of one application, from outside of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from airflow_kcr.api.goals import Goal
from airflow_kcr.errors import TimedOut
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.region.state import is_live
from airflow_kcr.protocol.values import MemberId

GONE_FOR: Final = timedelta(seconds=60)
"""How long a member may be without a lease before its application counts as ended: longer than it takes to come back by
itself, after the store was away or its process was suspended."""


def ended(before: Mapping[MemberId, int]) -> Goal:
    """Return the goal that an application has ended with its region: the region has stopped, or it has no place for it.

    Members that lived and do so no more, while the region goes on, make it `TimedOut`: another application has to be
    started. Members that have not come yet are waited for: a cluster may have no room for them yet.

    Args:
        before: the members, each with its incarnation before the application was started.
    """

    def is_reached(region: StoredRegion, now: datetime) -> bool:
        mine = [member for member in sorted(before) if _has_place(region, member)]
        if not mine or (region.state is RegionState.STOPPED and any(has_come(region, member) for member in mine)):
            return True  # a stopped region is started by the first member that comes
        lost = [member for member in mine if has_come(region, member) and _is_gone(region, member, now)]
        if lost:
            raise TimedOut(
                f"{', '.join(map(str, lost))} of region {region.name}, which is {region.state}, had no lease for "
                f"{GONE_FOR.total_seconds():.0f} s: the application has ended; another try takes its members over"
            )
        return False

    def has_come(region: StoredRegion, member: MemberId) -> bool:
        row = region.members.get(member)
        return row is not None and row.incarnation > before[member]

    def missing(region: StoredRegion, now: datetime) -> Iterator[str]:
        yield from (f"{member} has not come yet" for member in sorted(before) if not has_come(region, member))
        yield from (f"{member} consumes" for member in sorted(before) if is_live(region, member, now))

    return Goal(what="its application to end", is_reached=is_reached, missing=missing)


def _has_place(region: StoredRegion, member: MemberId) -> bool:
    group = region.rules.groups.get(member.group)
    return group is not None and member.index < group.members


def _is_gone(region: StoredRegion, member: MemberId, now: datetime) -> bool:
    lease = region.leases.get(member)
    return not is_live(region, member, now) and (lease is None or lease.until + GONE_FOR < now)
