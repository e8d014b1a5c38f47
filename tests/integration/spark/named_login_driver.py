"""Reads Kafka with a named login, as executors do; argument: how, as JSON. Prints what came of each read as JSON.

Between reads it does what a line on its standard input says: `read BEGIN END`. With a spec, it examines that instead.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace

from airflow_kcr.driver.doctor import examine
from airflow_kcr.driver.logins import session_for
from airflow_kcr.errors import KcrError
from airflow_kcr.kafka.logins import advice
from airflow_kcr.kafka.settings import spark_options
from airflow_kcr.spark.engine import SparkEngine
from airflow_kcr.spark.session import SparkSettings
from airflow_kcr.spec import parse
from tests.integration.spark.batches import Collected, call, source_of


def main() -> None:
    asked = json.loads(sys.argv[1])
    conf = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
    with_jars = SparkSettings(app_name="kcr", master="local[1,1]", jars=tuple(asked["jars"]), conf=conf)
    if "spec" in asked:
        found = examine(parse(asked["spec"]), None, os.environ, with_jars)
        answer({one.check: [one.verdict, one.detail] for one in found if one.group})
        return
    settings, topic = asked["settings"], asked["topic"]
    try:
        spark = session_for(with_jars, [settings])
    except KcrError as error:
        answer({"refused": error.message})
        return
    options = {name.removeprefix("kafka."): value for name, value in spark_options(settings).items()}
    source = replace(source_of(options), login=advice(settings, in_spark=True))
    answer({"region": spark.sparkContext._jvm.java.lang.System.getProperty("aws.region")})  # type: ignore[union-attr]
    for line in sys.stdin:
        begin, end = map(int, line.split()[1:])
        collected = Collected()
        try:
            SparkEngine(spark, collected, source).run(call(topic, {0: (begin, end)}))
        except KcrError as error:
            answer({"failed": error.message})
        else:
            answer({"read": collected.offsets()})


def answer(found: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
