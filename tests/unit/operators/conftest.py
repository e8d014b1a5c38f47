"""What the tests of the operators share."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_kcr.operators import base
from tests.support.reset_tasks import World, prepared


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks look once before they give their slot up."""
    monkeypatch.setattr(base, "PATIENCE", timedelta(0))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Kafka and people, as a reset meets them."""
    return prepared(monkeypatch)
