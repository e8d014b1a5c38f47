"""A person's reset, in each of its phases, and a fault in it (docs/explanation/what-if.md).

Real broker, a Postgres of this file's own, three members in processes of their own with an engine without Spark. Judged
by the invariants over the history, and by counting what was written. A reset that the fault makes fail says why, has
changed nothing, and is done when it is asked for again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from airflow_kcr.api import Region, ResetView
from airflow_kcr.errors import KcrError
from airflow_kcr.protocol.region.rows import PersonResetState, RegionState
from airflow_kcr.protocol.values import RequestId
from airflow_kcr.store.schema_upgrade import upgrade
from tests.conftest import StartKafka
from tests.support.faults import Note, finished, judged, up
from tests.support.kafka import Kafka, KafkaSet
from tests.support.members import BRISK, live
from tests.support.reset_phases import (
    DONE,
    MORE,
    OTHER,
    PARTITIONS,
    PHASES,
    Scene,
    Step,
    acknowledging,
    cancelling,
    planned,
    requested,
    seeking,
    went_there,
)
from tests.support.tied import Postgres, start_postgres

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]

WITHIN = timedelta(seconds=60)
PATIENCE = 120.0
ENDED = {PersonResetState.DONE, PersonResetState.FAILED}


@dataclass(slots=True, kw_only=True)
class Stage(Scene):
    """A scene with a store that may be killed."""

    server: Postgres


# -- faults ------------------------------------------------------------------------------------------------------------


def a_member_killed(scene: Stage) -> None:
    """kill -9 of the one that is held; it comes back."""
    scene.held.kill()
    scene.one.start(0)


def two_killed(scene: Stage) -> None:
    """kill -9 of two; they come back."""
    for index in (0, 1):
        scene.members[index].kill()
    for index in (0, 1):
        scene.one.start(index)


def a_new_incarnation(scene: Stage) -> None:
    """A new incarnation takes the place of the one that is held, which lives on as a zombie."""
    index = scene.one.member(0)
    before = scene.one.region().members[index].incarnation
    scene.one.start(0, takeover=True)
    scene.one.until(lambda: scene.one.region().members[index].incarnation > before, "superseded")
    scene.goes_on()


def a_rebalance(scene: Stage) -> None:
    """A fourth member joins, and one leaves."""
    scene.one.start(3)
    scene.one.until(lambda: scene.one.member(3) in scene.one.region().members, "member 3 there")
    scene.members[2].terminate()
    scene.goes_on()


def partitions_added(scene: Stage) -> None:
    """The topic grows, and the new partitions have records."""
    total = scene.one.kafka.partitions(scene.one.topic) + 2
    scene.one.kafka.add_partitions(scene.one.topic, total)
    scene.one.kafka.fill(scene.one.topic, {total - 2: MORE, total - 1: MORE})
    scene.goes_on()


def a_broker_restart(scene: Stage) -> None:
    """The only broker is killed and comes back."""
    assert isinstance(scene.one.kafka, KafkaSet)
    scene.one.kafka.broker(1).kill()
    scene.goes_on()
    scene.one.kafka.broker(1).start()


def a_postgres_restart(scene: Stage) -> None:
    """The store is killed and comes back."""
    scene.server.kill()
    scene.goes_on()
    scene.server.start()


def a_lost_notification(scene: Stage) -> None:
    """Listeners are cut off, and hear nothing of what comes next."""
    with psycopg.connect(scene.one.url.replace("+psycopg", "")) as connection:
        checkpoint = connection.execute(
            # What a listener has asked last, before it waits.
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND query LIKE 'SELECT counter FROM kcr.region%'"
        ).fetchone()
    assert checkpoint is not None
    assert checkpoint[0] > 0
    scene.goes_on()


def the_same_again(scene: Stage) -> None:
    """A second person asks for the same."""
    scene.apply()
    scene.goes_on()


def another_target(scene: Stage) -> None:
    """A second person asks for something else."""
    scene.apply(OTHER)
    scene.goes_on()


def attempts_used_up(scene: Stage) -> None:
    """It is held for so long that the drain fails, or that the region halts; a forced reset is the answer.

    A process whose batch does not end ends itself before: then the others take its partitions over, and it is done.
    """
    first = scene.request_ids[0]

    def is_over() -> bool:
        now = scene.one.region()
        return now.state is RegionState.HALTED or now.person_resets[first].state in ENDED

    scene.one.until(is_over, "given up", PATIENCE)
    asked = scene.one.region().person_resets[first]
    scene.goes_on()
    if not scene.held.running:
        scene.one.start(0)
    if asked.state is not PersonResetState.DONE:
        assert asked.failure
        scene.apply(forced=True)


Fault = Callable[[Stage], None]
FAULTS: tuple[Fault, ...] = (
    a_member_killed,
    two_killed,
    a_new_incarnation,
    a_rebalance,
    partitions_added,
    a_broker_restart,
    a_postgres_restart,
    a_lost_notification,
    the_same_again,
    another_target,
    attempts_used_up,
)
SAMPLE: frozenset[tuple[Step, Fault]] = frozenset(
    {
        (requested, partitions_added),
        (planned, a_lost_notification),
        (cancelling, another_target),
        (seeking, a_new_incarnation),
        (acknowledging, a_postgres_restart),
    }
)
"""What an ordinary run tries: every phase once, and no fault twice."""


def combinations() -> Iterator[object]:
    for phase in PHASES:
        for fault in FAULTS:
            marks = pytest.mark.long if (phase, fault) in SAMPLE else pytest.mark.soak
            name = f"{phase.__name__}, {fault.__name__.replace('_', ' ')}"
            yield pytest.param(phase, fault, id=name, marks=marks)


# -- the region --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A Postgres that the tests of this file may kill."""
    with start_postgres(tmp_path_factory.mktemp("pg")) as one:
        yield one


