from __future__ import annotations

import pytest

from airflow_kcr.protocol.offsets import SeekEntry, SeekMap, SeekSource
from airflow_kcr.protocol.region.commands import KillRegion
from airflow_kcr.protocol.region.events import InitialOffsetsStored, ResetBegun, SeekWritten
from airflow_kcr.protocol.rules import OutOfRangePolicy, RegionRules
from airflow_kcr.protocol.targets import ToCheckpoint, ToCurrent
from airflow_kcr.protocol.values import Offset, Range
from tests.support.driver import GROUP, START, Driver, group_rules
from tests.unit.protocol.invariants import stories


def test_a_first_range_elsewhere_than_the_resume_point_is_found() -> None:
    history = stories.recorded(stories.crash_between())
    reset = stories.numbers(history, ResetBegun)[1]
    place = next(i for i, b in enumerate(history.batches) if b.epoch == 2)
    moved = stories.altered_batch(history, place, ranges=stories.shifted(stories.batch(history, place).ranges, 3))
    assert stories.found(moved, "R5")[0].events == (reset, stories.batch(history, place).started_after)


def test_a_seek_map_that_says_otherwise_is_found() -> None:
    history = stories.recorded(stories.rewound())
    reset = stories.numbers(history, ResetBegun)[-1]
    seek = stories.body(history, reset, ResetBegun).seek
    entries = {p: SeekEntry(offset=Offset(1), source=SeekSource.MERGED) for p in seek}
    assert stories.found(stories.altered(history, reset, seek=SeekMap(entries)), "R5")[0].events[0] == reset


def test_a_range_without_a_resume_point_is_found() -> None:
    history = stories.recorded(stories.two_checkpoints())
    written = stories.numbers(history, SeekWritten)
    assert "without a resume point" in stories.found(stories.dropped(history, *written), "R5")[0].detail
    seek = {
        p: SeekEntry(offset=None, source=SeekSource.EXPLICIT)
        for p in stories.body(history, written[0], SeekWritten).seek
    }
    assert "is open" in stories.found(stories.altered(history, written[0], seek=SeekMap(seek)), "R5")[0].detail


def test_after_a_checkpoint_the_next_range_begins_at_the_checkpoint() -> None:
    history = stories.recorded(stories.two_checkpoints())
    ranges = {p: Range(Offset(r.from_ + 1), r.to) for p, r in stories.batch(history, 2).ranges.items()}
    assert "it resumes at 10" in stories.found(stories.altered_batch(history, 2, ranges=ranges), "R5")[0].detail


def test_a_skipped_record_is_stepped_over() -> None:
    driver = stories.two_checkpoints()
    poisoned = driver.partition(0)
    driver.reset(ToCurrent(), skip={poisoned: Offset(20)}, forced=True)
    driver.finish_reset()
    driver.process()
    driver.checkpoint("third")
    stories.recorded(driver)
    assert driver.row(driver.batches[-2].batch).ranges[poisoned] == Range(Offset(21), Offset(31))


def test_a_reset_that_failed_skips_nothing() -> None:
    driver = stories.two_checkpoints()
    driver.reset(ToCurrent(), skip={driver.partition(0): Offset(20)})
    driver.handle(KillRegion())
    driver.handle(START)
    driver.recover()
    driver.process()
    stories.recorded(driver)
    assert driver.region.skips == {}


def test_a_second_initial_offset_is_found() -> None:
    history = stories.recorded(stories.two_checkpoints())
    first = stories.numbers(history, InitialOffsetsStored)[0]
    again = stories.appended(history, stories.body(history, first, InitialOffsetsStored))
    assert stories.found(again, "R10")[0].events == (first, again.events[-1].number)


@pytest.mark.parametrize(("topic_id", "is_new"), [("", False), ("id-1", False), ("id-2", True)])
def test_only_another_topic_id_allows_a_second_initial_offset(topic_id: str, is_new: bool) -> None:
    history = stories.recorded(stories.two_checkpoints())
    stored = stories.body(history, stories.numbers(history, InitialOffsetsStored)[1], InitialOffsetsStored)
    bounds = {
        p: type(b)(start=b.start, end=b.end, topic_id=type(b.topic_id)(topic_id)) for p, b in stored.bounds.items()
    }
    again = stories.appended(
        history, InitialOffsetsStored(offsets=stored.offsets, bounds=bounds, sources=stored.sources)
    )
    if is_new:
        recorded_again = [
            v for v in stories.found(stories.appended(again, stored), "R10") if v.events[1] == again.events[-1].number
        ]
        assert recorded_again == []
    else:
        assert stories.found(again, "R10")


def test_a_topic_id_that_becomes_known_later_resolves_nothing_again() -> None:
    driver = Driver(partitions=1, members=1)
    only = driver.partition(0)
    driver.grow(only, end=100, topic_id="")
    driver.up()
    driver.process()
    driver.checkpoint("nameless")
    driver.grow(only, end=100, topic_id="id-9")
    driver.claim(driver.member(0))
    driver.process()
    driver.reset(ToCheckpoint(sequence=min(driver.region.offsets)), forced=True)
    driver.finish_reset()
    history = stories.recorded(driver)
    assert len(stories.numbers(history, InitialOffsetsStored)) == 1


def test_a_recreated_topic_has_one_initial_offset_for_each_of_its_lives() -> None:
    rules = RegionRules(groups={GROUP: group_rules(members=1)}, beyond_end=OutOfRangePolicy.EARLIEST)
    driver = Driver(partitions=1, rules=rules)
    driver.up()
    driver.process()
    for topic_id in ("id-2", "id-3"):
        driver.grow(driver.partition(0), end=100, topic_id=topic_id)
        for _ in range(2):  # the first claim finds it recreated and begins a reset
            driver.claim(driver.member(0))
    driver.finish_reset()
    driver.process()
    driver.checkpoint("after")
    history = stories.recorded(driver)
    stored = [stories.body(history, n, InitialOffsetsStored) for n in stories.numbers(history, InitialOffsetsStored)]
    assert [b.topic_id for s in stored for b in s.bounds.values()] == ["id-1", "id-2", "id-3"]
