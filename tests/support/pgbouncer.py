"""PgBouncer before the test server, which pools by transaction where nothing else is said: as many have it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from airflow_kcr.embedded.processes import free_port
from tests.support.server_process import listening

BINARY = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")

needs_pgbouncer = pytest.mark.skipif(BINARY is None, reason="pgbouncer is not installed: apt-get install pgbouncer")


@contextmanager
def pooled(url: str, folder: Path, *settings: str, connect_query: str = "") -> Iterator[str]:
    """The URL of a database through a PgBouncer of its own.

    Args:
        url: the database itself, on a Unix socket, or by a host and port.
        folder: for its files; the user that it runs as may read it.
        settings: lines of its configuration.
        connect_query: what it runs on each new connection to the server.
    """
    target, port = make_url(url), free_port()
    where = f"host={target.host} port={target.port}" if target.host else f"host={target.query['host']}"
    first = f" connect_query='{connect_query}'" if connect_query else ""
    lines = (
        "[databases]",
        f"{target.database} = {where} user=postgres{first}",
        "[pgbouncer]",
        "listen_addr = 127.0.0.1",
        f"listen_port = {port}",
        "unix_socket_dir =",
        "auth_type = any",
        "pool_mode = transaction",
        *settings,
    )
    config = folder / "pgbouncer.ini"
    config.write_text("\n".join(lines) + "\n")
    for path in (folder, *list(folder.parents)[:2]):
        path.chmod(path.stat().st_mode | 0o011)
    # It does not run as root, and the server's socket is for the server's own user.
    owner = Path(str(target.query["host"])).owner() if "host" in target.query else "nobody"
    user = ("-u", owner) if os.getuid() == 0 else ()
    with listening([str(BINARY), *user, str(config)], port, folder / "pgbouncer.log"):
        yield f"postgresql+psycopg://postgres@127.0.0.1:{port}/{target.database}"
