"""Which region, which table: what an earlier region, a renamed sink or another table of the name would make of rows."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.protocol.values import RegionId, RegionName
from airflow_kcr.sinks.contract import SinkOwner
from airflow_kcr.sinks.postgres import bookkeeping, earlier
from airflow_kcr.sinks.postgres.target import TargetTable
from tests.support.databases import libpq
from tests.support.sink_tables import GROUP, Table

FIRST, SECOND = RegionId("first"), RegionId("second")
CHOICE = r"`kcr region output r --keep`.*--delete.*--take-over"


def life(url: str, region_id: RegionId, **options: object) -> Table:
    return Table(url=url, options={"region_id": region_id, **options})


def lived(url: str) -> Table:
    """A first life, which has written three records and gone back once."""
    out = life(url, FIRST)
    out.reset({0: 0})
    out.run({0: (0, 3)})
    out.epoch, out.timeline = 4, 2
    out.reset({0: 0})
    out.run({0: (0, 3)})
    return out


def decided(table: Table, what: Callable[[TargetTable, int, SinkOwner, int | None], object]) -> None:
    """Do with what was left before what a person decides."""
    with table.sink.deciding() as place:
        for source, one in earlier.earlier_outputs(place).items():
            what(place, source, one, bookkeeping.source_of(place))


def test_rows_of_an_earlier_region_of_the_name_are_refused_before_anything_is_written(empty_database_url: str) -> None:
    lived(empty_database_url)
    second = life(empty_database_url, SECOND)
    with pytest.raises(ConfigurationError, match=CHOICE) as refused:
        second.sink.check()
    assert "first" in str(refused.value)
    assert len(second.ask("SELECT 1 FROM out")) == 3


def test_kept_rows_stay_beside_those_of_the_new_region_which_counts_its_epochs_anew(empty_database_url: str) -> None:
    lived(empty_database_url)
    second = life(empty_database_url, SECOND)
    decided(second, lambda place, source, *_: place.run("keep_beside", source=source))
    second.reset({0: 0})
    second.run({0: (0, 5)})
    assert second.ask("SELECT count(*) FROM out GROUP BY kcr_source ORDER BY kcr_source") == [(3,), (5,)]
    # For good: a third region finds those of the second one only.
    with pytest.raises(ConfigurationError, match="region id second") as refused:
        life(empty_database_url, RegionId("third")).sink.check()
    assert "first" not in str(refused.value)


def test_deleted_rows_go_with_their_progress(empty_database_url: str) -> None:
    lived(empty_database_url)
    second = life(empty_database_url, SECOND)
    decided(second, lambda place, source, *_: earlier.delete_output(place, source))
    second.reset({0: 0})
    second.run({0: (0, 5)})
    assert second.ask("SELECT count(*) FROM out") == [(5,)]
    assert second.ask("SELECT count(*) FROM kcr_fence") == [(1,)]


@pytest.mark.parametrize(("start", "rows"), [(0, 5), (2, 5), (3, 5)])
def test_rows_that_are_taken_over_are_replaced_where_they_are_processed_again(
    empty_database_url: str, start: int, rows: int
) -> None:
    lived(empty_database_url)
    second = life(empty_database_url, SECOND)
    decided(second, earlier.take_over)
    second.reset({0: start})
    second.run({0: (start, 5)})
    assert second.ask("SELECT count(*), count(DISTINCT kcr_offset) FROM out") == [(rows, rows)]


@pytest.mark.parametrize("is_taken_over", [True, False])
def test_what_is_still_alive_of_an_earlier_region_writes_nothing_more(
    empty_database_url: str, is_taken_over: bool
) -> None:
    first = lived(empty_database_url)
    call = first.call({0: (3, 5)})
    staging = first.staged(call)
    second = life(empty_database_url, SECOND)
    decided(
        second, earlier.take_over if is_taken_over else lambda place, source, *_: earlier.delete_output(place, source)
    )
    assert first.left() == []
    second.epoch, second.timeline = 4, 2  # as far as the first one was
    second.reset({0: 3})
    for late in (lambda: first.sink.insert(call, staging), lambda: first.run({0: (3, 5)}), lambda: first.reset({0: 0})):
        with pytest.raises(SinkError):
            late()
    second.run({0: (3, 4)})
    kept = 4 if is_taken_over else 1
    assert second.ask("SELECT count(*), max(kcr_offset) FROM out") == [(kept, 3)]


def test_a_region_of_another_name_writes_beside(empty_database_url: str) -> None:
    lived(empty_database_url)
    other = life(empty_database_url, SECOND, region=RegionName("r2"))
    other.reset({0: 0})
    other.run({0: (0, 2)})
    assert other.ask("SELECT count(*) FROM out") == [(5,)]


def test_a_table_that_lost_all_rows_of_an_earlier_region_needs_no_decision(empty_database_url: str) -> None:
    first = lived(empty_database_url)
    first.ask("DELETE FROM out RETURNING 1")
    second = life(empty_database_url, SECOND)
    second.reset({0: 0})
    second.run({0: (0, 2)})
    assert second.ask("SELECT count(*) FROM out") == [(2,)]


def test_a_table_that_was_dropped_between_two_regions_is_filled_anew(empty_database_url: str) -> None:
    first = lived(empty_database_url)
    execute(first, "DROP TABLE out")
    second = life(empty_database_url, SECOND)
    second.reset({0: 0})
    second.run({0: (0, 200)})
    assert second.ask("SELECT count(*) FROM out") == [(200,)]


def test_a_sink_that_was_renamed_is_told_and_goes_on_where_it_was(empty_database_url: str) -> None:
    lived(empty_database_url)
    renamed = life(empty_database_url, FIRST, sink="y", beside=frozenset({(GROUP, "y")}))
    renamed.epoch, renamed.timeline = 4, 2
    with pytest.raises(ConfigurationError, match="which the spec has no more"):
        renamed.sink.check()
    decided(renamed, earlier.take_over)
    renamed.run({0: (3, 4)})
    assert renamed.ask("SELECT count(*), max(kcr_offset) FROM out") == [(4, 3)]


def test_what_has_written_already_takes_nothing_over(empty_database_url: str) -> None:
    lived(empty_database_url)
    second = life(empty_database_url, SECOND)
    decided(second, lambda place, source, *_: place.run("keep_beside", source=source))
    second.reset({0: 0})
    second.run({0: (0, 1)})
    second.ask("UPDATE kcr_fence SET region = 'r' RETURNING 1")
    with pytest.raises(SinkError, match=r"has written to .* already"):
        decided(second, earlier.take_over)


def test_rows_that_a_trigger_keeps_as_they_were_are_not_taken_over(empty_database_url: str) -> None:
    first = lived(empty_database_url)
    execute(
        first,
        "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER skip BEFORE UPDATE ON out FOR EACH ROW EXECUTE FUNCTION skip()",
    )
    second = life(empty_database_url, SECOND)

    def take_over() -> None:
        decided(second, earlier.take_over)

    with pytest.raises(SinkError, match=r"keeps rows as they were.*trigger BEFORE UPDATE"):
        take_over()
    execute(first, "DROP TRIGGER skip ON out")
    take_over()
    second.reset({0: 0})
    second.run({0: (0, 5)})
    assert second.ask("SELECT count(*) FROM out") == [(5,)]


# -- the same number, another sink ----------------------------------------------------------------------------------


def test_rows_of_sinks_that_no_fence_knows_are_refused_before_anything_is_written(empty_database_url: str) -> None:
    first = lived(empty_database_url)
    execute(first, "DROP TABLE kcr_fence, kcr_progress")
    second = life(empty_database_url, SECOND)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=rf"rows of sinks that kcr_fence does not know.*{CHOICE}"):
            second.sink.check()
    execute(first, "DELETE FROM out")
    second.reset({0: 0})
    second.run({0: (0, 5)})
    assert second.ask("SELECT count(*) FROM out") == [(5,)]


# -- the same name, another table -----------------------------------------------------------------------------------


def execute(table: Table, *statements: str) -> None:
    with psycopg.connect(libpq(table.url)) as connection:
        for statement in statements:
            connection.execute(statement.encode())


SWAPS = {
    "dropped": ("DROP TABLE out",),
    "made anew": ("DROP TABLE out", "CREATE TABLE out (LIKE other)"),
    "swapped": ("ALTER TABLE out RENAME TO old", "ALTER TABLE other RENAME TO out"),
}


@pytest.mark.parametrize("how", SWAPS)
def test_another_table_under_the_name_is_told_at_the_next_batch_reset_and_start(
    empty_database_url: str, how: str
) -> None:
    out = lived(empty_database_url)
    execute(out, "CREATE TABLE other (LIKE out)", *SWAPS[how])
    with pytest.raises(SinkError, match="is not the one that this sink has written to"):
        out.run({0: (3, 4)})
    out.epoch = 5
    with pytest.raises(SinkError, match="is not the one"):
        out.reset({0: 0})
    again = life(empty_database_url, FIRST)
    with pytest.raises(ConfigurationError, match=r"is not the one .* `kcr region output REGION --take-over`"):
        again.sink.check()
    with again.sink.deciding() as place:
        own = bookkeeping.source_of(place)
        assert own is not None
        bookkeeping.remember_target(place, own)
    again.epoch, again.timeline = 6, 3
    again.reset({0: 0})
    again.run({0: (0, 4)})
    assert again.ask("SELECT count(*) FROM out") == [(4,)]


def test_a_sink_that_is_given_another_table_by_its_spec_goes_on_there(empty_database_url: str) -> None:
    lived(empty_database_url)
    elsewhere = life(empty_database_url, FIRST, table="elsewhere")
    elsewhere.epoch, elsewhere.timeline = 4, 2
    elsewhere.run({0: (3, 5)})
    assert elsewhere.ask("SELECT count(*) FROM elsewhere") == [(2,)]
