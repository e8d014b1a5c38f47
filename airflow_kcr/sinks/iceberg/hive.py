"""A metastore of Hive as a catalog: a lock keeps others out of a commit for a time, and what it expects from then on.

PyIceberg commits under a lock, which the metastore takes away from a process that is frozen (`hive.txn.timeout`, by
default 300 s). Once that process goes on, it would put its metadata in place of what others have committed since. So
each commit says which metadata it is made of, and a metastore that knows of that (HIVE-26882) refuses it then.
"""

from __future__ import annotations

import threading
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hive_metastore.ThriftHiveMetastore import Client  # type: ignore[import-untyped]
    from hive_metastore.ttypes import EnvironmentContext  # type: ignore[import-untyped]
    from hive_metastore.ttypes import Table as HiveTable
    from pyiceberg.catalog.hive import HiveCatalog

_KEY: Final = "expected_parameter_key"
_VALUE: Final = "expected_parameter_value"
_METADATA: Final = "metadata_location"
_BEFORE: Final = "previous_metadata_location"
_MODIFIED: Final = "The table has been modified"
"""How a metastore begins where it finds other metadata than is expected."""


class HiveConnections:
    """What a catalog asks its metastore by: a connection for each call, which ends.

    PyIceberg's own is one for all threads, and is closed by the first of them that has its answer.

    Args:
        catalog: whose.
        within: seconds in which the metastore has to answer.
    """

    def __init__(self, catalog: HiveCatalog, within: float) -> None:
        self._make = partial(catalog._create_hive_client, catalog.properties)  # noqa: SLF001 (there is no other way)
        self._within = within
        self._of_thread = threading.local()

    def __enter__(self) -> Client:
        connection = self._make()
        # With Kerberos the one, without it the other.
        inner = {"transport", "_TBufferedTransport__trans"} & vars(connection._transport).keys()  # noqa: SLF001
        vars(connection._transport)[inner.pop()].setTimeout(self._within * 1_000)  # noqa: SLF001
        client = connection.__enter__()
        client.alter_table_with_environment_context = partial(_alter, client.alter_table_with_environment_context)
        self._of_thread.opened = connection, getattr(self._of_thread, "opened", None)
        return client

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection, self._of_thread.opened = self._of_thread.opened
        connection.__exit__(kind, error, trace)


def fence(catalog: HiveCatalog, within: float) -> None:
    """Have the commits of a catalog say what they expect, and its calls end.

    Args:
        catalog: opened.
        within: seconds in which its metastore has to answer.
    """
    catalog._client = HiveConnections(catalog, within)  # type: ignore[assignment]  # noqa: SLF001 (as above)


def _alter(
    alter: Callable[..., None],
    *,
    dbname: str,
    tbl_name: str,
    new_tbl: HiveTable,
    environment_context: EnvironmentContext,
) -> None:
    """Change a table if it still has the metadata that the change is made of."""
    from hive_metastore.ttypes import MetaException
    from pyiceberg.exceptions import CommitFailedException

    environment_context.properties |= {_KEY: _METADATA, _VALUE: new_tbl.parameters[_BEFORE]}
    try:
        alter(dbname, tbl_name, new_tbl, environment_context)
    except MetaException as error:
        if not str(error.message).startswith(_MODIFIED):
            raise
        raise CommitFailedException(f"{dbname}.{tbl_name} has other metadata by now") from error


def require_fenced(catalog: HiveCatalog, name: str, where: str) -> None:
    """Refuse a metastore that does not look at what a commit expects.

    Args:
        catalog: the metastore.
        name: of a table, which is not changed.
        where: the sink and the table, for messages.

    Raises:
        ConfigurationError: it is such a metastore.
    """
    from hive_metastore.ttypes import EnvironmentContext, FieldSchema, InvalidOperationException
    from pyiceberg.exceptions import CommitFailedException

    database, table = catalog.identifier_to_database_and_table(name)
    with catalog._client as client:  # noqa: SLF001 (as above)
        changed = client.get_table(database, table)
        changed.parameters[_BEFORE] = "none"
        # Where that is not looked at, nothing comes of it either: a table gets no partition key.
        changed.partitionKeys = [*changed.partitionKeys, FieldSchema("kcr", "string", "")]
        try:
            client.alter_table_with_environment_context(
                dbname=database, tbl_name=table, new_tbl=changed, environment_context=EnvironmentContext({})
            )
        except CommitFailedException:
            return
        except InvalidOperationException:
            pass
    raise ConfigurationError(
        f"{where} is in a metastore of Hive that does not look at what a commit expects (HIVE-26882), so that a "
        "process that was frozen could take back what others have committed; it needs Hive 2.3.10 or 4.0"
    )
