from __future__ import annotations

import pytest
from typer.testing import CliRunner

from airflow_kcr import __version__
from airflow_kcr.cli import app, main


def test_version_is_printed_to_standard_output() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"kcr {__version__}\n")


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
