"""A metastore of Hive as a catalog: what its lock does not keep out, and when it counts as away."""

from __future__ import annotations

import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hive_metastore.ThriftHiveMetastore import Client  # type: ignore[import-untyped]
from hive_metastore.ttypes import ShowLocksRequest, UnlockRequest  # type: ignore[import-untyped]
from pyiceberg.catalog import hive
from pyiceberg.catalog.hive import HiveCatalog

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.sinks.iceberg import catalogs
from airflow_kcr.sinks.iceberg.catalogs import NamedTable
from airflow_kcr.sinks.iceberg.hive import HiveConnections
from airflow_kcr.spec import SinkKind
from tests.support.hive_metastore import Metastore, hive_metastore
from tests.support.table_files import (
    HiveWarehouse,
    TableFiles,
    complete,
    declared,
    made,
    other,
    served,
)

ALTER = "alter_table_with_environment_context"


@pytest.fixture
def lake(metastore: Metastore) -> HiveWarehouse:
    return served(HiveWarehouse, metastore.folder, metastore.uri)


@pytest.fixture
def files(lake: HiveWarehouse) -> TableFiles:
    return made(lake)


def take_locks_away(lake: HiveWarehouse) -> None:
    """What the metastore does after a time with locks of a process that is frozen."""
    catalog = lake.catalog()
    assert isinstance(catalog, HiveCatalog)
    with HiveConnections(catalog, 10) as client:
        locks = client.show_locks(ShowLocksRequest(tablename=lake.name.partition(".")[2])).locks
        assert locks, "a commit without a lock"
        for lock in locks:
            client.unlock(UnlockRequest(lock.lockid))


@pytest.mark.long
@pytest.mark.parametrize("others", ["publish", "append"])
def test_a_commit_that_was_frozen_until_its_lock_was_gone_takes_back_nothing_of_others(
    files: TableFiles, lake: HiveWarehouse, others: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.fill()
    sequence = complete(files, "n1")
    alter, frozen, shown = getattr(Client, ALTER), iter([True]), list[object]()

    def late(self: Any, *given: Any, **named: Any) -> None:  # noqa: ANN401 (of Thrift)
        if next(frozen, False):
            take_locks_away(lake)
            if others == "publish":
                other(files).publish(sequence)
            else:
                files.append(3)
            shown.append(lake.version())
        alter(self, *given, **named)

    monkeypatch.setattr(Client, ALTER, late)
    files.sink.publish(sequence)
    assert files.rows() == files.records(sequence)
    assert sum("kcr.sequence" in told for told in lake.commits()) == 1
    assert len(lake.rows()) == sum(files.records(sequence).values()) + (others == "append")
    assert others == "append" or shown == [lake.version()], "what was published once is published again"


@pytest.mark.long
def test_a_metastore_that_does_not_look_at_what_a_commit_expects_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with hive_metastore(tmp_path, is_fenced=False) as metastore:
        lake = served(HiveWarehouse, metastore.folder, metastore.uri)
        before = lake.version()
        with pytest.raises(
            ConfigurationError,
            match=r"^sink out of group g \(groups\[0\]\.sinks\.out\.table\): table \S+ of catalog lake is in a metasto",
        ):
            declared(lake, SinkKind.ICEBERG, "id").check()
        assert lake.version() == before
        catalog = lake.catalog()
        assert isinstance(catalog, HiveCatalog)
        with HiveConnections(catalog, 10) as client:
            assert client.get_table("db", lake.name.partition(".")[2]).partitionKeys == []


@pytest.mark.long
def test_a_lock_that_a_killed_writer_has_left_is_named_and_the_commit_made_once_it_is_gone(
    lake: HiveWarehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hive, "DEFAULT_LOCK_CHECK_MAX_WAIT_TIME", 0.1)
    files = made(lake)
    files.fill()
    sequence = complete(files, "n1")
    catalog = lake.catalog()
    assert isinstance(catalog, HiveCatalog)
    with HiveConnections(catalog, 10) as client:
        client.lock(catalog._create_lock_request(*lake.name.split(".")))
    with pytest.raises(SinkError, match=r"could not commit: it is locked in its metastore by a writer that is at work"):
        files.sink.publish(sequence)
    assert len(lake.rows()) == 0
    take_locks_away(lake)
    files.sink.publish(sequence)
    assert files.rows() == files.records(sequence)


@pytest.mark.long
def test_threads_do_not_close_each_other_s_connection(lake: HiveWarehouse) -> None:
    catalog = lake.catalog()
    assert isinstance(catalog, HiveCatalog)
    connections = HiveConnections(catalog, 10)
    with ThreadPoolExecutor(1) as thread, ExitStack() as stack:
        with connections:
            client = thread.submit(stack.enter_context, connections).result()
        assert "db" in client.get_all_databases()
        thread.submit(stack.close).result()


def named(uri: str) -> NamedTable:
    return NamedTable(lambda field: f"sink out ({field})", "lake", {"type": "hive", "uri": uri}, "db.delays")


def test_a_metastore_that_never_answers_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogs, "ANSWERS_WITHIN", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        table = named(f"thrift://127.0.0.1:{silent.getsockname()[1]}")
        for _ in range(2):
            with pytest.raises(SinkError, match=r"table db.delays of catalog lake could not be read: TTransport"):
                table.load()


def test_a_package_that_a_catalog_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog.hive", None)
    with pytest.raises(ConfigurationError, match=r"sink out \(catalog\): catalog lake: .*pyiceberg\[hive\]"):
        named("thrift://127.0.0.1:9").load()
