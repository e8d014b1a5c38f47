from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from airflow.sdk import Asset

from airflow_kcr.airflow_features import CHECKPOINT_KEYS
from airflow_kcr.errors import InvalidIdentifier
from airflow_kcr.hooks import compat
from airflow_kcr.hooks.assets import region_asset
from airflow_kcr.operators.checkpoint import KcrCommitCheckpointOperator
from airflow_kcr.protocol.region.rows import Checkpoint, Committed, Requester
from airflow_kcr.protocol.values import Offset
from airflow_kcr.runtime.leases import read_note
from airflow_kcr.triggers.waits import RegionTrigger
from tests.support.airflow_tasks import FakeTask, deferred, keys_of, resumed, task_context
from tests.support.driver import Driver
from tests.support.live_region import FakeCluster
from tests.support.scripts import boundary, located

if TYPE_CHECKING:
    from airflow.sdk import Context

Json: TypeAlias = dict[str, Any]

RUN = Requester(who="airflow", dag_id="flights_checkpoint", run_id="run-1")


@pytest.fixture
def driver(driver: Driver) -> Driver:
    driver.up()
    driver.process()
    return driver


REPORT = Asset(name="report", uri="file:///report")


def operator(**changed: Any) -> KcrCommitCheckpointOperator:  # noqa: ANN401
    return KcrCommitCheckpointOperator(**{"task_id": "commit", "region": "flights", **changed})


def context() -> Context:
    return task_context(FakeTask(task_id="commit", run_id="run-1"))


def told(driver: Driver, request_id: str = "n") -> int:
    """Make a checkpoint for the run, published, of which Kafka has not answered yet."""
    driver.request_checkpoint(request_id, requester=RUN)
    sequence = driver.complete()
    driver.publish()
    return sequence


def read_back(driver: Driver) -> None:
    for member in sorted(driver.processes):
        driver.read_back(member)


def restore_point(driver: Driver) -> Checkpoint:
    """The region's restore point."""
    region = driver.region
    assert region.restore_sequence is not None
    return region.checkpoints[region.restore_sequence]


def emitted(found: Context) -> tuple[Json, set[str]]:
    """The extra and the partition keys of the region's event."""
    event = found["outlet_events"][region_asset("flights")]
    return dict(event.extra), keys_of(event)


def test_a_committed_checkpoint_of_this_run_is_told_at_once(driver: Driver) -> None:
    sequence = told(driver)
    read_back(driver)
    found = context()
    answer = operator().execute(found)
    row = restore_point(driver)
    timeline = driver.region.timeline
    assert answer == {
        "region": "flights",
        "timeline": timeline,
        "sequence": sequence,
        "boundary": None,
        "inexact": False,
        "revision": 0,
    }
    extra = {
        "region": "flights",
        "region_id": driver.region.region_id,
        "timeline": timeline,
        "sequence": sequence,
        "boundary": None,
        "digest": row.digest,
    }
    assert emitted(found) == (extra, {f"{timeline:06d}.{sequence:010d}"})


