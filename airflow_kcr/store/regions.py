"""The region store: what members, people and DAG runs ask of it, each one transaction, everything due with it.

Whatever changes something may be repeated: after a lost answer (`OutcomeUnknown`) the same call finds out what became
of the first one instead of doing it twice. A request id, a batch id, a process token or an epoch is what it is
recognised by.
"""

from __future__ import annotations

from typing import TypeVar, cast

from airflow_kcr.ports import Transactions
from airflow_kcr.protocol.commands import Command
from airflow_kcr.protocol.region.liveness import NEVER, Seen
from airflow_kcr.protocol.values import RegionName
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

    def seen(self, name: RegionName) -> Seen:
        """Return what the judgement of a region's liveness needs beside its rows, as far as the store has it."""
        return Seen(worked_at=self.newest_work(name) or NEVER)
