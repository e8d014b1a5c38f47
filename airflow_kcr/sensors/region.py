"""The sensors of a region: a checkpoint, its state, its members, its lag, its progress."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.hooks import contexts
from airflow_kcr.protocol.times import checked_instant, format_instant, parse_instant
from airflow_kcr.sensors.base import RegionSensor
from airflow_kcr.triggers.payloads import (
    CheckpointExists,
    LagBelow,
    MembershipHealthy,
    Progresses,
    Reaching,
    RegionReaches,
)

if TYPE_CHECKING:
    from airflow.sdk import Context


class KcrCheckpointSensor(RegionSensor):
    """Waits until a region has a current published checkpoint that holds the records of the run's data interval.

    It requests no checkpoint: the region does (`request: auto`), or another DAG.

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


class KcrLagSensor(RegionSensor):
    """Waits until a region's total lag, in offsets, is below a threshold.

    Lag counts from the positions in the store, as offsets are committed to Kafka only at checkpoints. It counts
    offsets, of which there may be more than records: aborted transactions, transaction markers and compaction leave
    gaps. Log ends are read at most every ten seconds; no group is joined.

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


class KcrMembershipSensor(RegionSensor):
    """Waits until every member of the spec is live and every check of `kcr group validate` passes.

    Kafka is read at most every ten seconds, with admin requests; no group is joined.

    Args:
        groups: which of the region's groups, by their ids (templated); None: all.
        kwargs: as for every sensor; `region`, `kcr_conn_id` and `deferrable` among them.
    """

    template_fields = (*RegionSensor.template_fields, "groups")

    def __init__(self, *, groups: Sequence[str] | None = None, **kwargs: Any) -> None:  # noqa: ANN401 (Airflow's own)
        super().__init__(**kwargs)
        self.groups = groups

    def waiting_for(self, context: Context) -> MembershipHealthy:
        """Return the groups."""
        groups = self.groups or ()
        return MembershipHealthy(groups=(groups,) if isinstance(groups, str) else tuple(groups))


class KcrProgressSensor(RegionSensor):
    """Waits until a region makes progress: it runs, and nothing in it waits for longer than it may.

    Succeeds at once if the region is healthy. While the region is stalled it waits; the timeout's error names what the
    region waits for and since when, like `kcr region show`. To detect stalls, schedule it with a short `timeout`.
    Fails at once if another state was requested, or if the region is halted.

    Args:
        kwargs: as for every sensor; `region`, `kcr_conn_id`, `timeout` and `deferrable` among them.
    """

    def waiting_for(self, context: Context) -> Progresses:
        """Return that it makes progress."""
        return Progresses()


class KcrRegionStateSensor(RegionSensor):
    """Waits until a region runs, is paused (and no batch runs any more), or is stopped (and its members have left).

    Fails at once if another state was requested, or if the region is halted, as it would wait in vain.

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
