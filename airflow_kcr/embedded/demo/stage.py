"""The services of the demo in one folder, as `kcr dev` keeps them, and whom the demo tells what it does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, TypeAlias

from airflow_kcr.embedded import services
from airflow_kcr.embedded.airflow import FLIGHTS_SPEC, client_of, copy_examples
from airflow_kcr.embedded.airflow_client import AirflowClient

Tell: TypeAlias = Callable[[float, float | None, str], None]
"""Says how much of a phase is done, out of how much where that is known, and what is waited for."""

Audience: TypeAlias = Callable[[str], AbstractContextManager[Tell]]
"""Shows phases: one begins with its name, and ends with the block."""

KEPT: Final = 1_000
"""Checkpoints: all are looked at in the end, however many a slow machine makes."""

_SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    # The applications start at once but are ready one after the other; so the first one does not begin alone.
    "kafka": {"group.initial.rebalance.delay.ms": "5000"},
    # The examples don't change while they run; parsed every few seconds, they would take a third of a core.
    "airflow": {"DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60"},
}


@dataclass(frozen=True, slots=True)
class Stage:
    """A Kafka and a Postgres with an empty region store, then an Airflow with the example DAGs."""

    folder: Path

    def start(self, *, without: Collection[str]) -> None:
        """Start the services but for some.

        Raises:
            ServiceFailed: one does not start, or a download fails.
            ToolMissing: Java or a Python package is missing.
        """
        services.up(self.folder, lambda _: None, without, _SETTINGS)

    def start_airflow(self, *, since: datetime, every: timedelta) -> None:
        """Start Airflow.

        Args:
            since: when the region went live.
            every: the time between two checkpoints.

        Raises:
            ServiceFailed: a part of it does not start.
        """
        copy_examples(self.folder / "dags", every=every, since=since)
        with (self.folder / "dags" / FLIGHTS_SPEC).open("a") as spec:  # the DAG of the consumers applies it
            spec.write(f"retention: {{keep: {KEPT}}}\n")
        self.start(without={"spark"})

    @property
    def bootstrap(self) -> str:
        """The address of Kafka."""
        return self._address("kafka")

    @property
    def kafka(self) -> dict[str, str]:
        """Client settings of Kafka; a broker that has just started is retried, which needs no line on the screen."""
        return {"bootstrap.servers": self.bootstrap, "log_level": "2"}

    @property
    def store_url(self) -> str:
        """The address of the region store."""
        return self._address("postgres")

    def client(self, user: str) -> AirflowClient:
        """Return a client of Airflow that acts as a user."""
        return client_of(self.folder / "airflow", user)

    def _address(self, service: str) -> str:
        return services.status(self.folder)[service].address
