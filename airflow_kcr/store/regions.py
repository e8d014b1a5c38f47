"""The region store: what members, people and DAG runs ask of it, each one transaction, everything due with it.

Whatever changes something may be repeated: after a lost answer (`OutcomeUnknown`) the same call finds out what became
of the first one instead of doing it twice. A request id, a batch id, a process token or an epoch is what it is
recognised by.
"""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar, cast

from airflow_kcr.ports import Transactions
from airflow_kcr.protocol.commands import Command
from airflow_kcr.protocol.region.archive import ResetPage
from airflow_kcr.protocol.region.liveness import NEVER, Seen
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import CheckpointNumber, RegionName
from airflow_kcr.store import verbs

A = TypeVar("A")


class RegionStore(Transactions):
    """The region store, as members, the command line and the hook use it; each store is a subclass."""

    def handle(self, name: RegionName, command: Command[A]) -> A:
        """Handle a command and return its answer; `verbs` has the rule of each.

        Raises:
            RefusedError: the rule refuses it; nothing has changed.
            StoreError: the store did not answer; the same command may be given again.
        """
        return cast("A", verbs.TABLE[type(command)](self, name, command))

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
