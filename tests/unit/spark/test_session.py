from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any

import pytest

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.spark.session import (
    CONNECTOR,
    SparkSettings,
    connector_for,
    missing_settings,
    open_session,
    refuse_settings,
)

SETTINGS = SparkSettings(app_name="kcr flights")
KAFKA_SECRETS = (
    *("sasl.jaas.config", "ssl.key.password", "ssl.keystore.password", "ssl.keystore.key"),
    *("ssl.keystore.certificate.chain", "ssl.truststore.password", "ssl.truststore.certificates"),
    *("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.assertion.private.key.passphrase"),
)


@pytest.mark.parametrize(
    ("spark", "build"),
    [("4.0.5", "4.0.0"), ("4.1.0", "4.1.1"), ("4.1.4", "4.1.1"), ("4.2.1", "4.2.0"), ("4.3.2", "4.3.2")],
)
def test_the_connector_is_of_the_line_of_the_installed_spark(spark: str, build: str) -> None:
    assert connector_for(spark) == f"org.apache.spark:spark-sql-kafka-0-10_2.13:{build}"
    assert connector_for(version("pyspark")) == CONNECTOR


def test_what_is_given_stays_and_what_is_missing_is_set() -> None:
    missing = missing_settings({"spark.scheduler.mode": "FIFO", "spark.ui.retainedJobs": "7"}, SETTINGS)
    assert not {"spark.scheduler.mode", "spark.ui.retainedJobs"} & missing.keys()
    assert missing["spark.sql.ui.retainedExecutions"] == "200"
    assert "kafka" not in missing["spark.sql.sources.useV1SourceList"].split(",")
    assert missing["spark.kafka.consumer.fetchedData.cache.timeout"] == "60s"


@pytest.mark.parametrize(
    ("given", "asked", "master"),
    [
        ({}, None, "local[*,4]"),
        ({"spark.master": "local[*]"}, None, "local[*,4]"),
        ({"spark.master": "spark://m:7077"}, None, None),
        ({"spark.master": "spark://m:7077"}, "local[2,2]", "local[2,2]"),
    ],
)
def test_the_master_is_the_one_asked_for_else_the_one_given(
    given: dict[str, str], asked: str | None, master: str | None
) -> None:
    assert missing_settings(given, SparkSettings(app_name="a", master=asked)).get("spark.master") == master


def test_executors_off_this_machine_get_the_python_daemon_as_a_file() -> None:
    key = "spark.python.daemon.module"
    assert missing_settings({}, SETTINGS)[key] == "airflow_kcr.spark.kcr_python_daemon"
    assert missing_settings({"spark.master": "spark://m:7077"}, SETTINGS)[key] == "kcr_python_daemon"
    assert key not in missing_settings({key: "my.daemon"}, SETTINGS)


def test_the_cache_of_consumers_has_room_for_every_partition_twice() -> None:
    key = "spark.kafka.consumer.cache.capacity"
    assert missing_settings({}, SETTINGS)[key] == "64"
    assert missing_settings({}, SparkSettings(app_name="a", consumers=600))[key] == "1200"
    assert key not in missing_settings({key: "10"}, SETTINGS)


@pytest.mark.parametrize("given", [{}, {"spark.redaction.regex": "(?i)mine"}])
def test_spark_hides_kafka_s_secrets_beside_what_it_hides_already(given: dict[str, str]) -> None:
    pattern = re.compile(missing_settings(given, SETTINGS)["spark.redaction.regex"])
    for name in (f"kafka.{name}" for name in KAFKA_SECRETS):
        assert pattern.search(name), name
    assert pattern.search("spark.mine" if given else "spark.my.password")
    assert not pattern.search("spark.app.name")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"conf": {"spark.hadoop.fs.s3a.secret.key": "hidden"}}, r"spark\.hadoop\.fs\.s3a\.secret\.key"),
        ({"conf": {"spark.driver.extraJavaOptions": "-Dx.keyPassword=hidden"}}, r"spark\.driver\.extraJavaOptions"),
        ({"jars": ("https://me:hidden@host/x.jar",)}, "jars"),
    ],
)
def test_a_secret_never_gets_into_the_command_of_the_jvm(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}; write it into spark-defaults.conf") as caught:
        SparkSettings(app_name="a", **options)
    assert "hidden" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.speculation", "true"),
        ("spark.sql.sources.useV1SourceList", "csv, Kafka"),
        ("spark.remote", "sc://host"),
        ("spark.api.mode", "connect"),
    ],
)
def test_a_setting_that_breaks_exactness_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(name)):
        refuse_settings({name: value})


def test_the_same_settings_with_safe_values_are_taken() -> None:
    refuse_settings(
        {"spark.speculation": "false", "spark.sql.sources.useV1SourceList": "csv", "spark.api.mode": "classic"}
    )


@pytest.mark.parametrize(("name", "value"), [("PYSPARK_PIN_THREAD", "false"), ("SPARK_REMOTE", "sc://host")])
def test_an_environment_that_breaks_exactness_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=name):
        open_session(SETTINGS)
