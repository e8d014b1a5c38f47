"""Whether the region holds for a foreign consumer (policy `hold`): nothing begins, checkpoints wait in the queue.

It follows from the last report and the policy in force, so a changed policy, or a group that leaves the spec, ends it
at once; no command lifts it: the next check that finds the group clean does.
"""

from __future__ import annotations

from airflow_kcr.protocol.group_members import ForeignConsumer
from airflow_kcr.protocol.region.rows import CheckpointPurpose, CheckpointRequest
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import ForeignConsumerPolicy


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
