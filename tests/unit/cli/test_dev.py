from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import airflow_kcr.embedded
from airflow_kcr.cli import app
from airflow_kcr.embedded import services


@pytest.fixture(autouse=True)
def package() -> Iterator[None]:
    """Have the package afterwards that there was before: one that a test imports anew has other modules."""
    before = airflow_kcr.embedded
    yield
    airflow_kcr.embedded = before


COMMANDS = [["dev", "up"], ["dev", "down"], ["dev", "status"], ["demo"]]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_without_its_extra_a_command_says_what_to_install(
    command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in list(sys.modules):
        if name.startswith("airflow_kcr.embedded"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.setenv("KCR_DEV_FOLDER", str(tmp_path))
    result = CliRunner().invoke(app, command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "kcr: psutil is not installed; install it with: pip install 'airflow-kcr[demo]'\n"


def test_another_module_that_is_missing_is_a_bug_and_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "airflow_kcr.embedded.services", None)
    result = CliRunner().invoke(app, ["dev", "status"])
    assert isinstance(result.exception, ModuleNotFoundError)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    def start(folder: Path, starting: services.Starting, report: services.Report) -> str:
        found.append(folder.name)
        return "somewhere"

    monkeypatch.setattr(services, "_STARTS", dict.fromkeys(services._STARTS, start))
    return found


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ([], ["kafka", "postgres", "spark", "airflow"]),
        (["--without", "airflow"], ["kafka", "postgres", "spark"]),
        (["--without", "airflow", "--without", "spark"], ["kafka", "postgres"]),
    ],
)
def test_what_is_left_out_is_not_started(
    options: list[str], names: list[str], started: list[str], tmp_path: Path
) -> None:
    result = CliRunner().invoke(app, ["dev", "up", "--folder", str(tmp_path), *options])
    assert (result.exit_code, started) == (0, names), result.output


def test_what_others_need_is_not_left_out(started: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["dev", "up", "--folder", str(tmp_path), "--without", "kafka"])
    assert result.exit_code == 2
    assert "kafka can't be left out; what can: airflow, spark" in result.stderr
    assert started == []


@pytest.mark.parametrize("address", ["0.0.0.0", "192.0.2.1", "localhost", "::1", ""])
def test_an_address_that_is_none_of_this_machine_is_refused(address: str, started: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["dev", "up", "--folder", str(tmp_path), "--listen", address])
    assert result.exit_code == 2
    assert "is no IPv4 address of this machine that others can be told" in result.stderr
    assert started == []
