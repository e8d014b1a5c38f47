"""What only an Iceberg table has: tags, snapshots that expire, columns with ids, bounds of files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import ArrowScan

from airflow_kcr.errors import SinkError
from airflow_kcr.protocol.region.commands import PinCheckpoint
from airflow_kcr.sinks.files.cleanup import GivenUp
from airflow_kcr.sinks.files.contents import RegionLedger
from airflow_kcr.sinks.iceberg.catalogs import TableNote
from airflow_kcr.sinks.tables.owned import NOTE
from tests.support.table_files import TableFiles, Warehouse, both, made, reset, warehouse


@pytest.fixture
def lake(tmp_path: Path) -> Warehouse:
    return warehouse(tmp_path / "warehouse")


@pytest.fixture
def files(lake: Warehouse) -> TableFiles:
    return made(lake)


def tags(lake: Warehouse) -> set[str]:
    return {name for name in lake.table().refs() if name.startswith("kcr_")}


def test_each_checkpoint_and_each_revision_has_a_tag(files: TableFiles, lake: Warehouse) -> None:
    both(files)
    first = files.checkpoint("n1")
    number = files.recompute(first, 2, "r1")
    assert tags(lake) == {f"kcr_1_{first}", f"kcr_1_{first}_r{number}"}
    snapshot = lake.table().snapshot_by_name(f"kcr_1_{first}_r{number}")
    assert snapshot is not None
    assert snapshot.snapshot_id == lake.table().metadata.current_snapshot_id


def test_a_cleanup_drops_the_tags_of_what_is_retired_and_not_pinned(files: TableFiles, lake: Warehouse) -> None:
    both(files)
    pinned = files.checkpoint("n1")
    files.driver.handle(PinCheckpoint(sequence=pinned, label="month"))
    for request_id in ("n2", "n3", "n4", "n5"):
        both(files)
        files.checkpoint(request_id)
    files.clean(GivenUp.RETIRED)
    kept = {f"kcr_1_{s}" for s, row in files.driver.region.checkpoints.items() if row.state == "published"}
    assert tags(lake) == kept | {f"kcr_1_{pinned}"}
    known = RegionLedger(files.driver.store, files.driver.name).checkpoints()
    both(files)
    newest = files.checkpoint("n6")
    files.table.forget(known)
    assert f"kcr_1_{newest}" in tags(lake)


def test_a_column_of_ours_that_was_renamed_is_given_its_name_again(files: TableFiles, lake: Warehouse) -> None:
    both(files)
    files.checkpoint("n1")
    for before, after in (("kcr_batch", "writer"), ("writer", "kcr_batch")):
        with lake.table().update_schema() as update:
            update.rename_column(before, after)
        if after == "writer":
            with pytest.raises(
                SinkError, match=r"lost its column kcr_batch.*if it was renamed, give it its name again"
            ):
                files.sink.check()
    both(files)
    files.checkpoint("n2")
    assert files.rows() == files.records()


def test_snapshots_that_were_expired_keep_nothing_from_going_on(files: TableFiles, lake: Warehouse) -> None:
    both(files)
    files.checkpoint("n1")
    files.append(1)
    files.append(2)
    table = lake.table()
    heads = {ref.snapshot_id for ref in table.refs().values()}
    for snapshot in table.snapshots():
        if snapshot.snapshot_id not in heads:
            table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    both(files)
    files.checkpoint("n2")
    assert files.rows() == files.records()


def test_the_note_of_a_table_is_one_document(files: TableFiles, lake: Warehouse) -> None:
    both(files)
    files.checkpoint("n1")
    table = lake.table()
    note = TableNote.of(table)
    assert note is not None
    assert table.properties[NOTE] == note.text()
    assert note.snapshot == table.metadata.current_snapshot_id


def test_a_reset_reads_no_file_that_has_nothing_of_the_sink(lake: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in range(3):
        lake.append({"value": [value]})
    files = made(lake)
    both(files, 1)
    files.checkpoint("n1")
    files.append(3)
    monkeypatch.setattr(ArrowScan, "to_table", None)
    reset(files)
    monkeypatch.undo()
    assert files.rows() == Counter()
    assert files.own_rows() == [0, 1, 2, 3]


def test_a_file_without_bounds_is_read_for_its_rows(files: TableFiles, lake: Warehouse) -> None:
    files.append(7)
    both(files)
    files.checkpoint("n1")
    with lake.table().transaction() as change:
        change.set_properties({"write.metadata.metrics.column.kcr_batch": "none"})
    files.compact()
    reset(files)
    assert files.rows() == Counter()
    assert files.own_rows() == [7]
