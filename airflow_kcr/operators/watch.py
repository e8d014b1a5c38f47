"""The operator that watches a region, and notifies people of its incidents through Airflow's notifiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.common.compat.sdk import AirflowException

from airflow_kcr.errors import KcrError
from airflow_kcr.hooks import notices
from airflow_kcr.operators.base import ONE_HOUR
from airflow_kcr.protocol.values import format_instant, parse_instant
from airflow_kcr.triggers.payloads import IncidentsChange
from airflow_kcr.triggers.waits import RETRIES, RETRY_DELAY, WaitingTask

if TYPE_CHECKING:
    from airflow.sdk import BaseNotifier, Context

    from airflow_kcr.protocol.region.incidents import IncidentNotice
    from airflow_kcr.protocol.region.state import Region

AGAIN: Final = timedelta(minutes=1)
"""When to look again after all notifiers have failed."""


class KcrWatchOperator(WaitingTask):
    """Watches a region, and notifies people once when an incident begins and once when it is over.

    [Watch a region](../how-to/watch-a-region.md#notify-people) lists the incidents. The task holds no slot; it ends
    after `watch_for`, and the next run goes on: `watch_dag` makes such a DAG. The store remembers what people were
    notified of, so a restart, or a second run beside, notifies them of nothing twice.

    The templates of the notifiers have `kcr`:

    - `kcr.text`: everything in one sentence.
    - `kcr.region`: the region's name.
    - `kcr.standing`: `halted`, `stalled`, else the region's state.
    - `kcr.incident`: `halted`, `stalled`, `member_missing`, `foreign_consumer`, `retention`, `checkpoint_late` or
      `reset`.
    - `kcr.detail`: what is wrong, for whom, and what to do.
    - `kcr.since`, `kcr.over_at`: instants; empty where that is not known, or not over.

    A notifier that fails is logged. If all fail, the task tries again after a minute. It goes on while the store is
    away.

    Args:
        notifiers: Airflow's notifiers, such as `SmtpNotifier`, at least one.
        watcher: under which name the store remembers what people were notified of (templated). Each watcher notifies
            people of all incidents. Empty: `DAG.TASK`.
        late: how long after its boundary a checkpoint is late.
        retention: how long before retention overtakes the restore point people are notified.
        watch_for: how long a run watches.
        kwargs: as for every operator; `region` and `kcr_conn_id` among them.

    Raises:
        ConfigurationError: there is no notifier, or one is none.
    """

    template_fields = (*WaitingTask.template_fields, "watcher")

    def __init__(
        self,
        *,
        notifiers: Sequence[BaseNotifier] | BaseNotifier,
        watcher: str = "",
        late: timedelta = timedelta(minutes=15),
        retention: timedelta = timedelta(hours=4),
        watch_for: timedelta = ONE_HOUR,
        retries: int | None = RETRIES,
        retry_delay: timedelta | float = RETRY_DELAY,
        **kwargs: Any,  # noqa: ANN401 (Airflow's own)
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.notifiers = notices.checked(notifiers)
        self.watcher = watcher
        self.late = late
        self.retention = retention
        self.watch_for = watch_for

    def execute(self, context: Context) -> None:
        """Look, notify people, and wait for the next change.

        Raises:
            AirflowException: the region or the connection can't be used.
        """
        self.show_link(context)
        self._watch(context, datetime.now(UTC))

    def resume(self, context: Context, event: Mapping[str, object], began: str = "") -> None:
        """Look again after a change, or because it is time.

        Args:
            context: the task's.
            event: `payloads.TriggerAnswer` as JSON.
            began: when the task began to watch; empty, as `dag.test()` forgets it: now.

        Raises:
            AirflowException: the region or the connection can't be used.
        """
        self._watch(context, parse_instant(began) if began else datetime.now(UTC))

    def _watch(self, context: Context, began: datetime) -> None:
        from airflow_kcr.api.waiting import AWAY

        known: tuple[str, ...] = ()
        left = self.watch_for - (datetime.now(UTC) - began)
        try:
            known, is_all_sent = self._look(context)
            left = left if is_all_sent else min(left, AGAIN)
        except AWAY as error:
            self.log.warning("Region %s can't be watched now, it is looked at again: %s", self.region, error)
        except KcrError as error:
            # Never final, unlike for other tasks: the region may be declared later.
            raise AirflowException(error.message) from error
        if left > timedelta(0):
            wanted = IncidentsChange(known=known, late=self.late, retention=self.retention)
            self.give_up_slot(wanted, left, kept={"began": format_instant(began)})

    def _look(self, context: Context) -> tuple[tuple[str, ...], bool]:
        """Return the names of the incidents that there are, and whether people were notified of everything."""
        from airflow_kcr.api.incidents import look, names, settle
        from airflow_kcr.protocol.region.incidents import Tolerance
        from airflow_kcr.protocol.values import region_name

        region, watcher = region_name(self.region), self.watcher or f"{context['ti'].dag_id}.{context['ti'].task_id}"
        with self.hook.opened() as store:
            found = look(store, region, watcher, Tolerance(late=self.late, retention=self.retention))
            sent = {notice.incident.key: self._send(context, found.region, notice) for notice in found.notices}
            return names(found.incidents), settle(store, region, watcher, sent)

    def _send(self, context: Context, region: Region, notice: IncidentNotice) -> bool:
        """Return whether a notifier has notified people."""
        from airflow_kcr.protocol.region.incidents import IncidentKind

        incident, kind = notice.incident, notice.incident.key.kind
        is_down = notice.over_at is None and kind in {IncidentKind.HALTED, IncidentKind.STALLED}
        said = {
            "text": notice.text(region),
            "region": self.region,
            "standing": str(kind if is_down else region.state),
            "incident": str(kind),
            "detail": incident.what,
            "since": "" if incident.since is None else format_instant(incident.since),
            "over_at": "" if notice.over_at is None else format_instant(notice.over_at),
        }
        self.log.warning("%s", said["text"])
        failed = notices.send(self.notifiers, context, said, self.log)
        if failed:
            self.log.warning("%d of %d notifiers failed: %s", len(failed), len(self.notifiers), ", ".join(failed))
        return len(failed) < len(self.notifiers)
