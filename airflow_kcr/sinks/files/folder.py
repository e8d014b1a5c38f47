"""What a file sink needs of the place where its files are; Spark's side of the package reaches it through Hadoop."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Protocol

from airflow_kcr.errors import SinkError
from airflow_kcr.protocol.values import Range, TopicPartition
from airflow_kcr.sinks.files.layout import Manifest, Undone


class FolderRefused(SinkError):
    """The folder may not be read or written to, or no file system here knows the place."""


class Folder(Protocol):
    """A folder on a disk or in an object store; paths are relative to it. Every call may raise SinkError.

    The only requirement is that a file which was written and closed can be read by its name. Renaming may
    copy: a reader of a text checks whether it is complete.
    """

    @property
    def uri(self) -> str:
        """Where it is, for people and for Spark."""
        ...

    def read(self, path: str) -> str | None:
        """Return a text; None: there is none."""
        ...

    def read_all(self, paths: Iterable[str]) -> list[str | None]:
        """Return several texts, in their order."""
        ...

    def put(self, path: str, text: str) -> None:
        """Write a text under its own name, whatever is there; half of it is there if the process ends meanwhile."""
        ...

    def create(self, path: str, text: str) -> bool:
        """Write a text under another name, then give it its own; False: there was one already, which stays."""
        ...

    def replace(self, path: str, text: str) -> None:
        """Write a text, whatever is there."""
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files or folders with all that is in them; those that aren't there are fine."""
        ...

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names of what is in a folder, in order; none if there is no such folder."""
        ...

    def sizes(self, path: str) -> Mapping[str, int]:
        """Return the files in a folder with their bytes, in order; without those whose names begin with `_` or `.`."""
        ...

    def walk(self, path: str) -> Mapping[str, int]:
        """Return every file below a folder, by its path from the sink's folder, with its bytes, in order."""
        ...


class Rewriter(Protocol):
    """Makes new files of others."""

    def rewrite(
        self,
        sources: Iterable[str],
        schema: str,
        into: str,
        *,
        files: int,
        kept: Mapping[TopicPartition, tuple[Range, ...]] | None = None,
    ) -> Mapping[str, int]:
        """Write the rows of several files into a few.

        Args:
            sources: paths of the files, which have one schema.
            schema: of them, as Spark writes it in JSON.
            into: the path of the new files, to which something is added that no other attempt adds.
            files: how many are made at most.
            kept: only rows made of these records; None: all.

        Returns:
            The new files' paths with their bytes.

        Raises:
            SinkError: it failed; nothing that readers see has changed.
        """
        ...


# A table beside a sink's manifests, for readers that know nothing of them.
#
# A checkpoint is in it as a whole, or not at all.
#
# What counts is said by the ledger, and the table follows. A writer first asks up to where the table was written, and
# only then the ledger; a write in between makes its own void. So a process that slept through a reset, and believes in
# an undone checkpoint, writes nothing: the reset has written after it.


class Table(Protocol):
    """What a file sink does beside its manifests, by its format. Every call may raise SinkError."""

    def check(self) -> None:
        """Check that the table can be written to, and create it if there is none; may be repeated.

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
        """There is nothing to check."""

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
