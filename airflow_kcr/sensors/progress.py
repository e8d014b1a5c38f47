"""Waits while a region is stalled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_kcr.sensors.base import RegionSensor
from airflow_kcr.triggers.payloads import Progresses

if TYPE_CHECKING:
    from airflow.sdk import Context


class KcrProgressSensor(RegionSensor):
    """Waits until a region makes progress: it runs, and nothing in it waits for longer than it may.

    Succeeds at once in a healthy region. While the region is stalled it waits, and its time-out names the rule that
    waits and since when, as `kcr region show` does. To be told of a stall, run it on a schedule with a short `timeout`.
    Fails at once where somebody has asked for something else, or the region is halted.

    Args:
        kwargs: as for every sensor; `region`, `kcr_conn_id`, `timeout` and `deferrable` among them.
    """

    def waiting_for(self, context: Context) -> Progresses:
        """Return that it makes progress."""
        return Progresses()
