"""The region store: what members, people and DAG runs ask of it, each one transaction, everything due with it.

Whatever changes something may be repeated: after a lost answer (`OutcomeUnknown`) the same call finds out what became
of the first one instead of doing it twice. A request id, a batch id, a process token or an epoch is what it is
recognised by.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final, TypeVar, cast

from airflow_kcr.errors import BatchRefused, OutcomeUnknown, RefusedError, StoreBusy
from airflow_kcr.ports import Renewal, Transactions
from airflow_kcr.protocol.commands import (
    Command,
    DeclareRegion,
    DeleteRegion,
    FinishBatch,
    Heartbeat,
    ReadRegion,
    Renew,
    RetireCheckpoints,
    StartBatch,
)
from airflow_kcr.protocol.region import batches, claims, decisions, lifecycle
from airflow_kcr.protocol.region.archive import ResetPage
from airflow_kcr.protocol.region.liveness import NEVER, Seen
from airflow_kcr.protocol.region.rows import Outcome
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import CheckpointNumber, RegionName

A = TypeVar("A")

# The garbage collector


@contextmanager
def uncollected() -> Iterator[None]:
    """Have the garbage collector wait while a region is read, decided on and written; not while its lock is.

    That makes some twenty objects for each partition and drops hardly one before its end. A collection in between
    visits every object of the process and finds nothing: at 10,000 partitions that was nearly half of a decision's
    time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # Where two threads do this at once, the first one's end lets the second be collected again: slower, not wrong.
        if was_enabled:
            gc.enable()


# The store

ONCE: Final = (DeclareRegion, DeleteRegion)
"""Commands that are not repeated: what is there after the first can't be told from what another caller did."""


class RegionStore(Transactions):
    """The region store, as members, the command line and the hook use it; each store is a subclass."""

    def handle(self, name: RegionName, command: Command[A]) -> A:
        """Handle a command and return its answer; where the answer to its COMMIT was lost, it is given once more.

        Raises:
            RefusedError: its rule refuses it; nothing has changed.
            StoreError: the store did not answer; the same command may be given again.
        """
        try:
            return cast("A", self._handled(name, command))
        except OutcomeUnknown:
            if isinstance(command, ONCE):
                raise
            return cast("A", self._handled(name, command))

    def _handled(self, name: RegionName, command: Command[object]) -> object:
        match command:
            case StartBatch():
                return self.admit(name, command, batches.start)
            case FinishBatch():
                self._finish_batch(name, command)
                return None
            case Renew():
                return self._renew(name, command)
            case ReadRegion():
                return self.read_as(name, command.member, lambda region, now: claims.shown(region, now, command))
            case RetireCheckpoints():
                return self._retire(name)
            case DeclareRegion():
                return self.create(name, lambda now: lifecycle.declare(name, now, command))
            case DeleteRegion():
                self.delete(name, lifecycle.require_deletable)
                return None
            case _:
                region, answer = self.decide(name, lambda region, now: decisions.decide(region, now, command))
                return region if answer is None else answer

    def _finish_batch(self, name: RegionName, command: FinishBatch) -> None:
        try:
            self.admit(name, command, batches.finish)
        except BatchRefused:
            row = self.batch(name, command.batch)
            if row is None or row.outcome is not Outcome.DONE or row.incarnation != command.incarnation:
                raise

    def _renew(self, name: RegionName, command: Renew) -> Heartbeat:
        renewal = Renewal(region=name, command=command)
        heartbeat = self.renew([renewal]).get(renewal)
        if heartbeat is None:
            raise StoreBusy(
                f"the lease of {command.member} in region {name} is being written; it was not renewed, ask again"
            )
        if isinstance(heartbeat, RefusedError):
            raise heartbeat
        return heartbeat

    def _retire(self, name: RegionName) -> Region:
        """Retire checkpoints, one transaction after the other, until there is none to retire."""
        while True:
            region, are_retired = self._retire_some(name)
            if not are_retired:
                return region

    def _retire_some(self, name: RegionName) -> tuple[Region, bool]:
        try:
            return self.decide(name, decisions.retire)
        except OutcomeUnknown:
            return self.decide(name, decisions.retire)

    def look(self, name: RegionName) -> tuple[Region, datetime, Seen]:
        """Return a region, the store's clock, and what the judgement of its liveness needs beside it.

        Raises:
            UnknownRegion: there is no such region.
        """
        seen = self.seen(name)
        return *self.read(name), seen

    def reset_page(self, name: RegionName, *, before: CheckpointNumber | None, last: int | None) -> ResetPage:
        """Return what `Archive.reset_page` of a region does; nothing else of the region is read.

        Raises:
            UnknownRegion: there is no such region.
        """
        return self.read(name)[0].archive.reset_page(before=before, last=last)

    def seen(self, name: RegionName) -> Seen:
        """Return what the judgement of a region's liveness needs beside its rows, as far as the store has it."""
        return Seen(worked_at=self.newest_work(name) or NEVER)
