"""Rows that take the place of a checkpoint's, on a real Postgres: at once, under the fence, the latest attempt last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from airflow_kcr.errors import CheckpointNotUsable, ConfigurationError, SinkError
from airflow_kcr.protocol.rules import SinkMode
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    Epoch,
    EventNumber,
    GroupId,
    Offset,
    Range,
    RegionId,
    Timeline,
)
from airflow_kcr.sinks.checkpoints import AcceptedBatch, CheckpointId, CompleteCheckpoint, ranges_in_order
from airflow_kcr.sinks.kinds.postgres import DeclaredTable
from airflow_kcr.sinks.postgres import frames
from airflow_kcr.sinks.postgres.sink import PostgresRevision
from airflow_kcr.spec import GroupSpec, RegionSpec, SinkKind, SinkSpec
from tests.support.sink_tables import COLUMNS, Row, Table, records

WAITS = """
    SELECT count(*) > 0 FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


def wanted() -> None:
    """Say that it is wanted."""


def worked(url: str, **options: Any) -> Table:  # noqa: ANN401 (a target's)
    """A table with the rows of checkpoint 1, ten of each partition, and of checkpoint 2, ten more."""
    out = Table(url=url, options=options)
    out.reset({0: 0, 1: 0})
    out.run({0: (0, 6), 1: (0, 10)})
    out.run({0: (6, 10)})
    out.sequence = 2
    out.run({0: (10, 20), 1: (10, 20)})
    return out


def first(out: Table) -> CompleteCheckpoint:
    """Checkpoint 1, as the ledger has it."""
    checkpoint = CheckpointId(Timeline(1), CheckpointNumber(1))
    batches = tuple(
        AcceptedBatch(
            batch_id=BatchId(f"b{n}"),
            epoch=Epoch(1),
            checkpoint=checkpoint,
            ranges={out.partition(p).topic_partition: Range(Offset(a), Offset(b)) for p, (a, b) in ranges.items()},
            is_whole=True,
        )
        for n, ranges in enumerate(({0: (0, 6), 1: (0, 10)}, {0: (6, 10)}))
    )
    return CompleteCheckpoint(id=checkpoint, epoch=Epoch(1), previous=None, boundary=None, batches=batches)


def once_more(
    out: Table,
    number: int = 5,
    word: str = "new",
    batches: tuple[Mapping[int, tuple[int, int]], ...] = ({0: (0, 7)}, {0: (7, 10), 1: (0, 10)}),
    rows: Callable[[list[Row]], list[Row]] = lambda rows: rows,
) -> PostgresRevision:
    """What holds rows of checkpoint 1 back, each value with a word before it."""
    out.sequence = 1
    revision = PostgresRevision(out.sink, first(out), EventNumber(number))
    for ranges in batches:
        call = out.call(ranges)
        staged = revision.stage(call, COLUMNS)
        out.fill(staged, rows([(f"{word} {value}", *rest) for value, *rest in out.rows_of(call)]))
        revision.hold(call, staged)
    return revision


def words(out: Table) -> dict[str, int]:
    """How many rows have each word; those without have an empty one."""
    found = out.ask("SELECT split_part(' ' || value, ' ', -2), count(*) FROM out GROUP BY 1")
    return dict(found)


def left(out: Table) -> list[str]:
    found = out.ask("SELECT relname FROM pg_class WHERE relname LIKE 'kcr_revision%' AND relkind = 'r'")
    return [name for (name,) in found]


def test_replaces_the_rows_of_the_checkpoint_and_no_others(empty_database_url: str) -> None:
    out = worked(empty_database_url)
    progress = out.progress()
    revision = once_more(out)
    assert words(out) == {"": 40}
    revision.replace(wanted)
    assert words(out) == {"new": 20, "": 20}
    assert out.held() == records(p0=(0, 20), p1=(0, 20))
    assert out.ask("SELECT DISTINCT kcr_timeline, kcr_sequence FROM out WHERE value LIKE 'new%'") == [(1, 1)]
    assert out.progress() == progress
    assert left(out) == []


