"""Spark, with what its Kafka client needs for the named logins of the clusters that an application reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.kafka.logins import Mechanism, advice, mechanism_of
from airflow_kcr.kafka.settings import spark_options
from airflow_kcr.protocol.rules import GroupRules
from airflow_kcr.spark import jvm
from airflow_kcr.spark.engine import failure
from airflow_kcr.spark.session import SparkSettings, open_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session_for(settings: SparkSettings, clusters: Iterable[Mapping[str, str]]) -> SparkSession:
    """Return the session of this process, whose executors can log in to clusters.

    Args:
        settings: the application's.
        clusters: the settings of each, as librdkafka names them.

    Raises:
        ConfigurationError: Spark was started without the class that logs in; or as `open_session`.
        ToolMissing, ServiceFailed: as `open_session`.
    """
    named = [(mechanism, kafka) for kafka in clusters if (mechanism := mechanism_of(kafka)) is not None]
    spark = open_session(_with_libraries(settings, named))
    try:
        for mechanism, kafka in named:
            _require(spark, mechanism)
            for one in mechanism.java(kafka):
                jvm.set_property(spark.sparkContext, one.name, one.value)
    except BaseException:
        stop_session(spark)
        raise
    return spark


def log_in(settings: SparkSettings, kafka: Mapping[str, str], rules: GroupRules) -> int:
    """Log in to a cluster with Spark's Kafka client, and return how many partitions of a group it finds.

    Args:
        settings: with which Spark is started, and stopped again.
        kafka: the cluster's, as librdkafka names them.
        rules: say what the group reads.

    Raises:
        BatchFailed: it is not let in, finds no topic, or the brokers do not answer.
        ConfigurationError, ToolMissing, ServiceFailed: as `session_for`.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    what = {"subscribe": ",".join(rules.topics)} if rules.pattern is None else {"subscribePattern": rules.pattern}
    offsets = {"startingOffsets": "earliest", "endingOffsets": "latest"}
    spark = session_for(settings, [kafka])
    try:
        # Only planned: the driver asks for the ends of the logs, and nothing is read.
        return (
            spark.read.format("kafka").options(**spark_options(kafka), **what, **offsets).load().rdd.getNumPartitions()
        )
    except Py4JJavaError as error:
        raise failure(error, "Spark's Kafka client", advice(kafka, in_spark=True)) from None
    finally:
        stop_session(spark)


def _with_libraries(settings: SparkSettings, named: list[tuple[Mechanism, Mapping[str, str]]]) -> SparkSettings:
    packages = dict.fromkeys((*settings.packages, *(mechanism.package for mechanism, _ in named)))
    conf = {f"spark.executorEnv.{one.variable}": one.value for its, kafka in named for one in its.java(kafka)}
    excludes = dict.fromkeys(exclude for mechanism, _ in named for exclude in mechanism.excludes)
    if excludes:
        conf["spark.jars.excludes"] = ",".join(excludes)
    return replace(settings, packages=tuple(packages), conf={**conf, **settings.conf})


def _require(spark: SparkSession, mechanism: Mechanism) -> None:
    if jvm.has_class(spark.sparkContext, mechanism.callback):
        return
    without = f" --exclude-packages {','.join(mechanism.excludes)}" if mechanism.excludes else ""
    raise ConfigurationError(
        f"auth: {mechanism.name} needs {mechanism.callback} for Spark's Kafka client, and it is not on the class path "
        f"of {spark.sparkContext.appName!r}; add\n"
        f"  --packages {mechanism.package}{without}\n"
        "to spark-submit (packages and exclude_packages of an operator), or --jars with its jar and what that needs"
    )
