"""`kcr export`: metrics of all regions of a store, for Prometheus."""

from __future__ import annotations

from time import sleep
from typing import Annotated

import typer

from airflow_kcr.cli.endings import reported
from airflow_kcr.cli.inputs import store_of
from airflow_kcr.cli.lineage import feeding
from airflow_kcr.cli.options import Url
from airflow_kcr.cli.results import note


@reported
def export(
    store: Url,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to serve the metrics at.")] = 9308,
    no_partitions: Annotated[
        bool, typer.Option("--no-partitions", help="Leave out the series of single partitions.")
    ] = False,
) -> None:
    """Serve the metrics of all regions of the store at /metrics until Ctrl-C, and keep samples of their lag.

    Every 30 seconds, it reads the regions and asks Kafka; regions that are stopped are read, too. While the store or a
    broker is away, the values that only they know are absent. Needs the extra `metrics`.

    Where the environment configures OpenLineage, it also sends the lineage of what no DAG run has asked for.

    Example: kcr export --port 9308
    """
    from airflow_kcr.metrics.declared import METRICS
    from airflow_kcr.metrics.exporter import PERIOD, Exporter, KeptClusters
    from airflow_kcr.metrics.outlets import push, serve

    with store_of(store) as found, KeptClusters() as clusters, feeding(found):
        exporter = Exporter(found, clusters, with_partitions=not no_partitions)
        ends = [serve(exporter, port), push(METRICS, exporter.known)]
        note(f"metrics are served at http://localhost:{port}/metrics")
        try:
            while True:
                exporter.read()
                clusters.close_unused()
                sleep(PERIOD)
        finally:
            for end in ends:
                end()
