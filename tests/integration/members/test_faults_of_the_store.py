"""Faults of the store under running members: it dies, is away, hangs, loses its last word, or its replica takes over.

Real broker, Postgres of this file's own, members in processes of their own with an engine without Spark. Judged by the
invariants over the history, and by counting what was written. Of a primary and its replica nothing is simulated: one
streams from the other, the members' address names both, the primary is killed and the replica promoted."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from airflow_kcr.embedded.processes import happened
from airflow_kcr.embedded.servers import UNSAFE_BUT_FAST, USER
from airflow_kcr.errors import StoreUnavailable
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import HaltReason, RegionState, ResetCause
from airflow_kcr.store.postgres.connections import server_at
from airflow_kcr.store.schema_upgrade import upgrade
from tests.support.breaking_proxy import Break, BreakingProxy, breaking_proxy, wire_to
from tests.support.databases import execute
from tests.support.driver import START
from tests.support.faults import Note, finished, group_size, halted, judged, needless, owners, resets, said, up
from tests.support.kafka import Kafka
from tests.support.members import QUICK, Lend, Live, Process, live
from tests.support.tied import Postgres, start_postgres

pytestmark = [pytest.mark.timeout(300), pytest.mark.postgres]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A Postgres that the tests of this file may stop, kill and suspend."""
    one = start_postgres(tmp_path_factory.mktemp("pg"))
    yield one
    one.resume()
    one.stop()


@pytest.fixture
def region(kafka: Kafka, server: Postgres, tmp_path: Path) -> Iterator[Live]:
    """A started region of three members over six partitions, in a database of its own."""
    server.resume()
    server.start()
    url = server.ensure_database(f"db_{tmp_path.name.replace('-', '_')}")
    upgrade(url)
    with live(kafka, url, tmp_path) as one:
        yield one


@dataclass(slots=True, kw_only=True)
class Busy:
    """Three members in the middle of their work, and the resets that it took to come there."""

    region: Live
    members: list[Process]
    before: int

    @property
    def resets(self) -> list[events.ResetBegun]:
        """The resets since."""
        return resets(self.region)[self.before :]

    def came_through(self, note: Note) -> None:
        """Judge: all run, and what they reset beyond the fault and the assignments since is nothing."""
        assert all(member.running for member in self.members)
        assert needless(self.region, self.before) == []
        judged(self.region, note)


def busy(region: Live, *stores: str) -> Busy:
    """Start the members, let them share the partitions, and give them work that they are in the middle of.

    Args:
        region: of three members.
        stores: by which address each of them reaches the store; absent: the region's own.
    """
    members = up(region, (0,), (1,), (2,), each=50, stores=stores)
    one = Busy(region=region, members=members, before=len(resets(region)))
    region.fill(1500)
    region.until(lambda: len(region.written()) > 1000, "in the middle")
    return one


def newly_said(processes: list[Process], text: str) -> Callable[[], bool]:
    """Return whether each of these processes has said something once more."""
    before = {id(process): said(process, text) for process in processes}
    return lambda: all(said(process, text) > before[id(process)] for process in processes)


def at_once(now: Busy) -> Callable[[], bool]:
    return lambda: True


def leases_are_over(now: Busy) -> Callable[[], bool]:
    return newly_said(now.members, "now joining")


def all_have_left(now: Busy) -> Callable[[], bool]:
    return lambda: group_size(now.region.kafka, now.region.group) == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("goes", "until", "comes"),
    [
        pytest.param(Postgres.kill, at_once, Postgres.start, id="killed"),
        pytest.param(Postgres.stop, at_once, Postgres.start, id="stopped"),
        pytest.param(Postgres.stop, leases_are_over, Postgres.start, id="away for a lease"),
        pytest.param(Postgres.stop, all_have_left, Postgres.start, id="away until all have left"),
        pytest.param(Postgres.suspend, leases_are_over, Postgres.resume, id="hung for a lease"),
    ],
)
def test_all_members_come_back_by_themselves_when_the_store_was_away(
    region: Live,
    server: Postgres,
    record_property: Note,
    goes: Callable[[Postgres], None],
    until: Callable[[Busy], Callable[[], bool]],
    comes: Callable[[Postgres], None],
) -> None:
    now = busy(region)
    is_over = until(now)
    goes(server)
    region.until(is_over, "the outage over", 30)
    comes(server)
    region.until(region.runs, "running again")
    finished(region)
    now.came_through(record_property)


@pytest.mark.long
def test_members_that_come_back_one_by_one_cost_at_most_one_reset(
    region: Live, server: Postgres, record_property: Note
) -> None:
    with wire_to(server.port) as first, wire_to(server.port) as second, wire_to(server.port) as third:
        wires = (first, second, third)
        now = busy(region, *(region.url.replace(f":{server.port}/", f":{wire.port}/") for wire in wires))
        for wire in wires:
            wire.sever()
        region.until(lambda: group_size(region.kafka, region.group) == 0, "all out of the group", 40)
        for index, wire in enumerate(wires):
            wire.mend()
            region.until(lambda least=index + 1: len(owners(region)) >= least, f"{index + 1} of them back")  # type: ignore[misc]
            region.fill(100)
            region.until(region.consumed, "everything consumed, so that each has begun something")
        finished(region)
        assert [body.cause for body in now.resets] in ([], [ResetCause.CLAIM])
        assert region.region().failures == 0
        now.came_through(record_property)


