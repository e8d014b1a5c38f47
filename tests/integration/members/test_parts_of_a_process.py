"""The parts of a member's process that are replaced while it goes on, killed or frozen in each state of the member.

They are the child that asks brokers, and the connection that listens to the store. Spark's parts, which end a member or
are replaced by Spark, are in `tests/integration/spark/test_parts_that_die.py`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import psycopg
import pytest

from tests.support.databases import libpq
from tests.support.faults import Note, finished, held_at, judged, resets, up
from tests.support.members import Lend, Live, Process

WITHIN = 120.0

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


def broker_child(one: Live, process: Process) -> int:
    """The child that asks brokers."""
    children = psutil.Process(process.process.pid).children()
    (found,) = [child.pid for child in children if "airflow_kcr.kafka.admin_child" in child.cmdline()]
    return found


def listening_connection(one: Live, process: Process) -> int:
    """The server's end of the connection that listens, which reads the region's counter before it waits."""
    listening = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE %s"
    found: list[int] = []

    def is_found() -> bool:
        with psycopg.connect(libpq(one.url)) as connection:
            found[:] = [pid for (pid,) in connection.execute(listening, ["SELECT counter FROM kcr.region%"]).fetchall()]
        return len(found) == 1

    one.until(is_found, "listening", WITHIN)
    return found[0]


def killed(one: Live, part: int) -> None:
    """It is gone at once; the server's end as an administrator ends it, as a killed one takes the whole server down."""
    if psutil.Process(part).name().startswith("postgres"):
        with psycopg.connect(libpq(one.url)) as connection:
            connection.execute("SELECT pg_terminate_backend(%s)", [part])
    else:
        os.kill(part, signal.SIGKILL)


def frozen(one: Live, part: int) -> None:
    """It stays, and does nothing."""
    os.kill(part, signal.SIGSTOP)


@pytest.fixture
def thawed() -> Iterator[list[int]]:
    """Processes to thaw at the end: a server does not stop before they end."""
    stopped: list[int] = []
    yield stopped
    for one in stopped:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGCONT)


@pytest.mark.parametrize("how", [killed, frozen], ids=lambda how: how.__name__)
@pytest.mark.parametrize("gate", [pytest.param("", id="idle"), "processing", "contributing", "resetting"])
@pytest.mark.parametrize("part", [broker_child, listening_connection], ids=lambda part: part.__name__)
def test_a_part_is_replaced_and_its_member_goes_on(
    lend: Lend,
    thawed: list[int],
    part: Callable[[Live, Process], int],
    gate: str,
    how: Callable[[Live, int], None],
    record_property: Note,
) -> None:
    with lend(members=1, partitions=2) as one:
        (process,) = up(one, (0,))
        if gate:
            held_at(one, gate, process, within=WITHIN)
        victim = part(one, process)
        thawed.append(victim)
        how(one, victim)
        if gate:
            process.open(gate)
        one.fill(60)
        finished(one, WITHIN)
        assert process.running
        assert one.region().members[one.member(0)].incarnation == 1
        assert len(resets(one)) == (1 if gate == "resetting" else 0)
        if part is broker_child:
            assert broker_child(one, process) != victim
        judged(one, record_property)
