"""The small questions of the demo's judgement; the whole of it is judged where it runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_kcr.api import Region
from airflow_kcr.embedded.airflow_client import AirflowClient
from airflow_kcr.embedded.demo.judgement import (
    DemoCheck,
    DemoVerdict,
    Interval,
    held_by_kafka,
    repeated,
)
from airflow_kcr.embedded.demo.play import EVERY, Play, Stage
from airflow_kcr.embedded.flights.producer import Produced
from airflow_kcr.protocol.region.rows import Batch, Checkpoint, Outcome
from airflow_kcr.protocol.values import CheckpointNumber, GroupId, GroupPartition, Offset, Range, TopicName
from tests.support.documents import sample
from tests.support.driver import Driver
from tests.support.live_region import FakeCluster

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
GROUP = GroupId("etl")
PRODUCED = Produced(records=1, size=1, seconds=1.0)
PLACE = GroupPartition(GROUP, TopicName("flights"), 0)


def interval(in_checkpoint: int | None = 7, run: str = "success", answer: int = 2) -> Interval:
    made: Checkpoint = sample(Checkpoint)
    checkpoint = replace(made, sequence=CheckpointNumber(2))
    return Interval(
        start=NOON, end=NOON, run=run, answer=answer, checkpoint=checkpoint, in_checkpoint=in_checkpoint, in_topic=7
    )


def batch(outcome: Outcome | None, undone_from: int | None = None) -> Batch:
    undone = {} if undone_from is None else {PLACE: Offset(undone_from)}
    made: Batch = sample(Batch)
    return replace(made, ranges={PLACE: Range(Offset(10), Offset(30))}, outcome=outcome, undone_from=undone)


@pytest.mark.parametrize(
    ("one", "sound"),
    [
        (interval(), True),
        (interval(6), False),
        (interval(None), False),
        (interval(run=""), False),
        (interval(answer=1), False),
    ],
)
def test_an_interval_is_sound_when_its_run_succeeded_and_its_checkpoint_has_its_records(
    one: Interval, sound: bool
) -> None:
    assert one.sound is sound


def test_one_difference_is_enough() -> None:
    passed, failed = (DemoCheck(name="", passed=value, detail="") for value in (True, False))
    assert DemoVerdict(produced=PRODUCED, intervals=(interval(),), checks=(passed,)).sound
    assert not DemoVerdict(produced=PRODUCED, intervals=(interval(6),), checks=(passed,)).sound
    assert not DemoVerdict(produced=PRODUCED, intervals=(interval(),), checks=(passed, failed)).sound


def test_the_last_interval_is_the_one_that_ends_at_the_last_boundary(driver: Driver) -> None:
    region = Region(driver.name, driver.store)
    editor = AirflowClient("", "", "")
    play = Play(stage=Stage(Path()), region=region, editor=editor, since=NOON, last=NOON + 2 * EVERY)
    assert play.ends == [NOON + EVERY, NOON + 2 * EVERY]


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (batch(Outcome.DONE), {"undone": 0}),
        (batch(Outcome.DONE, undone_from=25), {"undone": 5}),
        (batch(Outcome.UNDONE, undone_from=0), {"undone": 20}),
        (batch(Outcome.DISCARDED), {"discarded": 20}),
        (batch(Outcome.UNKNOWN), {"unknown": 20}),
        (batch(None), {"unended": 20}),
    ],
)
def test_the_ledger_says_what_of_a_batch_was_processed_again(row: Batch, found: dict[str, int]) -> None:
    assert repeated(row) == found


def test_what_kafka_holds_is_what_the_newest_checkpoint_has(driver: Driver) -> None:
    driver.up()
    driver.process(width=100)
    driver.checkpoint("n")
    cluster = FakeCluster(held={driver.partition(n): 100 for n in range(4)})
    region = Region(driver.name, driver.store, clusters=cluster.clusters)
    newest = region.checkpoints.show(2).checkpoint
    told = held_by_kafka(region, newest)
    assert (told.passed, told.detail) == (True, "4 partitions, 400 records committed; the same as in checkpoint 2")
    del cluster.held[driver.partition(0)]
    told = held_by_kafka(region, newest)
    assert (told.passed, told.detail) == (False, "4 partitions, 300 records committed; different: g:t-0")
