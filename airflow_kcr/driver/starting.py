"""Members start although the store, a broker or a sink's database is away: their process waits for it.

A member that runs waits for them as long as it takes. So a process that starts, or starts anew for a changed spec,
doesn't give up at once either; it does where what answers refuses, since every further try would be refused too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeVar

from airflow_kcr.errors import (
    BrokerUnavailable,
    KcrError,
    OutcomeUnknown,
    SinkUnavailable,
    StoreBusy,
    StoreRefused,
    StoreUnavailable,
)
from airflow_kcr.protocol.values import RegionName
from airflow_kcr.runtime.leases import Clock, Seconds, boot_time

START_WITHIN: Final = timedelta(minutes=10)
"""How long a process waits for what is away."""

PAUSE: Final = 1.0
"""Seconds between two tries; one may take ten by itself."""

_AWAY: Final = (StoreUnavailable, StoreBusy, OutcomeUnknown, BrokerUnavailable, SinkUnavailable)

T = TypeVar("T")
_LOG = logging.getLogger(__name__)


def is_away(error: KcrError) -> bool:
    """Whether an error says that something does not answer now; what refuses answers."""
    return isinstance(error, _AWAY) and not isinstance(error, StoreRefused)


class StartPatience:
    """Tries what members need to start, until what is away is back.

    Args:
        region: the members', for the log.
        within: how long to wait each time that something is away; zero: not at all.
        clock: monotonic, in seconds.
        pause: waits for so many seconds.
    """

    def __init__(
        self,
        region: RegionName,
        within: timedelta,
        *,
        clock: Clock = boot_time,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._region, self._within, self._clock, self._pause = region, within, clock, pause

    def answered(self, attempt: Callable[[], T], passing: tuple[type[KcrError], ...] = ()) -> T:
        """Return what an attempt returns, made again while something is away.

        Args:
            attempt: what is tried.
            passing: refusals that will be over, too.

        Raises:
            KcrError: the attempt's: at once where it is a refusal, else when the time is over.
        """
        since: Seconds | None = None
        while True:
            try:
                found = attempt()
            except KcrError as error:
                seconds, waited = self._within.total_seconds(), 0.0 if since is None else self._clock() - since
                if not (is_away(error) or isinstance(error, passing)) or waited >= seconds:
                    raise
                if since is None:
                    since = self._clock()
                    _LOG.warning(
                        "region %s: its members wait up to %g s to start: %s", self._region, seconds, error.message
                    )
            else:
                if since is not None:
                    _LOG.info("region %s: its members go on after %.0f s", self._region, self._clock() - since)
                return found
            self._pause(PAUSE)
