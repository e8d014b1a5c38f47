"""What only a Delta table has: transactions that RESTORE keeps, VACUUM, features, files with values of partitions."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import TableFeatures

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.protocol.scopes import parse_scope
from airflow_kcr.protocol.targets import ShiftBy
from airflow_kcr.sinks.delta import files as files_module
from airflow_kcr.sinks.delta.features import require_writable
from airflow_kcr.sinks.delta.files import added
from airflow_kcr.sinks.delta.places import DeltaPlace
from airflow_kcr.sinks.tables.labels import label_of
from tests.support.table_files import DeltaFolder, TableFiles, complete, delta_folder, made, other, put, reset


@pytest.fixture
def folder(tmp_path: Path) -> DeltaFolder:
    return delta_folder(tmp_path / "warehouse")


@pytest.fixture
def files(folder: DeltaFolder) -> TableFiles:
    return made(folder)


def application(files: TableFiles) -> str:
    return f"kcr/{files.owner.region_id}/{files.owner.group}/{files.owner.sink}"


def test_a_commit_has_the_table_s_version_and_the_timeline_s_sequence_as_transactions(
    files: TableFiles, folder: DeltaFolder
) -> None:
    files.fill()
    files.append(1)
    sequence = files.checkpoint("n1")
    table = folder.table()
    assert table.transaction_version(application(files)) == table.version()
    assert table.transaction_version(f"{application(files)}/1") == sequence
    reset(files)
    files.driver.finish_reset()
    later = files.checkpoint("n2", batches=1)
    table = folder.table()
    assert table.transaction_version(f"{application(files)}/1") == sequence
    assert table.transaction_version(f"{application(files)}/2") == later


@pytest.mark.parametrize("how", ["to a version", "to a time", "by deleting the log"])
def test_a_batch_is_never_skipped_after_a_restore(files: TableFiles, folder: DeltaFolder, how: str) -> None:
    """RESTORE keeps transactions (delta-io/delta #1813), so that a writer which trusts them skips what is gone."""
    first = files.checkpoint("n1", batches=1)
    at = datetime.now(UTC)
    files.checkpoint("n2", batches=1)
    match how:
        case "to a version":
            folder.table().restore(folder.version_of(first))
        case "to a time":
            folder.table().restore(at)
        case _:
            (folder.root / "_delta_log" / f"{folder.table().version():020}.json").unlink()
    assert files.rows() == files.records(first)
    files.fill()
    with pytest.raises(SinkError, match="was rolled back to before"):
        other(files).publish(complete(files, "n3"))


def test_a_restore_that_takes_back_nothing_of_ours_is_fine(files: TableFiles, folder: DeltaFolder) -> None:
    files.checkpoint("n1", batches=1)
    before = folder.table().version()
    files.append(1)
    folder.table().restore(before)
    files.checkpoint("n2", batches=1)
    assert files.rows() == files.records()


def test_that_the_log_was_cleaned_up_since_is_told(
    files: TableFiles, folder: DeltaFolder, caplog: pytest.LogCaptureFixture
) -> None:
    files.checkpoint("n1", batches=1)
    for value in range(2):
        files.append(value)
    folder.table().create_checkpoint()
    for entry in sorted((folder.root / "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()
    files.checkpoint("n2", batches=1)
    assert files.rows() == files.records()
    assert "its log since version" in caplog.text
    assert "so it is unknown whether it was restored" in caplog.text


def test_commits_of_others_are_looked_through_once(
    files: TableFiles, folder: DeltaFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.checkpoint("n1", batches=1)
    history, asked = deltalake.DeltaTable.history, list[int | None]()

    def noted(table: deltalake.DeltaTable, limit: int | None = None) -> list[dict[str, Any]]:
        asked.append(limit)
        return history(table, limit)

    monkeypatch.setattr(deltalake.DeltaTable, "history", noted)
    for value in range(3):
        files.append(value)
    for _ in range(2):
        files.table.seen()
    files.append(3)
    files.table.seen()
    assert asked == [3, 1]
    before = folder.table().version()
    files.append(4)
    folder.table().restore(before - 5)
    with pytest.raises(SinkError, match="was rolled back to before version"):
        files.table.seen()
    assert asked == [3, 1, 2]


def test_vacuum_leaves_what_the_sink_still_needs(files: TableFiles, folder: DeltaFolder) -> None:
    files.checkpoint("n1", batches=1)
    files.compact()
    files.fill()
    for full in (False, True):
        folder.table().vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=full)
    files.checkpoint("n2")
    files.go_back(ShiftBy(by=-5), scope=parse_scope(topics=["t:1,2"]))
    files.checkpoint("n3", batches=1)
    ends = {p: int(c.position or 0) for p, c in files.driver.region.claims.items()}
    assert files.rows() == files.expected(ends)


def test_a_reset_reads_no_file_that_is_older_than_the_sink(
    folder: DeltaFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in range(3):
        folder.append({"value": [value]})
    monkeypatch.setattr(files_module, "_DAY", -3_600_000)
    files = made(folder)
    files.fill(width=1)
    files.checkpoint("n1")
    monkeypatch.setattr(files_module, "_footer", None)
    reset(files)
    assert files.rows() == Counter()
    assert files.own_rows() == [0, 1, 2]


def test_who_follows_changes_sees_each_row_come_and_go_once(tmp_path: Path) -> None:
    folder = DeltaFolder(root=tmp_path / "warehouse")
    changes = {"delta.enableChangeDataFeed": "true"}
    deltalake.DeltaTable.create(folder.root, pa.schema([("value", pa.int64())]), configuration=changes)
    files = made(folder)
    files.checkpoint("n1", batches=1)
    files.checkpoint("n2", batches=1)
    files.compact()
    files.driver.reset(ShiftBy(by=-10))
    files.driver.complete()
    files.sink.reset(files.reset_order())
    seen = pa.table(folder.table().load_cdf(starting_version=1).read_all()).to_pylist()
    kinds = Counter((row["_change_type"], row["kcr_partition"], row["kcr_offset"]) for row in seen)
    assert kinds == Counter(
        [("insert", p, o) for p in range(4) for o in range(20)]
        + [("delete", p, o) for p in range(4) for o in range(10, 20)]
    )


def table_with(where: Path, change: Callable[[str, dict[str, Any]], object]) -> deltalake.DeltaTable:
    """A table whose first entry of the log others have written: each of its actions is changed by its name."""
    deltalake.DeltaTable.create(where, pa.schema([("value", pa.int64())]))
    deltalake.DeltaTable(where).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    for entry in (where / "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in entry.read_text().splitlines()]
        for line in lines:
            for name, action in line.items():
                change(name, action)
        entry.write_text("\n".join(map(json.dumps, lines)))
    return deltalake.DeltaTable(where)


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({}, ""),
        ({"delta.appendOnly": "true"}, "is append-only, so that no reset could take rows out"),
        ({"delta.columnMapping.mode": "name"}, "is with column mapping, whose files have other names of columns"),
        ({"delta.enableRowTracking": "true"}, "is with row tracking"),
        ({"delta.constraints.low": "value > 0"}, r"has a CHECK constraint \(delta.constraints.low\)"),
    ],
)
def test_a_table_that_a_commit_of_files_would_damage_is_refused(
    tmp_path: Path, properties: Mapping[str, str], said: str
) -> None:
    def change(name: str, action: dict[str, Any]) -> None:
        if name == "metaData":
            action["configuration"] |= properties

    table = table_with(tmp_path / "table", change)
    if not said:
        return require_writable(table, "the table")
    with pytest.raises(ConfigurationError, match=f"the table {said}"):
        require_writable(table, "the table")


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ({"delta.generationExpression": "1"}, r"has a generated column \(value\)"),
        ({"delta.identity.start": 1}, r"has an identity column \(value\)"),
        ({"delta.invariants": "{}"}, r"has an invariant \(value\)"),
    ],
)
def test_a_column_whose_values_others_make_is_refused(tmp_path: Path, column: Mapping[str, Any], said: str) -> None:
    def change(name: str, action: dict[str, Any]) -> None:
        if name == "metaData":
            schema = json.loads(action["schemaString"])
            schema["fields"][0]["metadata"] = column
            action["schemaString"] = json.dumps(schema)

    with pytest.raises(ConfigurationError, match=f"the table {said}"):
        require_writable(table_with(tmp_path / "table", change), "the table")


def test_a_feature_that_is_not_known_is_refused_by_its_name(tmp_path: Path) -> None:
    def change(name: str, action: dict[str, Any]) -> None:
        if name == "protocol" and "writerFeatures" in action:
            action["writerFeatures"] += ["domainMetadata", "rowTracking"]

    with pytest.raises(ConfigurationError, match="has the feature domainMetadata, rowTracking, which the sink can't"):
        require_writable(table_with(tmp_path / "table", change), "the table")


def test_a_feature_that_is_added_under_a_member_is_noticed(files: TableFiles, folder: DeltaFolder) -> None:
    files.fill()
    folder.table().alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(SinkError, match="is append-only"):
        other(files).publish(complete(files, "n1"))


VALUES: dict[str, tuple[Any, str]] = {
    "a b%/=ü": (pa.string(), "p = 'a b%/=ü'"),
    "": (pa.string(), "p IS NULL"),
    7: (pa.int64(), "p = 7"),  # type: ignore[dict-item]
    True: (pa.bool_(), "p"),  # type: ignore[dict-item]
    date(1582, 10, 10): (pa.date32(), "p = DATE '1582-10-10'"),  # type: ignore[dict-item]
    datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=UTC): (  # type: ignore[dict-item]
        pa.timestamp("us", "UTC"),
        "p = TIMESTAMP '2026-01-01T12:00:00.000001Z'",
    ),
}


