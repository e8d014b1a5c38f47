"""Where a Delta table is: a folder, as delta-rs and Spark's file systems reach it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import ConfigurationError, KcrError, SinkError

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow.fs import FileSystem

PACKAGE: Final = "airflow-kcr[delta]"


class DeltaPlace:
    """A table by its location; nothing is reached before it is loaded.

    Args:
        who: the sink, for messages.
        location: a path of this machine, or a URI.
        options: of delta-rs for the storage, with their secrets.
    """

    def __init__(self, who: str, location: str, options: Mapping[str, str]) -> None:
        self._who, self._options = who, dict(options)
        self.location = (location if "://" in location else f"file://{location}").rstrip("/")

    def __str__(self) -> str:
        return self.location.removeprefix("file://")

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
                f"{self._who} writes to a Delta table, which needs delta-rs: install {PACKAGE}"
            ) from None
        with self.asked("be read"):
            return DeltaTable(self.location, storage_options=self._options)

    @cached_property
    def files(self) -> FileSystem:
        """What is in the table's folder."""
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        return PyFileSystem(DeltaStorageHandler(self.location, self._options))

    @contextmanager
    def asked(self, what: str) -> Iterator[None]:
        """Tell an error of delta-rs or of its storage as the sink's; its words may hold secrets.

        Args:
            what: what the table could not, where it fails.

        Raises:
            ConfigurationError: there is no table.
            SinkError: anything else.
        """
        try:
            yield
        except KcrError:
            raise
        except Exception as error:
            from deltalake.exceptions import TableNotFoundError

            if isinstance(error, TableNotFoundError):
                raise ConfigurationError(
                    f"{self._who}: there is no Delta table {self}; create it, then start again"
                ) from error
            raise SinkError(f"{self._who}: table {self} could not {what}: {type(error).__name__}") from error
