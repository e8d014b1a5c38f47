"""What the tests of the command line share: a store, a region in it, and a way to call `kcr`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from typer.testing import CliRunner, Result

from airflow_kcr.api import region as region_module
from airflow_kcr.cli import app
from tests.support.live_region import FakeCluster

Document: TypeAlias = Any
"""JSON."""


class Kcr:
    """Calls `kcr` in this process, with a store in its environment."""

    def __call__(self, *arguments: object, text: str | None = None) -> Result:
        """Return how a command ended."""
        return CliRunner().invoke(app, [str(a) for a in arguments], input=text)

    def json(self, *arguments: object) -> Document:
        """Return the JSON of a command that is expected to succeed."""
        called = self(*arguments, "-o", "json")
        assert called.exit_code == 0, called.stderr
        return json.loads(called.stdout)

    def refused(self, *arguments: object, status: int) -> str:
        """Return what a command says that ends with this status, and nothing on standard output."""
        called = self(*arguments)
        assert (called.exit_code, called.stdout) == (status, ""), (called.stdout, called.stderr)
        return " ".join(called.stderr.replace("│", " ").split())


@pytest.fixture
def kcr(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Kcr:
    monkeypatch.setenv("KCR_STORE_URL", database_url)
    return Kcr()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """What commands see of Kafka."""
    cluster = FakeCluster()
    monkeypatch.setattr(region_module, "real_reader", cluster.clusters)
    return cluster


Meanwhile: TypeAlias = Callable[..., None]


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """Lets steps happen one by one, at each look of a command that waits."""
    from airflow_kcr.cli import waiting

    def later(*steps: Callable[[], object]) -> None:
        left, log = list(steps), waiting._Log.__call__

        def look(self: waiting._Log, seen: Any) -> None:  # noqa: ANN401 (as the original)
            log(self, seen)
            if left:
                left.pop(0)()

        monkeypatch.setattr(waiting._Log, "__call__", look)

    return later