def test_rows_that_are_made_no_more_go(empty_database_url: str) -> None:
    out = worked(empty_database_url)
    once_more(out, rows=lambda rows: [row for row in rows if row[4] % 2]).replace(wanted)
    assert words(out) == {"new": 10, "": 20}
    once_more(out, 6, rows=lambda rows: []).replace(wanted)
    assert words(out) == {"": 20}


def test_what_is_not_wanted_any_more_changes_nothing(empty_database_url: str) -> None:
    out = worked(empty_database_url)
    revision = once_more(out)

    def undone() -> None:
        raise CheckpointNotUsable("it was undone")

    with pytest.raises(CheckpointNotUsable):
        revision.replace(undone)
    assert words(out) == {"": 40}
    revision.stage(out.call({0: (0, 1)}), COLUMNS)  # by a batch that was cancelled
    revision.drop()
    assert left(out) == []


def test_members_write_on_while_rows_are_replaced(empty_database_url: str) -> None:
    out = worked(empty_database_url)
    revision = once_more(out)

    def beside() -> None:
        out.sequence = 2
        out.run({0: (20, 25)})

    revision.replace(beside)
    assert out.held() == records(p0=(0, 25), p1=(0, 20))


def test_a_reset_waits_for_the_exchange_and_rolls_it_back(empty_database_url: str) -> None:
    out = worked(empty_database_url)
    revision = once_more(out)
    with ThreadPoolExecutor(1) as threads:
        resets: list[Future[object]] = []

        def reset_begins() -> None:
            later = Table(url=empty_database_url, epoch=2, timeline=2)
            resets.append(threads.submit(later.reset, {0: 4, 1: 10}))
            while not resets[0].done() and not out.ask(WAITS)[0][0]:
                pass
            assert not resets[0].done()

        revision.replace(reset_begins)
        resets[0].result()
    assert out.held() == records(p0=(0, 4), p1=(0, 10))
    assert words(out) == {"new": 14}


def test_the_later_attempt_stays_whichever_is_first(empty_database_url: str) -> None:
    out = worked(empty_database_url)
    # Of one number, as a later one drops what an earlier one has staged.
    frozen, other = once_more(out, 5, "frozen"), once_more(Table(url=empty_database_url), 5, "other")
    with ThreadPoolExecutor(1) as threads:
        others: list[Future[object]] = []

        def another_comes() -> None:
            others.append(threads.submit(other.replace, wanted))
            while not others[0].done() and not out.ask(WAITS)[0][0]:
                pass
            assert not others[0].done()

        frozen.replace(another_comes)
        others[0].result()
    assert words(out) == {"other": 20, "": 20}


def test_what_an_earlier_attempt_has_staged_is_dropped(empty_database_url: str) -> None:
    out = worked(empty_database_url)
    killed = once_more(out, 5, "killed")
    once_more(out, 6).replace(wanted)
    assert left(out) == []
    with pytest.raises(SinkError, match="a table is gone"):
        killed.replace(wanted)
    assert words(out) == {"new": 20, "": 20}


def test_a_reset_leaves_what_is_staged(empty_database_url: str) -> None:
    out = worked(empty_database_url)
    revision = once_more(out)
    Table(url=empty_database_url, epoch=2).reset({})
    revision.replace(wanted)
    assert words(out) == {"new": 20, "": 20}


def test_rows_of_records_that_were_not_read_are_refused(empty_database_url: str) -> None:
    out = worked(empty_database_url)
    with pytest.raises(SinkError, match=r"rows name records that batch .* has not read"):
        once_more(out, rows=lambda rows: [*rows, ("x", 1, "t", 0, 15, 99)]).replace(wanted)
    assert words(out) == {"": 40}


def test_what_a_crash_of_the_database_took_is_missed(empty_database_url: str) -> None:
    out = worked(empty_database_url)
    revision = once_more(out)
    out.ask("UPDATE kcr_crash_mark SET mark = 'another' RETURNING 1")
    with pytest.raises(SinkError, match="has lost what batch"):
        revision.replace(wanted)
    assert words(out) == {"": 40}


