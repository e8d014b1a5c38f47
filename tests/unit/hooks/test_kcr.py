from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from airflow.sdk import Connection
from sqlalchemy.engine import make_url

from airflow_kcr import errors
from airflow_kcr.api.clusters import client_settings
from airflow_kcr.api.regions import store_url
from airflow_kcr.hooks.kcr import KcrHook
from airflow_kcr.kafka.groups import Groups
from airflow_kcr.protocol.region.rows import Requester
from airflow_kcr.protocol.values import UNDECLARED, GroupId
from airflow_kcr.sinks.kinds.postgres import DeclaredTable
from airflow_kcr.spark import launch
from airflow_kcr.spec import RegionSpec, parse
from airflow_kcr.store.postgres import connections
from airflow_kcr.store.postgres.revision import HEAD
from tests.support.airflow_home import connection_json
from tests.support.kafka import Kafka

G = GroupId("g")
DAY = 86_400
"""Seconds: longer than a test may take."""

BY_CONNECTION = """\
region: flights
kafka_conn_id: team-a
groups:
  - {group_id: g, topics: [t], pipeline: 'jobs:process'}
  - {group_id: h, topics: [t], pipeline: 'jobs:process', kafka: {bootstrap.servers: 'other:9092'}}
"""


@pytest.fixture
def spec() -> RegionSpec:
    return parse(BY_CONNECTION)


def set_kafka(monkeypatch: pytest.MonkeyPatch, servers: str, **more: object) -> None:
    extra = {"bootstrap.servers": servers, **more}
    monkeypatch.setenv("AIRFLOW_CONN_TEAM-A", json.dumps({"conn_type": "kafka", "extra": extra}))


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=8) as server:
        yield server.getsockname()[1]


# -- the store --------------------------------------------------------------------------------------------------------


def test_the_store_s_url_is_the_connection_s(store_connection: str) -> None:
    url = KcrHook().store_url()
    assert url == store_url(store_connection)
    assert asyncio.run(KcrHook().astore_url()) == url


def test_an_unknown_connection_is_said_with_what_to_do() -> None:
    hook = KcrHook("nowhere")
    for ask in (hook.store_url, lambda: asyncio.run(hook.astore_url())):
        with pytest.raises(errors.ConfigurationError, match=r"no Airflow connection 'nowhere'; .*AIRFLOW_CONN_NOWHERE"):
            ask()


def test_regions_are_lent_and_listed(store_connection: str, spec: RegionSpec) -> None:
    hook = KcrHook()
    with hook.region("flights", Requester(who="ada", dag_id="d", run_id="r")) as region:
        region.apply(spec)
        region.start()
        asked = region.events()
    assert "ada" in repr(asked)
    assert [(r.region, r.state) for r in hook.regions()] == [("flights", "starting")]
    with hook.opened() as store:
        assert store.names() == ("flights",)


def test_an_unnamed_requester_is_airflow(store_connection: str, spec: RegionSpec) -> None:
    with KcrHook().region("flights") as region:
        region.apply(spec)
        region.start()
        assert "airflow" in repr(region.events())


# -- the schema and the test button -----------------------------------------------------------------------------------


