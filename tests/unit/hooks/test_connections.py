from __future__ import annotations

import json
import re
from typing import Any

import pytest
from airflow.sdk import Connection
from sqlalchemy.engine import make_url

from airflow_kcr.api.regions import store_url as url_of_text
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.hooks.connections import kafka_settings, store_url
from airflow_kcr.kafka.settings import admin_settings, spark_options
from tests.support.docs_pages import DOCS


def store(**fields: Any) -> Connection:  # noqa: ANN401 (what a person may enter)
    given: dict[str, Any] = {
        "host": "db.example.com",
        "schema": "kcr",
        "login": "kcr",
        "password": "p@ss/w:rd",
        **fields,
    }
    if isinstance(given.get("extra"), dict):
        given["extra"] = json.dumps(given["extra"])
    return Connection(conn_id="c", **{"conn_type": "kcr", **given})


def kafka(extra: object, conn_type: str = "kafka") -> Connection:
    return Connection(conn_id="k", conn_type=conn_type, extra=extra if isinstance(extra, str) else json.dumps(extra))


def test_a_connection_is_a_url_that_every_part_of_the_product_reads_alike() -> None:
    url = store_url(store(port=5433, extra={"sslmode": "require", "sslrootcert": "/ca.pem", "connect_timeout": 7}))
    assert (url.host, url.port, url.database, url.username, url.password) == (
        "db.example.com",
        5433,
        "kcr",
        "kcr",
        "p@ss/w:rd",
    )
    assert url.query == {"sslmode": "require", "sslrootcert": "/ca.pem", "connect_timeout": "7"}
    assert url_of_text(url.render_as_string(hide_password=False)) == url


def test_a_host_that_is_a_directory_of_sockets_survives_being_written_as_text() -> None:
    url = store_url(store(host="/run/postgresql", port=5433))
    assert make_url(url.render_as_string(hide_password=False)) == url
    assert (url.host, url.port, url.query) == (None, 5433, {"host": "/run/postgresql"})


def test_a_connection_in_the_form_of_a_url_does_as_well() -> None:
    written = Connection.from_uri("kcr://u:p%40ss@h:5432/d?sslmode=verify-full&connect_timeout=3", conn_id="c")
    url = store_url(written)
    assert (url.host, url.password, url.query) == ("h", "p@ss", {"sslmode": "verify-full", "connect_timeout": "3"})


def test_what_else_is_in_the_extra_goes_nowhere() -> None:
    url = store_url(store(extra={"options": "-c search_path=evil", "host": "evil", "sslmode": ""}))
    assert url.query == {}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"conn_type": "postgres"}, "is of type postgres, not kcr"),
        ({"conn_type": None}, r"is of type \(none\), not kcr"),
        ({"host": None}, "has no host; fill it in"),
        ({"schema": ""}, r"has no database \(schema\); fill it in"),
        ({"extra": "{p@ss"}, "is no JSON object"),
        ({"extra": '["p@ss"]'}, "is no JSON object"),
        ({"extra": {"sslmode": "p@ss"}}, "sslmode is none of disable, allow"),
        ({"extra": {"sslmode": ["p@ss"]}}, "sslmode is none of disable, allow"),
        ({"extra": {"sslrootcert": ["p@ss"]}}, "sslrootcert is no text"),
        ({"extra": {"connect_timeout": "p@ss"}}, "connect_timeout is no positive number of seconds"),
        ({"extra": {"connect_timeout": 0}}, "connect_timeout is no positive number of seconds"),
        ({"extra": {"connect_timeout": True}}, "connect_timeout is no positive number of seconds"),
        ({"extra": {"connect_timeout": 2.5}}, "connect_timeout is no positive number of seconds"),
    ],
)
def test_what_is_wrong_is_said_with_the_connection_s_name_and_without_any_value(
    fields: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"Airflow connection c.*{sentence}") as raised:
        store_url(store(**fields))
    assert "p@ss" not in raised.value.message
    assert raised.value.__context__ is None


def test_kafka_settings_are_the_extra_of_a_connection_of_the_kafka_provider() -> None:
    given = {"bootstrap.servers": "b:9092", "security.protocol": "SASL_SSL", "socket.timeout.ms": 5000}
    assert kafka_settings(kafka(given)) == {**given, "socket.timeout.ms": "5000"}


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        ({"bootstrap.servers": "b", "group.id": "hunter2"}, "group.id is refused: the region names its groups"),
        ({"bootstrap.servers": "b", "error_cb": "hunter2.call"}, "error_cb is refused: it names code to run"),
        ({"sasl.password": "hunter2"}, "has no bootstrap.servers"),
        ("", "has no bootstrap.servers"),
        ("{hunter2", "is no JSON object"),
    ],
)
def test_kafka_settings_that_can_not_be_used_are_refused_by_name(extra: object, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"Airflow connection k.*{sentence}") as raised:
        kafka_settings(kafka(extra))
    assert "hunter2" not in raised.value.message


def test_a_connection_of_another_type_is_no_kafka_connection() -> None:
    with pytest.raises(ConfigurationError, match="Airflow connection k is of type http, not kafka"):
        kafka_settings(kafka({"bootstrap.servers": "b"}, "http"))


EXTRAS = [
    extra
    for page in ("connect-to-a-secured-kafka.md", "connect-to-a-managed-kafka.md")
    for extra in re.findall(r"```json\n(.*?)```", (DOCS / "how-to" / page).read_text(encoding="utf-8"), re.DOTALL)
]


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_as_the_how_to_shows_it_is_taken_by_both_clients(extra: str) -> None:
    settings = kafka_settings(kafka(extra))
    assert settings == json.loads(extra)
    assert admin_settings(settings)
    assert spark_options(settings)["kafka.security.protocol"] == settings.get("security.protocol", "SASL_SSL")


def test_the_how_to_shows_an_extra_for_every_way_to_log_in() -> None:
    shown = [json.loads(extra) for extra in EXTRAS]
    ways = [one.get("auth") or one.get("sasl.mechanism", "mTLS") for one in shown]
    assert ways == ["SCRAM-SHA-512", "mTLS", "OAUTHBEARER", "msk_iam"]
