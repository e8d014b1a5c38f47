"""What a file sink needs of the place where its files are."""

from __future__ import annotations

import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from airflow_kcr.errors import SinkError
from airflow_kcr.sinks.files.layout import TEMPORARY, Document

D = TypeVar("D", bound=Document)

_LOG: Final = logging.getLogger(__name__)

AT_ONCE: Final = 8
"""How many texts are read, or files deleted, at a time: an object store takes its time for each."""


class FolderRefused(SinkError):
    """The folder may not be read or written to, or no file system here knows the place."""


class Folder(ABC):
    """A folder on a disk or in an object store; paths are relative to it. Every call may raise SinkError.

    The only requirement is that a file which was written and closed can be read by its name. Renaming may
    copy: a reader of a text checks whether it is complete.
    """

    uri: str
    """As the user has written it."""

    @abstractmethod
    def read(self, path: str) -> str | None:
        """Return a text; None: there is none. One that can't be read whole is no whole document."""

    def read_all(self, paths: Iterable[str]) -> list[str | None]:
        """Return several texts, in their order."""
        return list(map(self.read, paths))

    @abstractmethod
    def put(self, path: str, text: str) -> None:
        """Write a text under its own name, whatever is there; half of it is there if the process ends meanwhile."""

    @abstractmethod
    def create(self, path: str, text: str) -> bool:
        """Write a text under another name, then give it its own; False: there was one already, which stays."""

    @abstractmethod
    def replace(self, path: str, text: str) -> None:
        """Write a text under another name, then give it its own, whatever is there."""

    def noted(self, path: str, document: D) -> D | None:
        """Note a document unless a whole one is there, and return what is there then: of two writers', the first one's.

        None: it was not whole when it was read.
        """
        if not self.create(path, document.text()) and document.of(self.read(path)) is None:
            _LOG.warning("%s/%s was half written; it is written again", self.uri, path)
            self.replace(path, document.text())
        return document.of(self.read(path))

    @abstractmethod
    def move(self, source: str, path: str) -> None:
        """Rename a file to a name that doesn't exist."""

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Delete files or folders with all that is in them; those that aren't there are fine."""

    @abstractmethod
    def names(self, path: str) -> tuple[str, ...]:
        """Return the names of what is in a folder, in order; none if there is no such folder."""

    @abstractmethod
    def walk(self, path: str) -> Mapping[str, int]:
        """Return every file below a folder, by its path from the sink's folder, with its bytes, in order."""

    def written(self, path: str) -> Mapping[str, int]:
        """Return the files below a folder, as `walk`, without what isn't for readers: names with `_` or `.` before."""

        def is_hidden(file: str) -> bool:
            return any(part.startswith(("_", ".")) for part in file.removeprefix(f"{path}/").split("/"))

        return {file: size for file, size in self.walk(path).items() if not is_hidden(file)}


def beside(path: str) -> str:
    """Return a new name for a text until it has its own."""
    above, _, name = path.rpartition("/")
    return f"{above}/{TEMPORARY}{uuid.uuid4().hex}-{name}".removeprefix("/")
