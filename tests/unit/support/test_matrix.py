"""The matrix counts what pytest reports, and tells what it could not try."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import matrix

REPORT = """<testsuites><testsuite tests="9" failures="1" errors="1" skipped="3" name="all"></testsuite></testsuites>"""


def test_failures_and_errors_are_failed(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    assert matrix.counts(tmp_path / "report.xml") == (4, 2, 3)


@pytest.mark.parametrize("value", matrix.VALUES, ids=lambda value: f"{value.axis} {value.version}")
def test_what_is_tried_is_there(value: matrix.Value) -> None:
    assert [test for test in value.tests if not (matrix.ROOT / test.partition("::")[0]).exists()] == []


def test_a_value_without_an_environment_is_told_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*command: str) -> None:
        raise subprocess.CalledProcessError(1, command, stderr="error: no\n  cause: no such version\n")

    monkeypatch.setattr(matrix, "run", fails)
    value = matrix.Value(axis="Spark", version="9", tests=(), requirements=("pyspark==9",))
    assert not matrix.tried(value, tmp_path)
    assert "| Spark | 9 | no environment: `cause: no such version` | | |" in capsys.readouterr().out
