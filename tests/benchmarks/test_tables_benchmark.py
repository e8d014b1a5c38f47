"""The publication of a checkpoint in a table, beside a bare commit of as many files by the same library.

The bare commit of Iceberg's is PyIceberg's `add_files`, with the catalog open already: it reads the footers of its
files, and is spared the look for duplicates, which reads all manifests. That of Delta's reads them too, for the
statistics that its writers keep of each column: delta-rs has no such call.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
from pyiceberg.typedef import Record

from airflow_kcr.protocol.region.commands import RequestCheckpoint
from airflow_kcr.protocol.values import RegionName, RequestId
from airflow_kcr.sinks.delta.files import now
from tests.benchmarks.contenders import Reading, ledger, our_options, rates, shown, streaming
from tests.benchmarks.figures import Report, Scale, in_turns, ratio, spread
from tests.benchmarks.lab import Lab, fixed
from tests.support.driver import Driver
from tests.support.table_files import MADE, DeltaFolder, Owned, TableFiles, Warehouse, over, put, warehouse

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1_800)]

FILES = 60
ROUNDS = 15
COMMITS = 300
MANY, OF_A_COMMIT = 100_000, 5_000
RECORDS, BATCH, SIZE = 1_200_000, 100_000, 100
KEPT = 100, 1_000, 5_000
COUNTED = 50
"""How many checkpoints are really made to see what each takes; the others are like the last of them."""


def region(owned: Owned, name: str = "flights") -> TableFiles:
    """A region that runs, over a table."""
    driver = Driver(name=RegionName(name))
    for partition in tuple(driver.logs):
        driver.grow(partition, end=1_000_000)
    driver.up()
    return over(driver, owned)


@pytest.mark.parametrize("kind", MADE)
def test_a_publication_takes_as_long_as_a_commit_of_its_files(
    report: Callable[[str], Report], tmp_path: Path, kind: str
) -> None:
    files, bare = region(MADE[kind](tmp_path / "ours")), region(MADE[kind](tmp_path / "bare"), "bare")
    made, rows = report(f"tables-{kind}"), []
    for what, prepare in STATES.items():
        for one in (files, bare):
            prepare(one.owned)
        ours, theirs = measured(files, bare, what)
        rows.append((what, spread(ours), spread(theirs)))
        made.at_most(f"a publication of {FILES} files beside a bare commit, {what}", median(ours) / median(theirs), 1.2)
    made.table(f"A commit of {FILES} files, {kind}", ("table", "a publication, s", "a bare commit, s"), rows)


def commits_of_others(owned: Owned) -> None:
    """Have others commit to a table."""
    for _ in range(COMMITS):
        owned.append({"value": [1]})


def many_files(owned: Owned) -> None:
    """Have a table so many files; they are named, and not there: a commit reads none of them."""
    for first in range(0, MANY, OF_A_COMMIT):
        names = [f"theirs/{number}.parquet" for number in range(first, first + OF_A_COMMIT)]
        if isinstance(owned, Warehouse):
            table = owned.table()
            with table.transaction() as change, change.update_snapshot().fast_append() as snapshot:
                for name in names:
                    snapshot.append_data_file(iceberg_file(f"{table.location()}/{name}"))
        else:
            assert isinstance(owned, DeltaFolder)
            table_of_delta = owned.table()
            adds = [AddAction(name, 1_000, {}, now(), True, json.dumps({"numRecords": 1})) for name in names]
            table_of_delta.create_write_transaction([*adds], "append", table_of_delta.schema(), [])
    if isinstance(owned, DeltaFolder):
        owned.table().create_checkpoint()


def iceberg_file(path: str) -> DataFile:
    """A file as a manifest has it."""
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=1_000,
        column_sizes={1: 100},
        value_counts={1: 1},
        null_value_counts={1: 0},
        nan_value_counts={},
        lower_bounds={1: b"\x01" + b"\x00" * 7},
        upper_bounds={1: b"\x01" + b"\x00" * 7},
        key_metadata=None,
        split_offsets=[4],
        equality_ids=None,
        sort_order_id=None,
        spec_id=0,
    )


STATES: dict[str, Callable[[Owned], None]] = {
    "in a new table": lambda owned: None,
    f"after {COMMITS} commits of others": commits_of_others,
    f"among {MANY:,} files": many_files,
}


def measured(files: TableFiles, bare: TableFiles, name: str) -> tuple[list[float], list[float]]:
    """Return the seconds of publications and of bare commits, each after the other."""
    ours, theirs = list[float](), list[float]()
    root = Path(bare.owned.location().removeprefix("file://"))
    commit = committer(bare.owned, root)
    for number in range(ROUNDS):
        for index in range(2):
            files.process_batch(files.driver.member(index), width=100, files=FILES // 2)
        files.driver.request_checkpoint(f"{name}{number}")
        sequence = files.driver.complete()
        began = time.monotonic()
        tables = files.sink.publish(sequence)
        ours.append(time.monotonic() - began)
        files.driver.publish(tables)
        paths = [f"bare/{name[-5:]}{number}-{place}.parquet" for place in range(FILES)]
        for path in paths:
            put(root / path, [("t", 0, offset) for offset in range(7)], path)
        began = time.monotonic()
        commit(paths)
        theirs.append(time.monotonic() - began)
    return ours, theirs


def committer(owned: Owned, root: Path) -> Callable[[Sequence[str]], None]:
    """Return what adds files with nothing but the format's library; its catalog is open, as a member's is."""
    if isinstance(owned, Warehouse):
        catalog, name = owned.catalog(), owned.name

        def add(paths: Sequence[str]) -> None:
            uris = [f"{root.as_uri()}/{path}" for path in paths]
            catalog.load_table(name).add_files(uris, check_duplicate_files=False)

        return add
    assert isinstance(owned, DeltaFolder)
    load = owned.table

    def append(paths: Sequence[str]) -> None:
        table = load()
        adds = [AddAction(path, 1_000, {}, now(), True, statistics(root / path)) for path in paths]
        table.create_write_transaction([*adds], "append", table.schema(), [])

    return append


def statistics(file: Path) -> str:
    """Return what the log of Delta has of a file with one group of rows."""
    found = pq.read_metadata(file)
    group = found.row_group(0)
    columns = {one.path_in_schema: one.statistics for one in map(group.column, range(group.num_columns))}
    told = {
        "numRecords": found.num_rows,
        "minValues": {name: one.min for name, one in columns.items()},
        "maxValues": {name: one.max for name, one in columns.items()},
        "nullCount": {name: one.null_count for name, one in columns.items()},
    }
    return json.dumps(told)


def test_what_a_kept_checkpoint_adds_to_a_table_s_metadata(report: Callable[[str], Report], tmp_path: Path) -> None:
    owned = warehouse(tmp_path / "ours")
    files = region(owned)
    made, rows = report("tables-kept"), []
    sizes = [size(owned)]
    for number in range(COUNTED):
        published(files, f"n{number}")
        sizes.append(size(owned))
    made.at_most("bytes of metadata for a kept checkpoint", (sizes[-1] - sizes[1]) / (COUNTED - 1), 2_000)
    for kept in KEPT:
        keep_more(owned, kept - len(owned.table().refs()) + 1)
        ours, theirs = list[float](), list[float]()
        for number in range(5):
            ours.append(published(files, f"{kept}-{number}"))
            theirs.append(bare_commit(files, f"{kept}-{number}"))
        rows.append((kept, size(owned), spread(ours), spread(theirs)))
        made.at_most(f"a publication beside a bare commit, {kept:,} kept", median(ours) / median(theirs), 1.2)
    made.table("Checkpoints that a table keeps", ("kept", "bytes", "a publication, s", "a bare commit, s"), rows)


def bare_commit(files: TableFiles, name: str) -> float:
    """Return the seconds of a bare commit of two files."""
    root = Path(files.owned.location().removeprefix("file://"))
    paths = [f"bare/{name}-{place}.parquet" for place in range(2)]
    for path in paths:
        put(root / path, [("t", 0, offset) for offset in range(7)], path)
    commit = committer(files.owned, root)
    began = time.monotonic()
    commit(paths)
    return time.monotonic() - began


def published(files: TableFiles, request_id: str) -> float:
    """Make a checkpoint of two files, and return the seconds of its publication."""
    for index in range(2):
        files.process_batch(files.driver.member(index), width=10)
    files.driver.request_checkpoint(request_id)
    sequence = files.driver.complete()
    began = time.monotonic()
    tables = files.sink.publish(sequence)
    took = time.monotonic() - began
    files.driver.publish(tables)
    return took


def size(owned: Warehouse) -> int:
    """How many bytes a table's metadata has: each commit writes it anew."""
    return Path(owned.table().metadata_location.removeprefix("file://")).stat().st_size


