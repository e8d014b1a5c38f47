from __future__ import annotations

import pytest
from typer.testing import CliRunner

from airflow_kcr.cli import app
from airflow_kcr.store.schema_upgrade import HEAD


def test_an_empty_database_is_upgraded_and_then_reported_as_current(empty_database_url: str) -> None:
    runner = CliRunner()
    before = runner.invoke(app, ["store", "status", "--store", empty_database_url])
    assert before.exit_code == 4
    assert "kcr store upgrade" in before.stderr
    upgraded = runner.invoke(app, ["store", "upgrade", "--store", empty_database_url])
    assert (upgraded.exit_code, upgraded.stdout) == (0, f"the store is at revision {HEAD}\n")
    after = runner.invoke(app, ["store", "status", "--store", empty_database_url])
    assert after.exit_code == 0
    assert f"needs {HEAD}" in after.stdout


def test_upgrading_twice_changes_nothing(empty_database_url: str) -> None:
    for _ in range(2):
        assert CliRunner().invoke(app, ["store", "upgrade", "--store", empty_database_url]).exit_code == 0


def test_the_store_may_come_from_the_environment(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCR_STORE_URL", database_url)
    assert CliRunner().invoke(app, ["store", "status"]).exit_code == 0


@pytest.mark.parametrize("verb", ["status", "upgrade"])
def test_a_store_out_of_reach_exits_with_status_4_and_never_shows_the_password(verb: str) -> None:
    result = CliRunner().invoke(app, ["store", verb, "--store", "postgresql://me:s3cret@127.0.0.1:1/nothing"])
    assert result.exit_code == 4
    assert "127.0.0.1" in result.stderr
    assert "s3cret" not in result.output


def test_no_store_at_all_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KCR_STORE_URL", raising=False)
    result = CliRunner().invoke(app, ["store", "status"])
    assert result.exit_code == 2
    assert "KCR_STORE_URL" in result.stderr
