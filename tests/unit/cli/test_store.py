from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from airflow_kcr.cli import app
from airflow_kcr.store.postgres.revision import HEAD

AWAY = "postgresql://me:s3cret@127.0.0.1:1/nothing"


def test_an_empty_database_is_upgraded_and_then_reported_as_current(empty_database_url: str) -> None:
    runner = CliRunner()
    before = runner.invoke(app, ["store", "status", "--store", empty_database_url])
    assert before.exit_code == 4
    assert json.loads(before.stdout) == {"current": None, "needed": HEAD, "is_current": False}
    assert "kcr store upgrade" in before.stderr
    upgraded = runner.invoke(app, ["store", "upgrade", "--store", empty_database_url])
    current = {"current": HEAD, "needed": HEAD, "is_current": True}
    assert (upgraded.exit_code, json.loads(upgraded.stdout)) == (0, current)
    after = runner.invoke(app, ["store", "status", "--store", empty_database_url])
    assert (after.exit_code, json.loads(after.stdout)) == (0, current)


def test_upgrading_twice_changes_nothing(empty_database_url: str) -> None:
    for _ in range(2):
        assert CliRunner().invoke(app, ["store", "upgrade", "--store", empty_database_url]).exit_code == 0


def test_the_store_may_come_from_the_environment(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCR_STORE_URL", database_url)
    assert CliRunner().invoke(app, ["store", "status"]).exit_code == 0


@pytest.mark.parametrize("command", [["store", "status"], ["store", "upgrade"], ["region", "list"]])
def test_a_store_out_of_reach_exits_with_status_4_and_never_shows_the_password(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--store", AWAY])
    assert result.exit_code == 4
    assert "127.0.0.1:1/nothing" in result.stderr
    assert "tried for" in result.stderr
    assert "s3cret" not in result.output


def test_a_password_among_the_arguments_is_warned_of(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "others on this machine" in CliRunner().invoke(app, ["region", "list", "--store", AWAY]).stderr
    monkeypatch.setenv("KCR_STORE_URL", AWAY)
    assert "others on this machine" not in CliRunner().invoke(app, ["region", "list"]).stderr
    assert "others on this machine" not in CliRunner().invoke(app, ["region", "list", "--store", database_url]).stderr


@pytest.mark.parametrize("url", ["s3cret", "mysql://me:s3cret@host/kcr", "postgresql://me:s3cret@host:port/kcr"])
@pytest.mark.parametrize("command", [["store", "status"], ["region", "list"]])
def test_a_url_that_is_none_is_wrong_usage_and_not_quoted(
    command: list[str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KCR_STORE_URL", url)
    result = CliRunner().invoke(app, command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "postgresql://" in result.stderr
    assert "s3cret" not in result.output


def test_a_store_without_a_schema_says_what_to_run(empty_database_url: str) -> None:
    result = CliRunner().invoke(app, ["region", "list", "--store", empty_database_url])
    assert result.exit_code == 4
    assert "kcr store upgrade" in result.stderr


def test_no_store_at_all_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KCR_STORE_URL", raising=False)
    result = CliRunner().invoke(app, ["store", "status"])
    assert result.exit_code == 2
    assert "KCR_STORE_URL" in result.stderr
