"""`kcr group validate` as a person runs it: the lines, and the exit status that scripts go by."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from typing import TypeAlias

import pytest
import typer
from typer.testing import CliRunner, Result

from airflow_kcr.api.regions import opened
from airflow_kcr.cli.group import CHECKED, describe, validate
from airflow_kcr.protocol.region.commands import DeclareRegion
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.validation import Question
from airflow_kcr.protocol.values import RegionName
from airflow_kcr.spec import parse
from tests.integration.validation.foreign import Crowd
from tests.support.kafka import Kafka

Run: TypeAlias = Callable[..., Result]


@pytest.fixture
def run(kafka: Kafka, database_url: str) -> Run:
    """Declares a region of two groups on this topic, runs the command on it, and returns what became of it."""
    app = typer.Typer()
    app.command()(validate)

    def run(*arguments: str, topic: str, servers: str = kafka.bootstrap_servers, region: str = "flights") -> Result:
        groups = "\n".join(
            f"  - {{group_id: {kafka.group_id(name)}, {what}, pipeline: 'jobs:process'}}"
            for name, what in (("one", f"topics: [{topic}]"), ("two", "pattern: '^nothing-is-called-so'"))
        )
        spec = parse(f"region: flights\nkafka: {{bootstrap.servers: '{servers}'}}\ngroups:\n{groups}\n")
        with opened(database_url) as store:
            store.handle(RegionName("flights"), DeclareRegion(spec=Spec(text=spec.to_json_text(), rules=spec.rules())))
        return CliRunner().invoke(app, [region, *arguments], env={"KCR_STORE_URL": database_url})

    return run


def test_one_line_a_check_and_status_0_where_there_are_only_warnings(run: Run, kafka: Kafka) -> None:
    result = run("-o", "json", topic=kafka.topic(2))
    assert result.exit_code == 0, result.output
    lines = json.loads(result.stdout)
    assert all(tuple(line) == CHECKED for line in lines)
    assert [line["check"] for line in lines] == [str(q) for q in Question] * 2
    assert {line["verdict"] for line in lines} == {"ok", "warning"}


def test_status_1_where_a_check_failed(run: Run) -> None:
    result = run("-o", "csv", topic="no-such-topic")
    assert result.exit_code == 1
    failed = [line for line in csv.DictReader(result.stdout.splitlines()) if line["verdict"] == "failed"]
    assert [line["check"] for line in failed] == ["topics"]
    assert "topic no-such-topic does not exist" in failed[0]["detail"]


def test_a_group_is_described_as_kafka_does(run: Run, kafka: Kafka, crowd: Crowd, database_url: str) -> None:
    topic = kafka.topic(2)
    group = json.loads(run("-o", "json", topic=topic).stdout)[0]["group"]
    crowd.join("stranger", group, topic, client_id="modern", group_protocol="consumer")
    crowd.settle((topic, 0), (topic, 1))
    app = typer.Typer()
    app.command()(describe)
    result = CliRunner().invoke(app, ["flights", "-o", "csv"], env={"KCR_STORE_URL": database_url})
    assert result.exit_code == 0, result.output
    first, second = csv.DictReader(result.stdout.splitlines())
    assert (first["type"], first["assignor"], first["member"], first["client_id"], first["partitions"]) == (
        "consumer",
        "uniform",
        "foreign",
        "modern",
        f"{topic} 0-1",
    )
    assert (second["type"], second["state"], second["member"]) == ("classic", "dead", "")