def test_a_store_without_migrations_is_refused_until_it_is_upgraded(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_KCR_DEFAULT", connection_json(empty_database_url))
    hook = KcrHook()
    with pytest.raises(errors.SchemaMissing, match="run `kcr store upgrade`"):
        hook.regions()
    assert hook.test_connection() == (False, "The store has no kcr schema yet; run `kcr store upgrade`.")
    assert (hook.store_status().current, hook.store_status().head) == (None, HEAD)
    assert hook.upgrade_store().current == HEAD
    assert hook.test_connection()[0]
    assert hook.regions() == ()


def test_the_test_button_says_that_all_is_well(store_connection: str) -> None:
    assert KcrHook().test_connection() == (
        True,
        f"The region store answers; its schema is of revision {HEAD}, as needed.",
    )


def test_the_test_button_says_that_pyspark_is_broken(store_connection: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> NoReturn:
        raise errors.ToolMissing("another package has overwritten a part of PySpark: `pip install …` mends it")

    monkeypatch.setattr(launch, "require_pyspark", broken)
    assert KcrHook().test_connection() == (
        False,
        "The region store answers, but another package has overwritten a part of PySpark: `pip install …` mends it",
    )


@pytest.mark.filterwarnings("ignore:ProvidersManager.hooks is deprecated")
def test_the_test_button_is_airflow_s(store_connection: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = os.environ["AIRFLOW_CONN_KCR_DEFAULT"]
    monkeypatch.setenv("AIRFLOW_CONN_UNSAVED", given)  # as the API server does
    connection: Any = Connection.from_json(given, conn_id="unsaved")
    if not hasattr(connection, "test_connection"):  # up to Airflow 3.2
        from airflow.models.connection import Connection as Stored

        connection = Stored.from_json(given, conn_id="unsaved")
    is_well, said = connection.test_connection()
    assert is_well, said


@pytest.mark.parametrize("connect_timeout", [None, DAY])
def test_the_test_button_answers_soon_whoever_does_not(
    silent_port: int, monkeypatch: pytest.MonkeyPatch, connect_timeout: int | None
) -> None:
    url = f"postgresql://kcr:hunter2@127.0.0.1:{silent_port}/kcr"
    given = {**json.loads(connection_json(url)), "extra": {"connect_timeout": connect_timeout}}
    monkeypatch.setenv("AIRFLOW_CONN_KCR_DEFAULT", json.dumps(given))
    monkeypatch.setattr(connections, "CONNECT_TIMEOUT", DAY)
    is_well, said = KcrHook().test_connection()  # that it answers at all: a day is longer than a test may take
    assert not is_well
    assert f"127.0.0.1:{silent_port}" in said
    assert "hunter2" not in said


def test_the_connection_s_own_timeout_counts_for_everything_else(
    silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"postgresql://kcr:hunter2@127.0.0.1:{silent_port}/kcr"
    given = {**json.loads(connection_json(url)), "extra": {"connect_timeout": 2}}
    monkeypatch.setenv("AIRFLOW_CONN_KCR_DEFAULT", json.dumps(given))
    monkeypatch.setattr(connections, "CONNECT_TIMEOUT", DAY)
    with pytest.raises(errors.StoreUnavailable) as raised:
        KcrHook().regions()
    assert "hunter2" not in raised.value.message


def test_the_test_button_says_what_is_wrong_with_the_connection() -> None:
    assert KcrHook("nowhere").test_connection() == (
        False,
        "there is no Airflow connection 'nowhere'; add it (Admin, Connections) or set AIRFLOW_CONN_NOWHERE",
    )


# -- Kafka ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_region_s_kafka_connection_is_read_by_airflow(
    store_connection: str, spec: RegionSpec, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_kafka(monkeypatch, kafka.bootstrap_servers, **{"client.id": "quota-7"})
    before = dict(os.environ)
    hook = KcrHook()
    with hook.cluster(spec, G) as cluster:
        assert isinstance(cluster, Groups)
        assert cluster.client == "quota-7"
        assert isinstance(cluster.logs.topics(), dict)
    with hook.region("flights") as region:
        region.apply(spec)
        with pytest.raises(errors.BrokerUnavailable, match="other:9092"):  # the other group's, by the spec itself
            region.lag()
    found = hook.validate("flights", ["g"])
    assert {check.group for check in found.checks} == {"g"}
    assert os.environ == before


def test_a_kafka_connection_that_is_not_there_is_named(store_connection: str, spec: RegionSpec) -> None:
    with pytest.raises(errors.ConfigurationError, match="no Airflow connection 'team-a'"):
        KcrHook().cluster(spec, G)


def test_a_member_s_environment_holds_the_store_and_every_kafka_connection_of_the_spec(
    store_connection: str, spec: RegionSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_kafka(monkeypatch, "b:9092", **{"sasl.password": "a${b}"})
    environ = KcrHook().environment(spec)
    assert sorted(environ) == ["KCR_KAFKA_TEAM_A", "KCR_STORE_URL"]
    assert store_url(environ=environ) == KcrHook().store_url()
    assert client_settings(spec, G, environ) == {"bootstrap.servers": "b:9092", "sasl.password": "a${b}"}


def test_two_connections_that_would_share_a_variable_are_refused(
    store_connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_kafka(monkeypatch, "b:9092")
    monkeypatch.setenv("AIRFLOW_CONN_TEAM.A", os.environ["AIRFLOW_CONN_TEAM-A"])
    spec = parse(BY_CONNECTION.replace("kafka: {bootstrap.servers: 'other:9092'}", "kafka_conn_id: team.a"))
    with pytest.raises(errors.ConfigurationError, match="would share the variable KCR_KAFKA_TEAM_A"):
        KcrHook().environment(spec)


def test_a_member_s_environment_holds_the_postgres_connections_of_its_sinks(
    store_connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_kafka(monkeypatch, "b:9092")
    warehouse = {"conn_type": "postgres", "host": "db", "schema": "air", "login": "kcr", "password": "a/b"}
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps(warehouse))
    sinks = "sinks: {x: {kind: postgres, table: t, conn_id: warehouse}}"
    spec = parse(BY_CONNECTION.replace("'jobs:process'}", f"'jobs:process', {sinks}}}", 1))
    environ = KcrHook().environment(spec)
    assert sorted(environ) == ["KCR_KAFKA_TEAM_A", "KCR_POSTGRES_WAREHOUSE", "KCR_STORE_URL"]
    sink = DeclaredTable(region=spec, region_id=UNDECLARED, group=G, spec=spec.group("g").sinks[0], environ=environ)
    assert make_url(sink.url()).password == "a/b"


def test_a_sink_behind_a_connection_of_another_type_is_refused(
    store_connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_kafka(monkeypatch, "b:9092")
    sinks = "sinks: {x: {kind: postgres, table: t, conn_id: team-a}}"
    spec = parse(BY_CONNECTION.replace("'jobs:process'}", f"'jobs:process', {sinks}}}", 1))
    with pytest.raises(errors.ConfigurationError, match="is of type kafka, not postgres"):
        KcrHook().environment(spec)


SAYS_SECRETS = """
from airflow.sdk.log import redact
from airflow_kcr.hooks.kcr import KcrHook
from airflow_kcr.spec import parse
spec = parse({spec!r})
for name, value in KcrHook().environment(spec).items():
    assert "hunter" in value, name
    said = redact(f"{{name}} is {{value}}")
    assert "hunter" not in said, said
settings = KcrHook().kafka_settings("team-a")
assert redact("the key is hunter3-key") == "the key is ***", redact("the key is hunter3-key")
"""


def test_logs_mask_what_a_member_s_environment_holds() -> None:
    extra = {"bootstrap.servers": "b:9092", "sasl.password": "hunter2-kafka", "ssl.key.pem": "hunter3-key"}
    environ = {
        "AIRFLOW_CONN_KCR_DEFAULT": connection_json("postgresql://kcr:hunter1%2Fstore@db/kcr"),
        "AIRFLOW_CONN_TEAM-A": json.dumps({"conn_type": "kafka", "extra": extra}),
    }
    ran = subprocess.run(
        [sys.executable, "-c", SAYS_SECRETS.format(spec=BY_CONNECTION)],
        env={**os.environ, **environ},
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
