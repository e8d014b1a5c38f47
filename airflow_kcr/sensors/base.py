"""What the sensors of a region have in common: they poll, and give their slot up while they wait."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowException, AirflowSensorTimeout

from airflow_kcr.errors import BrokerUnavailable, TimedOut
from airflow_kcr.hooks.contexts import translated
from airflow_kcr.hooks.kcr import KcrHook
from airflow_kcr.hooks.links import RegionLink
from airflow_kcr.protocol.times import format_instant
from airflow_kcr.triggers.payloads import TriggerAnswer, WaitingFor
from airflow_kcr.triggers.waits import RETRIES, RETRY_DELAY, RegionTrigger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import BaseOperatorLink, Context

    from airflow_kcr.triggers.probes import Probe

BACKSTOP: Final = timedelta(seconds=60)
"""How much later than the trigger Airflow itself gives up: this counts only if no triggerer runs."""


class RegionSensor(BaseSensorOperator):
    """A sensor of one region.

    `timeout` counts from the first poll, `soft_fail` makes whatever would fail the task a skip, as for every sensor;
    the log then says what it was. What it waits for is named in the error of a timeout.

    Args:
        region: the region's name (templated).
        kcr_conn_id: the Airflow connection of the store (templated).
        deferrable: whether to give the worker's slot up while waiting; without, `mode` and `poke_interval` count.
        retries: how often to try again; a timeout, and what can't be reached, are not retried anyway.
        retry_delay: how long to wait before that.
        kwargs: as for every sensor.
    """

    template_fields: Sequence[str] = ("region", "kcr_conn_id")
    operator_extra_links: Sequence[BaseOperatorLink] = (RegionLink(),)
    ui_color = "#e4f0f7"

    def __init__(
        self,
        *,
        region: str,
        kcr_conn_id: str = KcrHook.default_conn_name,
        deferrable: bool = True,
        retries: int | None = RETRIES,
        retry_delay: timedelta | float = RETRY_DELAY,
        **kwargs: Any,  # noqa: ANN401 (Airflow's own)
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.region = region
        self.kcr_conn_id = kcr_conn_id
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
        RegionLink().persist(context, self.region, self.kcr_conn_id)
        if not self.deferrable:
            return super().execute(context)
        return self.resume_execution("begin", None, context)

    def begin(self, context: Context) -> None:
        """Probe once; wait without a slot if that was too early. Goes through Airflow's `soft_fail`."""
        with self._translated():
            wanted = self.waiting_for(context)
            found = self._probe(wanted)
        if found is not None and found.missing is None:
            return
        longest = timedelta(seconds=self.timeout)
        if self.execution_timeout is not None:
            longest = min(longest, self.execution_timeout)
        self.log.info("%s", "waiting for Kafka" if found is None else found.missing)
        self.defer(
            trigger=RegionTrigger.waiting(
                kcr_conn_id=self.kcr_conn_id,
                region=self.region,
                waiting_for=wanted,
                deadline=longest,
                asked_at="" if found is None else format_instant(found.now),
            ),
            method_name="resume",
            timeout=longest + BACKSTOP,
        )

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
            found = self._probe(self.waiting_for(context))
        if found is None:
            return False
        if found.missing is not None:
            self.log.info("%s", found.missing)
        return found.missing is None

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            with translated():
                yield
        except AirflowException as error:
            if self.soft_fail or self.never_fail:
                self.log.warning("%s", error)  # Airflow's skip has no reason but that one was asked for
            raise

    def _probe(self, wanted: WaitingFor) -> Probe | None:
        """Return what one poll has found; None: Kafka did not answer, which may heal while one waits."""
        from airflow_kcr.protocol.values import region_name
        from airflow_kcr.triggers.probes import probe

        hook = KcrHook(self.kcr_conn_id)
        with hook.opened() as store:
            try:
                return probe(store, region_name(self.region), wanted, hook)
            except BrokerUnavailable as error:
                self.log.warning("%s", error.message)
                return None
