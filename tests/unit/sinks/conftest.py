from __future__ import annotations

import pytest

from airflow_kcr.sinks.files import layout


@pytest.fixture(autouse=True)
def small_shelves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a folder for every three sequences, so that short histories have many."""
    monkeypatch.setattr(layout, "SHELF", 3)
