"""A table beside a sink's manifests, for readers that know nothing of them.

A checkpoint is in it as a whole, or not at all.

What counts is said by the ledger, and the table follows. Whoever writes to it has asked first up to where it was
written, and only then the ledger; what was written in between makes the write void. So whoever has slept since before a
reset, and believes in a checkpoint that is undone, writes nothing: the reset has written after it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

from airflow_kcr.sinks.files.documents import Manifest, Undone


class Table(Protocol):
    """What a file sink does beside its manifests, by its format. Every call may raise SinkError."""

    def check(self) -> None:
        """Look whether the table can be written to, and make it where there is none; may be repeated.

        Raises:
            ConfigurationError: it can't be.
        """
        ...

    def fit(self, schema: str) -> None:
        """Have the table take rows of a schema, before a batch has any.

        Args:
            schema: as Spark writes it in JSON.

        Raises:
            SinkError: they don't fit; nothing was written.
        """
        ...

    def seen(self) -> int:
        """Return up to where the table was written; asked before the ledger is."""
        ...

    def show(self, manifest: Manifest, seen: int) -> bool:
        """Have the rows of a checkpoint in the table, at once; said again, it changes nothing.

        Args:
            manifest: of the checkpoint, whether it is written already or not.
            seen: up to where the table was written, when the ledger was not asked yet whether the checkpoint counts.

        Returns:
            False: others have written since, and the ledger is to be asked again.
        """
        ...

    def hide(self, undone: Collection[Undone]) -> None:
        """Take the rows of checkpoints out of the table, and keep earlier readers of the ledger from showing them.

        Args:
            undone: by the ledger. That the table has nothing of them changes nothing.
        """
        ...


class NoTable:
    """Files alone: the manifests are what readers go by."""

    def check(self) -> None:
        """There is nothing to look at."""

    def fit(self, schema: str) -> None:
        """Files may differ in their columns."""

    def seen(self) -> int:
        """Nothing was written."""
        return 0

    def show(self, manifest: Manifest, seen: int) -> bool:
        """The manifest shows it."""
        return True

    def hide(self, undone: Collection[Undone]) -> None:
        """Readers of manifests know what is undone."""


NO_TABLE: Final = NoTable()
