"""A real Airflow: API server, scheduler, DAG processor and triggerer as processes of their own, with real users.

What tasks have started may be in a session of its own and outlive its task, as the Spark applications of members do on
purpose; everything that was started from here is recognised by a variable in its environment, and stopped with it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sys
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import psutil
from sqlalchemy.engine import make_url

from airflow_kcr.embedded import processes
from airflow_kcr.embedded.airflow_client import AirflowClient, heartbeats
from airflow_kcr.embedded.jars import resolve, spark_connector
from airflow_kcr.embedded.servers import spark_environment
from airflow_kcr.errors import ServiceFailed, ToolMissing
from airflow_kcr.protocol.values import format_duration
from airflow_kcr.schedules import Every

MIGRATED_WITHIN: Final = 240.0
READY_WITHIN: Final = 180.0
STOP_WITHIN: Final = 15.0
STRAYS_WITHIN: Final = 10.0
EXAMPLES: Final = "dags_example"
FLIGHTS_SPEC: Final = "flights.yaml"
"""The file of the examples with the spec of their region `flights`."""


class Component(StrEnum):
    """A process of Airflow, by the name of its command."""

    API_SERVER = "api-server"
    SCHEDULER = "scheduler"
    DAG_PROCESSOR = "dag-processor"
    TRIGGERER = "triggerer"


@dataclass(slots=True, kw_only=True)
class Airflow:
    """A running Airflow. Its secrets and its metadata stay, so after a stop it comes back as the same one."""

    folder: Path
    known: Kept = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    launch: processes.Launch = field(repr=False)
    children: dict[Component, processes.ServiceProcess] = field(default_factory=dict, repr=False)
    """Processes that were killed alone; what they have started still runs."""

    def start(self) -> None:
        """Bring the metadata to the newest schema, start what does not run, and wait until all are healthy.

        Raises:
            ServiceFailed: with the end of its log, if a part does not start.
        """
        migrate = [sys.executable, "-m", "airflow", "db", "migrate"]
        processes.run(migrate, "the migration of Airflow's metadata", env=self.environment, within=MIGRATED_WITHIN)
        for component in Component:
            self.begin(component)
        for component in Component:
            self.await_health(component)

    def stop(self) -> None:
        """Stop all of it, and whatever its tasks have started, wherever that has gone."""
        try:
            processes.together([partial(child.stop, within=STOP_WITHIN) for child in self.children.values()])
        finally:
            end_strays(self.folder)

    def begin(self, component: Component) -> None:
        """Start one component, and don't wait for it; nothing happens if it runs."""
        child = self.children.get(component)
        if child is not None and child.alive:
            return
        program = processes.Program(
            name=f"Airflow's {component.value}",
            command=[sys.executable, "-m", "airflow", component.value],
            log=self.folder / f"{component.value}.log",
            env=self.environment,
        )
        self.children[component] = self.launch(program)

    def await_health(self, component: Component) -> None:
        """Wait until a component that was started says that it is well.

        Raises:
            ServiceFailed: with the end of its log, if it ends or does not say so in time.
        """
        child, name = self.children[component], component.value.replace("-", "_")
        begun = datetime.fromtimestamp(child.started, UTC)
        child.wait_until(lambda: heartbeats(self.known.url).get(name, begun) > begun, within=READY_WITHIN)


def start_airflow(plan: AirflowPlan, *, launch: processes.Launch = processes.start_detached) -> Airflow:
    """Start a new Airflow, or that of the folder again, with its users and its metadata.

    Args:
        plan: what it runs with.
        launch: how its processes are started.

    Raises:
        ServiceFailed: if a part of it does not start; none is left running then.
        ToolMissing: if Airflow, Java or PySpark is not installed.
    """
    if find_spec("airflow") is None:
        raise ToolMissing("Airflow is needed: `pip install 'airflow-kcr[demo]'`")
    known = kept(plan.folder)
    airflow = Airflow(folder=plan.folder, known=known, environment=environment(plan, known), launch=launch)
    processes.started(airflow.start, airflow.stop)
    return airflow


def client_of(folder: Path, user: str) -> AirflowClient:
    """Return a client that acts as a user of the Airflow of a folder, one of `ROLES`."""
    known = kept(folder)
    return AirflowClient(url=known.url, user=user, password=known.passwords[user])


def example_dags() -> Path:
    """Return the folder of the example DAGs: that of the checkout, or the one that an installed package ships.

    Raises:
        ServiceFailed: there is neither.
    """
    package = Path(str(files("airflow_kcr")))
    for folder in (package / EXAMPLES, package.parent / EXAMPLES):
        if folder.is_dir():
            return folder
    raise ServiceFailed(f"the example DAGs are not there: there is no {EXAMPLES} in or beside {package}")


