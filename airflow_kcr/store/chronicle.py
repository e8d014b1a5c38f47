"""The port to what is recorded of one region, and where the history that a store keeps of it starts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.values import BatchId, CheckpointNumber, EventNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """The point that a region has got to: whatever lies within is committed, and nothing is added to it any more."""

    counter: EventNumber
    """The newest event."""

    ledger: int
    """The place of the batch that was started last; 0: there is none. Places only grow, and those of batches that lie
    between the same two events say which was started first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryStart:
    """Where the history that a store keeps of a region starts: what happened before was judged, and may be dropped."""

    horizon: Horizon
    """The last that may be dropped."""

    open: tuple[BatchId, ...]
    """Batches within that have no final outcome there, and so are kept."""

    proof: bytes
    """What the proof of what follows has to know: see `api.verdict`."""


class Chronicle(ABC):
    """The record of one region, read page by page in the order in which it happened.

    Every page is a short statement of its own, so that nothing is held open or in memory, however long it is. Each call
    may raise as those of `RegionStore` do.
    """

    @abstractmethod
    def horizon(self) -> Horizon:
        """Return how far the region has got; waits for the batches that are beginning or ending at this moment."""

    @abstractmethod
    def events(self, after: EventNumber, upto: EventNumber) -> Iterator[Event]:
        """Yield the events after a number, up to another."""

    @abstractmethod
    def batches(self, after: int, upto: int) -> Iterator[Batch]:
        """Yield the ledger after a place, up to another, in the order of the starts.

        What later resets have undone is not told: the events say it. Such a batch is simply done.
        """

    @abstractmethod
    def rows(self, batches: Collection[BatchId]) -> tuple[Batch, ...]:
        """Return the rows of some batches as they are now, in the order of the starts, told as in `batches`."""

    @abstractmethod
    def start(self) -> HistoryStart | None:
        """Return where the kept history starts; None: it is whole."""

    @abstractmethod
    def horizon_before(self, instant: datetime, after: Horizon, events: int) -> Horizon | None:
        """Return the furthest horizon within which all happened before an instant; None: there is no further one.

        Args:
            instant: the newest event of the region is never before it.
            after: where it is looked for from.
            events: how many it may hold at most beyond that.
        """

    @abstractmethod
    def move_start(self, earlier: HistoryStart | None, start: HistoryStart) -> bool:
        """Let the kept history start later; False: another process has moved its start meanwhile, nothing changes."""

    @abstractmethod
    def drop(self, start: HistoryStart, floor: CheckpointNumber) -> Iterator[tuple[int, int]]:
        """Drop what lies before the start of the kept history, in pieces: one for each time that it is asked.

        Batches stay that the start has open, that run, or that are stamped with a later sequence than `floor`. A later
        call finds them. Any piece may be the last for now.

        Args:
            start: as it is stored.
            floor: the newest sequence whose batches are no longer read.
        """
