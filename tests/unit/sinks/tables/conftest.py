from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from airflow_kcr.sinks.tables import owned as owned_module
from tests.support.hive_metastore import Metastore
from tests.support.object_store import ObjectStore, delta_in_store, glue_warehouse
from tests.support.rest_catalog import RestServer
from tests.support.table_files import MADE, HiveWarehouse, Owned, RestWarehouse, TableFiles, made, served

IN_STORE: Mapping[str, Callable[..., Owned]] = {"delta in s3": delta_in_store, "iceberg in glue": glue_warehouse}
"""What makes a table in an object store."""


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try commits again at once; a test of the pauses has a clock of its own."""
    monkeypatch.setattr(owned_module, "PAUSES", (0.0, 0.0))


@pytest.fixture(params=[*MADE, *(pytest.param(name, marks=pytest.mark.long) for name in ("rest", "hive", *IN_STORE))])
def make(request: pytest.FixtureRequest) -> Callable[[Path], Owned]:
    """What makes a table of a format, on a disk or in S3; of Iceberg's also in a REST catalog, and in Glue."""
    if request.param == "rest":
        server: RestServer = request.getfixturevalue("rest")
        return partial(served, RestWarehouse, uri=server.uri)
    if request.param == "hive":
        metastore: Metastore = request.getfixturevalue("metastore")
        return lambda _: served(HiveWarehouse, metastore.folder, metastore.uri)
    if request.param in IN_STORE:
        store: ObjectStore = request.getfixturevalue("store_of_objects")
        return partial(IN_STORE[request.param], store=store)
    return MADE[request.param]


@pytest.fixture
def owned(make: Callable[[Path], Owned], tmp_path: Path) -> Owned:
    """A table of a person."""
    return make(tmp_path / "warehouse")


@pytest.fixture
def files(owned: Owned) -> TableFiles:
    return made(owned)