@pytest.mark.long
@pytest.mark.parametrize("how", ["freeze", "sever"])
def test_a_member_that_alone_can_not_reach_the_store_leaves_and_the_others_go_on_without_it(
    region: Live, server: Postgres, record_property: Note, how: str
) -> None:
    with wire_to(server.port) as wire:
        through = region.url.replace(f":{server.port}/", f":{wire.port}/")
        now = busy(region, through)
        if how == "freeze":
            wire.freeze()
        else:
            wire.sever()
        region.until(lambda: group_size(region.kafka, region.group) == 2, "member 0 out of the group", 40)
        region.fill(100)
        region.until(lambda: region.runs() and region.consumed(), "everything consumed by the others")
        assert {c.owner.index for c in region.region().claims.values() if c.owner is not None} == {1, 2}
        wire.mend()
        region.until(lambda: 0 in owners(region), "member 0 with partitions of its own again")
        region.fill(100)
        finished(region)
        now.came_through(record_property)


@pytest.mark.long
def test_lost_answers_to_commits_change_nothing(lend: Lend, database_url: str, record_property: Note) -> None:
    with breaking_proxy(database_url) as (proxy, through), lend(spec=QUICK) as region:
        up(region, (0, 1, 2), each=500, stores=[through.render_as_string(hide_password=False)])
        before = len(resets(region))
        for number in range(12):
            region.fill(50)
            proxy.break_next(Break.AFTER if number % 2 else Break.BEFORE)
            region.until(lambda wanted=number + 1: proxy.breaks >= wanted, f"answer {number + 1} lost")  # type: ignore[misc]
        finished(region)
        record_property("answers lost", proxy.breaks)
        judged(region, record_property)
        assert len(resets(region)) == before


# -- a replica ---------------------------------------------------------------------------------------------------------

WAITS_FOR_THE_REPLICA = {**UNSAFE_BUT_FAST, "synchronous_standby_names": "*", "synchronous_commit": "on"}
"""A COMMIT is answered when the replica has it too, so that none is lost with the primary."""


@dataclass(slots=True, kw_only=True)
class Pair:
    """A primary, and the replica that streams from it."""

    primary: Postgres
    replica: Postgres
    wire: BreakingProxy
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
        execute(self.replica.url(), "SELECT pg_promote()")


@contextmanager
def pair(folder: Path, settings: dict[str, str]) -> Iterator[Pair]:
    """Lend a primary under these settings, and its replica."""
    # The primary waits for a replica only from when there is one.
    with (
        start_postgres(folder / "primary", settings=UNSAFE_BUT_FAST) as primary,
        wire_to(primary.port) as wire,
        replicated(primary, wire, folder / "replica") as replica,
    ):
        primary.stop()
        primary.settings = settings
        primary.start()
        primary.ensure_database("kcr")
        upgrade(primary.url("kcr"))
        yield Pair(primary=primary, replica=replica, wire=wire)


def replicated(primary: Postgres, wire: BreakingProxy, folder: Path) -> Postgres:
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


@pytest.mark.long
def test_members_go_on_at_a_replica_that_has_every_commit(kafka: Kafka, tmp_path: Path, record_property: Note) -> None:
    with (
        pair(tmp_path / "servers", WAITS_FOR_THE_REPLICA) as servers,
        live(kafka, servers.url("kcr"), tmp_path) as region,
    ):
        up(region, (0, 1, 2), each=50)
        before = len(resets(region))
        region.fill(1500)
        region.until(lambda: len(region.written()) > 1000, "in the middle")
        servers.fail_over()
        region.until(region.runs, "running again, at the replica")
        finished(region)
        assert region.region().halt is None
        assert needless(region, before) == []
        assert region.processes[0].running
        judged(region, record_property)


@pytest.mark.long
def test_a_replica_without_the_last_commits_halts_the_region_until_a_person_resumes_it(
    kafka: Kafka, tmp_path: Path
) -> None:
    with (
        pair(tmp_path / "servers", dict(UNSAFE_BUT_FAST)) as servers,
        live(kafka, servers.url("kcr"), tmp_path) as region,
    ):
        up(region, (0, 1, 2), each=50)
        region.checkpoint()
        replays(servers)
        servers.wire.sever()
        region.fill(50)
        region.checkpoint()  # committed, and lost with the primary
        lost = region.region()
        servers.fail_over()
        halt = halted(region)
        assert halt.reason is HaltReason.RESTORED
        assert any(choice.startswith("resume: ") for choice in halt.choices)
        # Nothing of what a member or Kafka says is believed until a person resumes the region.
        assert region.region().restore_sequence != lost.restore_sequence
        region.handle(START)
        region.until(region.runs, "running, from what the replica has")
        resumed = region.region()
        assert resumed.timeline > lost.timeline
        assert resumed.epoch > lost.epoch
        region.fill(50)
        region.until(region.consumed, "everything consumed")
        region.checkpoint()
        assert region.region().state is RegionState.RUNNING


@pytest.mark.long
def test_a_replica_that_only_reads_is_refused_with_what_to_change(tmp_path: Path) -> None:
    with pair(tmp_path / "servers", dict(UNSAFE_BUT_FAST)) as servers:
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
