"""The services of the demo: a Kafka, a Postgres and an Airflow of their own, in one folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, TypeAlias

from airflow_kcr.embedded.airflow import Airflow, Component, airflow_of, example_dags
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
class Backstage:
    """What needs nothing that has to be downloaded first."""

    postgres: Postgres
    """Runs, with an empty region store and Airflow's metadata."""

    airflow: Airflow
    """Its API server is starting; it takes longest of all components and knows nothing of Kafka."""

    def stop(self) -> None:
        """Stop both, whatever of Airflow runs."""
        try:
            self.airflow.stop()
        finally:
            self.postgres.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Kafka and Postgres, running, with an empty region store."""

    folder: Path
    kafka: Cluster
    backstage: Backstage
    launches: Launches
    curtain: Curtain

    @property
    def settings(self) -> Mapping[str, str]:
        """Client settings of Kafka."""
        return {"bootstrap.servers": self.kafka.bootstrap_servers}

    @property
    def store_url(self) -> str:
        """The address of the region store."""
        return self.backstage.postgres.url(STORE)

    @property
    def output(self) -> Path:
        """Where the pipeline writes to."""
        return self.folder / "output"

    @contextmanager
    def airflow(self, *, since: datetime, every: timedelta) -> Iterator[Airflow]:
        """Lend an Airflow with the example DAGs; it stops at the end, with all that its tasks have started.

        Args:
            since: when the region went live.
            every: the time between two checkpoints.
        """
        environment = {
            flights.BOOTSTRAP_VARIABLE: self.kafka.bootstrap_servers,
            flights.EVERY_VARIABLE: format_duration(every),
            flights.SINCE_VARIABLE: format_instant(since),
            pipeline.OUTPUT_VARIABLE: str(self.output),
        }
        airflow = self.backstage.airflow
        try:
            airflow.follow(_plan(self.folder, self.backstage.postgres, environment))
            airflow.start_components()
            yield airflow
        finally:
            self.curtain.falls_on(airflow.stop)


@contextmanager
def prepared(folder: Path, curtain: Curtain, launches: Launches = tied) -> Iterator[Future[Backstage]]:
    """Lend a Postgres with the databases, and an Airflow that begins to start; both stop at the end.

    They come in the background: that takes the processor's time, and what is downloaded meanwhile the network's.

    Args:
        folder: where everything is kept.
        curtain: whether they do stop.
        launches: how their processes are launched.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="backstage") as pool:
        making = pool.submit(_made, folder, launches)
        try:
            yield making
        finally:
            # Who waits for it is told of an error; here there is only something to stop, or nothing.
            if making.exception() is None:
                curtain.falls_on(making.result().stop)


def _made(folder: Path, launches: Launches) -> Backstage:
    postgres = start_postgres(folder / "postgres", launch=launches("postgres"))
    try:
        upgrade(postgres.ensure_database(STORE))
        postgres.ensure_database(METADATA)
        airflow = airflow_of(_plan(folder, postgres, {}), launch=launches("airflow"))
        airflow.migrate()
        airflow.begin(Component.API_SERVER)
    except BaseException:
        postgres.stop()
        raise
    return Backstage(postgres=postgres, airflow=airflow)


def _plan(folder: Path, postgres: Postgres, environment: Mapping[str, str]) -> AirflowPlan:
    return AirflowPlan(
        folder=folder / "airflow",
        database_url=postgres.url(METADATA),
        store_url=postgres.url(STORE),
        dags=example_dags(),
        environment=environment,
        settings=_RARELY_PARSED,
    )


@contextmanager
def staged(folder: Path, making: Future[Backstage], curtain: Curtain, launches: Launches = tied) -> Iterator[Stage]:
    """Lend Kafka, and what is made in the background once it is there; Kafka stops at the end.

    Args:
        folder: where everything is kept.
        making: what is made in the background.
        curtain: whether Kafka does stop.
        launches: how its processes are launched.

    Raises:
        ServiceFailed: one does not start, or a download fails.
        ToolMissing: Java or a Python package is missing.
    """
    kafka = start_cluster(folder / "kafka", launch=launches("kafka"), settings=_TOGETHER)
    try:
        yield Stage(folder=folder, kafka=kafka, backstage=making.result(), launches=launches, curtain=curtain)
    finally:
        curtain.falls_on(kafka.stop)
