"""Waits for a region to catch up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.sensors.base import RegionSensor
from airflow_kcr.triggers.payloads import LagBelow

if TYPE_CHECKING:
    from airflow.sdk import Context


class KcrLagSensor(RegionSensor):
    """Waits until a region's total lag, in offsets, is below a threshold.

    Counted from the positions that the store has, not from what is committed in Kafka, which is told only at
    checkpoints. Offsets are at most as many records: aborted transactions, markers of transactions and compaction leave
    offsets that no reader gets. Kafka is asked for the ends at most every ten seconds; nobody joins the group.

    Args:
        below: a number of offsets above 0 (templated).
        kwargs: as for every sensor; `region`, `kcr_conn_id` and `deferrable` among them.
    """

    template_fields = (*RegionSensor.template_fields, "below")

    def __init__(self, *, below: int | str, **kwargs: Any) -> None:  # noqa: ANN401 (Airflow's own)
        super().__init__(**kwargs)
        self.below = below

    def waiting_for(self, context: Context) -> LagBelow:
        """Return the lag.

        Raises:
            ConfigurationError: `below` is no number above 0.
        """
        if not str(self.below).isdecimal():
            raise ConfigurationError(f"below is {self.below!r}; give a number of offsets above 0")
        return LagBelow(records=int(self.below))
