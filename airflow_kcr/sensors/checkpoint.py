"""Waits for a checkpoint."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.hooks import contexts
from airflow_kcr.protocol.instants import checked_instant, format_instant, parse_instant
from airflow_kcr.sensors.base import RegionSensor
from airflow_kcr.triggers.payloads import CheckpointExists

if TYPE_CHECKING:
    from airflow.sdk import Context


class KcrCheckpointSensor(RegionSensor):
    """Waits until a region's path has a published checkpoint that holds the records of the run's data interval.

    Asks for no checkpoint: the region makes it by itself (`request: auto`), or another DAG asks.

    Args:
        boundary: an instant with a zone to wait for instead of the interval's end (templated).
        sequence: wait for a checkpoint of at least that sequence instead (templated).
        kwargs: as for every sensor; `region`, `kcr_conn_id` and `deferrable` among them.

    Raises:
        ConfigurationError: both are given.
    """

    template_fields = (*RegionSensor.template_fields, "boundary", "sequence")

    def __init__(
        self,
        *,
        boundary: datetime | str | None = None,
        sequence: int | str | None = None,
        **kwargs: Any,  # noqa: ANN401 (Airflow's own)
    ) -> None:
        super().__init__(**kwargs)
        if boundary is not None and sequence is not None:
            raise ConfigurationError(
                "a checkpoint is waited for by its boundary or by its sequence; give one of the two"
            )
        self.boundary = boundary
        self.sequence = sequence

    def waiting_for(self, context: Context) -> CheckpointExists:
        """Return the checkpoint.

        Raises:
            ConfigurationError: an argument is none, or the run has no data interval.
        """
        if self.sequence is not None:
            if not str(self.sequence).isdecimal():
                raise ConfigurationError(f"sequence is {self.sequence!r}; give the number of a checkpoint")
            return CheckpointExists(sequence=int(self.sequence))
        if isinstance(self.boundary, datetime):
            return CheckpointExists(boundary=format_instant(self.boundary))
        if self.boundary is not None:
            return CheckpointExists(boundary=format_instant(parse_instant(self.boundary)))
        interval = contexts.interval_of(context)
        if interval is None:
            raise ConfigurationError(
                f"run {context['dag_run'].run_id} has no data interval whose checkpoint could be waited for; give "
                "boundary or sequence"
            )
        return CheckpointExists(boundary=format_instant(checked_instant(interval[1])))
