"""Stops a region with a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_kcr.operators.waiting import WaitingOperator
from airflow_kcr.triggers.payloads import Reaching, RegionReaches

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kcr.api import Region


class KcrStopOperator(WaitingOperator):
    """Stops a region and waits until its members have left.

    A checkpoint, published and committed to Kafka, then all leave.

    Nothing is processed twice by a stop and a later start. A region without a live member, or one that is halted, is
    stopped at once, undrained. A region that is stopped already stays so.
    """

    def ask(self, context: Context, region: Region) -> RegionReaches:
        """Ask the region to stop."""
        region.stop()
        return RegionReaches(state=Reaching.STOPPED)

    def answer(self, context: Context, region: Region) -> dict[str, Any]:
        """Return the region's state and its newest checkpoint."""
        view = region.show()
        return {"region": view.region, "state": view.state, "timeline": view.timeline, "sequence": view.last_complete}
