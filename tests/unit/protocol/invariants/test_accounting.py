from __future__ import annotations

from airflow_kcr.protocol.invariants.accounting import redeliveries
from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.region.rows import ResetCause
from airflow_kcr.protocol.targets import ToOffset
from airflow_kcr.protocol.values import Offset, Range
from tests.unit.protocol.invariants.stories import crash_between, recorded, two_checkpoints, with_copy


def test_what_was_delivered_again_names_the_batches_and_the_reset() -> None:
    driver = crash_between()
    again = [r for r in redeliveries(recorded(driver)) if r.partition == driver.partition(2)]
    (one,) = again
    assert one.range == Range(Offset(10), Offset(20))
    assert one.reset is not None
    assert (one.reset.epoch, one.reset.cause) == (2, ResetCause.CLAIM)
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
    history = recorded(driver)
    begun = [b for b in sorted(history.batches, key=lambda b: b.started_after) if mine in b.ranges]
    found = [r for r in redeliveries(history) if r.partition == mine]
    assert len({r.batch for r in found}) == 4
    for again in found:
        own = next(b for b in begun if b.batch == again.batch)
        before = begun[: begun.index(own)]
        overlap = [b for b in before if b.ranges[mine].from_ < again.range.to and again.range.from_ < b.ranges[mine].to]
        assert again.earlier == tuple(b.batch for b in overlap)


def test_what_nothing_accounts_for_is_said_to_have_no_reset() -> None:
    history = recorded(two_checkpoints())
    last = history.events[-1].number
    twice: History = with_copy(history, 0, started_after=last, finished_after=last)
    assert {r.reset for r in redeliveries(twice)} == {None}
