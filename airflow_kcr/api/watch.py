"""Looks at the groups of a region again and again while members run: at every checkpoint, and every few seconds.

What a look finds is told to the store, whose rules halt, hold or warn; so a foreign consumer that comes is noticed, and
a region that is held goes on by itself when it is gone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from time import monotonic
from typing import Final

from airflow_kcr.api.validation import GroupReaders, Names, Validation, report, validate
from airflow_kcr.errors import KcrError
from airflow_kcr.protocol.evidence import Verdict
from airflow_kcr.protocol.values import CheckpointNumber, GroupId, RegionName
from airflow_kcr.store.regions import RegionStore

PERIOD: Final = 10.0
"""Seconds between two looks where nothing calls for one."""

HELD_PERIOD: Final = 2.0
"""Seconds between two looks while somebody is in a group who should not be."""

SETTLING: Final = 5.0
"""Seconds for which members that are missing, or too many, are normal: they have just been started, or stopped."""

_LOOK: Final = 0.25

_LOG = logging.getLogger(__name__)


class GroupWatch:
    """Watches the groups that a process hosts members of.

    Args:
        store: told what is found.
        region: whose groups.
        groups: which of them.
        readers: how Kafka is reached.
        names: how Kafka knows the members.
        newest_checkpoint: the newest number that a checkpoint or a reset has used, as this process sees it. Whether one
            is open would not do: an idle region's checkpoint is over between two looks.
    """

    def __init__(
        self,
        store: RegionStore,
        region: RegionName,
        groups: Collection[GroupId],
        readers: GroupReaders,
        names: Names,
        newest_checkpoint: Callable[[], CheckpointNumber],
    ) -> None:
        self._store, self._region, self._groups = store, region, frozenset(groups)
        self._readers, self._names, self._newest_checkpoint = readers, names, newest_checkpoint
        self._ending = threading.Event()
        self._said: frozenset[str] = frozenset()
        self._thread = threading.Thread(target=self._run, name=f"{region} groups", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def end(self) -> None:
        """End with the present look; returns at once."""
        self._ending.set()

    def _run(self) -> None:
        next_look, seen = monotonic() + SETTLING, self._newest_checkpoint()
        while not self._ending.wait(_LOOK):
            newest = self._newest_checkpoint()
            if monotonic() < next_look and newest == seen:
                continue
            seen = newest
            next_look = monotonic() + (HELD_PERIOD if self._look() else PERIOD)

    def _look(self) -> bool:
        """Look once, and return whether somebody is in a group who should not be."""
        try:
            found = validate(self._store, self._region, self._readers, self._names, self._groups)
            report(self._store, self._region, found)
        except KcrError as error:
            _LOG.warning("the groups of region %s could not be looked at: %s", self._region, error)
            return False
        self._say(found)
        return any(found.foreign_consumers.values())

    def _say(self, found: Validation) -> None:
        """Log what failed, each only when it begins."""
        failed = frozenset(f"group {c.group}: {c.detail}" for c in found.checks if c.verdict is Verdict.FAILED)
        for text in sorted(failed - self._said):
            _LOG.warning("%s", text)
        self._said = failed
