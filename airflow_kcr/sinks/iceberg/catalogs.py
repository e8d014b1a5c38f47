"""Where an Iceberg table is: a catalog, as PyIceberg knows it, and a name in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, cast

from airflow_kcr.errors import ConfigurationError, KcrError, SinkError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import CommitTableResponse, Table
    from pyiceberg.table.update import TableRequirement, TableUpdate

PACKAGE: Final = "airflow-kcr[iceberg]"

ANSWERS_WITHIN: Final = 60.0
"""How long a REST catalog may say nothing before it counts as away, in seconds; PyIceberg would wait forever."""


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
        """Commit; what is too late is `CommitOvertaken`."""
        from pyiceberg.exceptions import CommitFailedException

        try:
            return self._catalog.commit_table(table, requirements, updates)
        except CommitFailedException as error:
            raise CommitOvertaken from error


def tried_once(table: Table) -> Table:
    """Return a table whose commits PyIceberg does not try again."""
    table.catalog = cast("Catalog", _TriedOnce(table.catalog))
    return table


class NamedTable:
    """A table by its name; nothing is reached before it is loaded.

    Args:
        who: the sink, for messages.
        catalog: a name in PyIceberg's configuration, or of what `options` describe.
        options: properties of the catalog beside those of the configuration, with their secrets.
        name: `namespace.table`.
    """

    def __init__(self, who: str, catalog: str, options: Mapping[str, str], name: str) -> None:
        self._who, self.catalog, self._options, self.name = who, catalog, options, name
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

    @cached_property
    def _opened(self) -> Catalog:
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError:
            raise ConfigurationError(
                f"{self._who} writes to an Iceberg table, which needs PyIceberg: install {PACKAGE}"
            ) from None
        try:
            found = load_catalog(self.catalog, **self._options)
        except ValueError:
            # PyIceberg says so of a catalog that is nowhere described, and of properties that don't go together.
            raise ConfigurationError(
                f"{self._who}: catalog {self.catalog} is not known here; describe it in PyIceberg's configuration "
                "(.pyiceberg.yaml, or PYICEBERG_CATALOG__… in the environment), or by the sink's options: type, uri, "
                "warehouse"
            ) from None
        session = getattr(found, "_session", None)
        if session is not None:
            session.request = partial(session.request, timeout=ANSWERS_WITHIN)
        return found

    @contextmanager
    def asked(self, what: str) -> Iterator[None]:
        """Tell an error of PyIceberg, of its catalog or of its storage as the sink's; its words may hold secrets.

        Args:
            what: what the table could not, where it fails.

        Raises:
            ConfigurationError: there is no such table, or the catalog refuses.
            SinkError: anything else: the catalog or the storage is away.
        """
        try:
            yield
        except KcrError:
            raise
        except Exception as error:
            raise self._told(error, what) from error

    def _told(self, error: Exception, what: str) -> KcrError:
        from pyiceberg import exceptions

        kind = type(error).__name__
        if isinstance(error, exceptions.NoSuchTableError | exceptions.NoSuchNamespaceError):
            return ConfigurationError(f"{self._who}: there is no table {self}; create it, then start again")
        refused = exceptions.UnauthorizedError, exceptions.ForbiddenError, exceptions.OAuthError
        if isinstance(error, refused):
            return ConfigurationError(f"{self._who}: the catalog refuses that table {self} {what}s ({kind})")
        return SinkError(f"{self._who}: table {self} could not {what}: {kind}")
