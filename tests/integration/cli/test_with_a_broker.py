"""What commands ask of Kafka, asked of a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from airflow_kcr.cli import app
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.values import GroupId, GroupPartition, Offset, TopicName
from tests.support.driver import Driver
from tests.support.kafka import Kafka
from tests.support.live_region import SPEC, live_region

DECLARED = """\
region: {region}
kafka: {{bootstrap.servers: '{address}'}}
groups:
  - {{group_id: {group}, {reads}, pipeline: 'jobs.flights:process'}}
"""


@pytest.fixture
def topic(kafka: Kafka) -> str:
    name = kafka.topic(3)
    kafka.fill(name, {0: 30, 1: 20})
    return name


@pytest.fixture
def group(kafka: Kafka) -> str:
    return kafka.group_id()


@pytest.fixture
def driver(
    kafka: Kafka, topic: str, group: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Driver]:
    monkeypatch.setenv("KCR_STORE_URL", database_url)
    spec = SPEC.replace("broker.invalid:9092", kafka.bootstrap_servers).replace("group_id: g", f"group_id: {group}")
    with live_region(database_url, spec.replace("topics: [t]", f"topics: [{topic}]"), partitions=3) as driver:
        for number, end in enumerate((30, 20, 0)):
            partition = GroupPartition(GroupId(group), TopicName(topic), number)
            driver.logs[partition] = LogBounds(start=Offset(0), end=Offset(end))
        yield driver


def kcr(*arguments: object) -> tuple[int, str, str]:
    called = CliRunner().invoke(app, [str(a) for a in arguments])
    return called.exit_code, called.stdout, called.stderr


def test_lag_and_comparison_say_what_the_broker_holds(driver: Driver, kafka: Kafka, topic: str, group: str) -> None:
    driver.up()
    driver.process(driver.member(0, group), width=10)
    driver.checkpoint("n")
    status, out, _ = kcr("lag", "flights")
    rows = json.loads(out)
    assert status == 0
    assert [(r["position"], r["committed"], r["log_start"], r["log_end"], r["lag"]) for r in rows] == [
        (10, None, 0, 30, 20),
        (0, None, 0, 20, 20),
        (0, None, 0, 0, 0),
    ]
    kafka.delete_records(topic, {0: 15})
    status, out, _ = kcr("checkpoint", "compare", "flights", 2)
    assert [row["finding"] for row in json.loads(out)] == ["overtaken", "not_committed", "not_committed"]


def test_a_region_is_previewed_over_the_topics_that_are_there(driver: Driver, topic: str, group: str) -> None:
    _, out, _ = kcr("group", "assignment", "flights", "--members", 3)
    assert json.loads(out) == {f"{group}[{n}]": [[topic, n]] for n in range(3)}


def test_a_start_asks_whether_the_topics_are_there(driver: Driver, kafka: Kafka, topic: str) -> None:
    kafka.delete_topic(topic)
    status, out, said = kcr("region", "start", "flights")
    assert (status, out) == (2, "")
    assert topic in said
    assert driver.region.state == "stopped"


@pytest.mark.long
def test_a_broker_that_does_not_answer_is_named_with_how_long_it_was_tried(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KCR_STORE_URL", database_url)
    with live_region(database_url, SPEC.replace("broker.invalid:9092", "127.0.0.1:1")) as driver:
        status, out, said = kcr("region", "start", "flights")
        assert driver.region.state == "stopped"
    assert (status, out) == (4, "")
    assert "127.0.0.1:1" in said


def test_a_second_region_with_a_group_by_another_address_is_refused_with_the_first_ones_name(
    kafka: Kafka, topic: str, group: str, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KCR_STORE_URL", database_url)
    file = tmp_path / "spec.yaml"
    reads = f"topics: [{topic}]"
    file.write_text(DECLARED.format(region="flights", address=kafka.bootstrap_servers, group=group, reads=reads))
    assert kcr("region", "apply", "-f", file)[0] == 0
    by_name = kafka.bootstrap_servers.replace("127.0.0.1:", "localhost:")
    file.write_text(DECLARED.format(region="seats", address=by_name, group=group, reads=reads))
    status, _, said = kcr("region", "apply", "-f", file)
    assert status == 3
    assert f"group {group} belongs to region flights, by either address" in " ".join(said.split())
    assert [row["region"] for row in json.loads(kcr("region", "list")[1])] == ["flights"]


def test_an_exclude_that_leaves_no_topic_is_told_by_start_and_validate_with_what_to_change(
    kafka: Kafka, topic: str, group: str, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KCR_STORE_URL", database_url)
    file = tmp_path / "spec.yaml"
    reads = f"pattern: '^{topic}', exclude: [{topic}]"
    file.write_text(DECLARED.format(region="flights", address=kafka.bootstrap_servers, group=group, reads=reads))
    assert kcr("region", "apply", "-f", file)[0] == 0
    told = f"exclude leaves none of the topics that pattern ^{topic} matches ({topic}); take one out of exclude"
    status, _, said = kcr("region", "start", "flights")
    assert (status, told in " ".join(said.split())) == (0, True), said
    _, out, _ = kcr("group", "validate", "flights")
    (line,) = [row for row in json.loads(out) if row["check"] == "topics"]
    assert (line["verdict"], told in line["detail"]) == ("warning", True)
