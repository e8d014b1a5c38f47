"""Where an Iceberg table is, a catalog as PyIceberg knows it and a name in it, and what its sink has noted in it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, TypeGuard, TypeVar, cast

from airflow_kcr.errors import ConfigurationError, KcrError, SinkError
from airflow_kcr.protocol import documents
from airflow_kcr.sinks.checkpoints import CheckpointId
from airflow_kcr.sinks.contract import SinkOwner
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.iceberg import hive, partitions
from airflow_kcr.sinks.iceberg.columns import columns_of
from airflow_kcr.sinks.iceberg.deletion import delete
from airflow_kcr.sinks.tables.columns import TableColumn
from airflow_kcr.sinks.tables.labels import of_region
from airflow_kcr.sinks.tables.owned import NOTE, TablePlace, spark_uri

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyiceberg.catalog import Catalog
    from pyiceberg.catalog.hive import HiveCatalog
    from pyiceberg.table import CommitTableResponse, Table
    from pyiceberg.table.update import TableRequirement, TableUpdate

C = TypeVar("C")

PACKAGE: Final = "airflow-kcr[iceberg]"

ANSWERS_WITHIN: Final = 60.0
"""How long a catalog may say nothing at first, and one of REST or Hive at any time, before it counts as away, in
seconds; PyIceberg would wait forever."""

_REFUSED: Final = ("AccessDenied", "ACCESS_DENIED", "InsufficientPrivilege", "Permission denied")
"""What object stores, Glue, Postgres and Hive say where a right is missing; PyIceberg lets their errors through."""

TAG: Final = re.compile(r"(?P<tag>kcr_\d+_(?P<sequence>\d+))(_r\d+)?")
"""The names of a sink's tags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableNote:
    """What a sink notes in its table."""

    owner: SinkOwner
    columns: Mapping[str, int]
    """Its own columns with their ids: one that was dropped and added again has another one, and lost its values."""

    since: int
    """The table's sequence number before it wrote anything: files that are as old have nothing of it."""

    commits: int = 0
    """How many commits it has made."""

    snapshot: int | None = None
    """Of its last commit; None: there was none."""

    shown: str = ""
    """The last checkpoint that it has published; they only grow."""

    def text(self) -> str:
        """Return it as the property has it."""
        return json.dumps(documents.write(self, TableNote), sort_keys=True)

    @classmethod
    def of(cls, metadata: Table) -> TableNote | None:
        """Return the note of a table; None: no sink has written to it."""
        text = metadata.properties.get(NOTE)
        return None if text is None else documents.read(json.loads(text), cls)


@dataclass(frozen=True, slots=True)
class NotedIceberg:
    """A table as it was loaded, with its note."""

    metadata: Table
    note: TableNote

    @property
    def owner(self) -> SinkOwner:
        """Whose it is."""
        return self.note.owner

    @property
    def commits(self) -> int:
        """How many commits the sink has made."""
        return self.note.commits

    def columns(self) -> Mapping[str, TableColumn]:
        """Return the table's columns by name."""
        return columns_of(self.metadata.schema())

    def has_shown(self, checkpoint: CheckpointId) -> bool:
        """Whether a checkpoint was published, or a later one."""
        last = layout.named(self.note.shown)
        return last is not None and checkpoint <= last


class CommitOvertaken(Exception):
    """Another process has committed meanwhile."""


class _TriedOnce:
    """A catalog that says in its own word that a commit came too late.

    Else PyIceberg tries it again without asking what the sink asks, or deletes the commit's manifests: which the table
    may have, where the catalog's answer to a first try was lost and this is the one to the second.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __getattr__(self, name: str) -> object:
        return getattr(self._catalog, name)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Commit; what is too late is `CommitOvertaken`, and what waits for a lock of Hive is not."""
        from pyiceberg.exceptions import CommitFailedException, WaitingForLockException

        try:
            return self._catalog.commit_table(table, requirements, updates)
        except CommitFailedException as error:
            if isinstance(error.__cause__, WaitingForLockException):
                raise error.__cause__ from None
            raise CommitOvertaken from error


def tried_once(table: Table) -> Table:
    """Return a table whose commits PyIceberg does not try again."""
    table.catalog = cast("Catalog", _TriedOnce(table.catalog))
    return table


def _within(seconds: float, call: Callable[[], C]) -> C:
    """Return what a call returns; one that takes too long goes on in a thread of its own, and nothing waits for it.

    Raises:
        TimeoutError: it takes too long.
    """
    answer = Future[C]()

    def ask() -> None:
        try:
            answer.set_result(call())
        except Exception as error:  # noqa: BLE001 (it is the caller's)
            answer.set_exception(error)

    threading.Thread(target=ask, name="kcr catalog", daemon=True).start()
    return answer.result(seconds)


def _is_hive(catalog: Catalog) -> TypeGuard[HiveCatalog]:
    """Whether a catalog is a metastore of Hive, for which PyIceberg needs more than for others."""
    return type(catalog).__module__ == "pyiceberg.catalog.hive"


