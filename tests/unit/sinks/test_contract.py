from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.member.messages import ResetSinks
from airflow_kcr.protocol.offsets import EMPTY
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, EventNumber, Offset, Timeline
from airflow_kcr.sinks.checkpoints import CompleteCheckpoint
from airflow_kcr.sinks.contract import Revision, Sink
from airflow_kcr.sinks.group import GroupSinks
from tests.support.runtime_fakes import FakeSinks, p

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDER = ResetSinks(epoch=Epoch(3), timeline=Timeline(2), resume=EMPTY, open={}, target=None, skips={})


class FakeSink(FakeSinks, Sink):
    """A sink that notes what it is asked."""

    def check(self) -> None:
        raise AssertionError("it is open already")

    def write(self, rows: DataFrame, call: BatchCall) -> Callable[[], object]:
        raise AssertionError("nothing is written")

    def shown(self, checkpoint: CompleteCheckpoint, spark: SparkSession) -> DataFrame:
        raise AssertionError("nothing is read")

    def revised(self, checkpoint: CompleteCheckpoint, number: EventNumber) -> Revision:
        raise AssertionError("nothing is recomputed")


def test_a_reset_reaches_every_sink_and_answers_what_one_of_them_knows() -> None:
    one, other = FakeSink(), FakeSink(progress={p(0): Offset(7), p(1): None})
    assert GroupSinks(own={"x": one, "y": other}).reset(ORDER) == {p(0): 7, p(1): None}
    assert one.orders == other.orders == [ORDER]


def test_a_checkpoint_is_published_in_the_sinks_of_all_groups() -> None:
    own, one, other = FakeSink(progress={p(0): Offset(7)}), FakeSink(), FakeSink()
    sinks = GroupSinks(own={"x": own}, of_others=(one, other))
    sinks.prepare(CheckpointNumber(1))
    sinks.publish(CheckpointNumber(1))
    assert sinks.reset(ORDER) == {p(0): 7}
    assert sinks.fenced is own.fenced
    assert own.asked == ["prepare 1", "publish 1", "reset 3"]
    assert one.asked == other.asked == ["publish 1"]
    assert one.orders == other.orders == []
