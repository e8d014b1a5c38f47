"""What `kcr demo --keep` leaves is seen by `kcr dev status` and stopped by `kcr dev down`: the play is a stand-in."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from airflow_kcr.cli import app
from airflow_kcr.embedded import services
from airflow_kcr.embedded.airflow import MARKER, kept
from airflow_kcr.embedded.demo import performance
from airflow_kcr.embedded.demo.judgement import DemoCheck, DemoVerdict
from airflow_kcr.embedded.demo.play import Audience, Stage
from airflow_kcr.embedded.flights.producer import Produced
from airflow_kcr.embedded.processes import Program, happened
from tests.support.databases import execute
from tests.support.kafka import Kafka
from tests.support.leftovers import left

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.timeout(300)]

COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
TASK = [
    sys.executable,
    "-c",
    f"import subprocess, time; subprocess.Popen({SLEEP!r}, start_new_session=True); time.sleep(600)",
]
"""A process of Airflow that has started an application in a session of its own, as the consumers are."""

NOTHING = {"kafka": None, "store_url": None, "spark": None, "airflow": None}


class Refused(Exception):
    """Stands for an act that fails."""


def start_airflow(folder: Path, starting: services.Starting, report: services.Report) -> str:
    """Start processes that only sleep, for an Airflow, which takes longer to start than all else here."""
    environment = {**os.environ, MARKER: str(folder)}
    for component in COMPONENTS:
        starting.launch(Program(name=component, command=TASK, log=folder / f"{component}.log", env=environment))
    return kept(folder).url


def standing_in(monkeypatch: pytest.MonkeyPatch, *, passed: bool = True, fails: bool = False) -> None:
    """Have `kcr demo` start a real Kafka and a real Postgres, and play nothing."""

    def played(phase: Audience, stage: Stage) -> DemoVerdict:
        stage.start(without={"airflow", "spark"})
        stage.start(without={"spark"})
        if fails:
            raise Refused
        produced = Produced(records=1, size=1, seconds=1.0)
        checks = (DemoCheck(name="all", passed=passed, detail="looked at"),)
        return DemoVerdict(produced=produced, intervals=(), checks=checks)

    monkeypatch.setitem(services._STARTS, "airflow", start_airflow)
    monkeypatch.setattr(performance, "_played", played)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "demo"
    yield path
    services.down(path, lambda _: None)


def kcr(*arguments: object) -> dict[str, object]:
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    assert done.exit_code == 0, done.output
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.long
def test_what_is_kept_is_shown_serves_and_is_stopped_with_all_that_it_has_started(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing_in(monkeypatch)
    done = CliRunner().invoke(app, ["demo", "--keep", "--folder", str(folder), "-o", "json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["sound"]
    assert f"kcr dev down --folder {folder}" in " ".join(done.stderr.split())

    found: dict[str, Any] = json.loads(
        CliRunner().invoke(app, ["dev", "status", "--folder", str(folder), "-o", "json"]).stdout
    )
    assert found["spark"] is None
    assert found["airflow"] is not None
    assert {user["name"] for user in found["airflow"]["users"]} == {"viewer", "editor", "admin"}
    assert found["kafka"] is not None
    kafka = Kafka(found["kafka"]["bootstrap_servers"])
    kafka.produce(kafka.topic(), [b"x"])
    assert found["store_url"] is not None
    assert f"KCR_STORE_URL={found['store_url']}" in "".join(done.stderr.split("\n"))
    assert execute(found["store_url"], "SELECT count(*) FROM kcr.region")[0] == (0,)
    assert happened(lambda: len(left(folder)) >= 2 + 2 * len(COMPONENTS), within=30), left(folder)

    assert kcr("dev", "down", "--folder", folder, "-o", "json") == NOTHING
    assert happened(lambda: not left(folder), within=30), left(folder)
    assert kcr("dev", "status", "--folder", folder, "-o", "json") == NOTHING


@pytest.mark.long
def test_what_found_differences_is_kept_too_and_says_so_by_its_status(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing_in(monkeypatch, passed=False)
    done = CliRunner().invoke(app, ["demo", "--keep", "--folder", str(folder), "-o", "json"])
    assert done.exit_code == 1
    assert kcr("dev", "status", "--folder", folder, "-o", "json")["kafka"] is not None
    assert kcr("dev", "down", "--folder", folder, "-o", "json") == NOTHING
    assert happened(lambda: not left(folder), within=30), left(folder)


@pytest.mark.long
def test_a_demo_that_breaks_off_keeps_nothing_running(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standing_in(monkeypatch, fails=True)
    done = CliRunner().invoke(app, ["demo", "--keep", "--folder", str(folder)])
    assert isinstance(done.exception, Refused)
    assert kcr("dev", "status", "--folder", folder, "-o", "json") == NOTHING
    services.down(folder, lambda _: None)
    assert happened(lambda: not left(folder), within=30), left(folder)
