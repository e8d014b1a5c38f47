"""What the tests of the operators share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_kcr.operators import application, base
from tests.support.reset_tasks import World, prepared


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks look once before they give their slot up."""
    monkeypatch.setattr(base, "PATIENCE", timedelta(0))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Kafka and people, as a reset meets them."""
    return prepared(monkeypatch)


class Submitted:
    """In the place of Spark's command: notes what it is given, and does what a test says."""

    def __init__(self) -> None:
        self.arguments: list[str] = []
        self.environment: dict[str, str] = {}
        self.compared: list[dict[str, object]] | None = None
        self.is_cluster = False
        self.does: Callable[[], None] = lambda: None
        self.application, self.accepted, self.was_told = None, "app-1", False
        self.driver = None

    def hook(self, *, environment: dict[str, str], heard: object, **options: Any) -> Submitted:  # noqa: ANN401
        """Take the place of the hook."""
        self.environment, self.arguments = environment, list(options["application_args"])
        return self

    def tell_to_drain(self) -> None:
        """Note that it was told."""
        self.was_told = True

    def run(self, program: str) -> None:
        """Run as the command would."""
        self.does()


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> Submitted:
    found = Submitted()
    monkeypatch.setattr(application, "KcrSparkSubmitHook", found.hook)
    return found
