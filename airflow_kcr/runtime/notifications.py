"""Hears that a region changed, so that its members look at once instead of at their next renewal.

A notification may come late, twice or never; whoever gets one reads, and decides from what it reads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence as Members
from datetime import timedelta
from typing import Final

from airflow_kcr.errors import KcrError
from airflow_kcr.ports import MemberStore
from airflow_kcr.protocol.member import events
from airflow_kcr.protocol.values import EventNumber, RegionName
from airflow_kcr.runtime.host import MemberHost

WAIT: Final = timedelta(seconds=5)
"""How long one wait lasts where nothing happens; then the store is asked for its counter again."""

_PAUSE: Final = 1.0
"""Seconds to wait where the store can't be asked."""

_LOG = logging.getLogger(__name__)


class Notifications:
    """Waits for the store, for all members of one process.

    Args:
        store: what is waited for.
        region: its name.
        hosts: the members.
    """

    def __init__(self, store: MemberStore, region: RegionName, hosts: Members[MemberHost]) -> None:
        self._store, self._region, self._hosts = store, region, hosts
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{region} notifications", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def end(self) -> None:
        """End with the present wait; returns at once."""
        self._ending.set()

    def _run(self) -> None:
        known = EventNumber(0)
        while not self._ending.is_set():
            try:
                newest = self._store.wait(self._region, known, WAIT)
            except KcrError as error:
                _LOG.debug("no notifications of region %s for now: %s", self._region, error)
                self._ending.wait(_PAUSE)
                # A store that was restored counts from where it stood.
                known = EventNumber(0)
                continue
            if newest > known:
                known = newest
                for host in self._hosts:
                    host.tell(events.Changed(counter=newest))
