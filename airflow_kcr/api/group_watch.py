"""Polls the groups of a region while members run: at every checkpoint, and every few seconds.

The findings of a poll go to the store, whose rules halt or warn; so a foreign consumer is noticed, and that it is gone.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection
from time import monotonic
from typing import Final

from airflow_kcr.api.clusters import Clusters
from airflow_kcr.api.lag import take
from airflow_kcr.api.validation import Validation, report, validate
from airflow_kcr.errors import KcrError
from airflow_kcr.floods import unflooded
from airflow_kcr.protocol.evidence import CheckVerdict
from airflow_kcr.protocol.values import CheckpointNumber, GroupId, RegionName
from airflow_kcr.store.regions import RegionStore

PERIOD: Final = 10.0
"""Seconds between two polls if nothing calls for one."""

FOREIGN_PERIOD: Final = 2.0
"""Seconds between two polls while a foreign consumer is in a group."""

DEBOUNCE: Final = 5.0
"""Seconds for which members that are missing, or too many, are normal: they have just been started, or stopped."""

SAMPLE_PERIOD: Final = 60.0
"""Seconds between two samples of the groups' lag, at the next poll."""

_POLL_PERIOD: Final = 0.25

_LOG = logging.getLogger(__name__)
_AGAIN = unflooded(f"{__name__}.again")


class GroupWatch:
    """Watches the groups that a process hosts members of.

    Args:
        store: told what is found.
        region: whose groups.
        groups: which of them.
        readers: how Kafka is reached.
        newest_checkpoint: the newest number that a checkpoint or a reset has used, as this process sees it. Whether one
            is open would not do: an idle region's checkpoint is over between two polls.
    """

    def __init__(
        self,
        store: RegionStore,
        region: RegionName,
        groups: Collection[GroupId],
        readers: Clusters,
        newest_checkpoint: Callable[[], CheckpointNumber],
    ) -> None:
        self._store, self._region, self._groups = store, region, frozenset(groups)
        self._readers, self._newest_checkpoint = readers, newest_checkpoint
        self._ending = threading.Event()
        self._said: frozenset[str] = frozenset()
        self._thread = threading.Thread(target=self._run, name=f"{region} groups", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def end(self) -> None:
        """End after the running check; returns at once."""
        self._ending.set()

    def _run(self) -> None:
        next_poll, seen = monotonic() + DEBOUNCE, self._newest_checkpoint()
        next_sample = next_poll
        while not self._ending.wait(_POLL_PERIOD):
            newest = self._newest_checkpoint()
            if monotonic() < next_poll and newest == seen:
                continue
            seen = newest
            next_poll = monotonic() + (FOREIGN_PERIOD if self._poll() else PERIOD)
            if monotonic() >= next_sample:
                next_sample = monotonic() + SAMPLE_PERIOD
                self._sample()

    def _poll(self) -> bool:
        """Poll once, and return whether a foreign consumer is in a group."""
        try:
            found = validate(self._store, self._region, self._readers, self._groups)
            if found.is_news:
                report(self._store, self._region, found)
        except KcrError as error:
            _AGAIN.warning("the groups of region %s could not be checked: %s", self._region, error)
            return False
        except Exception:  # noqa: BLE001 - what one check meets must not end all later ones
            _AGAIN.exception("the groups of region %s could not be checked", self._region)
            return False
        self._say(found)
        return any(found.foreign_consumers.values())

    def _sample(self) -> None:
        """Keep how far the groups are behind, for the history, which lacks this sample if that fails."""
        try:
            take(self._store, self._region, self._readers, self._groups)
        except KcrError as error:
            _AGAIN.warning("the lag of region %s is not kept now: %s", self._region, error)
        except Exception:  # noqa: BLE001 - as above
            _AGAIN.exception("the lag of region %s is not kept now", self._region)

    def _say(self, found: Validation) -> None:
        """Log what failed, each only when it begins or changes in substance."""
        failed = sorted(f"group {c.group}: {c.detail}" for c in found.checks if c.verdict is CheckVerdict.FAILED)
        for text in failed:
            if substance(text) not in self._said:
                _LOG.warning("%s", text)
        self._said = frozenset(map(substance, failed))


_MOVES: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z|(?<![\w\[-])\d[\d,.]*(?![\w\]-])")
"""Instants, offsets, counts and seconds; not the numbers in the names of partitions and members."""


def substance(text: str) -> str:
    """Return what a finding says, without the numbers that move while nothing else does: since when, how many."""
    return _MOVES.sub("…", text)
