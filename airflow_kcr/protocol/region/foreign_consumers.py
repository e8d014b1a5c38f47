"""Foreign consumers in a region's groups.

The reporting member may die the next moment: the region keeps the report, and the next report corrects it. So a report
names what is in a group now, not what came or went, and telling it twice changes nothing.
"""

from __future__ import annotations

from datetime import datetime

from airflow_kcr.protocol.region import events, resets
from airflow_kcr.protocol.region.commands import ReportGroups
from airflow_kcr.protocol.region.rows import Halt, HaltReason, RegionState
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import ForeignConsumerPolicy
from airflow_kcr.protocol.values import replace


def report_foreign_consumers(region: Region, now: datetime, report: ReportGroups) -> Region:
    """Return the region knowing who was found in its groups: halted or warned by its policy.

    Earlier reports about groups that were not checked stay.
    """
    groups, seen = region.rules.groups, report.seen
    there = {o for group, found in seen.items() if group in groups for o in found}
    unseen = {o for o in region.foreign_consumers if o.group in groups and o.group not in seen}
    known, policy = tuple(sorted(there | unseen)), region.rules.foreign_consumers
    is_news = known != region.foreign_consumers
    if is_news:
        body = events.ForeignConsumersChanged(foreign_consumers=known, policy=policy)
        region = replace(region, foreign_consumers=known).record(now, body)
    if there and policy is ForeignConsumerPolicy.FAIL:
        if region.state in {RegionState.HALTED, RegionState.STOPPED}:
            return region  # a halted one keeps its reason, and what follows from it
        text = "; ".join(map(str, sorted(there)))
        choices = ("remove the foreign consumer, then resume", "set foreign_consumers to warn, then resume")
        return resets.halt(region, now, Halt(reason=HaltReason.FOREIGN_CONSUMER, text=text, choices=choices))
    # What a reset waits for is not the same any more.
    return resets.progress(region, now) if is_news else region
