from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from airflow_kcr import __version__
from airflow_kcr.cli import app, main


def test_wrong_usage_exits_with_status_2_and_says_so_on_standard_error() -> None:
    result = CliRunner().invoke(app, ["--no-such-option"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "no-such-option" in result.stderr


def test_the_console_script_reads_the_arguments_of_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["kcr", "--version"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert capsys.readouterr().out == f"kcr {__version__}\n"


def test_the_command_begins_without_the_libraries_that_only_some_of_its_commands_need() -> None:
    # Each `kcr` is a process of its own, so that what all of them load is waited for at every prompt.
    heavy = ("airflow", "confluent_kafka", "pendulum", "psycopg", "pydantic", "pyspark", "rich", "sqlalchemy", "yaml")
    look = f"import sys, airflow_kcr.cli; print([name for name in {heavy!r} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", look], check=True, capture_output=True, text=True, timeout=100)
    assert ran.stdout.strip() == "[]"
