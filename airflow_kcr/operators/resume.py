"""Lets a region go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_kcr.operators.base import RegionOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class KcrResumeOperator(RegionOperator):
    """Lets a paused region go on; a stopped or halted one is started.

    Does not wait: a started region runs once its members are there, whom another task may have to start. What needs it
    to run waits with `KcrRegionStateSensor`.
    """

    def execute(self, context: Context) -> dict[str, object]:
        """Resume, and return the region's state."""
        with self.lent(context) as region:
            view = region.resume()
        return {"region": view.region, "state": view.state, "desired_state": view.desired_state, "epoch": view.epoch}
