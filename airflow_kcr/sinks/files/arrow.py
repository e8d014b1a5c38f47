"""A sink's folder as Arrow has it, for a process without Spark; and what such a process can't do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import SinkError
from airflow_kcr.protocol.values import Range, TopicPartition
from airflow_kcr.sinks.files.folder import Folder, beside
from airflow_kcr.sinks.files.frames import Rewriter

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

_BUFFER: Final = 65_536
"""Of a text that is written, in bytes."""


class ArrowFolder(Folder):
    """A folder as one of Arrow's file systems reaches it.

    On a disk, Hadoop keeps a checksum beside each file; it takes a file without one as it is.

    Args:
        files: with the folder as their root.
        uri: of the folder, for messages.
    """

    def __init__(self, files: FileSystem, uri: str) -> None:
        self._files, self.uri = files, uri

    def read(self, path: str) -> str | None:
        """Return a text; None: there is none. One that can't be read whole is no whole document."""
        with self._asked("read", path):
            if not self._is_there(path):
                return None
            with self._files.open_input_stream(path, compression=None) as stream:
                return str(stream.read().decode(errors="replace"))

    def put(self, path: str, text: str) -> None:
        """Write a text under its own name, whatever is there."""
        self.delete([_checksum(path)])
        with self._asked("write", path):
            self._made(path.rpartition("/")[0])
            # Without a buffer, delta-rs is handed something that it does not take.
            with self._files.open_output_stream(path, compression=None, buffer_size=_BUFFER) as stream:
                stream.write(text.encode())

    def create(self, path: str, text: str) -> bool:
        """Write a text under another name, then give it its own; False: there was one already, which stays."""
        with self._asked("create", path):
            if self._is_there(path):
                return False
        self.replace(path, text)
        return True

    def replace(self, path: str, text: str) -> None:
        """Write a text under another name, then give it its own, whatever is there."""
        temporary = beside(path)
        self.put(temporary, text)
        self.move(temporary, path)

    def move(self, source: str, path: str) -> None:
        """Rename a file, whatever has its new name."""
        self.delete([_checksum(path)])
        with self._asked("move", path):
            self._made(path.rpartition("/")[0])
            self._files.move(source, path)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files or folders with all that is in them; those that aren't there are fine."""
        for path in paths:
            with self._asked("delete", path):
                (found,) = self._files.get_file_info([path])
                if found.is_file:
                    self._files.delete_file(path)
                elif self._is_there(path):
                    self._files.delete_dir(path)

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names of what is in a folder, in order; none if there is no such folder."""
        return tuple(sorted(found.base_name for found in self._below(path, recursive=False)))

    def walk(self, path: str) -> Mapping[str, int]:
        """Return every file below a folder, by its path from the sink's folder, with its bytes, in order."""
        found = {str(one.path): int(one.size) for one in self._below(path, recursive=True) if one.is_file}
        return {name: found[name] for name in sorted(found)}

    def _made(self, folder: str) -> None:
        if folder:
            self._files.create_dir(folder)

    def _below(self, path: str, *, recursive: bool) -> list[FileInfo]:
        from pyarrow.fs import FileSelector

        with self._asked("list", path):
            found = self._files.get_file_info(FileSelector(path, allow_not_found=True, recursive=recursive))
        return [one for one in found if not one.base_name.endswith(".crc")]

    def _is_there(self, path: str) -> bool:
        from pyarrow.fs import FileType

        (found,) = self._files.get_file_info([path])
        return bool(found.type != FileType.NotFound)

    @contextmanager
    def _asked(self, what: str, path: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # delta-rs has errors of its own, and their words may hold secrets
            raise SinkError(f"can't {what} {self.uri}/{path}: {type(error).__name__}") from error


def _checksum(path: str) -> str:
    above, slash, name = path.rpartition("/")
    return f"{above}{slash}.{name}.crc"


class NoRewriter(Rewriter):
    """Of a process without Spark, which shows files as batches have left them."""

    def __init__(self) -> None:
        """Nothing is made of anything."""

    def rewrite(
        self,
        sources: Iterable[str],
        schema: str,
        into: str,
        *,
        files: int,
        kept: Mapping[TopicPartition, tuple[Range, ...]] | None = None,
    ) -> Mapping[str, int]:
        """Refuse, as only Spark can."""
        raise SinkError(f"{into} is to be made of other files, which needs Spark")
