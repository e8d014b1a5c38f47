"""A notifier for the callbacks of tasks that watch a region: says what is wrong with it, through other notifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import AirflowException
from airflow.sdk import BaseNotifier

from airflow_kcr.errors import KcrError
from airflow_kcr.hooks import notices
from airflow_kcr.hooks.kcr import KcrHook

if TYPE_CHECKING:
    from airflow.sdk import Context


class KcrRegionNotifier(BaseNotifier):
    """Notifies people, through other notifiers, of a region's trouble and of their choices.

    Use it as `on_failure_callback` of `KcrProgressSensor`, which fails when the region halts or stalls, or of any other
    task of a region::

        mail = SmtpNotifier(to="on-call@example.com", subject="{{ kcr.region }} is {{ kcr.standing }}", ...)
        notify = KcrRegionNotifier(region="flights", notifiers=[mail])
        KcrProgressSensor(task_id="watch", region="flights", timeout=300, on_failure_callback=notify)

    The templates of the notifiers have `kcr`, read from the store when the task has failed:

    - `kcr.region`: the region's name.
    - `kcr.standing`: `halted`, `stalled`, else the region's state; `unknown` where the store can't be read.
    - `kcr.detail`: why it halted and a person's choices; which rule waits, for what and since when; else why the task
      failed.

    A notifier that fails is logged, and the others are still called.

    Args:
        region: the region's name (templated).
        notifiers: Airflow's notifiers, such as `SmtpNotifier`, at least one.
        kcr_conn_id: the Airflow connection of the store (templated).

    Raises:
        ConfigurationError: there is no notifier, or one is none.
    """

    template_fields: Sequence[str] = ("region", "kcr_conn_id")

    def __init__(
        self,
        *,
        region: str,
        notifiers: Sequence[BaseNotifier] | BaseNotifier,
        kcr_conn_id: str = KcrHook.default_conn_name,
    ) -> None:
        super().__init__()
        self.region = region
        self.kcr_conn_id = kcr_conn_id
        self.notifiers = notices.checked(notifiers)

    def notify(self, context: Context) -> None:
        """Tell all notifiers.

        Args:
            context: that of the task that calls back.

        Raises:
            AirflowException: some of them failed; all were called, and the log has the error of each.
        """
        said = self._said(context)
        self.log.warning("%s", said["text"])
        failed = notices.send(self.notifiers, context, said, self.log)
        if failed:
            raise AirflowException(
                f"{len(failed)} of {len(self.notifiers)} notifiers failed to tell that region {self.region} is "
                f"{said['standing']}: {', '.join(failed)}; the log has each error"
            )

    def _said(self, context: Context) -> dict[str, str]:
        failure = str(context.get("exception") or "")
        try:
            with KcrHook(self.kcr_conn_id).region(self.region) as region:
                view = region.show()
        except KcrError as error:
            standing, detail = "unknown", "; ".join(filter(None, (failure, error.message)))
        else:
            stalled = "; ".join(wait.text() for wait in view.liveness.stalled)
            standing = "halted" if view.halted else "stalled" if stalled else view.state
            detail = view.halted or stalled or failure
        text = f"Region {self.region} is {standing}: {detail}"
        return {"region": self.region, "standing": standing, "detail": detail, "text": text}
