"""A disk that is full while members work: the store's, that of a table and its staging tables, that of files.

Real broker, real store, real table; a real file system that is small, so what fails is the write itself. Members in
processes of their own with an engine without Spark.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from airflow_kcr.protocol.rules import Delivery
from tests.support.delivery_faults import AT_MOST, SPEC, Scene, scene
from tests.support.delivery_servers import Servers, noted
from tests.support.faults import Note, resets, said
from tests.support.kafka import Kafka
from tests.support.tied import Postgres

pytestmark = [pytest.mark.long, pytest.mark.timeout(400), pytest.mark.postgres]

SMALL = SPEC.replace("min_records: 50, max_records: 500", "min_records: 5, max_records: 20")
"""Many batches, so that whatever is written needs more room soon."""

FILLER = "filler"
BLOCK = b"\0" * 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A small file system."""

    path: Path

    def fill(self) -> None:
        """Leave no block free."""
        descriptor = os.open(self.path / FILLER, os.O_WRONLY | os.O_CREAT)
        try:
            while True:
                os.write(descriptor, BLOCK)
        except OSError:
            return
        finally:
            os.close(descriptor)

    def free(self) -> None:
        """Give back what `fill` has taken."""
        (self.path / FILLER).unlink()

    def holds(self, server: Postgres) -> None:
        """Have a server keep the tables of its database here, those that there are and those to come."""
        folder = self.path / "tables"
        folder.mkdir(mode=0o700)
        os.chown(folder, server.data.stat().st_uid, server.data.stat().st_gid)
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE TABLESPACE small LOCATION {}").format(sql.Literal(str(folder))))
            connection.execute("ALTER TABLE ALL IN TABLESPACE pg_default SET TABLESPACE small")
            connection.execute("ALTER ROLE CURRENT_USER SET default_tablespace = 'small'")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A file system of 24 MiB, in memory."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m,mode=755", "tmpfs", str(path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield Disk(path=path)
    # Lazily: a server that is just being stopped may still have files open.
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def fills_up(now: Scene, disk: Disk, words: str) -> None:
    """Fill the disk under members at work, until one says so; then make room, and let everything be processed."""
    disk.fill()
    now.one.fill(1000)
    processes = (now.victim, now.other)
    now.one.until(lambda: any(said(process, words) for process in processes), f"a member says: {words}", AT_MOST)
    disk.free()


@pytest.mark.parametrize("where", ["store", "target", "files"])
def test_a_full_disk_is_named_and_costs_no_record(
    kafka: Kafka, servers: Servers, tmp_path: Path, disk: Disk, record_property: Note, where: str
) -> None:
    target: str | Path = servers.target.url()
    if where == "files":
        target = disk.path / "files"
    else:
        disk.holds({"store": servers.store, "target": servers.target}[where])
    words = "No space left on device" if where == "files" else "the server's disk is full"
    with scene(kafka, servers.store.url(), target, Delivery.EXACTLY_ONCE, tmp_path / "region", SMALL) as now:
        now.begins()
        fills_up(now, disk, words)
        now.is_over("full disk", where)
        noted(now.rows, record_property)
        (row,) = now.rows
        assert (row.found.lost, row.found.lost_in_table, row.found.twice_in_table) == (0, 0, 0)
        record_property("resets", [str(body.cause) for body in resets(now.one)])
        assert now.victim.running
        assert now.other.running
