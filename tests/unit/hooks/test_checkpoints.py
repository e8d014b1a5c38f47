from __future__ import annotations

import json
from dataclasses import replace

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk import Asset

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.hooks.checkpoints import PublishedCheckpoint, checkpoint_of
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import CheckpointNumber, GroupId, Timeline
from airflow_kcr.sinks.checkpoints import CheckpointId
from tests.support.airflow_tasks import triggered
from tests.support.driver import Driver
from tests.support.scripts import rewind


@pytest.fixture
def driver(driver: Driver) -> Driver:
    driver.up()
    driver.process()
    return driver


def published(driver: Driver, sequence: CheckpointNumber) -> PublishedCheckpoint:
    row = driver.region.checkpoints[sequence]
    return PublishedCheckpoint(
        region="flights",
        region_id=driver.region.region_id,
        timeline=row.timeline,
        sequence=sequence,
        boundary=None,
        digest=row.digest,
    )


def extra(event: PublishedCheckpoint) -> dict[str, object]:
    return dict(event.to_json())


DELAYS = TableVersion(
    group=GroupId("g"), sink="out", catalog="lake", table="db.delays", files=1, rows=2, version="3", tag="kcr_1_2"
)


def test_partition_keys_sort_as_checkpoints_do() -> None:
    pairs = ((1, 9), (1, 10), (1, 1_000), (1, 2**31 + 1), (2, 2), (10, 1))
    keys = [str(CheckpointId(Timeline(timeline), CheckpointNumber(sequence))) for timeline, sequence in pairs]
    assert keys == sorted(keys)
    assert keys[0] == "000001.0000000009"


def test_an_event_survives_its_extra() -> None:
    made = PublishedCheckpoint(
        region="r", region_id="i", timeline=1, sequence=2, boundary="2026-01-01T00:00:00Z", digest="d", tables=(DELAYS,)
    )
    assert PublishedCheckpoint.from_json(extra(made)) == made
    assert json.loads(json.dumps(extra(made)))["tables"][0]["tag"] == "kcr_1_2"
    assert made.partition_key == "000001.0000000002"
    with pytest.raises(ConfigurationError, match="names no checkpoint"):
        PublishedCheckpoint.from_json({"region": "r"})


def test_of_several_events_the_newest_checkpoint_counts(driver: Driver) -> None:
    first = published(driver, driver.checkpoint("one"))
    driver.process()
    second = published(driver, driver.checkpoint("two"))
    assert checkpoint_of(triggered(extra(second), extra(first))) == second


def test_of_several_events_of_a_checkpoint_the_newest_revision_counts(driver: Driver) -> None:
    first = published(driver, driver.checkpoint("one"))
    revised = replace(first, revision=1)
    assert checkpoint_of(triggered(extra(first), extra(revised))) == revised
    assert checkpoint_of(triggered(extra(revised), extra(first))) == revised


def test_an_event_of_a_checkpoint_that_a_reset_has_undone_is_skipped_with_the_reason(driver: Driver) -> None:
    first = driver.checkpoint("one")
    driver.process()
    second = driver.checkpoint("two")
    events = {sequence: published(driver, sequence) for sequence in (first, second)}
    rewind(driver, ToCheckpoint(sequence=first))
    with pytest.raises(AirflowSkipException, match=f"a reset has undone checkpoint {second}"):
        checkpoint_of(triggered(extra(events[second])))
    # Of an older timeline too, but the new one goes on from there: what it holds is still true.
    assert checkpoint_of(triggered(extra(events[first]))) == events[first]


def test_an_event_of_a_region_that_was_made_anew_is_skipped(driver: Driver) -> None:
    event = published(driver, driver.checkpoint("n"))
    with pytest.raises(AirflowSkipException, match="the event is of the earlier one"):
        checkpoint_of(triggered({**extra(event), "region_id": "another"}))
    with pytest.raises(AirflowSkipException, match="another one now: its store was restored"):
        checkpoint_of(triggered({**extra(event), "digest": "other"}))
    with pytest.raises(AirflowSkipException, match="has no checkpoint 77"):
        checkpoint_of(triggered({**extra(event), "sequence": 77}))
    with pytest.raises(AirflowSkipException, match="does not exist any more"):
        checkpoint_of(triggered({**extra(event), "region": "gone"}))


def test_a_run_that_no_region_has_triggered_is_not_retried(driver: Driver) -> None:
    with pytest.raises(AirflowFailException, match="checkpoint_schedule"):
        checkpoint_of(triggered())
    with pytest.raises(AirflowFailException, match="checkpoint_schedule"):
        checkpoint_of(triggered({"rows": 3}, asset=Asset(name="report", uri="file:///report")))
    with pytest.raises(AirflowFailException, match="names no checkpoint"):
        checkpoint_of(triggered({"rows": 3}))
