"""The consumers of the flights: declare the region, then two Spark applications for its three members.

Each mapped task is an application, and hosts the members whose indexes it is given: two share one here, which is an
application less to start and to keep in memory. The run goes on until the region stops. A task that is killed, cleared
or lost is tried again, and takes its members over.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_kcr.operators.consume import KcrConsumeOperator
from airflow_kcr.operators.region import KcrApplyRegionOperator
from airflow_kcr.spec import load

SPEC = load(Path(__file__).with_name("flights.yaml"))
APPLICATIONS = [[0, 2], [1]]

with DAG(
    "flights_consumers",
    description="Consumes the flights until the region stops",
    schedule=None,
    max_active_runs=1,
    tags=["kcr", "flights"],
) as dag:
    apply = KcrApplyRegionOperator(task_id="apply", spec=SPEC)
    consume = KcrConsumeOperator.partial(
        task_id="consume",
        region=SPEC.region,
        group_id=SPEC.groups[0].group_id,
        conf={
            "spark.driver.memory": "512m",
            # The applications start at once on one machine: less compiling makes that quicker.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
        jars=os.environ.get("KCR_SPARK_JARS", ""),  # empty: Spark fetches its Kafka connector from Maven Central
        retries=5,
        retry_delay=timedelta(seconds=5),
        map_index_template="members {{ task.indexes }}",
    ).expand(indexes=APPLICATIONS)
    apply >> consume
