"""Each example DAG with `dag.test()`: one process, no scheduler, a real store, real members and a real broker."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_kcr.embedded.airflow import FLIGHTS_SPEC, copy_examples
from airflow_kcr.embedded.flights import producer
from airflow_kcr.embedded.flights.data import BOOTSTRAP_VARIABLE
from airflow_kcr.embedded.processes import happened
from airflow_kcr.schedules import Every
from airflow_kcr.spec import RegionSpec, load, parse
from tests.support.airflow_home import connection_json
from tests.support.dag_test import Order
from tests.support.kafka import KafkaSet
from tests.support.kafka_cluster import start_cluster
from tests.support.members import Live, named
from tests.support.postgres import Server

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.timeout(300), pytest.mark.long]

TOP = Path(__file__).parents[3]
EVERY = timedelta(seconds=10)
IN_LINE = "running trigger in line"
"""What Airflow says when a deferred task waits in `dag.test()`."""

FLIGHTS = 900
MINIMAL = """\
region: minimal
kafka: {{bootstrap.servers: '{bootstrap}'}}
groups:
  - {{group_id: minimal-etl, topics: [flights], pipeline: 'none:none'}}
checkpoint: {{every: 5m}}
"""


@contextmanager
def running(kafka: KafkaSet, url: str, spec: RegionSpec, folder: Path, gates: tuple[str, ...] = ()) -> Iterator[Live]:
    """A region of that name whose members read the flights, and write them nowhere, and wait at these gates."""
    folder.mkdir()
    known = spec.to_json_text().replace(f"${{{BOOTSTRAP_VARIABLE}}}", kafka.bootstrap_servers)
    with named(kafka, url, RegionSpec.from_json(known), folder) as one:
        one.start(*range(spec.groups[0].members), gates=gates)
        yield one


def stand_in_for_spark(folder: Path) -> str:
    """The path with a spark-submit that ends at once, as a consumer of a region that is stopped does."""
    folder.mkdir()
    program = folder / "spark-submit"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    return f"{folder}:{os.environ['PATH']}"


@pytest.fixture(scope="module")
def ran(postgres_server: Server, database_template: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of each DAG, by its id."""
    folder = tmp_path_factory.mktemp("dag-test")
    with ExitStack() as stack:
        metadata = stack.enter_context(postgres_server.database())
        declared = stack.enter_context(postgres_server.database(template=database_template))
        store = stack.enter_context(postgres_server.database(template=database_template))
        dags = folder / "dags"
        copy_examples(dags, every=EVERY, since=datetime.now(UTC))
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
            "AIRFLOW_HOME": str(folder / "home"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": metadata,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": metadata,
            "AIRFLOW_CONN_KCR_DEFAULT": connection_json(store),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[1]"}),
            "PATH": stand_in_for_spark(folder / "bin"),
        }
        environment.pop("SPARK_HOME", None)
        result = folder / "result.json"
        with (folder / "said").open("wb") as said_by:
            running_dags = subprocess.Popen(
                [sys.executable, "-m", "tests.support.dag_test", str(result)],
                cwd=TOP,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=said_by,
                stderr=subprocess.STDOUT,
            )
        stack.enter_context(running_dags)
        stack.callback(running_dags.kill)
        kafka = stack.enter_context(KafkaSet(start_cluster(folder / "kafka")))
        told = {BOOTSTRAP_VARIABLE: kafka.bootstrap_servers}
        producer.ensure_topic(kafka.settings, producer.TOPIC)
        producer.produce(kafka.settings, first=FLIGHTS)

        spec, minimal = load(dags / FLIGHTS_SPEC), parse(MINIMAL.format(bootstrap=kafka.bootstrap_servers))
        flights = stack.enter_context(running(kafka, store, spec, folder / "flights"))
        small = stack.enter_context(running(kafka, store, minimal, folder / "minimal", ("contributing",)))
        for one in (flights, small):
            one.until(one.consumed, "all flights")

        empty = {**told, "AIRFLOW_CONN_KCR_DEFAULT": connection_json(declared)}
        full = {**told, "AIRFLOW_CONN_KCR_DEFAULT": connection_json(store)}
        boundary = Every(EVERY).at_or_before(datetime.now(UTC)).isoformat()
        answers = {
            "choose": {"options": ["Choose"], "fields": {"checkpoint": None, "reason": "wrong rates"}},
            "approve": {"options": ["Approve"], "fields": {"plan": None, "reason": "wrong rates"}},
        }
        orders = [
            Order(dag="flights_consumers", environment=empty),
            Order(dag="minimal_consumers", environment=empty),
            Order(dag="flights_checkpoint", logical_date=boundary, environment=full),
            Order(dag="minimal_checkpoint", environment=full),
            Order(dag="flights_build", environment=full),
            Order(dag="flights_reset", environment=full, answers=answers),
            Order(dag="minimal_reset", environment=full, answers=answers),
        ]
        assert running_dags.stdin is not None
        running_dags.stdin.write(json.dumps([asdict(order) for order in orders]).encode())
        running_dags.stdin.close()

        def log() -> str:
            return (folder / "said").read_text()

        def waits_or_has_ended() -> bool:
            return IN_LINE in log() or running_dags.poll() is not None

        # Until the task waits, no member contributes to the one region's checkpoints.
        assert happened(waits_or_has_ended, within=180, pause=0.5), log()[-5_000:]
        small.processes[0].open("contributing")
        assert running_dags.wait(180) == 0, log()[-5_000:]
        found: dict[str, Any] = json.loads(result.read_text())
        return found | {"log": log()}