@pytest.mark.parametrize("value", VALUES)
def test_a_file_says_of_which_partition_it_is_and_is_taken_out_of_it(tmp_path: Path, value: Any) -> None:  # noqa: ANN401
    kind, condition = VALUES[value]
    folder = DeltaFolder(root=tmp_path / "table")
    deltalake.DeltaTable.create(folder.root, pa.schema([("value", pa.int64()), ("p", kind)]), partition_by=["p"])
    files = made(folder)
    batch = files.driver.start_batch(files.driver.member(0), 10)
    call = files.call(batch)
    records = [(p.topic, p.partition, o) for p, r in call.ranges.items() for o in range(r.from_, r.to)]
    for number in range(2):
        path = files.root / files.sink.attempt(call) / f"part-{number}.parquet"
        put(path, records[number::2], label_of(files.owner.region_id, batch))
        rows = pq.read_table(path)
        pq.write_table(rows.append_column("p", pa.array([value] * len(rows), kind)), path)
    files.sink.list_files(call, '{"fields":[],"type":"struct"}')
    files.driver.finish_batch(batch)
    files.checkpoint("n1")
    for again in (False, True):
        assert files.rows() == Counter(records)
        assert pa.table(folder.table().scan(predicate=condition).read_all()).num_rows == len(records)
        assert len(folder.paths()) == 1 + (not again)
        files.compact()
    reset(files)
    assert files.rows() == Counter()
    assert not folder.paths()


