"""The sink on a real Postgres: what each delivery lets in, what a reset removes, and what a zombie can't do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psycopg
import pytest

from airflow_kcr.errors import SinkAhead, SinkError
from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.rules import Delivery, SinkMode
from airflow_kcr.protocol.values import GroupId, RegionId, RegionName, Timeline
from airflow_kcr.sinks.postgres.staging import Staging
from tests.support.databases import libpq
from tests.support.sink_tables import Row, Table, records

LOSSLESS = [Delivery.AT_LEAST_ONCE, Delivery.ALMOST_ONCE, Delivery.EXACTLY_ONCE]
LENIENT = [Delivery.AT_LEAST_ONCE, Delivery.ALMOST_ONCE, Delivery.AT_MOST_ONCE]
UPSERT: dict[str, Any] = {"mode": SinkMode.UPSERT, "key": ("size",)}
UPSERT_BY_VALUE: dict[str, Any] = {**UPSERT, "key": ("value",)}


def table(url: str, delivery: Delivery = Delivery.EXACTLY_ONCE, **options: Any) -> Table:  # noqa: ANN401 (a target's)
    """A sink in its first epoch, whose first reset is done."""
    made = Table(url=url, delivery=delivery, options=options)
    made.reset({0: 0, 1: 0})
    return made


class TestPublishing:
    def test_brings_rows_and_progress_together(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        assert out.run({0: (0, 3), 1: (0, 2)}) == 5
        assert out.held() == records(p0=(0, 3), p1=(0, 2))
        assert out.progress() == {0: (1, 3), 1: (1, 2)}
        assert out.ask("SELECT value, size, kcr_topic, kcr_timeline, kcr_sequence FROM out WHERE kcr_offset = 2") == [
            ("0:2", 2, "t", 1, 1)
        ]

    def test_leaves_no_staging_table(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        out.run({0: (0, 3)})
        assert out.left() == []

    def test_of_nothing_moves_progress(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        call = out.call({0: (0, 3)})
        assert out.sink.insert(call, out.staged(call, [])) == 0
        assert (out.held(), out.progress()[0]) == ([], (1, 3))

    def test_moves_progress_past_what_was_skipped(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        out.run({0: (0, 3)}, past=2)
        assert out.progress()[0] == (1, 5)

    def test_said_twice_is_done_once(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        call = out.call({0: (0, 3)})
        out.sink.insert(call, out.staged(call))
        assert out.sink.insert(call, out.staged(call)) == 0
        assert out.held() == records(p0=(0, 3))

    @pytest.mark.parametrize("place", [("t", 0, 3), ("t", 1, 0), ("u", 0, 0)])
    def test_refuses_rows_of_records_that_the_batch_has_not_read(
        self, empty_database_url: str, place: tuple[str, int, int]
    ) -> None:
        out = table(empty_database_url)
        call = out.call({0: (0, 3)})
        with pytest.raises(SinkError, match=r"rows name records that batch .* has not read, among offsets"):
            out.sink.insert(call, out.staged(call, [("v", 1, *place, 0)]))
        assert out.progress()[0] == (1, 0)

    def test_takes_nulls_and_large_values_as_they_are(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        call = out.call({0: (0, 2)})
        large = "é" * 5_000_000
        out.sink.insert(call, out.staged(call, [(None, None, "t", 0, 0, 0), (large, 2**63 - 1, "t", 0, 1, 1)]))
        assert out.ask("SELECT value, size FROM out ORDER BY kcr_offset") == [(None, None), (large, 2**63 - 1)]

    def test_quotes_every_name(self, empty_database_url: str) -> None:
        odd = 'so; "DROP" it'
        out = Table(
            url=empty_database_url, options={"table": "Weird Table", "sink": "x-y", "region": RegionName("a-b")}
        )
        out.reset({0: 0})
        call = out.call({0: (0, 1)})
        out.sink.insert(call, out.sink.stage(call, {odd: "text"}))
        assert out.ask('SELECT count(*) FROM "Weird Table"') == [(0,)]


class TestSeveralRowsForARecord:
    """An order and its lines; what a task stages is a transaction of its own, as Spark's writer makes it."""

    @staticmethod
    def lines(call: BatchCall, per_record: int = 3, word: str = "") -> list[Row]:
        """Rows of a batch, without their numbers."""
        return [
            (f"{partition.partition}:{offset}.{line}{word}", line, partition.topic, partition.partition, offset)
            for partition, range_ in sorted(call.ranges.items())
            for offset in range(range_.from_, range_.to)
            for line in range(per_record)
        ]

    @staticmethod
    def stage(out: Table, call: BatchCall, *attempts: tuple[int, list[Row]]) -> Staging:
        """Stage a batch: tasks by their numbers, with the rows that an attempt of each has made, in its order."""
        staging = out.staged(call, [])
        for task, rows in attempts:
            out.fill(staging, [(*row, task << 33 | number) for number, row in enumerate(rows)])
        return staging

    @staticmethod
    def values(out: Table) -> list[str]:
        return [value for (value,) in out.ask("SELECT value FROM out ORDER BY 1")]

    def test_all_come_with_their_record(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        call = out.call({0: (0, 3), 1: (0, 2)})
        assert out.sink.insert(call, self.stage(out, call, (0, self.lines(call)))) == 15
        assert out.held() == sorted(records(p0=(0, 3), p1=(0, 2)) * 3)
        assert self.values(out) == [row[0] for row in self.lines(call)]
        assert out.progress() == {0: (1, 3), 1: (1, 2)}

    @pytest.mark.parametrize("mode", [{}, UPSERT_BY_VALUE], ids=["append", "upsert"])
    def test_of_a_task_that_ran_twice_those_of_one_attempt_count(
        self, empty_database_url: str, mode: dict[str, Any]
    ) -> None:
        out = table(empty_database_url, **mode)
        call = out.call({0: (0, 4)})
        rows, again = self.lines(call, word=" once"), self.lines(call, word=" again")
        staged = self.stage(out, call, (0, rows[:6]), (1, rows[6:]), (1, again[:5:-1]), (0, rows[3:6] + rows[:3]))
        assert out.sink.insert(call, staged) == 12
        # In another order and with other values: never some of one and some of the other.
        assert self.values(out) in (
            [value for value, *_ in rows],
            [value for value, *_ in (*rows[:6], *again[6:])],
        )

    def test_may_be_made_by_different_tasks(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        call = out.call({0: (0, 4)})
        rows = self.lines(call)
        shuffled = [[row for row in rows if row[1] % 2 == task] for task in range(2)]
        staged = self.stage(out, call, (0, shuffled[0]), (7, shuffled[1]), (7, shuffled[1][::-1]), (3, []))
        assert out.sink.insert(call, staged) == 12
        assert self.values(out) == [row[0] for row in rows]

    @pytest.mark.parametrize("delivery", LENIENT)
    def test_of_records_that_are_in_the_table_are_left_out(self, empty_database_url: str, delivery: Delivery) -> None:
        out = table(empty_database_url, delivery)
        for ranges, written in (((0, 5), 15), ((2, 8), 9), ((0, 4), 0)):
            call = out.call({0: ranges})
            rows = self.lines(call)
            assert out.sink.insert(call, self.stage(out, call, (0, rows), (0, rows[::-1]))) == written
        assert out.held() == sorted(records(p0=(0, 8)) * 3)

    def test_all_go_with_their_record_in_a_reset(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        call = out.call({0: (0, 5), 1: (0, 5)})
        out.sink.insert(call, self.stage(out, call, (0, self.lines(call)), (0, self.lines(call)[::-1])))
        out.epoch, out.timeline = 2, 2
        out.reset({0: 2, 1: 5})
        assert out.held() == sorted(records(p0=(0, 2), p1=(0, 5)) * 3)
        assert out.progress() == {0: (2, 2), 1: (2, 5)}
        again = out.call({0: (2, 5)})
        out.sink.insert(again, self.stage(out, again, (0, self.lines(again))))
        assert self.values(out) == [row[0] for row in self.lines(call)]

    @pytest.mark.parametrize("mode", [{}, UPSERT_BY_VALUE], ids=["append", "upsert"])
    @pytest.mark.parametrize("difference", ["a record less", "a row less", "another record"])
    def test_of_attempts_with_different_records_none_counts(
        self, empty_database_url: str, mode: dict[str, Any], difference: str
    ) -> None:
        """As after a shuffle by a random number: what one attempt lacks may be in another task's rows, or in none."""
        out = table(empty_database_url, **mode)
        rows = self.lines(out.call({0: (0, 4)}))
        other = {"a record less": rows[3:6], "a row less": rows[:5], "another record": rows[:3] + rows[6:9]}[difference]
        for first, second in ((rows[:6], other), (other, rows[:6])):
            call = out.call({0: (0, 4)})
            staged = self.stage(out, call, (0, first), (0, second), (1, rows[6:]))
            with pytest.raises(SinkError, match=r"ran a task of batch .* attempts made rows of different records"):
                out.sink.insert(call, staged)
            assert (out.held(), out.progress()[0]) == ([], (1, 0))

    def test_of_attempts_in_several_transactions_none_counts(self, empty_database_url: str) -> None:
        """As of a driver that can't tell what transactions the server has: one such attempt alone is taken."""
        out = table(empty_database_url)
        call = out.call({0: (0, 1)})
        rows = [(*row, number) for number, row in enumerate(self.lines(call, per_record=4))]
        staged = out.staged(call, rows[:2])
        out.fill(staged, rows[2:])
        assert out.sink.insert(call, staged) == 4
        call = out.call({0: (1, 2)})
        rows = [(*row, number) for number, row in enumerate(self.lines(call, per_record=4))]
        staged = out.staged(call, rows[:2])
        for part in (rows[2:], rows[:2], rows[2:]):
            out.fill(staged, part)
        with pytest.raises(SinkError, match="attempts made rows of different records"):
            out.sink.insert(call, staged)
        assert out.held() == [(0, 0)] * 4


class TestDeliveries:
    def test_exactly_once_begins_where_the_table_is_and_nowhere_else(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        out.run({0: (0, 5)})
        for begin in (0, 4, 6):
            with pytest.raises(SinkError, match=rf"begins g:t-0 at {begin}, the table is at 5"):
                out.run({0: (begin, 10)})
        out.run({0: (5, 10)})
        assert out.held() == records(p0=(0, 10))

    def test_one_partition_that_does_not_fit_holds_back_the_batch(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        out.run({0: (0, 5)})
        with pytest.raises(SinkError):
            out.run({0: (0, 5), 1: (0, 5)})
        assert out.progress() == {0: (1, 5), 1: (1, 0)}
        assert out.held() == records(p0=(0, 5))

    @pytest.mark.parametrize("delivery", LENIENT)
    def test_the_others_leave_out_what_is_in_the_table(self, empty_database_url: str, delivery: Delivery) -> None:
        out = table(empty_database_url, delivery)
        out.run({0: (0, 5)})
        assert out.run({0: (2, 8)}) == 3
        assert out.run({0: (0, 4)}) == 0
        assert (out.held(), out.progress()[0]) == (records(p0=(0, 8)), (1, 8))

    @pytest.mark.parametrize("delivery", LOSSLESS)
    def test_a_gap_is_refused_where_nothing_may_be_lost(self, empty_database_url: str, delivery: Delivery) -> None:
        out = table(empty_database_url, delivery)
        with pytest.raises(SinkError, match="begins g:t-0 at 3"):
            out.run({0: (3, 5)})
        assert (out.held(), out.progress()[0]) == ([], (1, 0))

    def test_at_most_once_may_leave_a_gap_and_counts_it(self, empty_database_url: str) -> None:
        out = table(empty_database_url, Delivery.AT_MOST_ONCE)
        out.run({0: (0, 2)})
        out.run({0: (5, 7)})
        out.run({0: (10, 11)})
        assert out.held() == records(p0=(0, 2)) + records(p0=(5, 7)) + records(p0=(10, 11))
        assert out.ask("SELECT stepped_over FROM kcr_progress WHERE partition = 0") == [(6,)]

    @pytest.mark.parametrize("delivery", list(Delivery))
    def test_a_partition_that_was_never_seen_begins_anywhere(self, empty_database_url: str, delivery: Delivery) -> None:
        out = table(empty_database_url, delivery)
        out.run({7: (40, 42)})
        assert (out.held(), out.progress()[7]) == (records(p7=(40, 42)), (1, 42))


class TestUpsert:
    def test_replaces_the_row_of_the_same_key(self, empty_database_url: str) -> None:
        out = table(empty_database_url, **UPSERT)
        first, second = out.call({0: (0, 1)}), out.call({0: (1, 2)})
        out.sink.insert(first, out.staged(first, [("old", 7, "t", 0, 0, 0)]))
        out.sink.insert(second, out.staged(second, [("new", 7, "t", 0, 1, 0)]))
        assert out.ask("SELECT value, size, kcr_offset FROM out") == [("new", 7, 1)]

    def test_keeps_the_last_of_several_rows_of_one_batch(self, empty_database_url: str) -> None:
        out = table(empty_database_url, **UPSERT)
        call = out.call({0: (0, 2)})
        rows = [("a", 7, "t", 0, 0, 0), ("c", 7, "t", 0, 1, 2), ("b", 7, "t", 0, 1, 1), ("d", 8, "t", 0, 1, 3)]
        assert out.sink.insert(call, out.staged(call, rows)) == 2
        assert out.ask("SELECT value, size FROM out ORDER BY 2") == [("c", 7), ("d", 8)]

    def test_keeps_no_history_and_converges_when_the_replay_has_passed(self, empty_database_url: str) -> None:
        out = table(empty_database_url, **UPSERT)
        out.run({0: (0, 4)})
        out.epoch, out.timeline = 2, 2
        out.reset({0: 1})
        assert (out.held(), out.progress()[0]) == (records(p0=(0, 4)), (2, 1))
        out.run({0: (1, 4)})
        assert (out.held(), out.progress()[0]) == (records(p0=(0, 4)), (2, 4))


class TestResets:
    def test_of_the_same_timeline_change_nothing_and_tell_progress(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        out.run({0: (0, 5)})
        out.epoch = 2
        assert out.reset({1: 0}, open={0: 3}) == {0: 5}
        assert (out.fence(), out.held(), out.progress()) == (2, records(p0=(0, 5)), {0: (1, 5), 1: (1, 0)})

    def test_of_a_new_timeline_remove_what_is_newer(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        out.run({0: (0, 5), 1: (0, 5)})
        out.epoch, out.timeline = 2, 2
        out.reset({0: 2, 1: 5})
        assert out.held() == records(p0=(0, 2), p1=(0, 5))
        assert out.progress() == {0: (2, 2), 1: (2, 5)}

    def test_may_be_repeated(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        out.run({0: (0, 5)})
        out.epoch, out.timeline = 2, 2
        out.reset({0: 2})
        out.run({0: (2, 4)})
        out.epoch = 3
        out.reset({0: 2})
        assert (out.held(), out.progress()[0]) == (records(p0=(0, 4)), (2, 4))

    def test_take_progress_of_a_lower_timeline_for_none(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        out.run({0: (0, 5)})
        out.epoch, out.timeline = 2, 2
        assert out.reset(open={0: 3, 4: None}) == {0: None, 4: None}
        assert (out.held(), out.progress()) == (records(p0=(0, 3)), {0: (2, 3), 1: (1, 0)})

    def test_step_over_what_a_person_skipped(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        out.run({0: (0, 5)})
        out.epoch = 2
        assert out.reset(open={0: 0}, skips={0: [6, 5, 9]}) == {0: 7}
        assert out.progress()[0] == (1, 7)

    def test_leave_other_groups_sinks_and_regions_alone(self, empty_database_url: str) -> None:
        one, region, group, sink = (
            table(empty_database_url),
            table(empty_database_url, region=RegionName("r2"), region_id=RegionId("another")),
            table(empty_database_url, group=GroupId("h")),
            table(empty_database_url, sink="y"),
        )
        for each in (one, region, group, sink):
            each.run({0: (0, 3)})
        assert one.held() == sorted(records(p0=(0, 3)) * 4)
        one.epoch, one.timeline = 2, 2
        one.reset({0: 0})
        assert one.held() == sorted(records(p0=(0, 3)) * 3)
        for each in (region, group, sink):
            each.run({0: (3, 4)})

    def test_of_a_store_that_is_older_than_the_table_are_refused(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        out.epoch, out.timeline = 5, 3
        out.reset({0: 0})
        out.epoch = 4
        with pytest.raises(SinkAhead, match="the fence stands at 5") as fenced:
            out.reset({0: 0})
        assert (fenced.value.fence, fenced.value.timeline) == (5, 3)
        out.epoch, out.timeline = 6, 2
        with pytest.raises(SinkAhead, match="timeline 3") as ahead:
            out.reset({0: 0})
        assert (ahead.value.fence, ahead.value.timeline) == (6, 3)

    def test_clear_away_what_older_epochs_have_staged(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        out.staged(out.call({0: (0, 3)}))
        other = table(empty_database_url, sink="y")
        other.staged(other.call({0: (0, 3)}))
        out.epoch = 2
        out.reset({0: 0})
        assert len(out.left()) == 1
        out.run({0: (0, 3)})


class TestZombies:
    """A process of epoch 1 that wakes up after epoch 2 has started."""

    def test_can_stage_but_not_publish(self, empty_database_url: str) -> None:
        zombie, heir = table(empty_database_url), Table(url=empty_database_url, epoch=2)
        heir.reset({0: 0, 1: 0})
        call = zombie.call({0: (0, 5)})
        staged = zombie.staged(call)
        with pytest.raises(SinkAhead, match="another process has taken over") as raised:
            zombie.sink.insert(call, staged)
        assert (raised.value.fence, raised.value.timeline) == (2, 1)
        assert (heir.held(), heir.progress()[0]) == ([], (1, 0))

    def test_that_had_staged_finds_its_table_gone(self, empty_database_url: str) -> None:
        zombie, heir = table(empty_database_url), Table(url=empty_database_url, epoch=2)
        call = zombie.call({0: (0, 5)})
        staged = zombie.staged(call)
        heir.reset({0: 0, 1: 0})
        with pytest.raises(SinkError, match="a table is gone"):
            zombie.sink.insert(call, staged)
        with pytest.raises(psycopg.errors.UndefinedTable):
            zombie.fill(staged, zombie.rows_of(call))

    @pytest.mark.parametrize("timeline", [1, 2])
    def test_can_neither_reset(self, empty_database_url: str, timeline: int) -> None:
        zombie, heir = table(empty_database_url), Table(url=empty_database_url, epoch=2, timeline=2)
        heir.reset({0: 0})
        heir.run({0: (0, 5)})
        zombie.timeline = timeline
        with pytest.raises(SinkAhead):
            zombie.reset({0: 0})
        assert (heir.held(), heir.progress()[0], heir.fence()) == (records(p0=(0, 5)), (2, 5), 2)

    def test_that_published_before_the_fence_is_found_by_whoever_reads_after_it(self, empty_database_url: str) -> None:
        """C47: the store has started the reset, the fence is not raised yet."""
        zombie, heir = table(empty_database_url), Table(url=empty_database_url, epoch=2)
        zombie.run({0: (0, 5)})
        assert heir.reset(open={0: 0}) == {0: 5}
        heir.run({0: (5, 7)})
        assert heir.held() == records(p0=(0, 7))

    def test_of_the_same_epoch_finds_progress_elsewhere(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        late = out.call({0: (0, 5)})
        staged = out.staged(late)
        out.run({0: (0, 6)})
        with pytest.raises(SinkError, match="the table is at 6"):
            out.sink.insert(late, staged)

    def test_of_an_older_timeline_writes_nothing(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        call = out.call({0: (0, 5)})
        out.timeline = 2
        out.reset({0: 0})
        with pytest.raises(SinkAhead, match="is of timeline 2"):
            out.sink.insert(call, out.staged(call))

    def test_of_a_later_timeline_that_no_reset_announced_writes_nothing(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        with pytest.raises(SinkError, match="still of timeline 1"):
            out.sink.insert(call := replace(out.call({0: (0, 5)}), timeline=Timeline(2)), out.staged(call))

    def test_of_an_epoch_that_no_reset_announced_writes_nothing(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        out.epoch = 9
        with pytest.raises(SinkError, match="the fence stands at 1"):
            out.run({0: (0, 5)})


def test_the_password_is_in_no_message(empty_database_url: str) -> None:
    out = Table(url="postgresql://someone:hunter2@127.0.0.1:1/nowhere")
    with pytest.raises(SinkError) as raised:
        out.reset({0: 0})
    assert "someone@127.0.0.1:1/nowhere" in str(raised.value)
    assert "hunter2" not in str(raised.value)
    assert libpq(empty_database_url)
