from __future__ import annotations

from airflow_kcr.protocol.invariants.accounting import OffsetDelivery, delivery_of, indexed, redeliveries
from airflow_kcr.protocol.invariants.history import History, Index
from airflow_kcr.protocol.region.rows import Outcome, ResetCause
from airflow_kcr.protocol.targets import ToOffset
from airflow_kcr.protocol.values import GroupPartition, Offset, Range
from tests.unit.protocol.invariants.stories import crash_between, recorded, two_checkpoints, with_copy


def deliveries(index: Index, partition: GroupPartition, offset: Offset) -> tuple[OffsetDelivery, ...]:
    begun = (h for h in index.begun.get(partition, ()) if h.range.from_ <= offset < h.range.to)
    return tuple(delivery_of(handled.batch, partition, offset) for handled in begun)


def test_an_offset_tells_every_batch_that_began_it() -> None:
    driver = crash_between()
    index = indexed(recorded(driver))
    mine = driver.partition(2)
    outcomes = [(d.epoch, d.outcome, d.is_accepted) for d in deliveries(index, mine, Offset(15))]
    assert outcomes == [(1, Outcome.UNDONE, False), (2, Outcome.DONE, True)]
    (lost,) = deliveries(index, mine, Offset(25))
    assert (lost.member, lost.outcome) == (driver.member(1), Outcome.UNKNOWN)
    assert deliveries(index, mine, Offset(500)) == ()


def test_a_reset_inside_a_range_undoes_only_what_lies_beyond() -> None:
    driver = two_checkpoints()
    driver.reset(ToOffset(offset=Offset(15)))
    driver.complete()
    driver.finish_reset()
    index = indexed(recorded(driver))
    mine = driver.partition(0)
    assert [d.outcome for d in deliveries(index, mine, Offset(14))] == [Outcome.DONE]
    assert [d.outcome for d in deliveries(index, mine, Offset(15))] == [Outcome.UNDONE]


def test_what_was_delivered_again_names_the_batches_and_the_reset() -> None:
    driver = crash_between()
    index = indexed(recorded(driver))
    again = [r for r in redeliveries(index) if r.partition == driver.partition(2)]
    (one,) = again
    assert (one.range, one.epoch, one.cause) == (Range(Offset(10), Offset(20)), 2, ResetCause.CLAIM)
    assert one.batch not in one.earlier
    assert len(one.earlier) == 1


def test_all_who_had_begun_any_of_it_are_named_oldest_first_and_nobody_else() -> None:
    driver = two_checkpoints()
    mine = driver.partition(0)
    for offset, width in ((15, 3), (5, 20), (12, 1), (0, 30)):
        driver.reset(ToOffset(offset=Offset(offset)))
        driver.complete()
        driver.finish_reset()
        driver.finish_batch(driver.start_batch(driver.member(0), width, [mine]))
    index = indexed(recorded(driver))
    begun = index.begun[mine]
    found = [r for r in redeliveries(index) if r.partition == mine]
    assert len({r.batch for r in found}) == 4
    for again in found:
        own = next(h for h in begun if h.batch.batch == again.batch)
        before = begun[: begun.index(own)]
        overlap = [h for h in before if h.range.from_ < again.range.to and again.range.from_ < h.range.to]
        assert again.earlier == tuple(h.batch.batch for h in overlap)


def test_what_nothing_accounts_for_is_said_to_have_no_reset() -> None:
    history = recorded(two_checkpoints())
    last = history.events[-1].number
    twice: History = with_copy(history, 0, started_after=last, finished_after=last)
    assert {(r.epoch, r.cause) for r in redeliveries(indexed(twice))} == {(None, None)}
