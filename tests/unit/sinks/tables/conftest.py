from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from airflow_kcr.sinks.tables import owned as owned_module
from tests.support.rest_catalog import RestServer
from tests.support.table_files import MADE, Owned, TableFiles, made, rest_warehouse


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try commits again at once; a test of the pauses has a clock of its own."""
    monkeypatch.setattr(owned_module, "PAUSES", (0.0, 0.0))


@pytest.fixture(params=[*MADE, pytest.param("rest", marks=pytest.mark.long)])
def make(request: pytest.FixtureRequest) -> Callable[[Path], Owned]:
    """What makes a table of a format; of Iceberg's also in a REST catalog."""
    if request.param == "rest":
        server: RestServer = request.getfixturevalue("rest")
        return partial(rest_warehouse, uri=server.uri)
    return MADE[request.param]


@pytest.fixture
def owned(make: Callable[[Path], Owned], tmp_path: Path) -> Owned:
    """A table of a person."""
    return make(tmp_path / "warehouse")


@pytest.fixture
def files(owned: Owned) -> TableFiles:
    return made(owned)
