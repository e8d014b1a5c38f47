"""What a file sink needs of the place where its files are; Spark's side of the package reaches it through Hadoop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from airflow_kcr.errors import SinkError
from airflow_kcr.protocol.values import Range, TopicPartition


class FolderRefused(SinkError):
    """The folder may not be read or written to, or nobody here knows such a place."""


class Folder(Protocol):
    """A folder on a disk or in an object store; paths are relative to it. Every call may raise SinkError.

    Nothing is asked of it but that a file which was written and closed is there for whoever names it. Renaming may
    copy: whoever reads a text looks whether it is whole.
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
        """Return the names of what is in a folder, in order; none where there is no such folder."""
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
            SinkError: it failed; nothing that anybody reads has changed.
        """
        ...
