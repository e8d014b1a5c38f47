from __future__ import annotations

from airflow_kcr.protocol.member.messages import ResetSinks
from airflow_kcr.protocol.offsets import EMPTY
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, Offset, Timeline
from airflow_kcr.sinks.contract import MemberSinks, WithCheckpoints
from tests.support.runtime_fakes import FakeSinks, p

ORDER = ResetSinks(epoch=Epoch(3), timeline=Timeline(2), resume=EMPTY, open={}, target=None, skips={})


def test_a_reset_reaches_every_sink_and_answers_what_one_of_them_knows() -> None:
    one, other = FakeSinks(), FakeSinks(progress={p(0): Offset(7), p(1): None})
    assert MemberSinks([one, other]).reset(ORDER) == {p(0): 7, p(1): None}
    assert one.orders == other.orders == [ORDER]


def test_checkpoints_ask_nothing_of_sinks_that_publish_batches() -> None:
    sink = FakeSinks()
    sinks = MemberSinks([sink])
    sinks.prepare(CheckpointNumber(1))
    sinks.publish(CheckpointNumber(1))
    assert sink.asked == []
    assert sinks.fenced


def test_a_checkpoint_is_published_in_the_sinks_of_all_groups() -> None:
    own, one, other = FakeSinks(progress={p(0): Offset(7)}), FakeSinks(), FakeSinks()
    sinks = WithCheckpoints(own, [one, other])
    sinks.prepare(CheckpointNumber(1))
    sinks.publish(CheckpointNumber(1))
    assert sinks.reset(ORDER) == {p(0): 7}
    assert sinks.fenced is own.fenced
    assert own.asked == ["prepare 1", "publish 1", "reset 3"]
    assert one.asked == other.asked == ["publish 1"]
    assert one.orders == other.orders == []