NO_AGES: dict[str, None] = dict.fromkeys(("max-ref-age-ms", "max-snapshot-age-ms", "min-snapshots-to-keep"))


def keep_more(owned: Warehouse, number: int) -> None:
    """Have a table keep more checkpoints, each like its last one."""
    table = owned.table()
    last = table.current_snapshot()
    assert last is not None
    updates = list[AddSnapshotUpdate | SetSnapshotRefUpdate]()
    newest, there = table.metadata.next_sequence_number(), len(table.refs())
    for place in range(1, number + 1):
        one = last.model_copy(update={"snapshot_id": last.snapshot_id - place, "sequence_number": newest + place})
        tag = {"ref-name": f"kcr_0_{there + place}", "type": "tag", "snapshot-id": one.snapshot_id}
        updates += [AddSnapshotUpdate(snapshot=one), SetSnapshotRefUpdate.model_validate({**NO_AGES, **tag})]
    table.catalog.commit_table(table, (), tuple(updates))


def test_the_sink_of_delta_beside_structured_streaming_into_delta(
    lab: Lab, scale: Scale, report: Callable[[str], Report], tmp_path: Path
) -> None:
    found, numbers, shares = report("tables-throughput"), count(), list[float]()
    topic = lab.filled(scale.of(RECORDS, BATCH), SIZE)

    def ours(most: int) -> Reading:
        root = tmp_path / f"ours-{next(numbers)}"
        DeltaTable.create(root.as_uri(), pa.schema([("value", pa.string())]))
        out = f", delivery: exactly_once, sinks: {{out: {{kind: delta, table: '{root}'}}}}"
        with lab.hosted(topic, batch=fixed(most), pipeline="sink", group_more=out) as hosted:
            hosted.until_consumed()
            lab.store.handle(hosted.name, RequestCheckpoint(request_id=RequestId("all")))
            hosted.until(lambda: published_at(lab, hosted.name) is not None, "the checkpoint published", 60)
            read = ledger(hosted.store.batches(hosted.name))
            end = published_at(lab, hosted.name)
            began = min(row.started_at for row in hosted.store.batches(hosted.name))
        assert end is not None
        written = sum(file.stat().st_size for file in root.rglob("*") if file.is_file())
        data = sum(file.stat().st_size for file in root.rglob("part-*.parquet"))
        shares.append(written / data)
        assert len(DeltaTable(root).to_pyarrow_dataset().to_table(columns=["value"])) == topic.records
        shutil.rmtree(root)
        return Reading(records=read.records, seconds=(end - began).total_seconds(), batches=read.batches)

    def theirs(most: int | None) -> Reading:
        root = tmp_path / f"theirs-{next(numbers)}"
        reading = streaming(lab, topic, most=most, options=our_options(), delta=root)
        shutil.rmtree(root)
        return reading

    many, one = f"batches of {BATCH:,}", "one batch"
    contenders: dict[str, Callable[[], Reading]] = {
        f"kind: delta, {many}": partial(ours, BATCH),
        f"Structured Streaming, {many}": partial(theirs, BATCH),
        f"kind: delta, {one}": partial(ours, topic.records),
        f"Structured Streaming, {one}": partial(theirs, None),
    }
    race = in_turns(contenders, scale.rounds, warm_up=2)
    found.table(
        f"{topic.records:,} records of {SIZE:,} B into a Delta table, one checkpoint: records a second",
        ("who writes", "batches a round", "median", "smallest to largest"),
        shown(race, rates),
    )
    for batches in (many, one):
        mine, other = (rates(race[f"{who}, {batches}"]) for who in ("kind: delta", "Structured Streaming"))
        found.at_least(f"to Structured Streaming, {batches}", ratio(mine, other), 1.0)
    found.at_most("bytes written, to those of data files", max(shares), 1.02)


def published_at(lab: Lab, name: RegionName) -> datetime | None:
    """When the newest checkpoint was published; None: none was."""
    found = [row.published_at for row in lab.store.read(name)[0].checkpoints.values() if row.published_at is not None]
    return max(found, default=None)