def test_bounds_are_those_of_the_file(tmp_path: Path) -> None:
    columns = {
        "n": pa.array([3, None, 1]),
        "far": pa.array([2**62 + 1, 1, 1]),
        "f": pa.array([0.5, float("nan"), 1.0]),
        "t": pa.array(["a", "b", "x" * 40]),
        "i": pa.array([datetime(1960, 1, 1, 0, 0, 0, 1_999, tzinfo=UTC)] * 3, pa.timestamp("us", "UTC")),
        "d": pa.array([date(2026, 1, 1)] * 3),
        "s": pa.array([{"a": 1}] * 3),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=2)
    action = added(DeltaPlace("x", str(tmp_path), {}).files, "a.parquet", os.path.getsize(tmp_path / "a.parquet"), ())
    told = json.loads(action.stats)
    assert told["numRecords"] == 3
    assert (told["minValues"]["n"], told["maxValues"]["n"], told["nullCount"]["n"]) == (1, 3, 1)
    assert told["maxValues"]["far"] == 2**62 + 1
    assert (told["minValues"]["i"], told["maxValues"]["d"]) == ("1960-01-01T00:00:00.001Z", "2026-01-01")
    assert {"t", "s"}.isdisjoint(told["minValues"])


def test_readers_of_plain_parquet_see_the_same_rows(files: TableFiles, folder: DeltaFolder) -> None:
    files.checkpoint("n1", batches=1)
    paths = [path.removeprefix("file://") for path in folder.paths()]
    with duckdb.connect() as connection:
        found = connection.execute(
            "SELECT kcr_topic, kcr_partition, kcr_offset FROM read_parquet(?)", [paths]
        ).fetchall()
    assert Counter(found) == files.rows()
