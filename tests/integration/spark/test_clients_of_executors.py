"""Executors' own client of Kafka, which is Java's: how it logs in, what rights it needs, and what a secret is to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from py4j.java_gateway import get_field  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import BatchFailed, ConfigurationError
from airflow_kcr.kafka.settings import spark_options
from airflow_kcr.protocol.values import GroupId, MemberId, RegionId, RegionName
from airflow_kcr.settings import names_secret, secrets_in
from airflow_kcr.spark import jvm
from airflow_kcr.spark.engine import SparkEngine
from airflow_kcr.spark.reads import Source
from tests.conftest import StartKafka
from tests.integration.spark.batches import GROUP, Collected, call, source_of
from tests.support.kafka import WITHIN
from tests.support.rights import AUTHORIZER, LOGIN, ON_TOPIC, PASSWORD, READ, USER, Right, grant, listed
from tests.support.tokens import MECHANISMS, SCRAM, SECRET, guarded_broker, login, token_endpoint

WRONG = "not-the-pass-word"
REASONS = {"SCRAM-SHA-512": "invalid credentials with SASL mechanism SCRAM-SHA-512", "OAUTHBEARER": "invalid_client"}


def read(spark: SparkSession, login: Mapping[str, str], topic: str, begin: int = 0) -> list[int]:
    """Read ten records with what a member logs in with."""
    options = {name.removeprefix("kafka."): value for name, value in spark_options(login).items()}
    collected = Collected()
    SparkEngine(spark, collected, source_of(options)).run(call(topic, {0: (begin, begin + 10)}))
    return collected.offsets()


@pytest.mark.long
def test_executors_log_in_renew_their_tokens_and_say_why_they_are_not_let_in(
    spark: SparkSession, tmp_path: Path
) -> None:
    password = 'pass"wo\\rd-1'
    with token_endpoint(lifetime=20.0) as tokens, guarded_broker(tmp_path, tokens, {USER: password}) as kafka:
        topic = kafka.topic(1)
        kafka.fill(topic, {0: 30})
        for mechanism in MECHANISMS:
            right = login(kafka, tokens, mechanism, USER, password if mechanism in SCRAM else SECRET)
            assert read(spark, right, topic) == list(range(10))
        # The executor's consumer goes on with the connection that the first token has opened.
        for begin in (10, 20):
            renewed = len(tokens.asked)
            assert happened(lambda: len(tokens.asked) > renewed, within=WITHIN)  # noqa: B023 - called here
            with_tokens = login(kafka, tokens, "OAUTHBEARER", USER, SECRET)
            assert read(spark, with_tokens, topic, begin) == list(range(begin, begin + 10))
        for mechanism, reason in REASONS.items():
            with pytest.raises(BatchFailed, match=reason) as refused:
                read(spark, login(kafka, tokens, mechanism, USER, WRONG), topic)
            assert WRONG not in str(refused.value)


@pytest.mark.long
def test_executors_need_read_of_the_topic_and_nothing_else(spark: SparkSession, kafka_set: StartKafka) -> None:
    kafka = kafka_set(settings=AUTHORIZER, sasl_users={USER: PASSWORD})
    settings = {"bootstrap.servers": kafka.sasl_bootstrap_servers, **LOGIN, "sasl.password": PASSWORD}

    def topic(rights: frozenset[Right]) -> str:
        """A topic that no executor has a consumer of yet."""
        name = kafka.topic(1)
        kafka.fill(name, {0: 10})
        grant(kafka, rights, topic=name, group=GROUP)
        return name

    readable: frozenset[Right] = frozenset({(ON_TOPIC, READ)})
    rows = [row for row in listed() if row.client == "executors"]
    assert {row.right for row in rows} > readable
    for row in rows:
        assert read(spark, settings, topic(readable)) == list(range(10))
        with pytest.raises(BatchFailed) as failed:
            read(spark, settings, topic(row.others))
        assert all(text in str(failed.value) for text in row.without), failed.value
        assert PASSWORD not in str(failed.value)


def settings_by_type(spark: SparkSession) -> dict[str, str]:
    """Return the type of each setting of Kafka's consumer, as the connector's client defines them."""
    java = jvm.virtual_machine(spark.sparkContext).java
    loader = java.lang.Thread.currentThread().getContextClassLoader()
    consumer = java.lang.Class.forName("org.apache.kafka.clients.consumer.ConsumerConfig", True, loader)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    none = gateway.new_array(java.lang.Class, 0), gateway.new_array(java.lang.Object, 0)
    keys = consumer.getMethod("configDef", none[0]).invoke(None, none[1]).configKeys()
    return {str(name): get_field(keys[name], "type").toString() for name in keys}


def test_every_secret_of_kafka_s_client_is_refused_as_an_option_and_hidden_by_spark(spark: SparkSession) -> None:
    known = settings_by_type(spark)
    secrets = {name for name, kind in known.items() if kind == "PASSWORD"}
    assert secrets >= {"sasl.jaas.config", "ssl.keystore.key"}
    assert {name for name in secrets if not names_secret(name)} == set()
    # Nothing else is taken for one: those options may be given.
    assert {name for name in known if names_secret(name)} == secrets
    options = {f"kafka.{name}": "hidden" for name in secrets}
    assert set(secrets_in(options)) == set(options)
    with pytest.raises(ConfigurationError) as raised:
        Source(
            region_id=RegionId("1"),
            region=RegionName("r"),
            member=MemberId(GroupId("g"), 0),
            kafka={"bootstrap.servers": "b:9092", "sasl.jaas.config": "from the spec"},
            options=options,
        )
    assert all(f"{name}: is refused: it holds a secret" in raised.value.message for name in options)
    assert "hidden" not in raised.value.message
    pattern = re.compile(spark.conf.get("spark.redaction.regex") or "")
    assert all(pattern.search(name) for name in options)
