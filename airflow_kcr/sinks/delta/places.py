"""Where a Delta table is, as delta-rs and Spark's file systems reach it, and what its sink has noted in it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import unquote

from airflow_kcr.errors import ConfigurationError, KcrError, SinkError
from airflow_kcr.protocol import documents
from airflow_kcr.protocol.values import Timeline
from airflow_kcr.sinks.checkpoints import CheckpointId
from airflow_kcr.sinks.contract import SinkOwner
from airflow_kcr.sinks.delta.features import columns_of, require_writable
from airflow_kcr.sinks.delta.files import append, now, removed
from airflow_kcr.sinks.files.folder import AT_ONCE
from airflow_kcr.sinks.tables.columns import TableColumn
from airflow_kcr.sinks.tables.labels import BATCH, of_region
from airflow_kcr.sinks.tables.owned import NOTE, TablePlace, spark_uri

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow.fs import FileSystem

R = TypeVar("R")
T = TypeVar("T")

PACKAGE: Final = "airflow-kcr[delta]"

LOG: Final = "_delta_log"

_REFUSED: Final = ("Permission denied", "AccessDenied", "403 Forbidden")
"""What disks and object stores say where a right is missing; delta-rs has no error of its own for it."""


@dataclass(frozen=True, slots=True)
class NotedDelta:
    """A table as it was loaded, with what a sink has noted in the metadata of a column, once."""

    table: DeltaTable
    owner: SinkOwner
    since: int
    """When it came to the table, in ms since the epoch."""

    commits: int
    """The version of the table that the sink's last commit made; 0: there was none."""

    told: Mapping[str, str] | None = None
    """What that commit says of itself; None: its entry was not read."""

    last: dict[Timeline, int | None] = field(default_factory=dict)
    """The last checkpoint of each timeline that was asked for: delta-rs goes through the log each time."""

    @property
    def application(self) -> str:
        """The name of the sink's transactions."""
        return application_of(self.owner)

    def columns(self) -> Mapping[str, TableColumn]:
        """Return the table's columns by name."""
        return columns_of(self.table)

    def has_shown(self, checkpoint: CheckpointId) -> bool:
        """Whether a checkpoint was published, or a later one of its timeline."""
        timeline = checkpoint.timeline
        if timeline not in self.last:
            self.last[timeline] = self.table.transaction_version(f"{self.application}/{timeline}")
        return checkpoint.sequence <= (self.last[timeline] or 0)


def application_of(owner: SinkOwner) -> str:
    """Return the name of a sink's transactions."""
    return "/".join(("kcr", owner.region_id, owner.group, owner.sink))


def note_of(owner: SinkOwner) -> str:
    """Return what a sink notes that comes to a table now."""
    return json.dumps({"owner": documents.write(owner, SinkOwner), "since": now()}, sort_keys=True)


class DeltaPlace(TablePlace[NotedDelta]):
    """A table by its location.

    Args:
        who: the sink, for messages.
        uri: a path of this machine, or a URI.
        options: of delta-rs for the storage, with their secrets.
    """

    def __init__(self, who: str, uri: str, options: Mapping[str, str]) -> None:
        super().__init__(who)
        self._options = dict(options)
        self._uri = (uri if "://" in uri else f"file://{uri}").rstrip("/")

    def __str__(self) -> str:
        return self._uri.removeprefix("file://")

    def location(self) -> str:
        """Return where the table is."""
        return spark_uri(self._uri)

    def load(self) -> DeltaTable:
        """Return the table as it is now.

        Raises:
            ConfigurationError: there is no table.
            SinkError: the storage is away.
        """
        try:
            from deltalake import DeltaTable
        except ImportError:
            raise ConfigurationError(
                f"{self.who} writes to a Delta table, which needs delta-rs: install {PACKAGE}"
            ) from None
        with self.asked("be read"):
            return DeltaTable(self._uri, storage_options=self._options)

    def noted(self) -> NotedDelta | None:
        """Return the table with its note; None: no sink has written to it, or it has left."""
        table = self.load()
        text = next((one.metadata.get(NOTE) for one in table.schema().fields if one.name == BATCH), None)
        if not text:
            return None
        note = json.loads(text)
        owner = documents.read(note["owner"], SinkOwner)
        return NotedDelta(table, owner, note["since"], table.transaction_version(application_of(owner)) or 0)

    def columns(self) -> Mapping[str, TableColumn]:
        """Return the table's columns by name."""
        return columns_of(self.load())

    def files_below(self, path: str) -> FileSystem:
        """Return a folder below the table's."""
        from pyarrow.fs import SubTreeFileSystem

        return SubTreeFileSystem(path, self.files)

    def leave(self, *, is_emptied: bool) -> None:
        """Take the note of a sink away, and its rows with it if `is_emptied`; its columns stay."""
        noted = self.noted()
        if noted is None:
            return
        with self.asked("be given back"):
            if is_emptied:
                writers = of_region(noted.owner.region_id)
                out = removed(noted.table, self.files, writers, noted.since)
                if out is None:
                    noted.table.delete(writers.sql())
                elif out:
                    append(noted.table, out)
            # There is no way to take it away.
            self.load().alter.set_column_metadata(BATCH, {NOTE: ""})

    def require_writable(self) -> None:
        """Refuse a table with features that a commit of files alone does not do."""
        require_writable(self.load(), f"{self.who}: table {self}")

    def each(self, read: Callable[[T], R], files: Iterable[T]) -> list[R]:
        """Return what was read of each file; those of a disk one after the other: threads take longer than it does."""
        if self._is_local:
            return list(map(read, files))
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return list(threads.map(read, files))

    def require_granted(self) -> None:
        """Refuse a log that may not be written to, which else would show when a checkpoint is published.

        Raises:
            ConfigurationError: it may not.
            SinkError: the storage is away.
        """
        # Readers of a log pass over names that are not its own.
        probe = f"{LOG}/_kcr-{uuid.uuid4().hex}.tmp"
        with self.asked("be written to"):
            self.files.open_output_stream(probe).close()
            self.files.delete_file(probe)

    @property
    def _is_local(self) -> bool:
        return self._uri.startswith("file://")

    @cached_property
    def files(self) -> FileSystem:
        """What is in the table's folder."""
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import LocalFileSystem, PyFileSystem, SubTreeFileSystem

        if self._is_local:
            # Each read by delta-rs goes through Python, which takes ten times as long.
            return SubTreeFileSystem(unquote(self._uri.removeprefix("file://")), LocalFileSystem())
        return PyFileSystem(DeltaStorageHandler(self._uri, self._options))

    def _told(self, error: Exception, what: str) -> KcrError:
        from deltalake.exceptions import TableNotFoundError

        if isinstance(error, TableNotFoundError):
            return ConfigurationError(f"{self.who}: there is no Delta table {self}; create it, then start again")
        if any(word in str(error) for word in _REFUSED):
            return ConfigurationError(f"{self.who}: table {self} may not {what}; grant the right to its folder and log")
        return SinkError(f"{self.who}: table {self} could not {what}: {type(error).__name__}")
