"""A replica of the store takes over under running members, with all that was committed and without the last of it.

Real broker, two Postgres of each test's own, one streaming from the other; the members' address names both, as
libpq has it. Nothing is simulated: the primary is killed, the replica promoted.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from airflow_kcr.embedded.processes import happened
from airflow_kcr.embedded.servers import UNSAFE_BUT_FAST, USER
from airflow_kcr.errors import StoreUnavailable
from airflow_kcr.protocol.region.rows import HaltReason, RegionState
from airflow_kcr.store.postgres.connections import server_at
from airflow_kcr.store.schema_upgrade import upgrade
from tests.support.driver import START
from tests.support.faults import Note, finished, judged, needless, resets, runs
from tests.support.kafka import Kafka
from tests.support.members import Live, live
from tests.support.tied import Postgres, start_postgres
from tests.support.wire import Wire, wire_to

pytestmark = [pytest.mark.timeout(300), pytest.mark.postgres, pytest.mark.long]

WAITS_FOR_THE_REPLICA = {**UNSAFE_BUT_FAST, "synchronous_standby_names": "*", "synchronous_commit": "on"}
"""A COMMIT is answered when the replica has it too, so that none is lost with the primary."""


@dataclass(slots=True, kw_only=True)
class Pair:
    """A primary, and the replica that streams from it."""

    primary: Postgres
    replica: Postgres
    wire: Wire
    """Between the two."""

    def url(self, database: str) -> str:
        """The address of both, of which the one that takes writes is used."""
        ports = f"{self.primary.port},{self.replica.port}"
        return (
            f"postgresql+psycopg://{USER}@/{database}?host=127.0.0.1,127.0.0.1&port={ports}"
            "&target_session_attrs=read-write&connect_timeout=5"
        )

    def fail_over(self) -> None:
        """Kill the primary, and have the replica take over with what it has."""
        self.primary.kill()
        with psycopg.connect(self.replica.url(), autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")


@contextmanager
def pair(folder: Path, settings: dict[str, str]) -> Iterator[Pair]:
    """Lend a primary under these settings, and its replica."""
    # The primary waits for a replica only from when there is one.
    primary = start_postgres(folder / "primary", settings=UNSAFE_BUT_FAST)
    with wire_to(primary.port) as wire:
        replica = replicated(primary, wire, folder / "replica")
        try:
            primary.stop()
            primary.settings = settings
            primary.start()
            yield Pair(primary=primary, replica=replica, wire=wire)
        finally:
            replica.stop()
            primary.stop()


def replicated(primary: Postgres, wire: Wire, folder: Path) -> Postgres:
    """Start a replica of a primary, which it reaches by a wire."""
    programs, user = primary._prepare()
    data = folder / "data"
    folder.mkdir()
    source = ["-h", "127.0.0.1", "-p", str(wire.port), "-U", USER]
    copy = [str(programs / "pg_basebackup"), "-D", str(data), "-R", "-X", "stream", "-c", "fast", *source]
    subprocess.run(copy, check=True, capture_output=True, timeout=60)
    if user is not None:
        for path in (data, *data.rglob("*")):
            shutil.chown(path, user)
    return start_postgres(folder)


def up(region: Live) -> None:
    """Start three members that share the partitions and have processed something."""
    region.start(0, 1, 2)
    region.fill(50)
    region.shared(0, 1, 2)
    finished(region)


def test_members_go_on_at_a_replica_that_has_every_commit(kafka: Kafka, tmp_path: Path, record_property: Note) -> None:
    with pair(tmp_path / "servers", WAITS_FOR_THE_REPLICA) as servers:
        servers.primary.ensure_database("kcr")
        upgrade(servers.primary.url("kcr"))
        with live(kafka, servers.url("kcr"), tmp_path) as region:
            up(region)
            before = len(resets(region))
            region.fill(1500)
            region.until(lambda: len(region.written()) > 1000, "in the middle")
            servers.fail_over()
            region.until(lambda: runs(region), "running again, at the replica")
            finished(region)
            assert region.region().halt is None
            assert needless(region, before) == []
            assert region.processes[0].running
            judged(region, record_property)


def test_a_replica_without_the_last_commits_halts_the_region_until_a_person_resumes_it(
    kafka: Kafka, tmp_path: Path
) -> None:
    with pair(tmp_path / "servers", dict(UNSAFE_BUT_FAST)) as servers:
        servers.primary.ensure_database("kcr")
        upgrade(servers.primary.url("kcr"))
        with live(kafka, servers.url("kcr"), tmp_path) as region:
            up(region)
            first = region.checkpoint()
            region.until(lambda: region.is_committed(first.request_id), "committed")
            replays(servers)
            servers.wire.sever()
            region.fill(50)
            second = region.checkpoint()
            region.until(lambda: region.is_committed(second.request_id), "committed, and lost with the primary")
            lost = region.region()
            servers.fail_over()
            region.until(lambda: region.region().halt is not None, "halted")
            halted = region.region()
            assert halted.halt is not None
            assert halted.halt.reason is HaltReason.RESTORED
            assert any(choice.startswith("resume: ") for choice in halted.halt.choices)
            # Nothing of what a member or Kafka says is believed until a person resumes the region.
            assert halted.restore_sequence != lost.restore_sequence
            region.handle(START)
            region.until(lambda: runs(region), "running, from what the replica has")
            resumed = region.region()
            assert resumed.timeline > lost.timeline
            assert resumed.epoch > lost.epoch
            region.fill(50)
            region.until(region.consumed, "everything consumed")
            third = region.checkpoint()
            region.until(lambda: region.is_committed(third.request_id), "committed")
            assert region.region().state is RegionState.RUNNING


def test_a_replica_that_only_reads_is_refused_with_what_to_change(tmp_path: Path) -> None:
    with pair(tmp_path / "servers", dict(UNSAFE_BUT_FAST)) as servers:
        servers.primary.ensure_database("kcr")
        upgrade(servers.primary.url("kcr"))
        replays(servers)
        assert server_at(servers.replica.url("kcr")).is_standby
        with pytest.raises(StoreUnavailable, match="read-only, as a standby is; give the address of the primary"):
            upgrade(servers.replica.url("kcr"))
        # The way out that the message names.
        assert not server_at(servers.url("kcr")).is_standby


def replays(servers: Pair) -> None:
    """Wait until the replica has all that the primary has."""
    with (
        psycopg.connect(servers.primary.url(), autocommit=True) as primary,
        psycopg.connect(servers.replica.url(), autocommit=True) as replica,
    ):
        place = primary.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        has = "SELECT pg_last_wal_replay_lsn() >= CAST(%s AS pg_lsn)"
        assert happened(lambda: replica.execute(has, place).fetchone() == (True,), within=60)
