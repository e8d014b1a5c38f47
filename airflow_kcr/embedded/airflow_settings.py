"""What an embedded Airflow gets through its environment, and the secrets, ports and passwords that its folder keeps.

Everything goes by the environment, so no file of Airflow's own has to be written and a setting of the user's
`airflow.cfg` can't get in. Secrets are made once for a folder: a token, or a connection in its database, is good after
a restart too.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from sqlalchemy.engine import URL, make_url

from airflow_kcr.embedded.jars import resolve, spark_connector
from airflow_kcr.embedded.processes import free_port
from airflow_kcr.embedded.spark import environment as spark_environment

ROLES: Final[Mapping[str, str]] = {"viewer": "viewer", "editor": "user", "admin": "admin"}
"""The users and their roles in Airflow's simple auth manager."""

MARKER: Final = "KCR_AIRFLOW_FOLDER"
"""The environment variable by which everything that an Airflow has started is recognised."""

JARS_VARIABLE: Final = "KCR_SPARK_JARS"
"""The environment variable with the jars of Spark's Kafka connector, separated by commas, for `--jars`."""

_PORTS: Final = ("api", "worker_logs", "trigger_logs")

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
    "LOGGING__LOGGING_LEVEL": "INFO",
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
    users: tuple[User, ...] = field(repr=False)
    keys: Mapping[str, str] = field(repr=False)

    @property
    def url(self) -> str:
        """Where people and programs reach it."""
        return f"http://127.0.0.1:{self.ports['api']}"


def kept(folder: Path) -> Kept:
    """Return the content of a folder's file, created if it is new; only its owner may read the file."""
    path = folder / "airflow.json"
    if not path.exists():
        made = {
            "ports": {name: free_port() for name in _PORTS},
            "passwords": {name: secrets.token_urlsafe(9) for name in ROLES},
            "keys": {
                "fernet": urlsafe_b64encode(secrets.token_bytes(32)).decode(),
                "secret": secrets.token_urlsafe(32),
                "jwt": secrets.token_urlsafe(48),
            },
        }
        write_private(path, json.dumps(made))
    found = json.loads(path.read_text(encoding="utf-8"))
    users = tuple(User(name, role, found["passwords"][name]) for name, role in ROLES.items())
    return Kept(ports=found["ports"], users=users, keys=found["keys"])


def environment(plan: AirflowPlan, known: Kept) -> dict[str, str]:
    """Return the environment of Airflow's processes, with which any `airflow` command finds this one too.

    Raises:
        ServiceFailed: the connector of Spark can't be downloaded.
        ToolMissing: Java or PySpark is missing.
    """
    passwords = plan.folder / "passwords.json"
    write_private(passwords, json.dumps({user.name: user.password for user in known.users}))
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
        "DATABASE__SQL_ALCHEMY_CONN": _for_airflow(plan.database_url),
        "DATABASE__SQL_ALCHEMY_CONN_ASYNC": _for_airflow(plan.database_url),
        "LOGGING__RESTORE_POINT_LOG_FOLDER": str(plan.folder / "logs"),
        "LOGGING__WORKER_LOG_SERVER_PORT": str(known.ports["worker_logs"]),
        "LOGGING__TRIGGER_LOG_SERVER_PORT": str(known.ports["trigger_logs"]),
    }
    told = {f"AIRFLOW__{name}": value for name, value in {**_SETTINGS, **own, **plan.settings}.items()}
    return {**_surroundings(), **plan.environment, **_connections(plan), **told, **_of_folder(plan.folder)}


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(text, encoding="utf-8")


def _surroundings() -> dict[str, str]:
    """The environment that programs of Spark need, without the user's own settings of Airflow."""
    inherited = {name: value for name, value in spark_environment().items() if not name.startswith("AIRFLOW")}
    # Each task is a process, or several: without cached bytecode, each would compile all that it imports.
    inherited.pop("PYTHONDONTWRITEBYTECODE", None)
    programs = os.pathsep.join([str(Path(sys.executable).parent), f"{inherited['SPARK_HOME']}/bin", inherited["PATH"]])
    jars = ",".join(str(jar) for jar in resolve(spark_connector()))
    return {**inherited, "PATH": programs, JARS_VARIABLE: jars, "PYTHONUNBUFFERED": "1", "SCARF_ANALYTICS": "false"}


def _connections(plan: AirflowPlan) -> dict[str, str]:
    store = make_url(plan.store_url)
    host = store.host or store.query.get("host")
    kcr: dict[str, object] = {
        "conn_type": "kcr",
        "host": host,
        "port": store.port,
        "schema": store.database,
        "login": store.username,
        "password": store.password,
    }
    spark: dict[str, object] = {"conn_type": "spark", "host": "local[*]", "extra": {"deploy-mode": "client"}}
    found: dict[str, dict[str, object]] = {"KCR_DEFAULT": kcr, "SPARK_DEFAULT": spark}
    return {f"AIRFLOW_CONN_{name}": json.dumps({k: v for k, v in one.items() if v}) for name, one in found.items()}


def _of_folder(folder: Path) -> dict[str, str]:
    return {"AIRFLOW_HOME": str(folder / "home"), MARKER: str(folder)}


def _for_airflow(url: str) -> str:
    parsed: URL = make_url(url).set(drivername="postgresql+psycopg")
    return parsed.render_as_string(hide_password=False)
