"""The services that `kcr dev` leaves running: one folder with their state, data and logs.

What was started is written down as it starts, so `down` finds it whatever became of the `up` that started it. A
process is ended only if its pid and its start are those that were written down.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pydantic import TypeAdapter

from airflow_kcr.embedded import jars
from airflow_kcr.embedded.airflow import AirflowPlan, copy_examples, end_strays, kept, start_airflow
from airflow_kcr.embedded.flights import data as flights
from airflow_kcr.embedded.processes import LOOPBACK, Program, ServiceProcess, start_detached, together
from airflow_kcr.embedded.servers import spark_home, start_broker, start_postgres, start_standalone
from airflow_kcr.errors import ConfigurationError, ServiceFailed
from airflow_kcr.spark.launch import locked
from airflow_kcr.store.schema_upgrade import upgrade

LEAVABLE: Final = frozenset({"airflow", "spark"})
"""Services that `up` can do without; Airflow needs Kafka and the store."""

LISTENING: Final = frozenset({"kafka", "postgres"})
"""Services that can be reached from other machines."""

DATABASE: Final = "kcr"
AIRFLOW_DATABASE: Final = "airflow"
FLIGHTS_OUTPUT: Final = "flights-output"
BUSY: Final = 900.0
"""Seconds for which another process may be starting or stopping the same services."""

Report = Callable[[str], None]


@dataclass(slots=True)
class Service:
    """What was written down of one service; without an address it never was ready."""

    address: str = ""
    processes: list[ServiceProcess] = field(default_factory=list)

    @property
    def up(self) -> bool:
        """Whether it was ready, and each of its processes still runs."""
        return bool(self.address and self.processes) and all(one.alive for one in self.processes)


_WRITTEN: Final = TypeAdapter(dict[str, Service])
"""The services as a file has them, by their names."""


def default_folder() -> Path:
    """Return the folder of the services where none is named: `airflow-kcr/dev` among the user's state."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "airflow-kcr" / "dev"


def up(
    folder: Path,
    report: Report,
    without: Collection[str] = (),
    settings: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    listen: str | None = None,
) -> dict[str, Service]:
    """Start what is not up, with the data it had, and leave it running; return what is up then.

    Args:
        folder: where the services keep what they have.
        report: told of each step.
        without: services that are not started; one that runs is left alone. The others need only what they use.
        settings: more of a service's own settings, by its name: kafka, airflow.
        listen: the address of this machine at which Kafka and Postgres are reached; None: the loopback address.

    Raises:
        ConfigurationError: one of these can't be left out; the address is none of this machine's, or Kafka or Postgres
            runs at another one.
        ServiceFailed: if a service does not start or a download fails; what was started before stays up.
        ToolMissing: if Java or a Python package is missing.
    """
    wanted = _wanted(without)
    host = LOOPBACK if listen is None else _own_address(listen)
    with _locked(folder):
        services = _read(folder)
        for name, start in wanted.items():
            found = services.get(name, Service())
            if found.up:
                if listen is not None and name in LISTENING and not _is_at(found.address, host):
                    raise ConfigurationError(f"{name} runs at {found.address}; stop it first: kcr dev down")
                report(f"{name}: is up")
                continue
            for one in found.processes:  # what a crash has left of it
                one.stop()
            services[name] = Service()
            starting = Starting(folder=folder, name=name, running=services, settings=settings.get(name, {}), host=host)
            services[name].address = start(folder / name, starting, report)
            _write(folder, services)
            report(f"{name}: is up")
    return status(folder)


def _wanted(without: Collection[str]) -> dict[str, Callable[[Path, Starting, Report], str]]:
    if unknown := sorted(set(without) - LEAVABLE):
        raise ConfigurationError(f"{', '.join(unknown)} can't be left out; what can: {', '.join(sorted(LEAVABLE))}")
    return {name: start for name, start in _STARTS.items() if name not in without}


def _is_at(address: str, host: str) -> bool:
    return address.rpartition("@")[2].startswith(f"{host}:")


def _own_address(text: str) -> str:
    """Return an address of this machine that clients can be told."""
    try:
        address = IPv4Address(text)
        with socket.socket() as probe:
            probe.bind((text, 0))
    except (ValueError, OSError):
        address = None
    if address is None or address.is_unspecified:
        raise ConfigurationError(f"{text} is no IPv4 address of this machine that others can be told; name one of them")
    return text


