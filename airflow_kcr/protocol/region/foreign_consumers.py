"""Foreign consumers in a region's groups.

The reporting member may die the next moment: the region keeps the report, and the next report corrects it. So a report
names what is in a group now, not what came or went, and telling it twice changes nothing.
"""

from __future__ import annotations

from datetime import datetime

from airflow_kcr.protocol.region import events, resets
from airflow_kcr.protocol.region.commands import ReportForeignConsumer, ReportGroups
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
    fresh = tuple(sorted(there.difference(region.foreign_consumers)))
    gone = tuple(o for o in region.foreign_consumers if o not in there and o not in unseen)
    if fresh or gone:
        region = replace(region, foreign_consumers=tuple(sorted(there | unseen)))
    if fresh:
        region = region.record(
            now, events.ForeignConsumersSeen(foreign_consumers=fresh, policy=region.rules.foreign_consumers)
        )
    if gone:
        region = region.record(now, events.ForeignConsumersGone(foreign_consumers=gone))
    if there and region.rules.foreign_consumers is ForeignConsumerPolicy.FAIL:
        return halt_for_foreign_consumer(region, now, ReportForeignConsumer(text="; ".join(map(str, sorted(there)))))
    # What a reset waits for is not the same any more.
    return resets.progress(region, now) if fresh or gone else region


def halt_for_foreign_consumer(region: Region, now: datetime, report: ReportForeignConsumer) -> Region:
    """Return the region halted because a foreign consumer is in one of its groups (policy `fail`).

    One that is halted keeps its reason, and what follows from it; one that is stopped has nothing to be halted.
    """
    if region.state in {RegionState.HALTED, RegionState.STOPPED}:
        return region
    choices = ("remove the foreign consumer, then resume", "set foreign_consumers to warn, then resume")
    return resets.halt(region, now, Halt(reason=HaltReason.FOREIGN_CONSUMER, text=report.text, choices=choices))