@pytest.fixture
def store(server: Postgres, tmp_path: Path) -> str:
    """The address of an empty store in it."""
    server.start()
    url = server.ensure_database(f"db_{abs(hash(tmp_path.name))}")
    upgrade(url)
    return url


@pytest.mark.parametrize(("phase", "fault"), [*combinations()])
def test_a_reset_is_done_as_a_whole_or_fails_and_is_done_when_asked_again(
    kafka: Kafka,
    kafka_set: StartKafka,
    server: Postgres,
    store: str,
    tmp_path: Path,
    record_property: Note,
    phase: Step,
    fault: Fault,
) -> None:
    broker = kafka_set(1) if fault is a_broker_restart else kafka
    spec = BRISK + ("max_failures: 1\n" if fault is attempts_used_up else "")
    with ExitStack() as stack:
        one = stack.enter_context(live(broker, store, tmp_path, members=4, partitions=PARTITIONS, spec=spec))
        region = stack.enter_context(Region(one.name, one.store))
        scene = Stage(one=one, region=region, members=up(one, (0,), (1,), (2,), each=DONE), server=server)
        phase(scene)
        fault(scene)
        record_property("phase", phase.__name__)
        record_property("fault", fault.__name__)
        views = [ended(scene, request_id) for request_id in scene.request_ids]
        record_property("asked", [view.state for view in views])
        record_property("why", [view.asked.failure for view in views if view.asked is not None and view.asked.failure])
        if views[-1].state != "done":
            again(scene)
        one.until(one.runs, "running")
        finished(one, 90)
        assert went_there(scene)
        judged(one, record_property)


def ended(scene: Stage, request_id: RequestId) -> ResetView:
    """Wait until a reset is done or has failed, and return it; a store or broker that is away has no answer to that."""

    def is_ended() -> bool:
        try:
            return scene.one.region().person_resets[request_id].state in ENDED
        except KcrError:
            return False

    scene.one.until(is_ended, f"reset {request_id} done or failed", PATIENCE)
    view = scene.region.resets.applied(request_id)
    assert view is not None
    return view


def again(scene: Stage) -> None:
    """Ask again until it is done, as a person would who is told why it was not; what changed meanwhile is looked at.

    A plan that is made now shows the partitions that were added, at their beginning: `to-offset` would step over what
    they have, and say so. So the person waits until that is processed.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        scene.one.until(scene.one.runs, "running")
        scene.one.until(scene.one.consumed, "consumed", PATIENCE)
        try:
            scene.apply()
        except KcrError:
            assert time.monotonic() < deadline
            continue
        if ended(scene, scene.request_ids[-1]).state == "done":
            return
        assert time.monotonic() < deadline
