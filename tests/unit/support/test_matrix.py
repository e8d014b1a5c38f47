"""The matrix counts what pytest reports, and tells what it could not try."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from airflow_kcr.errors import ServiceFailed
from tests import matrix

REPORT = """<testsuites><testsuite tests="9" failures="1" errors="1" skipped="3" name="all"></testsuite></testsuites>"""


def test_failures_and_errors_are_failed(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    assert matrix.counts(tmp_path / "report.xml") == (4, 2, 3)


@pytest.mark.parametrize("value", matrix.VALUES, ids=lambda value: f"{value.axis} {value.version}")
def test_what_is_tried_is_there(value: matrix.Value) -> None:
    assert [test for test in value.tests if not (matrix.ROOT / test.partition("::")[0]).exists()] == []


@pytest.mark.parametrize(("options", "status"), [((), "1"), (("--turn", "3f2a9c1"), "0")], ids=["by hand", "in turn"])
def test_a_value_without_an_environment_is_told_with_the_reason(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    status: str,
) -> None:
    def fails(*command: str) -> None:
        raise subprocess.CalledProcessError(1, command, stderr="error: no\n  cause: no such version\n")

    monkeypatch.setattr(matrix, "run", fails)
    value = matrix.Value(axis="Spark", version="9", tests=(), requirements=("pyspark==9",))
    monkeypatch.setattr(matrix, "VALUES", (value,))
    monkeypatch.setattr("sys.argv", ["matrix", "--folder", str(tmp_path), *options])
    with pytest.raises(SystemExit, match=status):
        matrix.main()
    assert "| Spark | 9 | not tried: `cause: no such version` | | |" in capsys.readouterr().out


def test_programs_that_cannot_be_downloaded_are_told_with_the_reason(tmp_path: Path) -> None:
    def found(folder: Path) -> dict[str, str]:
        raise ServiceFailed("it could not be downloaded from\nhttps://maven.invalid")

    value = matrix.Value(axis="Kafka", version="9", tests=(), programs=found)
    with pytest.raises(matrix.NotHere, match=r"downloaded from https://maven\.invalid"):
        matrix.tried(value, tmp_path)


def test_every_supported_value_but_the_defaults_comes_round() -> None:
    names = {value.name for value in matrix.VALUES}
    without = matrix.DEFAULTS | matrix.BY_HAND
    assert names > without
    assert {value.name for value in matrix.others()} == names - without


def test_a_turn_is_of_one_value_and_its_quick_tests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[tuple[str, tuple[str, ...]]] = []

    def tried(value: matrix.Value, folder: Path, options: tuple[str, ...]) -> bool:
        seen.append((value.name, options))
        return True

    monkeypatch.setattr(matrix, "tried", tried)
    monkeypatch.setattr("sys.argv", ["matrix", "--turn", "3f2a9c1", "--folder", str(tmp_path)])
    with pytest.raises(SystemExit, match="0"):
        matrix.main()
    ((name, options),) = seen
    assert name in {value.name for value in matrix.others()}
    assert options is matrix.QUICK
