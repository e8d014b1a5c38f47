"""`RegionTrigger`: waits for a region without holding a worker's slot."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any, Final

from airflow.sdk import conf
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_kcr.errors import KcrError
from airflow_kcr.hooks.kcr import KcrHook
from airflow_kcr.protocol.instants import parse_instant
from airflow_kcr.protocol.values import region_name
from airflow_kcr.triggers.payloads import Answer, Status, WaitingFor, waiting_for_from_json
from airflow_kcr.triggers.poller import Poller, Wait

DEFAULT_INTERVAL: Final = 1.0
"""Seconds between two looks, where `[kcr] poll_interval` does not say."""

SHORTEST_INTERVAL: Final = 0.05
"""Less would keep a processor and the store busy with looking."""


RETRIES: Final = 3
RETRY_DELAY: Final = timedelta(seconds=10)
"""What tasks that wait have unless their author says otherwise. Airflow 3.3 fails a deferred task now and then whose
trigger has fired before a busy scheduler has heard that the task gave its slot up (its issues 71580 and 72716); and
whatever waits here may be tried again: it asks under the same name."""


class RegionTrigger(BaseTrigger):
    """Waits until a region is what a task waits for, and says how that ended: one event, `payloads.Answer`.

    It changes nothing but what is due anyway, so it may run twice, or anew in another triggerer. It has no `on_kill`:
    what was asked of the region stays asked. A checkpoint that nobody waits for any more harms nobody, and a task that
    is cleared asks under the same name in the moment in which the old one is cancelled; to withdraw the request then
    would withdraw the new one's.

    Args:
        kcr_conn_id: the store's connection.
        region: the region's name.
        waiting_for: `to_json` of one of the payloads.
        deadline: seconds after which it gives up, counted from `asked_at`.
        asked_at: the store's clock when the task began to wait, as ISO 8601; empty: when the trigger starts.
    """

    def __init__(
        self, *, kcr_conn_id: str, region: str, waiting_for: Mapping[str, Any], deadline: float, asked_at: str = ""
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # Airflow's
        self.kcr_conn_id = kcr_conn_id
        self.region = region
        self.waiting_for = dict(waiting_for)
        self.deadline = deadline
        self.asked_at = asked_at

    @classmethod
    def waiting(
        cls, *, kcr_conn_id: str, region: str, waiting_for: WaitingFor, deadline: timedelta, asked_at: str = ""
    ) -> RegionTrigger:
        """Return the trigger that waits for a payload; see the class."""
        return cls(
            kcr_conn_id=kcr_conn_id,
            region=region,
            waiting_for=waiting_for.to_json(),
            deadline=deadline.total_seconds(),
            asked_at=asked_at,
        )

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what the trigger is made anew from."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "kcr_conn_id": self.kcr_conn_id,
                "region": self.region,
                "waiting_for": self.waiting_for,
                "deadline": self.deadline,
                "asked_at": self.asked_at,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and yield one event that says how it ended."""
        try:
            answer = await self._answer()
        except KcrError as error:
            answer = Answer(status=Status.REFUSED, detail=error.message)
        yield TriggerEvent(answer.to_json())  # type: ignore[no-untyped-call] # Airflow's

    async def _answer(self) -> Answer:
        hook = KcrHook(self.kcr_conn_id)
        wait = Wait(
            region=region_name(self.region),
            waiting_for=waiting_for_from_json(self.waiting_for),
            hook=hook,
            deadline=self.deadline,
            asked_at=parse_instant(self.asked_at) if self.asked_at else None,
        )
        interval = max(conf.getfloat("kcr", "poll_interval", fallback=DEFAULT_INTERVAL), SHORTEST_INTERVAL)
        return await Poller.at(await hook.astore_url(), timedelta(seconds=interval)).wait(wait)
