from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime

import pytest

from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.offsets import EMPTY
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    Epoch,
    GroupId,
    GroupPartition,
    MemberId,
    Offset,
    Range,
    RegionName,
    Timeline,
    TopicName,
    TopicPartition,
)
from airflow_kcr.spark import BatchContext

BOUNDARY = datetime(2026, 1, 1, tzinfo=UTC)


def context(*ranges: tuple[int, int]) -> BatchContext:
    return BatchContext.of(
        BatchCall(
            region=RegionName("flights"),
            member=MemberId(GroupId("etl"), 2),
            batch=BatchId("b1"),
            epoch=Epoch(3),
            timeline=Timeline(4),
            sequence=CheckpointNumber(5),
            ranges={
                GroupPartition(GroupId("etl"), TopicName("t"), number): Range(Offset(begin), Offset(end))
                for number, (begin, end) in enumerate(ranges)
            },
            progress=EMPTY,
            boundary=BOUNDARY,
        ),
        {},
    )


def test_a_context_tells_everything_about_its_batch() -> None:
    told = context((0, 10), (5, 7))
    assert (told.region, told.group, told.index, told.batch_id) == ("flights", "etl", 2, "b1")
    assert (told.epoch, told.timeline, told.sequence, told.boundary) == (3, 4, 5, BOUNDARY)
    assert told.ranges[TopicPartition(TopicName("t"), 1)] == (5, 7)
    assert told.offsets == 12
    assert not told.is_empty
    assert str(told) == "flights etl[2] batch b1"


def test_a_batch_without_offsets_is_empty() -> None:
    assert context().is_empty
    assert context((3, 3)).is_empty


def test_a_context_can_not_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        context().epoch = Epoch(9)  # type: ignore[misc]


def test_importing_the_context_does_not_import_spark() -> None:
    code = "import sys; from airflow_kcr.spark import BatchContext; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
