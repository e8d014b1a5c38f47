"""What only an Iceberg table has: tags, snapshots that expire, columns with ids, bounds of files."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import ArrowScan

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.protocol.region.commands import PinCheckpoint
from airflow_kcr.sinks.files.cleanup import GivenUp
from airflow_kcr.sinks.files.contents import RegionLedger
from airflow_kcr.sinks.iceberg import catalogs
from airflow_kcr.sinks.iceberg.catalogs import NamedTable, TableNote
from airflow_kcr.sinks.tables.owned import NOTE
from tests.support.table_files import TableFiles, Warehouse, made, reset, warehouse


@pytest.fixture
def lake(tmp_path: Path) -> Warehouse:
    return warehouse(tmp_path / "warehouse")


@pytest.fixture
def files(lake: Warehouse) -> TableFiles:
    return made(lake)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a catalog's credential
@pytest.mark.parametrize(
    "options",
    [
        {"type": "rest", "uri": "http://{place}"},
        {"type": "rest", "uri": "http://{place}", "credential": "user:secret"},
        {"type": "sql", "uri": "postgresql+psycopg://user:secret@{place}/catalog"},
    ],
)
def test_a_catalog_that_never_answers_is_away_from_the_first_contact_on(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogs, "ANSWERS_WITHIN", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        table = NamedTable(
            lambda _: "sink out", "lake", {n: v.format(place=place) for n, v in options.items()}, "db.delays"
        )
        for _ in range(2):
            with pytest.raises(
                SinkError, match=r"sink out: catalog lake has not answered for 0.2 s; check its"
            ) as told:
                table.load()
            assert "secret" not in str(told.value)


class Refusing(BaseHTTPRequestHandler):
    """A REST catalog that lets no one in."""

    def do_GET(self) -> None:
        """Refuse."""
        self.send_response(403)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name it has)
        """Say nothing."""


def test_a_catalog_that_refuses_is_not_asked_again() -> None:
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = {"type": "rest", "uri": f"http://127.0.0.1:{server.server_port}", "token": "secret"}
        with pytest.raises(ConfigurationError, match=r"table db.delays of catalog lake may not be read \(Forb") as told:
            NamedTable(lambda _: "sink out", "lake", options, "db.delays").load()
        assert "secret" not in str(told.value)
        server.shutdown()


def tags(lake: Warehouse) -> set[str]:
    return {name for name in lake.table().refs() if name.startswith("kcr_")}


def test_each_checkpoint_and_each_revision_has_a_tag(files: TableFiles, lake: Warehouse) -> None:
    first = files.checkpoint("n1", batches=1)
    number = files.recompute(first, 2, "r1")
    assert tags(lake) == {f"kcr_1_{first}", f"kcr_1_{first}_r{number}"}
    snapshot = lake.table().snapshot_by_name(f"kcr_1_{first}_r{number}")
    assert snapshot is not None
    assert snapshot.snapshot_id == lake.table().metadata.current_snapshot_id


def test_a_cleanup_drops_the_tags_of_what_is_retired_and_not_pinned(files: TableFiles, lake: Warehouse) -> None:
    pinned = files.checkpoint("n1", batches=1)
    files.driver.handle(PinCheckpoint(sequence=pinned, label="month"))
    for request_id in ("n2", "n3", "n4", "n5"):
        files.fill()
        files.checkpoint(request_id)
    files.clean(GivenUp.RETIRED)
    kept = {f"kcr_1_{s}" for s, row in files.driver.region.checkpoints.items() if row.state == "published"}
    assert tags(lake) == kept | {f"kcr_1_{pinned}"}
    known = RegionLedger(files.driver.store, files.driver.name).checkpoints()
    newest = files.checkpoint("n6", batches=1)
    files.table.forget(known)
    assert f"kcr_1_{newest}" in tags(lake)


def test_a_column_of_ours_that_was_renamed_is_given_its_name_again(files: TableFiles, lake: Warehouse) -> None:
    files.checkpoint("n1", batches=1)
    for before, after in (("kcr_batch", "writer"), ("writer", "kcr_batch")):
        with lake.table().update_schema() as update:
            update.rename_column(before, after)
        if after == "writer":
            with pytest.raises(
                SinkError, match=r"lost its column kcr_batch.*if it was renamed, give it its name again"
            ):
                files.sink.check()
    files.checkpoint("n2", batches=1)
    assert files.rows() == files.records()


def test_snapshots_that_were_expired_keep_nothing_from_going_on(files: TableFiles, lake: Warehouse) -> None:
    files.checkpoint("n1", batches=1)
    files.append(1)
    files.append(2)
    table = lake.table()
    heads = {ref.snapshot_id for ref in table.refs().values()}
    for snapshot in table.snapshots():
        if snapshot.snapshot_id not in heads:
            table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    files.checkpoint("n2", batches=1)
    assert files.rows() == files.records()


def test_the_note_of_a_table_is_one_document(files: TableFiles, lake: Warehouse) -> None:
    files.checkpoint("n1", batches=1)
    table = lake.table()
    note = TableNote.of(table)
    assert note is not None
    assert table.properties[NOTE] == note.text()
    assert note.snapshot == table.metadata.current_snapshot_id


def test_a_reset_reads_no_file_that_has_nothing_of_the_sink(lake: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in range(3):
        lake.append({"value": [value]})
    files = made(lake)
    files.fill(width=1)
    files.checkpoint("n1")
    files.append(3)
    monkeypatch.setattr(ArrowScan, "to_table", None)
    reset(files)
    monkeypatch.undo()
    assert files.rows() == Counter()
    assert files.own_rows() == [0, 1, 2, 3]


def test_a_file_without_bounds_is_read_for_its_rows(files: TableFiles, lake: Warehouse) -> None:
    files.append(7)
    files.checkpoint("n1", batches=1)
    with lake.table().transaction() as change:
        change.set_properties({"write.metadata.metrics.column.kcr_batch": "none"})
    files.compact()
    reset(files)
    assert files.rows() == Counter()
    assert files.own_rows() == [7]