def copy_examples(folder: Path, *, every: timedelta, since: datetime) -> None:
    """Copy the example DAGs with all that they need, and change what their users change.

    Args:
        folder: where to; what is there is replaced.
        every: the time between two checkpoints of the flights.
        since: when the regions went live; it is moved to the boundary of the flights at or before it.

    Raises:
        ServiceFailed: there are no examples, or they have no place for the one or the other.
    """
    # A file under its final name is complete.
    copy = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(example_dags(), copy, ignore=shutil.ignore_patterns("__pycache__"))
    _rewrite(copy / FLIGHTS_SPEC, r"  every: .*", f"  every: {format_duration(every)}")
    start_examples_at(Every(every).at_or_before(since), copy)
    shutil.rmtree(folder, ignore_errors=True)
    copy.rename(folder)


def start_examples_at(boundary: datetime, folder: Path) -> None:
    """Set when the regions of copied examples went live: each interval since then gets a run.

    Raises:
        ServiceFailed: an example has no place for it.
    """
    live = ", ".join(map(str, boundary.astimezone(UTC).timetuple()[:6]))
    for name in ("flights_checkpoint.py", "minimal.py", "minimal_intervals.py"):
        _rewrite(folder / name, r"LIVE_SINCE = .*", f"LIVE_SINCE = datetime({live}, tzinfo=UTC)")


