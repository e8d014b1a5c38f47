from __future__ import annotations

import json

import pytest

from airflow_kcr.api.clusters import client_settings, kafka_variable, reader_with
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.values import GroupId
from airflow_kcr.spec import RegionSpec, parse

G = GroupId("g")


def spec_with(cluster: str) -> RegionSpec:
    return parse(f"region: flights\n{cluster}\ngroups: [{{group_id: g, topics: [t], pipeline: 'jobs:process'}}]\n")


BY_CONNECTION = spec_with("kafka_conn_id: team-a.kafka")


def test_the_variable_of_a_connection_is_its_id_in_upper_case_with_nothing_but_letters_and_digits() -> None:
    assert kafka_variable("kafka_default") == "KCR_KAFKA_KAFKA_DEFAULT"
    assert kafka_variable("team-a.kafka") == "KCR_KAFKA_TEAM_A_KAFKA"


def test_references_of_a_spec_are_filled_in() -> None:
    spec = spec_with("kafka: {bootstrap.servers: 'b:9092', sasl.password: '${SECRET}'}")
    assert client_settings(spec, G, {"SECRET": "a${b"}) == {"bootstrap.servers": "b:9092", "sasl.password": "a${b"}
    with pytest.raises(ConfigurationError, match=r"sasl.password needs SECRET"):
        client_settings(spec, G, {})


def test_settings_of_a_connection_come_from_its_variable_as_they_are() -> None:
    given = {"bootstrap.servers": "b:9092", "sasl.password": "a${b}", "socket.timeout.ms": 5000, "log.queue": True}
    environ = {"KCR_KAFKA_TEAM_A_KAFKA": json.dumps(given)}
    assert client_settings(BY_CONNECTION, G, environ) == {
        "bootstrap.servers": "b:9092",
        "sasl.password": "a${b}",
        "socket.timeout.ms": "5000",
        "log.queue": "true",
    }


def test_without_the_variable_it_is_said_which_one_to_set() -> None:
    with pytest.raises(ConfigurationError, match=r"connection team-a.kafka, .* set KCR_KAFKA_TEAM_A_KAFKA to"):
        client_settings(BY_CONNECTION, G, {})


@pytest.mark.parametrize("text", ["s3cret", '["s3cret"]', '{"sasl.password": "s3cret"', ""])
def test_what_is_no_json_object_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(ConfigurationError, match="KCR_KAFKA_TEAM_A_KAFKA is no JSON object") as caught:
        client_settings(BY_CONNECTION, G, {"KCR_KAFKA_TEAM_A_KAFKA": text})
    assert "s3cret" not in str(caught.value)
    assert caught.value.__context__ is None


def test_the_user_s_client_id_is_known_to_whoever_looks_at_a_group() -> None:
    with reader_with({"bootstrap.servers": "127.0.0.1:1", "client.id": "quota-7"}) as reader:
        assert reader.client == "quota-7"
    with reader_with({"bootstrap.servers": "127.0.0.1:1"}) as reader:
        assert reader.client is None
