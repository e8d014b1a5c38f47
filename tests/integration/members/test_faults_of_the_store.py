"""Faults of the store under running members: it dies, is away, hangs, or loses its last word.

Real broker, a Postgres of this file's own, members in processes of their own with an engine without Spark. Judged by
the invariants over the history, and by counting what was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import ResetCause
from airflow_kcr.store.schema_upgrade import upgrade
from tests.support.breaking_proxy import Break, breaking_proxy
from tests.support.faults import Note, finished, group_size, judged, needless, owners, resets, runs, said
from tests.support.kafka import Kafka
from tests.support.members import Live, Process, live
from tests.support.tied import Postgres, start_postgres
from tests.support.wire import wire_to

pytestmark = [pytest.mark.timeout(240), pytest.mark.postgres]


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
    members = [region.start(index, store="".join(stores[index : index + 1])) for index in range(3)]
    region.fill(50)
    region.shared(0, 1, 2)
    finished(region)
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
    region.until(lambda: runs(region), "running again")
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
        region.until(lambda: runs(region) and region.consumed(), "everything consumed by the others")
        assert {c.owner.index for c in region.region().claims.values() if c.owner is not None} == {1, 2}
        wire.mend()
        region.until(lambda: 0 in owners(region), "member 0 with partitions of its own again")
        region.fill(100)
        finished(region)
        now.came_through(record_property)


def test_lost_answers_to_commits_change_nothing(
    kafka: Kafka, database_url: str, tmp_path: Path, record_property: Note
) -> None:
    with breaking_proxy(database_url) as (proxy, through), live(kafka, database_url, tmp_path) as region:
        region.fill(500)
        address = through.render_as_string(hide_password=False)
        region.start(0, 1, 2, store=address)
        finished(region)
        before = len(resets(region))
        for number in range(12):
            region.fill(50)
            proxy.break_next(Break.AFTER if number % 2 else Break.BEFORE)
            region.until(lambda wanted=number + 1: proxy.breaks >= wanted, f"answer {number + 1} lost")  # type: ignore[misc]
        finished(region)
        record_property("answers lost", proxy.breaks)
        judged(region, record_property)
        assert len(resets(region)) == before
