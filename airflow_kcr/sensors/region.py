"""The sensors of a region: a checkpoint, its state, its members, its lag, its progress; they wait without a slot."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowSensorTimeout
from airflow.sdk import BaseSensorOperator

from airflow_kcr.errors import BrokerUnavailable, ConfigurationError, TimedOut
from airflow_kcr.goals import CheckpointExists, RegionReaches, WaitingFor
from airflow_kcr.hooks import kcr
from airflow_kcr.hooks.kcr import translated
from airflow_kcr.protocol.values import CheckpointNumber, DesiredState, checked_instant, instant_of
from airflow_kcr.triggers.payloads import LagBelow, MembershipHealthy, Progresses, TriggerAnswer
from airflow_kcr.triggers.waits import RETRIES, RETRY_DELAY, WaitingTask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from airflow_kcr.api import Progress


class RegionSensor(WaitingTask, BaseSensorOperator):
    """A sensor of one region.

    `timeout` counts from the first poll, `soft_fail` makes whatever would fail the task a skip, as for every sensor;
    the log then says what it was. What it waits for is named in the error of a timeout.

    Args:
        deferrable: whether to give up the worker's slot while waiting; without, `mode` and `poke_interval` count.
        retries: how often to try again; a timeout, and a goal out of reach, aren't retried.
        retry_delay: how long to wait before that.
        kwargs: as for every sensor; `region` and `kcr_conn_id` among them.
    """

    def __init__(
        self,
        *,
        deferrable: bool = True,
        retries: int | None = RETRIES,
        retry_delay: timedelta | float = RETRY_DELAY,
        **kwargs: Any,  # noqa: ANN401 (Airflow's own)
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.deferrable = deferrable

    @abstractmethod
    def waiting_for(self, context: Context) -> WaitingFor:
        """Return what to wait for.

        Raises:
            ConfigurationError: an argument, or the run's data interval, does not say.
        """

    def execute(self, context: Context) -> Any:  # noqa: ANN401 (Airflow's own)
        """Probe once, and wait if need be.

        Raises:
            AirflowSensorTimeout: it was not reached in time.
            AirflowSkipException: so, with `soft_fail`.
            AirflowFailException: it can't be reached any more.
            AirflowException: the store was away.
        """
        self.show_link(context)
        if not self.deferrable:
            return super().execute(context)
        return self.resume_execution("begin", None, context)

    def begin(self, context: Context) -> None:
        """Probe once; wait without a slot if that was too early. Goes through Airflow's `soft_fail`."""
        with self._translated():
            wanted = self.waiting_for(context)
            missing, now = self._probe(wanted)
        if missing is None and now is not None:
            return
        self.log.info("%s", missing or "waiting for Kafka")
        self.give_up_slot(wanted, timedelta(seconds=self.timeout), since=now)

    def resume(self, context: Context, event: Mapping[str, object]) -> None:
        """End as the trigger says.

        Args:
            context: the task's.
            event: `payloads.TriggerAnswer` as JSON.
        """
        with self._translated():
            try:
                TriggerAnswer.from_json(event).require_reached()
            except TimedOut as late:
                raise AirflowSensorTimeout(late.message) from late

    def poke(self, context: Context) -> bool:
        """Return whether it is reached; what is missing is in the log."""
        with self._translated():
            missing, now = self._probe(self.waiting_for(context))
        if missing is not None:
            self.log.info("%s", missing)
        return missing is None and now is not None

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            with translated():
                yield
        except AirflowException as error:
            if self.soft_fail or self.never_fail:
                self.log.warning("%s", error)  # Airflow's skip has no reason but that one was asked for
            raise

    def _probe(self, wanted: WaitingFor) -> tuple[Progress | None, datetime | None]:
        """Return what one poll has found missing, and the store's clock; None: Kafka did not answer, which may heal."""
        from airflow_kcr.protocol.values import region_name
        from airflow_kcr.triggers.probes import probe

        with self.hook.opened() as store:
            try:
                return probe(store, region_name(self.region), wanted, self.hook)
            except BrokerUnavailable as error:
                self.log.warning("%s", error.message)
                return None, None


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
            return CheckpointExists(sequence=CheckpointNumber(int(self.sequence)))
        if self.boundary is not None:
            return CheckpointExists(boundary=instant_of("boundary", self.boundary))
        interval = kcr.interval_of(context)
        if interval is None:
            raise ConfigurationError(
                f"run {context['dag_run'].run_id} has no data interval whose checkpoint could be waited for; give "
                "boundary or sequence"
            )
        return CheckpointExists(boundary=checked_instant(interval[1]))


class KcrLagSensor(RegionSensor):
    """Waits until a region's total lag, in offsets, is below a threshold.

    Lag counts from the positions in the store. It counts offsets, of which there may be more than records: aborted
    transactions, transaction markers and compaction leave gaps. Log ends are read at most every ten seconds.

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

    Kafka is read at most every ten seconds; no group is joined.

    Args:
        groups: which groups of the region (templated); None: all.
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

    The timeout's error names what a stalled region waits for and since when, like `kcr region show`. To detect stalls,
    schedule it with a short `timeout`. Fails at once if another state was requested, or if the region is halted.

    Args:
        kwargs: as for every sensor; `region`, `kcr_conn_id`, `timeout` and `deferrable` among them.
    """

    def waiting_for(self, context: Context) -> Progresses:
        """Return that it makes progress."""
        return Progresses()


class KcrRegionStateSensor(RegionSensor):
    """Waits until a region runs, is paused (and no batch runs any more), or is stopped (and its members have left).

    Fails at once if another state was requested, or if the region is halted.

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
            return RegionReaches(state=DesiredState(self.state))
        except ValueError as error:
            raise ConfigurationError(
                f"state is {self.state!r}; a region is waited for until it is {', '.join(DesiredState)}"
            ) from error