def states(found: Any) -> dict[str, str]:  # noqa: ANN401 (JSON)
    """The state of each task, mapped ones with their index."""
    return {task if index < 0 else f"{task}[{index}]": state for task, index, state in found["tasks"]}


def all_successful(found: Any, *tasks: str) -> bool:  # noqa: ANN401
    return bool(found["state"] == "success" and states(found) == dict.fromkeys(tasks, "success"))


def test_the_consumers_declare_the_region_and_one_application_after_the_other_is_started(ran: dict[str, Any]) -> None:
    flights = ran["flights_consumers"]
    assert all_successful(flights, "apply", "consume[0]", "consume[1]"), flights
    assert flights["results"]["apply"]["change"] == "created"
    assert all_successful(ran["minimal_consumers"], "apply", "consume[0]"), ran["minimal_consumers"]


def test_a_run_of_a_data_interval_has_its_checkpoint_and_its_report(ran: dict[str, Any]) -> None:
    checkpoint = ran["flights_checkpoint"]
    assert all_successful(checkpoint, "validate", "drain", "commit", "report"), checkpoint
    assert checkpoint["results"]["drain"] == checkpoint["results"]["commit"]
    assert checkpoint["results"]["drain"]["boundary"] is not None
    assert checkpoint["results"]["report"]["flights"] == FLIGHTS


def test_a_run_without_an_interval_waits_for_its_checkpoint_in_its_own_process(ran: dict[str, Any]) -> None:
    checkpoint = ran["minimal_checkpoint"]
    assert all_successful(checkpoint, "validate", "drain", "commit"), checkpoint
    assert checkpoint["results"]["drain"]["boundary"] is None
    assert IN_LINE in ran["log"]


def test_what_builds_on_an_event_says_that_there_is_none(ran: dict[str, Any]) -> None:
    assert ran["flights_build"]["state"] == "failed"
    assert "the run was triggered by no event of a region" in ran["log"]


@pytest.mark.parametrize("region", ["flights", "minimal"])
def test_a_reset_waits_for_answers_from_elsewhere(ran: dict[str, Any], region: str) -> None:
    reset = ran[f"{region}_reset"]
    assert reset["state"] == "success"
    again = dict.fromkeys(("plan_again", "approve_again"), "skipped") if region == "minimal" else {}
    assert states(reset) == dict.fromkeys(("choose", "plan", "approve", "apply"), "success") | again, reset
    chosen = reset["results"]["choose"]["value"]
    assert str(reset["shown"]["choose"]["params"]["checkpoint"]["value"]) == chosen
    assert "| Reason | wrong rates |" in reset["shown"]["approve"]["body"]
    result = reset["results"]["apply"]
    assert (result["state"], result["target"], result["reason"]) == ("done", f"to-checkpoint {chosen}", "wrong rates")
