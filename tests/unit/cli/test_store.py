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
    refused = runner.invoke(app, ["region", "list", "--store", empty_database_url])
    assert (refused.exit_code, "kcr store upgrade" in refused.stderr) == (4, True)
    current = {"current": HEAD, "needed": HEAD, "is_current": True}
    for command in ("upgrade", "status", "upgrade"):
        after = runner.invoke(app, ["store", command, "--store", empty_database_url])
        assert (after.exit_code, json.loads(after.stdout)) == (0, current)


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


def test_no_store_at_all_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KCR_STORE_URL", raising=False)
    result = CliRunner().invoke(app, ["store", "status"])
    assert result.exit_code == 2
    assert "KCR_STORE_URL" in result.stderr
