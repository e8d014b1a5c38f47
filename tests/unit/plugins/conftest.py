"""What the tests of the pages share: pages of stores without Airflow's own tables, and their users.

Loads the browser first: Airflow's API server loads the same library, and warns of it.
"""

from __future__ import annotations

import pytest

from tests.support import browsing

__all__ = ["browsing"]


@pytest.fixture(autouse=True)
def no_teams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's own tables are not there."""
    from airflow.models.dag import DagModel

    monkeypatch.setattr(DagModel, "get_team_name", lambda dag_id: None)
