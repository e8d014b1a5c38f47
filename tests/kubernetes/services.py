"""Kafka and Postgres on this machine, which pods reach at its address in the node's network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from airflow_kcr.embedded.servers import start_broker, start_postgres
from airflow_kcr.store.schema_upgrade import upgrade
from tests.kubernetes.node import HOST
from tests.support.kafka import Kafka
from tests.support.tied import start_tied


class Services(NamedTuple):
    """What consumers need beside the cluster."""

    kafka: Kafka
    store: str
    """The URL of a store that is shared: regions have names of their own."""


@contextmanager
def services(folder: Path) -> Iterator[Services]:
    """Lend both; the node has to be up."""
    with ExitStack() as stack:
        broker = start_broker(folder / "kafka", launch=start_tied, host=HOST)
        stack.callback(broker.stop)
        server = start_postgres(folder / "postgres", launch=start_tied, host=HOST)
        stack.callback(server.stop)
        url = server.ensure_database("kcr")
        upgrade(url)
        yield Services(kafka=Kafka(broker.address), store=url)