@pytest.mark.parametrize("verb", ["DELETE", "INSERT"])
def test_a_trigger_that_keeps_rows_out_or_in_is_found(empty_database_url: str, verb: str) -> None:
    out = worked(empty_database_url)
    out.ask(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        f"CREATE TRIGGER no BEFORE {verb} ON out FOR EACH ROW EXECUTE FUNCTION no(); SELECT 1"
    )
    with pytest.raises(SinkError, match="a trigger"):
        once_more(out).replace(wanted)
    assert words(out) == {"": 40}


def test_of_one_key_the_rows_of_later_checkpoints_stay(empty_database_url: str) -> None:
    out = Table(url=empty_database_url, options={"mode": SinkMode.UPSERT, "key": ("size",)})
    out.reset({0: 0, 1: 10})
    out.run({0: (0, 10)})  # keys 0 to 9
    out.sequence = 2
    call = out.call({1: (10, 20)})
    rows = [(value, key - 5, *rest) for value, key, *rest in out.rows_of(call)]  # keys 5 to 14
    out.sink.insert(call, out.staged(call, rows))
    once_more(out, batches=({0: (0, 4)}, {0: (4, 10)})).replace(wanted)
    assert out.ask("SELECT size, kcr_sequence FROM out WHERE value LIKE 'new%' ORDER BY size") == [
        (size, 1) for size in range(5)
    ]
    assert out.ask("SELECT count(*), count(DISTINCT size) FROM out") == [(15, 15)]


def elsewhere(url: str, table: str = "tried", **options: Any) -> Table:  # noqa: ANN401 (a target's)
    """A table that gets the output of recomputations alone."""
    return Table(url=url, options={"table": table, "region_id": RegionId("the only one elsewhere"), **options})


def test_a_table_elsewhere_gets_the_rows_once_however_often(empty_database_url: str) -> None:
    live, out = worked(empty_database_url), elsewhere(empty_database_url)
    out.sink.claim()
    for number, word in ((5, "one"), (6, "two")):
        once_more(out, number, word).replace(wanted)
        found = out.ask("SELECT split_part(value, ' ', 1), count(*), count(DISTINCT value) FROM tried GROUP BY 1")
        assert found == [(word, 20, 20)]
    assert words(live) == {"": 40}
    # The sink of the region goes on, and so do both after the table was dropped, or another one has its name.
    live.run({0: (20, 21)})
    out.ask("DROP TABLE tried; SELECT 1")
    again = elsewhere(empty_database_url)
    again.sink.claim()
    once_more(again, 7).replace(wanted)
    assert again.ask("SELECT count(*) FROM tried") == [(20,)]


def declared(url: str, table: str, region_id: str, region: str = "r") -> DeclaredTable:
    sink = SinkSpec(name="x", kind=SinkKind.POSTGRES, table=table, url=url)
    group = GroupSpec(group_id="g", pipeline="jobs:process", topics=("t",), sinks=(sink,))
    spec = RegionSpec(region=region, kafka={"bootstrap.servers": "localhost:9092"}, groups=(group,))
    return DeclaredTable(region=spec, region_id=RegionId(region_id), group=GroupId("g"), spec=sink)


@pytest.mark.parametrize("region", ["r", "another"])
def test_a_table_that_a_region_writes_to_is_not_elsewhere(empty_database_url: str, region: str) -> None:
    worked(empty_database_url)
    with pytest.raises(ConfigurationError, match=r"^into\.g\.x: sink x of group g of region r writes to public\.out"):
        declared(empty_database_url, "out", "the only one elsewhere", region).require_apart(())
    declared(empty_database_url, "tried", "the only one elsewhere", region).require_apart(())


def test_to_ask_whose_a_table_is_notes_nothing(empty_database_url: str) -> None:
    out = worked(empty_database_url)
    out.ask("CREATE TABLE copied AS SELECT * FROM out; UPDATE copied SET kcr_source = 77; SELECT 1")
    before = out.ask("SELECT * FROM kcr_fence ORDER BY source")
    declared(empty_database_url, "copied", "the only one elsewhere").require_apart(())
    assert out.ask("SELECT * FROM kcr_fence ORDER BY source") == before