def test_where_events_have_no_keys_their_extra_names_the_checkpoint(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(compat.HAS, CHECKPOINT_KEYS, False)
    sequence = told(driver)
    read_back(driver)
    found = context()
    operator().execute(found)
    event = found["outlet_events"][region_asset("flights")]
    assert event.extra["sequence"] == sequence
    assert not getattr(event, "partition_keys", None)


def test_of_several_runs_that_one_checkpoint_answers_only_the_first_emits_its_event(driver: Driver) -> None:
    hour = boundary(1)
    located(driver, hour, 10)
    first_run = Requester(who="airflow", dag_id="flights_checkpoint", run_id="run-0")
    driver.request_checkpoint("the first", boundary=hour, requester=first_run)
    sequence = driver.complete()
    driver.publish()
    read_back(driver)
    # An interval from before the region's first checkpoint: that checkpoint answers it too.
    asked = driver.request_checkpoint("n", boundary=hour - timedelta(minutes=5), requester=RUN)
    assert asked.sequence == sequence
    later, again = context(), operator(outlets=[REPORT])
    assert again.execute(later)["sequence"] == sequence
    assert emitted(later) == ({}, set())
    # Of an outlet without an event of its own Airflow emits an empty one.
    assert again.outlets == [REPORT]
    first = task_context(FakeTask(task_id="commit", run_id="run-0"))
    assert operator().execute(first)["sequence"] == sequence
    assert len(emitted(first)[1]) == 1


def test_publication_and_commit_read_back_are_waited_for_without_a_slot_and_those_who_are_late_are_named(
    driver: Driver,
) -> None:
    sequence = told(driver)
    driver.read_back(driver.member(0))
    waiting = deferred(operator(), context())
    trigger = waiting.trigger
    assert isinstance(trigger, RegionTrigger)
    assert trigger.waiting_for == {"kind": "checkpoint_committed", "sequence": sequence}
    with pytest.raises(AirflowException, match=r"outstanding for 2 partition\(s\), g:t-2 first, held by g\[1\]"):
        operator(deferrable=False, timeout=timedelta(milliseconds=100)).execute(context())
    driver.read_back(driver.member(1))
    found = context()
    assert resumed(operator(), waiting, found)["sequence"] == sequence
    assert emitted(found)[1]


def test_a_checkpoint_that_a_later_one_has_replaced_is_fine(driver: Driver) -> None:
    first = told(driver)
    driver.process()
    driver.checkpoint("later")
    found = context()
    assert operator(checkpoint=str(first)).execute(found)["sequence"] == first
    assert emitted(found)[0]["sequence"] == first


def not_committed(driver: Driver) -> int:
    """Make a checkpoint for the run of which Kafka holds something else."""
    sequence = told(driver)
    driver.read_back(driver.member(0), dict.fromkeys(driver.claims(driver.member(0)), Offset(3)))
    assert restore_point(driver).committed is Committed.NO
    return sequence


def test_kafka_is_told_from_here_while_nobody_is_in_the_groups(driver: Driver, cluster: FakeCluster) -> None:
    sequence = not_committed(driver)
    found = context()
    assert operator().execute(found)["sequence"] == sequence
    region = driver.region
    assert region.restore_sequence is not None
    assert cluster.held == dict(region.offsets[region.restore_sequence])
    notes = {read_note(text) for text in cluster.notes.values()}
    assert {(n.region, n.timeline, n.sequence) for n in notes if n} == {("flights", region.timeline, sequence)}
    assert region.checkpoints[region.restore_sequence].committed is Committed.YES
    assert region.read_backs[region.restore_sequence] == region.offsets[region.restore_sequence]
    assert emitted(found)[0]["sequence"] == sequence


def test_with_members_in_the_groups_the_task_fails_and_may_be_retried(driver: Driver, cluster: FakeCluster) -> None:
    not_committed(driver)
    cluster.inside = "kcr-flights-g-0 on host"
    found = context()
    with pytest.raises(AirflowException, match=r"kcr-flights-g-0 on host.*the next checkpoint") as failed:
        operator().execute(found)
    assert not isinstance(failed.value, AirflowFailException)
    assert cluster.held == {}
    assert emitted(found) == ({}, set())


def test_an_older_checkpoint_that_kafka_never_had_is_fine_and_kafka_is_not_moved_back(
    driver: Driver, cluster: FakeCluster
) -> None:
    first = not_committed(driver)
    driver.process()
    driver.checkpoint("later")
    assert operator(checkpoint=first).execute(context())["sequence"] == first
    assert cluster.held == {}


def test_a_checkpoint_that_a_reset_has_undone_is_not_retried(driver: Driver) -> None:
    from airflow_kcr.protocol.targets import ToCheckpoint
    from tests.support.scripts import rewind

    first = driver.checkpoint("first")
    driver.process()
    undone = told(driver)
    rewind(driver, ToCheckpoint(sequence=first))
    with pytest.raises(AirflowFailException, match="was undone by a reset"):
        operator(checkpoint=undone).execute(context())
    with pytest.raises(AirflowFailException, match="no checkpoint on the current timeline"):
        operator().execute(context())


def test_the_region_is_an_outlet_of_the_task_beside_those_of_the_author() -> None:
    assert operator().outlets == [region_asset("flights")]
    assert operator(outlets=[REPORT]).outlets == [REPORT, region_asset("flights")]
    assert operator(outlets=REPORT).outlets == [REPORT, region_asset("flights")]


def test_a_name_that_is_none_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(InvalidIdentifier, match="Flights!"):
        operator(region="Flights!")


def test_a_region_whose_name_is_a_template_becomes_an_outlet_when_the_task_runs(driver: Driver) -> None:
    sequence = told(driver)
    read_back(driver)
    made = operator(region="{{ params.region }}", outlets=[REPORT])
    assert made.outlets == [REPORT]
    made.region = "flights"
    found = context()
    assert made.execute(found)["sequence"] == sequence
    assert made.outlets == [REPORT, region_asset("flights")]
    assert emitted(found)[0]["sequence"] == sequence