def _rewrite(file: Path, line: str, instead: str) -> None:
    text, found = re.subn(rf"^{line}$", instead, file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if found != 1:
        raise ServiceFailed(f"{file.name} of the example DAGs has no line, or several, like {line!r}")
    # Airflow may read the file at any time: under its name it is whole.
    whole = file.with_name(f"{file.name}.new")
    whole.write_text(text, encoding="utf-8")
    whole.replace(file)


def end_strays(folder: Path) -> None:
    """End everything that was started from the Airflow of a folder and still runs, wherever it has gone.

    Raises:
        ServiceFailed: something does not end, not even when it is killed.
    """

    def are_gone() -> bool:
        strays = list(started_by(folder))
        for one in strays:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        return not strays

    if not processes.happened(are_gone, within=STRAYS_WITHIN):
        raise ServiceFailed(f"processes of the Airflow in {folder} did not end, not even when they were killed")


def started_by(folder: Path) -> Iterator[psutil.Process]:
    """Yield the processes that were started from the Airflow of a folder, wherever they have gone; never this one."""
    for one in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended, or belongs to another program
            if one.pid != os.getpid() and one.environ().get(MARKER) == str(folder):
                yield one


ROLES: Final[Mapping[str, str]] = {"viewer": "viewer", "editor": "user", "admin": "admin"}
"""The users and their roles in Airflow's simple auth manager."""

MARKER: Final = "KCR_AIRFLOW_FOLDER"
"""The environment variable by which everything that an Airflow has started is recognised."""

JARS_VARIABLE: Final = "KCR_SPARK_JARS"
"""The environment variable with the jars of Spark's Kafka connector, separated by commas, for `--jars`."""

_SPARK_CONNECTION: Final = {"conn_type": "spark", "host": "local[*]", "extra": {"deploy-mode": "client"}}

_SETTINGS: Final[Mapping[str, str]] = {
    "CORE__EXECUTOR": "LocalExecutor",
    "CORE__LOAD_EXAMPLES": "False",
    "CORE__PARALLELISM": "12",  # its workers are started as they are needed
    "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
    "CORE__TEST_CONNECTION": "Enabled",
    "CORE__DAGBAG_IMPORT_TIMEOUT": "120",
    "API__HOST": "127.0.0.1",
    "API__WORKERS": "1",
    # What is seen of a new or changed file, and of a finished task, is seen at once.
    "DAG_PROCESSOR__PARSING_PROCESSES": "1",
    "DAG_PROCESSOR__REFRESH_INTERVAL": "3",
    "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5",
    "DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "1",
    "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
    "SCHEDULER__ENABLE_HEALTH_CHECK": "False",
    # A machine that is busy for a while must not end consumers: two and a half minutes of heartbeats, not 15 seconds.
    "WORKERS__MAX_FAILED_HEARTBEATS": "30",
}


class User(NamedTuple):
    """A user who may log in."""

    name: str
    role: str
    password: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowPlan:
    """What an Airflow runs with.

    Args:
        folder: of its secrets, its logs and its home.
        database_url: of its metadata, a Postgres database that exists.
        store_url: of the region store, which becomes the connection `kcr_default`.
        dags: the folder of its DAG files.
        environment: further variables, which tasks see as well.
        settings: further settings of Airflow, by `SECTION__OPTION`; they win.
    """

    folder: Path
    database_url: str
    store_url: str
    dags: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a folder keeps, so that an Airflow comes back as it was."""

    ports: Mapping[str, int]
    passwords: Mapping[str, str] = field(repr=False)
    """Of its users, by their names."""

    keys: Mapping[str, str] = field(repr=False)

    @property
    def users(self) -> tuple[User, ...]:
        """Those who may log in."""
        return tuple(User(name, role, self.passwords[name]) for name, role in ROLES.items())

    @property
    def url(self) -> str:
        """Where people and programs reach it."""
        return f"http://127.0.0.1:{self.ports['api']}"


def kept(folder: Path) -> Kept:
    """Return the content of a folder's file, created if it is new; only its owner may read the file."""
    return Kept(**processes.remembered(folder / "airflow.json", _made))


def _made() -> dict[str, dict[str, object]]:
    return {
        "ports": {name: processes.free_port() for name in ("api", "worker_logs", "trigger_logs")},
        "passwords": {name: secrets.token_urlsafe(9) for name in ROLES},
        "keys": {
            "fernet": urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "secret": secrets.token_urlsafe(32),
            "jwt": secrets.token_urlsafe(48),
        },
    }


def environment(plan: AirflowPlan, known: Kept) -> dict[str, str]:
    """Return the environment of Airflow's processes, with which any `airflow` command finds this one too.

    Raises:
        ServiceFailed: the connector of Spark can't be downloaded.
        ToolMissing: Java or PySpark is missing.
    """
    passwords = plan.folder / "passwords.json"
    processes.write_private(passwords, json.dumps(known.passwords))
    own = {
        "CORE__DAGS_FOLDER": str(plan.dags),
        "CORE__PLUGINS_FOLDER": str(plan.folder / "home" / "plugins"),
        "CORE__FERNET_KEY": known.keys["fernet"],
        "CORE__EXECUTION_API_SERVER_URL": f"{known.url}/execution/",
        "CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in ROLES.items()),
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "API__BASE_URL": known.url,
        "API__PORT": str(known.ports["api"]),
        "API__SECRET_KEY": known.keys["secret"],
        "API_AUTH__JWT_SECRET": known.keys["jwt"],
        # One driver for both: psycopg 3, which the store uses as well.
        "DATABASE__SQL_ALCHEMY_CONN": _with_scheme("postgresql+psycopg", plan.database_url),
        "DATABASE__SQL_ALCHEMY_CONN_ASYNC": _with_scheme("postgresql+psycopg", plan.database_url),
        "LOGGING__BASE_LOG_FOLDER": str(plan.folder / "logs"),
        "LOGGING__WORKER_LOG_SERVER_PORT": str(known.ports["worker_logs"]),
        "LOGGING__TRIGGER_LOG_SERVER_PORT": str(known.ports["trigger_logs"]),
    }
    settings = {f"AIRFLOW__{name}": value for name, value in {**_SETTINGS, **own, **plan.settings}.items()}
    connections = {
        "AIRFLOW_CONN_KCR_DEFAULT": _with_scheme("kcr", plan.store_url),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(_SPARK_CONNECTION),
    }
    home = {"AIRFLOW_HOME": str(plan.folder / "home"), MARKER: str(plan.folder)}
    return {**_surroundings(), **plan.environment, **connections, **settings, **home}


def _surroundings() -> dict[str, str]:
    """The environment that programs of Spark need, without the user's own settings of Airflow."""
    inherited = {name: value for name, value in spark_environment().items() if not name.startswith("AIRFLOW")}
    # Each task is a process, or several: without cached bytecode, each would compile all that it imports.
    inherited.pop("PYTHONDONTWRITEBYTECODE", None)
    programs = os.pathsep.join([str(Path(sys.executable).parent), f"{inherited['SPARK_HOME']}/bin", inherited["PATH"]])
    jars = ",".join(str(jar) for jar in resolve(spark_connector()))
    return {**inherited, "PATH": programs, JARS_VARIABLE: jars, "PYTHONUNBUFFERED": "1", "SCARF_ANALYTICS": "false"}


def _with_scheme(scheme: str, url: str) -> str:
    return make_url(url).set(drivername=scheme).render_as_string(hide_password=False)