def down(folder: Path, report: Report) -> dict[str, Service]:
    """Stop every service that was started; their data stay. Return what is up then, which is nothing.

    Raises:
        ServiceFailed: if a process does not end; the others were stopped all the same.
    """
    failed: list[str] = []
    with _locked(folder):
        services = _read(folder)
        for name in reversed(_STARTS):
            report(f"{name}: stopping")
            try:
                together([one.stop for one in services.get(name, Service()).processes])
                if name == "airflow":
                    end_strays(folder / name)  # tasks, and Spark applications in sessions of their own
                services.pop(name, None)
            except ServiceFailed as error:
                failed.append(f"{name}: {error.message}")
            _write(folder, services)
    if failed:
        raise ServiceFailed("; ".join(failed))
    return status(folder)


def status(folder: Path) -> dict[str, Service]:
    """Return the services of a folder that are up, by their names."""
    return {name: service for name, service in _read(folder).items() if service.up}


def document(folder: Path, running: Mapping[str, Service]) -> dict[str, object]:
    """Return what `kcr dev` says in JSON of the services that are up; what isn't is None."""
    kafka, postgres, spark, airflow = (running.get(name) for name in ("kafka", "postgres", "spark", "airflow"))
    users = kept(folder / "airflow").users if airflow else ()
    return {
        "kafka": {"bootstrap_servers": kafka.address, "pids": [one.pid for one in kafka.processes]} if kafka else None,
        "store_url": postgres.address if postgres else None,
        "spark": {"master": spark.address, "home": str(spark_home())} if spark else None,
        "airflow": {"url": airflow.address, "users": [user._asdict() for user in users]} if airflow else None,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    """A service that is being started, beside what runs already."""

    folder: Path
    name: str
    running: Mapping[str, Service]
    settings: Mapping[str, str]
    host: str

    def launch(self, program: Program) -> ServiceProcess:
        """Start one of its processes, which stays, and write it down at once for `status` and `down`."""
        child = start_detached(program)
        self.running[self.name].processes.append(child)
        _write(self.folder, self.running)
        return child


def _start_kafka(folder: Path, starting: Starting, report: Report) -> str:
    report(f"kafka: fetching its jars, if they are not in {jars.home()} yet")
    jars.resolve(jars.KAFKA_BROKER)
    report("kafka: starting")
    return start_broker(folder, launch=starting.launch, settings=starting.settings, host=starting.host).address


def _start_postgres(folder: Path, starting: Starting, report: Report) -> str:
    report("postgres: starting")
    server = start_postgres(folder, launch=starting.launch, host=starting.host)
    server.ensure_database(AIRFLOW_DATABASE)
    url = server.ensure_database(DATABASE)
    upgrade(url)
    return url


def _start_spark(folder: Path, starting: Starting, report: Report) -> str:
    report(f"spark: fetching its Kafka connector, if it is not in {jars.home()} yet")
    jars.resolve(jars.spark_connector())
    report("spark: starting a master and two workers")
    return start_standalone(folder, launch=starting.launch).address


def _start_airflow(folder: Path, starting: Starting, report: Report) -> str:
    report("airflow: starting an API server, a scheduler, a DAG processor and a triggerer")
    store, dags = starting.running["postgres"].address, starting.folder / "dags"
    if not dags.exists():  # else they may have been changed
        copy_examples(dags, every=timedelta(minutes=1), since=datetime.now(UTC))
    plan = AirflowPlan(
        folder=folder,
        database_url=store.removesuffix(f"/{DATABASE}") + f"/{AIRFLOW_DATABASE}",
        store_url=store,
        dags=dags,
        environment={
            flights.BOOTSTRAP_VARIABLE: starting.running["kafka"].address,
            "KCR_FLIGHTS_OUTPUT": str(starting.folder / FLIGHTS_OUTPUT),
        },
        settings=starting.settings,
    )
    return start_airflow(plan, launch=starting.launch).known.url


# In the order in which they start; they stop in the reverse one.
_STARTS: Final[dict[str, Callable[[Path, Starting, Report], str]]] = {
    "kafka": _start_kafka,
    "postgres": _start_postgres,
    "spark": _start_spark,
    "airflow": _start_airflow,
}


def _read(folder: Path) -> dict[str, Service]:
    try:
        return _WRITTEN.validate_json((folder / "services.json").read_bytes())
    except FileNotFoundError:
        return {}


def _write(folder: Path, services: Mapping[str, Service]) -> None:
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".services-", delete=False) as draft:
        draft.write(_WRITTEN.dump_json(dict(services), indent=2))
    Path(draft.name).rename(folder / "services.json")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    late = ServiceFailed(f"another process has been starting or stopping the services in {folder} for {BUSY:g} s")
    with locked(folder / "lock", within=BUSY, late=lambda: late):
        yield
