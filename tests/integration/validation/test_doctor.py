"""`kcr doctor` as a person runs it: on this machine, with a store and a broker that are there, and that are not."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from typer.testing import CliRunner

from airflow_kcr.api.regions import opened
from airflow_kcr.cli import app
from airflow_kcr.driver import doctor
from airflow_kcr.protocol.region.commands import DeclareRegion
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.validation import Question
from airflow_kcr.protocol.values import RegionName
from airflow_kcr.spec import parse
from airflow_kcr.store.postgres.connections import Server
from tests.support.driver import START
from tests.support.kafka import Kafka
from tests.support.postgres import Server as Embedded

MACHINE = ["python", "spark", "java", "airflow"]
GROUP = ["pipeline", "sinks", *map(str, Question)]

Lines: TypeAlias = list[dict[str, str]]

SERVER = Server(version="16.1", is_standby=False, is_pooled=False, now=datetime(2026, 1, 1, tzinfo=UTC))


def examine(*arguments: str, store: str = "", **environment: str) -> tuple[int, Lines]:
    """Run the command, and return its exit status and its lines."""
    environ = {"KCR_STORE_URL": store or None, **environment}
    result = CliRunner().invoke(app, ["doctor", "-o", "json", *arguments], env=environ)
    lines: Any = json.loads(result.stdout)
    return result.exit_code, lines


def line(lines: Lines, check: str) -> tuple[str, str]:
    """Return verdict and detail of the one line of a check."""
    (found,) = [one for one in lines if one["check"] == check]
    return found["verdict"], found["detail"]


@pytest.fixture
def spec(kafka: Kafka, tmp_path: Path) -> Callable[..., str]:
    """Writes a spec of one group, and returns the path of its file."""

    def written(*, topic: str = "", servers: str = kafka.bootstrap_servers, function: str = "process") -> str:
        # Of another name in each test: a process has one module of a name.
        job = tmp_path / f"{kafka.group_id('job').replace('-', '_')}.py"
        job.write_text("def process(batch, context): ...\n")
        file = tmp_path / "sales.yaml"
        file.write_text(
            f"region: sales\nkafka: {{bootstrap.servers: '{servers}'}}\ngroups:\n"
            f"  - group_id: {kafka.group_id('one')}\n    topics: [{topic or kafka.topic(2)}]\n"
            f"    pipeline: {job}:{function}\n"
        )
        return str(file)

    return written


def test_a_machine_alone_is_looked_at_without_a_store_or_a_spec() -> None:
    status, lines = examine()
    assert (status, [one["check"] for one in lines], {one["verdict"] for one in lines}) == (0, MACHINE, {"ok"})


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "is Java 11; install 17 or newer"),
        ('java version "1.8.0_292"', "is Java 8; install 17 or newer"),
        ("no JVM here", "names no version; it says: no JVM here"),
    ],
)
def test_a_java_that_spark_can_not_use_is_named(tmp_path: Path, said: str, told: str) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    status, lines = examine(JAVA_HOME=str(tmp_path))
    verdict, detail = line(lines, "java")
    assert (status, verdict) == (1, "failed")
    assert told in detail


def test_java_that_is_missing_is_told_with_what_to_install(tmp_path: Path) -> None:
    status, lines = examine(JAVA_HOME="", PATH=str(tmp_path))
    assert (status, line(lines, "java")[0]) == (1, "failed")
    assert "install a Java runtime, version 17 or newer" in line(lines, "java")[1]


def test_an_airflow_that_is_too_old_is_told_with_the_command_that_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda package: "3.1.7")
    status, lines = examine()
    assert status == 1
    assert line(lines, "airflow") == (
        "failed",
        "Airflow 3.1.7; install 3.1.8 or newer: pip install 'airflow-kcr[airflow]'",
    )


def test_what_an_older_airflow_lacks_is_told_with_what_there_is_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "3.1.8" if name == "apache-airflow" else version(name))
    verdict, detail = line(examine()[1], "airflow")
    assert (verdict, detail.partition(";")[0]) == ("ok", "Airflow 3.1.8")
    assert "partition keys of checkpoints need Airflow 3.3: a DAG with schedule=checkpoint_schedule(REGION)" in detail
    assert "the console's pages need Airflow 3.2" in detail


@pytest.mark.postgres
def test_a_store_without_a_schema_is_told_with_the_command_that_makes_it(postgres_server: Embedded) -> None:
    with postgres_server.database() as url:
        status, lines = examine(store=url)
    verdict, detail = line(lines, "store")
    assert (status, verdict) == (1, "failed")
    assert "kcr store upgrade" in detail


def test_a_store_out_of_reach_is_told_and_the_groups_are_looked_at_all_the_same(spec: Callable[..., str]) -> None:
    status, lines = examine("-f", spec(), store="postgresql://me:secret@127.0.0.1:1/kcr")
    assert (status, line(lines, "store")[0], line(lines, "topics")[0]) == (1, "failed", "ok")
    assert "secret" not in json.dumps(lines)


@pytest.mark.parametrize(
    ("server", "verdict", "told"),
    [
        (replace(SERVER, is_pooled=True), "warning", "Postgres 16.1 behind a pooler; "),
        (replace(SERVER, is_standby=True), "failed", "give the address of the primary"),
        (SERVER, "warning", "the clocks of this machine and of the store differ by"),
        (replace(SERVER, now=datetime.now(UTC) + timedelta(days=1)), "warning", "differ by"),
    ],
    ids=["pooled", "standby", "behind", "ahead"],
)
def test_a_server_that_is_not_as_needed_is_told(
    database_url: str, monkeypatch: pytest.MonkeyPatch, server: Server, verdict: str, told: str
) -> None:
    monkeypatch.setattr(doctor, "server_at", lambda url: server)
    status, lines = examine(store=database_url)
    assert (status, line(lines, "store")[0]) == (int(verdict == "failed"), verdict)
    assert told in line(lines, "store")[1]


def test_a_region_that_was_not_declared_yet_is_judged_and_stays_undeclared(
    database_url: str, spec: Callable[..., str]
) -> None:
    status, lines = examine("-f", spec(), store=database_url)
    assert (status, [one["check"] for one in lines]) == (0, [*MACHINE, "store", *GROUP]), lines
    assert {one["verdict"] for one in lines} <= {"ok", "warning"}
    assert line(lines, "store")[1].startswith("Postgres ")
    with opened(database_url) as store:
        assert store.names() == ()


@pytest.mark.long
@pytest.mark.parametrize(
    ("wrong", "check", "told"),
    [
        ({"topic": "no-such-topic"}, "topics", "topic no-such-topic does not exist"),
        ({"function": "nothing"}, "pipeline", "nothing"),
        ({"servers": "127.0.0.1:1"}, "kafka", "tried 127.0.0.1:1 for"),
    ],
)
def test_what_members_would_meet_is_told(
    spec: Callable[..., str], wrong: dict[str, str], check: str, told: str
) -> None:
    status, lines = examine("-f", spec(**wrong))
    assert (status, line(lines, check)[0]) == (1, "failed")
    assert told in line(lines, check)[1]


def test_a_declared_region_is_judged_as_validate_judges_it(database_url: str, spec: Callable[..., str]) -> None:
    file = spec()
    declared = parse(Path(file).read_text())
    with opened(database_url) as store:
        store.handle(
            RegionName("sales"), DeclareRegion(spec=Spec(text=declared.to_json_text(), rules=declared.rules()))
        )
        store.handle(RegionName("sales"), START)
    _, lines = examine("-f", file, store=database_url)
    result = CliRunner().invoke(app, ["group", "validate", "sales", "-o", "json"], env={"KCR_STORE_URL": database_url})
    assert lines[-len(Question) :] == json.loads(result.stdout)
