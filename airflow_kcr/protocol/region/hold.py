"""Whether the region holds for an outsider (policy `hold`): nothing begins, cuts wait in the queue.

It follows from what was last reported and the policy in force, so a changed policy, or a group that leaves the spec,
ends it at once; and it is nobody's to lift: whoever next finds the group clean does.
"""

from __future__ import annotations

from airflow_kcr.protocol.group_members import Outsider
from airflow_kcr.protocol.region.rows import CutPurpose, CutRequest
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import OutsiderPolicy


def held_by(region: Region) -> tuple[Outsider, ...]:
    """Return the outsiders that the region holds for; empty: it does not hold."""
    if not region.outsiders or region.rules.outsiders is not OutsiderPolicy.HOLD:
        return ()
    return tuple(o for o in region.outsiders if o.group in region.rules.groups)


def lets_open(region: Region, request: CutRequest) -> bool:
    """Whether the cut of this request may open: any while the region does not hold, else only that of a stop.

    A stop begins nothing, and a person has to be able to leave a group that somebody else has moved into.
    """
    return request.purpose is CutPurpose.STOP or not held_by(region)
