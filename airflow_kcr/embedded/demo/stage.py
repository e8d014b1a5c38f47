"""The services of the demo: a Kafka, a Postgres and an Airflow of their own, in one folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, TypeAlias

from airflow_kcr.embedded.airflow import Airflow, example_dags, start_airflow
from airflow_kcr.embedded.airflow_settings import AirflowPlan
from airflow_kcr.embedded.flights import pipeline
from airflow_kcr.embedded.flights import spec as flights
from airflow_kcr.embedded.kafka import Cluster, start_cluster
from airflow_kcr.embedded.postgres import Postgres, start_postgres
from airflow_kcr.embedded.processes import Launch, start_tied
from airflow_kcr.protocol.durations import format_duration
from airflow_kcr.protocol.instants import format_instant
from airflow_kcr.store.schema_upgrade import upgrade

STORE: Final = "kcr"
METADATA: Final = "airflow"

_TOGETHER: Final = {"group.initial.rebalance.delay.ms": "5000"}
"""The three applications start at once but are ready one after the other; so the first one does not begin alone."""


_RARELY_PARSED: Final = {"DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60"}
"""Nobody changes the examples while they run; parsed every few seconds, they take a third of a core."""

Launches: TypeAlias = Callable[[str], Launch]
"""How the processes of a service are launched, by its name: kafka, postgres, airflow."""


@dataclass(slots=True)
class Curtain:
    """Whether the services stop when the demo is over."""

    stays_open: bool = False

    def falls_on(self, stop: Callable[[], None]) -> None:
        """Stop a service, unless the curtain stays open."""
        if not self.stays_open:
            stop()


def tied(service: str) -> Launch:
    """Return the way in which a service ends with this process, however this process ends."""
    return start_tied


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Kafka and Postgres, running, with an empty region store."""

    folder: Path
    kafka: Cluster
    postgres: Postgres
    launches: Launches
    curtain: Curtain

    @property
    def settings(self) -> Mapping[str, str]:
        """Client settings of Kafka."""
        return {"bootstrap.servers": self.kafka.bootstrap_servers}

    @property
    def store_url(self) -> str:
        """The address of the region store."""
        return self.postgres.url(STORE)

    @property
    def output(self) -> Path:
        """Where the pipeline writes to."""
        return self.folder / "output"

    @contextmanager
    def airflow(self, *, since: datetime, every: timedelta) -> Iterator[Airflow]:
        """Lend an Airflow with the example DAGs; it stops at the end, with all that its tasks have started.

        Args:
            since: when the region went live.
            every: the time between two cuts.
        """
        plan = AirflowPlan(
            folder=self.folder / "airflow",
            database_url=self.postgres.url(METADATA),
            store_url=self.store_url,
            dags=example_dags(),
            environment={
                flights.BOOTSTRAP_VARIABLE: self.kafka.bootstrap_servers,
                flights.EVERY_VARIABLE: format_duration(every),
                flights.SINCE_VARIABLE: format_instant(since),
                pipeline.OUTPUT_VARIABLE: str(self.output),
            },
            settings=_RARELY_PARSED,
        )
        running = start_airflow(plan, launch=self.launches("airflow"))
        try:
            yield running
        finally:
            self.curtain.falls_on(running.stop)


@contextmanager
def staged(folder: Path, curtain: Curtain, launches: Launches = tied) -> Iterator[Stage]:
    """Lend Kafka and Postgres, started side by side; they stop at the end.

    Args:
        folder: where they keep everything.
        curtain: whether they do stop.
        launches: how their processes are launched.

    Raises:
        ServiceFailed: one does not start, or a download fails.
        ToolMissing: Java or a Python package is missing.
    """
    with ExitStack() as stack, ThreadPoolExecutor(max_workers=2) as pool:
        starting = pool.submit(start_cluster, folder / "kafka", launch=launches("kafka"), settings=_TOGETHER)
        try:
            postgres = start_postgres(folder / "postgres", launch=launches("postgres"))
            stack.callback(curtain.falls_on, postgres.stop)
            postgres.ensure_database(METADATA)
            upgrade(postgres.ensure_database(STORE))
        finally:
            kafka = starting.result()
            stack.callback(curtain.falls_on, kafka.stop)
        yield Stage(folder=folder, kafka=kafka, postgres=postgres, launches=launches, curtain=curtain)
