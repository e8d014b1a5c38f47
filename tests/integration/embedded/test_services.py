"""`kcr dev`: up, again, with a dead child, and down."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy.engine import make_url
from typer.testing import CliRunner, Result

from airflow_kcr.cli.dev import app
from airflow_kcr.embedded import services
from airflow_kcr.embedded.airflow_client import AirflowClient
from airflow_kcr.embedded.processes import accepts, happened
from tests.support.databases import execute
from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.timeout(600)]

NOTHING: dict[str, Any] = {"kafka": None, "store_url": None, "spark": None, "airflow": None}


def dev(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "dev"
    monkeypatch.setenv("KCR_DEV_FOLDER", str(path))
    yield path
    services.down(path, lambda _: None)


def processes(folder: Path) -> dict[str, list[int]]:
    found = json.loads((folder / "services.json").read_text())
    return {name: [one["pid"] for one in service["processes"]] for name, service in found.items()}


def runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_of_what_never_was_up_nothing_is(folder: Path) -> None:
    assert json.loads(dev("status", "-o", "json").stdout) == NOTHING
    assert json.loads(dev("down", "-o", "json").stdout) == NOTHING


@pytest.mark.long
def test_up_leaves_running_what_down_stops(folder: Path) -> None:
    first = dev("up", "-o", "json")
    assert first.exit_code == 0, first.output
    found: dict[str, Any] = json.loads(first.stdout)
    assert "kafka: is up" in first.stderr
    pids = processes(folder)
    assert {name: len(found) for name, found in pids.items()} == {"kafka": 1, "postgres": 1, "spark": 3, "airflow": 4}
    assert found["kafka"] is not None
    assert found["kafka"]["pids"] == pids["kafka"]

    # Each of them serves, and the store is ready for a region.
    kafka = Kafka(found["kafka"]["bootstrap_servers"])
    topic = kafka.topic()
    kafka.produce(topic, [b"x"])
    assert found["store_url"] is not None
    assert execute(found["store_url"], "SELECT count(*) FROM kcr.region")[0] == (0,)
    assert found["spark"] is not None
    assert accepts(int(found["spark"]["master"].rpartition(":")[2]))
    assert (Path(found["spark"]["home"]) / "bin" / "spark-submit").exists()

    assert found["airflow"] is not None
    assert [(user["name"], user["role"]) for user in found["airflow"]["users"]] == [
        ("viewer", "viewer"),
        ("editor", "user"),
        ("admin", "admin"),
    ]
    for user in found["airflow"]["users"]:
        with AirflowClient(found["airflow"]["url"], user["name"], user["password"]) as client:
            client.wait_for_dags(["flights_consumers", "flights_checkpoint", "minimal_checkpoint"], within=120)
            assert client.import_errors() == {}

    # A second one changes nothing.
    assert json.loads(dev("up", "-o", "json").stdout) == found
    assert processes(folder) == pids

    # A dead child is shown, and the next `up` brings it back with its data.
    os.kill(pids["kafka"][0], signal.SIGKILL)
    os.kill(pids["spark"][2], signal.SIGKILL)
    assert happened(lambda: "kafka" not in services.status(folder), within=10)
    shown = json.loads(dev("status", "-o", "json").stdout)
    assert (shown["kafka"], shown["store_url"], shown["spark"]) == (None, found["store_url"], None)
    again: dict[str, Any] = json.loads(dev("up", "-o", "json").stdout)
    assert again["kafka"] is not None
    assert again["kafka"]["bootstrap_servers"] == found["kafka"]["bootstrap_servers"]
    assert kafka.ends(topic) == {0: 1}
    assert processes(folder)["postgres"] == pids["postgres"]
    assert not any(runs(pid) for pid in pids["spark"])  # no half of a cluster beside the new one

    table = dev("status", "-o", "table").stdout
    assert again["kafka"]["bootstrap_servers"] in table

    left = [pid for found in processes(folder).values() for pid in found]
    done = dev("down", "-o", "json")
    assert json.loads(done.stdout) == NOTHING
    assert not any(runs(pid) for pid in left)
    port = make_url(found["store_url"]).port
    assert port is not None
    assert not accepts(port)
    assert [part for part in ("kafka", "postgres") if (folder / part).exists()] == ["kafka", "postgres"]
    assert json.loads(dev("down", "-o", "json").stdout) == NOTHING


@pytest.mark.long
def test_kafka_and_postgres_listen_where_they_are_told(folder: Path) -> None:
    every = (one.address for found in psutil.net_if_addrs().values() for one in found if one.family is socket.AF_INET)
    own = next((one for one in every if not one.startswith("127.")), "127.0.0.2")
    some = ("up", "--without", "airflow", "--without", "spark", "-o", "json")
    done = dev(*some, "--listen", own)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["kafka"]["bootstrap_servers"].startswith(f"{own}:")
    kafka = Kafka(found["kafka"]["bootstrap_servers"])
    kafka.produce(kafka.topic(), [b"x"])
    assert f"@{own}:" in found["store_url"]
    assert execute(found["store_url"], "SELECT count(*) FROM kcr.region")[0] == (0,)
    port = make_url(found["store_url"]).port
    assert port is not None
    assert not accepts(port)

    other = dev(*some, "--listen", "127.0.0.1")
    assert other.exit_code == 2
    assert f"kafka runs at {found['kafka']['bootstrap_servers']}; stop it first: kcr dev down" in other.stderr
    assert json.loads(dev(*some).stdout) == found


def test_without_java_up_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    done = dev("up")
    assert done.exit_code == 2
    assert "install a Java runtime, version 17 or newer" in done.stderr
    assert services.status(folder) == {}