class NamedTable(TablePlace[NotedIceberg]):
    """A table by its name.

    Args:
        who: returns the sink, for messages, with the field of its spec that they are about.
        catalog: a name in PyIceberg's configuration, or of what `options` describe.
        options: properties of the catalog beside those of the configuration, with their secrets.
        name: `namespace.table`.
    """

    def __init__(self, who: Callable[[str], str], catalog: str, options: Mapping[str, str], name: str) -> None:
        super().__init__(who("table"))
        self._who_of_catalog = who("catalog")
        self.catalog, self._options, self.name = catalog, options, name
        self._known: Table | None = None

    def __str__(self) -> str:
        return f"{self.name} of catalog {self.catalog}"

    def load(self) -> Table:
        """Return the table as it is now.

        Raises:
            ConfigurationError: there is no such catalog or table, or it may not be read.
            SinkError: the catalog is away.
        """
        with self.asked("be read"):
            self._known = self._opened.load_table(self.name)
            return self._known

    def known(self) -> Table:
        """Return the table as it was loaded last.

        Raises:
            ConfigurationError: it was not, and there is no such catalog or table.
            SinkError: likewise, and the catalog is away.
        """
        return self._known or self.load()

    def location(self) -> str:
        """Return where the table is."""
        return spark_uri(self.known().location())

    def noted(self) -> NotedIceberg | None:
        """Return the table with its note; None: no sink has written to it."""
        metadata = self.load()
        note = TableNote.of(metadata)
        return None if note is None else NotedIceberg(metadata, note)

    def columns(self) -> Mapping[str, TableColumn]:
        """Return the table's columns by name."""
        return columns_of(self.load().schema())

    def files_below(self, path: str) -> FileSystem:
        """Return a folder below the table's location.

        Raises:
            ConfigurationError, SinkError: as `load`, or PyIceberg reaches it by other means than Arrow.
        """
        from pyarrow.fs import SubTreeFileSystem
        from pyiceberg.io.pyarrow import PyArrowFileIO

        table = self.known()
        if not isinstance(table.io, PyArrowFileIO):
            raise SinkError(f"{self.who}: the files of table {self} are not reached by Arrow")
        scheme, netloc, root = table.io.parse_location(table.location(), table.io.properties)
        with self.asked("be reached"):
            return SubTreeFileSystem(f"{root.rstrip('/')}/{path}", table.io.fs_by_scheme(scheme, netloc))

    def leave(self, *, is_emptied: bool) -> None:
        """Take the note and the tags of a sink away; its columns stay."""
        from pyiceberg.table.update.snapshot import ManageSnapshots

        metadata = self.load()
        note = TableNote.of(metadata)
        with self.asked("be given back"), metadata.transaction() as change:
            if is_emptied and note is not None:
                delete(change, metadata, of_region(note.owner.region_id), note.since, {})
            with ManageSnapshots(change) as tags:
                for name in filter(TAG.fullmatch, change.table_metadata.refs):
                    tags.remove_tag(name)
            change.remove_properties(NOTE)
        self.load()

    def require_writable(self) -> None:
        """Refuse a table of format version 1, and a partitioning that the bounds of a file don't say."""
        partitions.require_writable(self.load(), f"{self.who}: table {self}")
        if _is_hive(self._opened):
            with self.asked("be asked"):
                hive.require_fenced(self._opened, self.name, f"{self.who}: table {self}")

    @cached_property
    def _opened(self) -> Catalog:
        try:
            from pyiceberg.catalog import load_catalog
            from pyiceberg.exceptions import NotInstalledError
        except ImportError:
            raise ConfigurationError(
                f"{self.who} writes to an Iceberg table, which needs PyIceberg: install {PACKAGE}"
            ) from None
        try:
            found = _within(ANSWERS_WITHIN, partial(load_catalog, self.catalog, **self._options))
        except TimeoutError:
            raise SinkError(
                f"{self._who_of_catalog}: catalog {self.catalog} has not answered for {ANSWERS_WITHIN:g} s; check its "
                "address, and whether it runs"
            ) from None
        except NotInstalledError as error:
            raise ConfigurationError(f"{self._who_of_catalog}: catalog {self.catalog}: {error}") from None
        except ValueError:
            # PyIceberg says so of a catalog that is nowhere described, and of properties that don't go together.
            raise ConfigurationError(
                f"{self._who_of_catalog}: catalog {self.catalog} is not known here; describe it in PyIceberg's "
                "configuration (.pyiceberg.yaml, or PYICEBERG_CATALOG__… in the environment), or by the sink's "
                "options: type, uri, warehouse"
            ) from None
        if _is_hive(found):
            hive.fence(found, ANSWERS_WITHIN)
        session = getattr(found, "_session", None)
        if session is not None:
            session.request = partial(session.request, timeout=ANSWERS_WITHIN)
        return found

    def _told(self, error: Exception, what: str) -> KcrError:
        from pyiceberg import exceptions

        kind = type(error).__name__
        if isinstance(error, exceptions.NoSuchTableError | exceptions.NoSuchNamespaceError):
            return ConfigurationError(f"{self.who}: there is no table {self}; create it, then start again")
        if isinstance(error, exceptions.WaitingForLockException):
            return SinkError(
                f"{self.who}: table {self} could not {what}: it is locked in its metastore by a writer that is at "
                "work, or was killed; where the metastore does not end such a lock itself (hive.txn.timeout), find it "
                "with SHOW LOCKS and release it"
            )
        refused = exceptions.UnauthorizedError, exceptions.ForbiddenError, exceptions.OAuthError, PermissionError
        if isinstance(error, refused) or any(word in str(error) for word in _REFUSED):
            return ConfigurationError(
                f"{self.who}: table {self} may not {what} ({kind}); grant the right to it in the catalog, and to its "
                "folder"
            )
        return SinkError(f"{self.who}: table {self} could not {what}: {kind}")
