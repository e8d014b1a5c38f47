"""The last word of a task that is killed: its application is to drain and end.

There are five seconds between the signal and the end of the process, too few to wait for anything. What is told here is
recorded in the store and known to the driver, and both go on with it.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import KcrError

if TYPE_CHECKING:
    from airflow_kcr.hooks.spark_submit import KcrSparkSubmitHook
    from airflow_kcr.protocol.region.rows import Requester

_LOG: Final = logging.getLogger(__name__)


class Intent:
    """What a killed task still has to say; made while there is time, told when there is little.

    A kill comes as a signal, in the middle of whatever the task does, so nothing is asked of Airflow any more.

    Args:
        hook: which has started the driver.
        store: the store's URL.
        region: the region's name.
        request_id: names the checkpoint, for the driver too.
        requester: who asks, as the history will say.
    """

    def __init__(
        self, *, hook: KcrSparkSubmitHook, store: str, region: str, request_id: str, requester: Requester
    ) -> None:
        self._hook, self._store, self._region, self._request_id = hook, store, region, request_id
        self._requester = requester

    def tell(self, within: float) -> None:
        """Tell the driver, and the region, and don't wait for what comes of it.

        Args:
            within: seconds that this takes at most.
        """
        self._hook.tell_to_drain()
        asking = threading.Thread(target=self._ask, name="last drain", daemon=True)
        asking.start()
        asking.join(within)

    def _ask(self) -> None:
        from airflow_kcr.api import opened
        from airflow_kcr.driver.parent_watchdog import ask
        from airflow_kcr.protocol.values import RequestId, region_name

        try:
            with opened(self._store) as store:
                ask(store, region_name(self._region), RequestId(self._request_id), self._requester)
        except KcrError as error:
            _LOG.warning("the region was not asked for a last checkpoint; its driver asks itself: %s", error)