def rows_of(out: Table, query: str) -> list[tuple[Any, ...]]:
    order = "kcr_partition, kcr_offset, value NULLS LAST"
    return out.ask(f"SELECT value, size, kcr_topic, kcr_partition, kcr_offset FROM ({query}) AS q ORDER BY {order}")


def test_what_is_shown_and_what_is_held_back_is_read_by_queries(empty_database_url: str) -> None:
    out = worked(empty_database_url)
    revision = once_more(out, rows=lambda rows: [row for row in rows if row[4] != 3])
    twice = out.call({0: (9, 10)})
    staged = revision.stage(twice, {"size": "bigint"})
    for _ in range(2):  # as by a task that ran twice
        out.fill(staged, [(7, "t", 0, 9, 0)])
    revision.hold(twice, staged)
    with out.sink.replacing() as table:
        shown = rows_of(out, frames.made_of(table, ranges_in_order(first(out))))
        held = rows_of(out, frames.staged_rows(table, revision._held))
        none = out.ask(frames.made_of(table, []))
    assert [row[2:] for row in shown] == [("t", partition, offset) for partition in range(2) for offset in range(10)]
    assert [row for row in held if row[0] is not None] == [
        (f"new {value}", *rest) for value, *rest in shown if rest[-1] != 3
    ]
    assert [row for row in held if row[0] is None] == [(None, 7, "t", 0, 9)]
    assert none == []


def test_no_transaction_stands_idle_while_spark_connects(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = worked(empty_database_url)
    revision, idle = once_more(out), list[object]()

    def read(*_: object) -> None:
        idle.append(
            out.ask(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in t%'"
            )[0][0]
        )

    monkeypatch.setattr(frames, "read", read)
    spark: Any = None
    out.sink.shown(first(out), spark)
    revision.held(spark)
    assert idle == [0, 0]


def several(out: Table, number: int, *attempts: Callable[[list[Row]], list[Row]]) -> PostgresRevision:
    """What holds two rows for each record of checkpoint 1 back; the first of its two tasks is run in several ways."""
    revision = once_more(out, number, batches=())
    for ranges, ways in (({0: (0, 7)}, attempts), ({0: (7, 10), 1: (0, 10)}, (list,))):
        call = out.call(ranges)
        staged = revision.stage(call, COLUMNS)
        rows = [(f"{word} {value}", *rest) for value, *rest, _ in out.rows_of(call) for word in ("one", "two")]
        for way in ways:
            out.fill(staged, [(*row, n) for n, row in enumerate(way(rows))])
        revision.hold(call, staged)
    return revision


def test_several_rows_of_a_record_are_shown_and_replaced_each_once(empty_database_url: str) -> None:
    out = worked(empty_database_url)
    revision = several(out, 5, list, lambda rows: rows[::-1])
    with out.sink.replacing() as table:
        held = rows_of(out, frames.staged_rows(table, revision._held))
    revision.replace(wanted)
    assert words(out) == {"one": 20, "two": 20, "": 20}
    assert held == rows_of(out, "SELECT * FROM out WHERE kcr_sequence = 1")


def test_attempts_of_a_task_with_different_records_are_neither_shown_nor_replace_anything(
    empty_database_url: str,
) -> None:
    out = worked(empty_database_url)
    revision = several(out, 5, list, lambda rows: rows[2:])
    with out.sink.replacing() as table, pytest.raises(SinkError, match="rows of different records"):
        frames.staged_rows(table, revision._held)
    with pytest.raises(SinkError, match="rows of different records"):
        revision.replace(wanted)
    assert words(out) == {"": 40}


def test_where_there_is_no_table_yet_there_are_no_rows(empty_database_url: str) -> None:
    out = elsewhere(empty_database_url)
    out.sink.claim()
    with out.sink.replacing() as table:
        assert out.ask(frames.made_of(table, ranges_in_order(first(out)))) == []
        assert out.ask(frames.staged_rows(table, [])) == []
