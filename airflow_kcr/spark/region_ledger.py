"""The region's store, as file sinks ask it what is accepted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from airflow_kcr.errors import KcrError, SinkError
from airflow_kcr.protocol.region.rows import Checkpoint
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import CheckpointNumber, GroupId, GroupPartition, Offset, RegionName, Timeline
from airflow_kcr.sinks.files import accepted
from airflow_kcr.sinks.files.accepted import Contents
from airflow_kcr.sinks.files.documents import Timelines
from airflow_kcr.sinks.files.layout import CheckpointName
from airflow_kcr.store.regions import RegionStore

T = TypeVar("T")


class RegionLedger:
    """See `sinks.files.accepted.Ledger`.

    Args:
        store: where the region is.
        name: the region's.
    """

    def __init__(self, store: RegionStore, name: RegionName) -> None:
        self._store, self._name = store, name

    def contents(self, sequence: CheckpointNumber, group: GroupId) -> Contents:
        """Return what one group has in a complete checkpoint."""

        def attempt() -> Contents:
            region = self._region()
            before = accepted.previous(region, sequence)
            batches = self._store.batches_since(self._name, CheckpointNumber(0) if before is None else before.sequence)
            # A reset may have begun between the two; what it has undone is then seen in both, or in the batches only.
            return accepted.contents(self._region(), batches, sequence, group)

        return self._asked(attempt)

    def undone(self) -> Mapping[CheckpointName, Timeline]:
        """Return the checkpoints that resets have undone, with the timelines that were opened by them."""
        return self._asked(lambda: accepted.undone(self._region()))

    def timelines(self, since: Timeline) -> Timelines:
        """Return what a timeline and the later ones have undone."""
        return self._asked(lambda: accepted.timelines(self._region(), since))

    def checkpoints(self) -> Mapping[CheckpointName, Checkpoint]:
        """Return every checkpoint that the store remembers."""
        return self._asked(lambda: accepted.checkpoints(self._region()))

    def progress(self, timeline: Timeline, group: GroupId) -> Mapping[GroupPartition, Offset]:
        """Return up to where one group has done everything in this timeline, since the restore point."""

        def attempt() -> Mapping[GroupPartition, Offset]:
            restore_point = self._region().restore_point or CheckpointNumber(0)
            return accepted.progress(self._store.batches_since(self._name, restore_point), timeline, group)

        return self._asked(attempt)

    def stamp(self) -> CheckpointNumber:
        """Return the sequence that a batch would be stamped with that begins now."""
        return self._asked(lambda: accepted.next_stamp(self._region()))

    def _region(self) -> Region:
        return self._store.read(self._name)[0]

    def _asked(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except SinkError:
            raise
        except KcrError as error:
            raise SinkError(f"region {self._name} can't be asked what is accepted: {error}") from error
