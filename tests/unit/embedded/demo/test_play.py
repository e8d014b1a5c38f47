from __future__ import annotations

import pytest

from airflow_kcr.embedded.demo.play import is_refused
from airflow_kcr.errors import RefusedError

RUN = "dags/flights_reset/dagRuns/manual__2026-11-25T15:43:40.349403+00:00"


@pytest.mark.parametrize(("status", "refused"), [("403 Forbidden", True), ("401 Unauthorized", False)])
def test_what_counts_is_the_status_of_a_refusal_whatever_the_run_is_called(status: str, refused: bool) -> None:
    def act() -> None:
        raise RefusedError(f"viewer may not PATCH {RUN}/hitlDetails: {status}")

    assert is_refused(act) is refused


def test_what_is_let_through_is_not_refused() -> None:
    assert is_refused(lambda: RUN) is False
