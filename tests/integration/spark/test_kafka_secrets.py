"""What Kafka's own client takes for a secret is one here, and what Spark hides of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from py4j.java_gateway import get_field  # type: ignore[import-untyped]

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.values import GroupId, MemberId, RegionId, RegionName
from airflow_kcr.settings import names_secret, secrets_in
from airflow_kcr.spark import jvm
from airflow_kcr.spark.reads import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
