"""Waits for a region's state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.sensors.base import RegionSensor
from airflow_kcr.triggers.payloads import Reaching, RegionReaches

if TYPE_CHECKING:
    from airflow.sdk import Context


class KcrRegionStateSensor(RegionSensor):
    """Waits until a region runs, is paused (and no batch runs any more), or is stopped (and its members have left).

    Fails at once where somebody has asked for something else, or the region is halted: it would wait for nothing.

    Args:
        state: `running`, `paused` or `stopped` (templated).
        kwargs: as for every sensor; `region`, `kcr_conn_id` and `deferrable` among them.
    """

    template_fields = (*RegionSensor.template_fields, "state")

    def __init__(self, *, state: str = "running", **kwargs: Any) -> None:  # noqa: ANN401 (Airflow's own)
        super().__init__(**kwargs)
        self.state = state

    def waiting_for(self, context: Context) -> RegionReaches:
        """Return the state.

        Raises:
            ConfigurationError: there is none of that name.
        """
        try:
            return RegionReaches(state=Reaching(self.state))
        except ValueError as error:
            raise ConfigurationError(
                f"state is {self.state!r}; a region is waited for until it is {', '.join(Reaching)}"
            ) from error
