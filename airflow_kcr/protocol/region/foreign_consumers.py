"""What is seen of foreign consumers in the groups, and what the policy makes of it (docs/how-to/validate-a-group.md).

The reporting member may die the next moment: the region keeps the report, and the next report corrects it. So a
report names what is in a group now, not what came or went, and telling it twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from airflow_kcr.protocol.observations import ForeignConsumer
from airflow_kcr.protocol.region import events, lifecycle, resets
from airflow_kcr.protocol.region.rows import CheckpointPurpose, CheckpointRequest
from airflow_kcr.protocol.region.state import Region, record
from airflow_kcr.protocol.rules import ForeignConsumerPolicy
from airflow_kcr.protocol.values import GroupId, replace


def held_by(region: Region) -> tuple[ForeignConsumer, ...]:
    """Return the foreign consumers that the region holds for; empty: it does not hold."""
    if not region.foreign_consumers or region.rules.foreign_consumers is not ForeignConsumerPolicy.HOLD:
        return ()
    return tuple(o for o in region.foreign_consumers if o.group in region.rules.groups)


def lets_open(region: Region, request: CheckpointRequest) -> bool:
    """Whether the checkpoint of this request may open: any while the region does not hold, else only that of a stop.

    A stop starts nothing, and a person has to be able to leave a group that a foreign consumer has entered.
    """
    return request.purpose is CheckpointPurpose.STOP or not held_by(region)


def report(region: Region, now: datetime, seen: Mapping[GroupId, tuple[ForeignConsumer, ...]]) -> Region:
    """Return the region knowing who was found in its groups: halted, holding or warned by its policy.

    Args:
        region: the region.
        now: the store's clock.
        seen: the foreign consumers of each checked group; empty: it is clean. Reports about groups that were not
            checked stay.
    """
    groups = region.rules.groups
    there = {o for group, found in seen.items() if group in groups for o in found}
    unseen = {o for o in region.foreign_consumers if o.group in groups and o.group not in seen}
    fresh = tuple(sorted(there.difference(region.foreign_consumers)))
    gone = tuple(o for o in region.foreign_consumers if o not in there and o not in unseen)
    if fresh or gone:
        region = replace(region, foreign_consumers=tuple(sorted(there | unseen)))
    if fresh:
        region = record(
            region, now, events.ForeignConsumersSeen(foreign_consumers=fresh, policy=region.rules.foreign_consumers)
        )
    if gone:
        region = record(region, now, events.ForeignConsumersGone(foreign_consumers=gone))
    if there and region.rules.foreign_consumers is ForeignConsumerPolicy.FAIL:
        return lifecycle.foreign_consumer(region, now, "; ".join(map(str, sorted(there))))
    # What a reset waits for is not the same any more.
    return resets.progress(region, now) if fresh or gone else region
