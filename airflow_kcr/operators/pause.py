"""Pauses a region."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_kcr.operators.waiting import WaitingOperator
from airflow_kcr.triggers.payloads import Reaching, RegionReaches

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kcr.api import Region


class KcrPauseOperator(WaitingOperator):
    """Pauses a region and waits until no batch of it runs any more; the members stay in their groups.

    A checkpoint that approaches its boundary is given up. A region that is paused already stays so.
    """

    def ask(self, context: Context, region: Region) -> RegionReaches:
        """Ask the region to pause."""
        region.pause()
        return RegionReaches(state=Reaching.PAUSED)

    def answer(self, context: Context, region: Region) -> dict[str, Any]:
        """Return the region's state."""
        view = region.show()
        return {"region": view.region, "state": view.state, "desired_state": view.desired_state, "epoch": view.epoch}
