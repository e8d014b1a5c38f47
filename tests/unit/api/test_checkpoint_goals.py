from __future__ import annotations

import pytest

from airflow_kcr import goals
from airflow_kcr.api import Region
from airflow_kcr.errors import CheckpointNotUsable, CheckpointRefused, UnknownCheckpoint
from airflow_kcr.goals import CheckpointCommitted, CheckpointExists
from airflow_kcr.protocol.region.rows import Requester
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import CheckpointNumber, RequestId
from tests.support.scripts import rewind, running


def test_a_checkpoint_is_committed_when_it_is_settled_and_those_who_are_late_are_named() -> None:
    driver = running()
    driver.process()
    driver.request_checkpoint("n")
    sequence = driver.region.open_checkpoint
    assert sequence is not None
    goal, name = CheckpointCommitted(sequence=sequence), f"checkpoint {sequence}"

    def missing() -> tuple[str, ...]:
        seen, _ = Region(driver.name, driver.store).poll(goal)
        return () if seen is None else tuple(seen.missing)

    assert missing() == (f"{name} is not complete yet",)
    driver.complete()
    assert missing() == (f"{name} is complete and not published yet",)
    driver.publish()
    driver.read_back(driver.member(0))
    late = "is outstanding for 2 partition(s), g:t-2 first, held by g[1]"
    assert missing() == (f"Kafka's commit read-back of {name} {late}",)
    driver.read_back(driver.member(1))
    assert missing() == ()


def test_a_checkpoint_that_is_none_any_more_is_not_waited_for() -> None:
    driver = running()
    region = Region(driver.name, driver.store)
    kept = driver.checkpoint("one")
    driver.process()
    undone = driver.checkpoint("two")
    driver.request_checkpoint("three")
    aborted = driver.region.open_checkpoint
    assert aborted is not None
    driver.contribute(driver.member(0))
    driver.wait(200)
    rewind(driver, ToCheckpoint(sequence=kept))
    with pytest.raises(CheckpointNotUsable, match="undone by a reset"):
        region.poll(CheckpointCommitted(sequence=undone))
    with pytest.raises(CheckpointNotUsable, match="was aborted"):
        region.poll(CheckpointCommitted(sequence=aborted))
    with pytest.raises(UnknownCheckpoint):
        region.poll(CheckpointCommitted(sequence=CheckpointNumber(77)))


def test_of_the_checkpoints_at_or_beyond_something_the_oldest_published_one_is_found() -> None:
    driver = running()
    region = Region(driver.name, driver.store)
    one = driver.checkpoint("one")
    driver.process()
    driver.request_checkpoint("two")
    two = driver.complete()
    archive = driver.held.archive
    assert (archive.published_from(None, one) or driver.region.checkpoints[two]).sequence == one
    assert archive.published_from(None, two) is None
    seen, _ = region.poll(CheckpointExists(sequence=two))
    assert seen is not None
    assert seen.missing[0] == f"its newest checkpoint is {two} (boundary none, not published yet)"


def test_the_checkpoint_of_a_run_is_found_by_its_run() -> None:
    driver = running()
    driver.process()
    run = Requester(who="airflow", dag_id="d", run_id="r")
    driver.request_checkpoint("n", requester=run)
    sequence = driver.complete()
    region = Region(driver.name, driver.store)
    assert region.checkpoints.of_run("d", "r").checkpoint.sequence == sequence
    with pytest.raises(UnknownCheckpoint, match="run other of DAG d"):
        region.checkpoints.of_run("d", "other")


def test_a_request_id_that_is_gone_with_its_region_is_refused() -> None:
    driver = running()
    with pytest.raises(CheckpointRefused, match="has no checkpoint request with the id"):
        Region(driver.name, driver.store).poll(goals.RequestPublished(request_id=RequestId("never")))
