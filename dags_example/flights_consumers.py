"""The consumers of the flights: declare the region, then one Spark application for each of its three members.

The run goes on until the region stops. A task that is killed, cleared or lost is tried again, and takes its member
over.
"""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_kcr.embedded.flights.spec import GROUP, airflow_spec, live_since
from airflow_kcr.operators.apply import KcrApplyRegionOperator
from airflow_kcr.operators.consume import KcrConsumeOperator

with DAG(
    "flights_consumers",
    description="Consumes the flights until the region stops",
    schedule=None,
    start_date=live_since(),
    max_active_runs=1,
    tags=["kcr", "flights"],
) as dag:
    spec = airflow_spec()
    apply = KcrApplyRegionOperator(task_id="apply", spec=spec)
    consume = KcrConsumeOperator.partial(
        task_id="consume",
        region=spec.region,
        group_id=GROUP,
        conf={
            "spark.driver.memory": "512m",
            # Three applications start at once on one machine: less compiling makes that quicker.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
        jars=os.environ.get("KCR_SPARK_JARS", ""),  # empty: Spark fetches its Kafka connector from Maven Central
        retries=5,
        retry_delay=timedelta(seconds=5),
        map_index_template="member {{ task.indexes }}",
    ).expand(indexes=list(range(spec.group(GROUP).members)))
    apply >> consume
