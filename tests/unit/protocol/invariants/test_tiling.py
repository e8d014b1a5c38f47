from __future__ import annotations

import pytest

from airflow_kcr.errors import BatchRefused
from airflow_kcr.protocol.region.events import CheckpointCompleted, RegionCreated
from airflow_kcr.protocol.region.rows import Outcome, ResetCause
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.values import Offset
from tests.support.driver import Driver
from tests.unit.protocol.invariants import stories


def test_a_batch_that_is_missing_leaves_a_gap_in_the_checkpoint_after_it() -> None:
    history = stories.without_batch(stories.recorded(stories.two_checkpoints()), 2)
    completed = stories.numbers(history, CheckpointCompleted)[1]
    assert {v.events for v in stories.found(history, "R1a")} == {(completed,)}


def test_a_batch_that_was_accepted_twice_is_found() -> None:
    history = stories.with_copy(stories.recorded(stories.two_checkpoints()), 0)
    assert "both accepted" in stories.found(history, "R1a")[0].detail


def test_a_batch_accepted_beyond_the_checkpoint_is_found() -> None:
    history = stories.recorded(stories.two_checkpoints())
    history = stories.altered_batch(history, 2, ranges=stories.shifted(stories.batch(history, 2).ranges, 5))
    details = " ".join(v.detail for v in stories.found(history, "R1a"))
    assert "was never accepted" in details
    assert "outside of" in details


def test_a_checkpoint_at_another_offset_than_its_batches_reached_is_found() -> None:
    history = stories.recorded(stories.two_checkpoints())
    second = stories.numbers(history, CheckpointCompleted)[1]
    offsets = stories.body(history, second, CheckpointCompleted).offsets
    lower = {p: Offset(o - 15) for p, o in offsets.items()}
    assert (
        "before its restore point"
        in stories.found(stories.altered(history, second, offsets=offsets.replace(lower)), "R1a")[0].detail
    )


def test_what_a_reset_has_undone_does_not_count_twice() -> None:
    driver = stories.crash_between()
    history = stories.recorded(driver)
    undone = [i for i, b in enumerate(history.batches) if b.outcome is Outcome.UNDONE]
    assert undone
    marked = stories.altered_batch(history, undone[0], outcome=Outcome.DONE, undone_from={})
    assert "is done in the ledger" in stories.found(marked, "R1a")[0].detail


def test_done_work_that_no_reset_has_undone_is_not_undone() -> None:
    history = stories.recorded(stories.two_checkpoints())
    marks = {p: r.from_ for p, r in stories.batch(history, 0).ranges.items()}
    assert (
        "by the resets after it it is done"
        in stories.found(stories.altered_batch(history, 0, outcome=Outcome.UNDONE, undone_from=marks), "R1a")[0].detail
    )


def test_work_below_a_checkpoint_counts_for_it_even_after_a_person_went_back() -> None:
    stories.recorded(stories.rewound())


def failed(delivery: Delivery, *, committed: bool = False) -> Driver:
    """A batch that began and failed, then a reset, then a checkpoint."""
    driver = Driver(partitions=2, members=1, delivery=delivery)
    driver.up()
    member = driver.member(0)
    driver.process()
    lost = driver.start_batch(member)
    if committed:
        driver.commit_output(lost)
    driver.discard(lost)
    driver.request_reset(member, ResetCause.BATCH_FAILED)
    driver.finish_reset()
    driver.process()
    driver.checkpoint("after")
    return driver


@pytest.mark.parametrize("delivery", list(Delivery))
def test_each_delivery_explains_its_own_history(delivery: Delivery) -> None:
    stories.recorded(failed(delivery))


def test_only_at_most_once_explains_what_was_begun_and_never_accepted() -> None:
    history = stories.recorded(failed(Delivery.AT_MOST_ONCE))
    created = stories.numbers(history, RegionCreated)[0]
    other = stories.altered(history, created, deliveries={"g": "almost_once"})
    assert "was never accepted" in stories.found(other, "R1a")[0].detail


def test_at_most_once_does_not_explain_what_nobody_began() -> None:
    history = stories.recorded(failed(Delivery.AT_MOST_ONCE))
    lost = next(i for i, b in enumerate(history.batches) if b.outcome is Outcome.DISCARDED)
    assert "was never accepted" in stories.found(stories.without_batch(history, lost), "R1a")[0].detail


def test_a_batch_that_the_sink_proves_done_counts_once() -> None:
    driver = failed(Delivery.EXACTLY_ONCE, committed=True)
    history = stories.recorded(driver)
    assert [b.outcome for b in history.batches] == [Outcome.DONE] * 3
    assert driver.claims(driver.member(0))[driver.partition(0)].position == 30


def test_a_sinks_progress_proves_nothing_of_an_older_epoch() -> None:
    driver = failed(Delivery.EXACTLY_ONCE)
    member = driver.member(0)
    driver.process()
    driver.request_reset(member, ResetCause.BATCH_FAILED)
    driver.finish_reset()
    history = stories.recorded(driver)
    lost = next(i for i, b in enumerate(history.batches) if b.outcome is Outcome.DISCARDED)
    assert stories.found(stories.altered_batch(history, lost, outcome=Outcome.DONE), "R1a")


def test_a_begun_batch_that_was_discarded_is_followed_by_a_reset_and_by_no_checkpoint() -> None:
    driver = Driver(partitions=1, members=1, delivery=Delivery.AT_MOST_ONCE)
    driver.up()
    driver.discard(driver.start_batch(driver.member(0)))
    driver.request_checkpoint("early")
    with pytest.raises(BatchRefused, match="was not accepted"):
        driver.complete()
    driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED)
    driver.finish_reset()
    driver.complete()  # of the request that was queued again when the reset aborted its checkpoint
    stories.recorded(driver)
