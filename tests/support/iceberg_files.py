"""An Iceberg table on a disk that a scripted region's batches write into without Spark: files, and a SQL catalog."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.offsets import EMPTY
from airflow_kcr.protocol.values import BatchId, CheckpointNumber, GroupPartition, Range, TopicName, TopicPartition
from airflow_kcr.sinks.checkpoints import AcceptedBatch
from airflow_kcr.sinks.contract import SinkOwner
from airflow_kcr.sinks.files.contents import RegionLedger
from airflow_kcr.sinks.files.layout import FileTarget, Manifest
from airflow_kcr.sinks.files.revisions import FileRevision
from airflow_kcr.sinks.files.sink import FileSink
from airflow_kcr.sinks.files.tables import Table
from airflow_kcr.sinks.iceberg.catalogs import NamedTable
from airflow_kcr.sinks.iceberg.table import IcebergTable, folder_of, label_of
from tests.support.driver import GROUP, Driver
from tests.support.sink_files import Files, LocalFolder, Record, RecordRewriter

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table as Metadata

NAME = "db.delays"
SCHEMA = '{"fields":[],"type":"struct"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Warehouse:
    """A catalog with one table, as people have it: without anything of ours."""

    root: Path
    uri: str
    """Of the catalog's database."""

    @property
    def options(self) -> dict[str, str]:
        """What opens the catalog."""
        return {"type": "sql", "uri": self.uri, "warehouse": self.root.as_uri()}

    def catalog(self) -> Catalog:
        """The catalog, as another process has it."""
        return load_catalog("lake", **self.options)

    def create(self) -> Metadata:
        """Make the table."""
        catalog = self.catalog()
        catalog.create_namespace_if_not_exists("db")
        return catalog.create_table(NAME, Schema(NestedField(1, "value", LongType(), required=False)))

    def table(self) -> Metadata:
        """The table as it is now."""
        return self.catalog().load_table(NAME)

    def named(self) -> NamedTable:
        """The table, as a process of a sink has it."""
        return NamedTable("sink out of group group", "lake", self.options, NAME)


def warehouse(root: Path, uri: str | None = None) -> Warehouse:
    """Return a catalog with its table.

    Args:
        root: where the table is.
        uri: of the catalog's database; None: a file.
    """
    root.mkdir(parents=True, exist_ok=True)
    made = Warehouse(root=root, uri=uri or f"sqlite:///{root}/catalog.db")
    if not made.catalog().namespace_exists("db"):
        made.create()
    return made


def records_of(rows: pa.Table) -> list[Record]:
    """Return which records rows are made of."""
    columns = (rows.column(name).to_pylist() for name in ("kcr_topic", "kcr_partition", "kcr_offset"))
    return list(zip(*columns, strict=True))


def put(file: Path, records: Iterable[Record], label: str) -> None:
    """Write a file as Spark would."""
    found = list(records)
    columns = {
        "value": pa.array([offset for _, _, offset in found], pa.int64()),
        "kcr_topic": pa.array([topic for topic, _, _ in found], pa.string()),
        "kcr_partition": pa.array([partition for _, partition, _ in found], pa.int32()),
        "kcr_offset": pa.array([offset for _, _, offset in found], pa.int64()),
        "kcr_batch": pa.array([label] * len(found), pa.string()),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), file)


@dataclass(frozen=True, slots=True)
class ParquetRewriter(RecordRewriter):
    """Makes few files of many, as Spark would."""

    def rewrite(
        self,
        sources: Iterable[str],
        schema: str,
        into: str,
        *,
        files: int,
        kept: Mapping[TopicPartition, tuple[Range, ...]] | None = None,
    ) -> Mapping[str, int]:
        """Write the rows of several files into one."""
        rows = pa.concat_tables([pq.read_table(self.folder.root / path, partitioning=None) for path in sources])
        if kept is not None:
            mask = [
                any(k.from_ <= offset < k.to for k in kept.get(TopicPartition(TopicName(topic), partition), ()))
                for topic, partition, offset in records_of(rows)
            ]
            rows = rows.filter(pa.array(mask))
        path = f"{into}-{uuid.uuid4().hex[:6]}.parquet"
        (self.folder.root / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, self.folder.root / path)
        return {path: (self.folder.root / path).stat().st_size}


@dataclass(slots=True)
class LakeFiles(Files):
    """A scripted region whose sink is an Iceberg table."""

    warehouse: Warehouse = field(kw_only=True)

    @property
    def owner(self) -> SinkOwner:
        """Whose table it is."""
        return SinkOwner(region=self.driver.name, region_id=self.driver.region.region_id, group=GROUP, sink="out")

    def shown(self, folder: LocalFolder) -> IcebergTable:
        """The table, as a process has it."""
        return IcebergTable(target=self.target(folder), table=self.warehouse.named(), folder=folder)

    def target(self, folder: LocalFolder) -> FileTarget:
        """The sink, as its spec has it."""
        return FileTarget(owner=self.owner, path=folder.uri, name=NAME, file_size=0)

    def process(self, folder: LocalFolder, table: Table | None = None) -> FileSink:
        """The sink as another process has it."""
        self.table = table or self.shown(folder)
        ledger = RegionLedger(self.driver.store, self.driver.name)
        return FileSink(self.target(folder), folder, ledger, ParquetRewriter(folder), self.table)

    def write(self, batch: BatchId, files: int = 1, schema: str = SCHEMA, sink: FileSink | None = None) -> None:
        """Write a batch's files and their list."""
        call, sink = self.call(batch), sink or self.sink
        found = [(p.topic, p.partition, o) for p, r in call.ranges.items() for o in range(r.from_, r.to)]
        for number in range(files):
            path = self.root / sink.attempt(call) / f"part-{number:05d}.parquet"
            put(path, found[number::files], label_of(self.owner.region_id, batch))
        sink.list_files(call, schema)

    def rewrite(self, revision: FileRevision, batch: AcceptedBatch, name: str, copies: int = 2) -> None:
        """Write the records of one batch once more."""
        call = BatchCall(
            region=self.driver.name,
            member=self.driver.member(0),
            batch=BatchId(name),
            epoch=batch.epoch,
            timeline=revision.checkpoint.id.timeline,
            sequence=revision.checkpoint.id.sequence,
            ranges={GroupPartition(GROUP, p.topic, p.partition): r for p, r in batch.ranges.items()},
            progress=EMPTY,
        )
        found = [(p.topic, p.partition, o) for p, r in batch.ranges.items() for o in range(r.from_, r.to)] * copies
        file = Path(revision.folder.uri) / revision.attempt(call) / "part-0.parquet"
        put(file, found, label_of(revision.target.owner.region_id, revision.label))
        revision.list_files(call, SCHEMA)

    def records(self, *sequences: CheckpointNumber) -> Counter[Record]:
        """The records of some checkpoints, by default of all that are in force, and how often each is there."""
        manifests = self.manifests()
        return sum((self.of_manifest(manifests[s]) for s in sequences or tuple(manifests)), Counter())

    def of_manifest(self, manifest: Manifest) -> Counter[Record]:
        """The records of a manifest's files."""
        tables = (pq.read_table(self.root / file.path, partitioning=None) for file in manifest.files)
        return Counter(record for table in tables for record in records_of(table))

    # -- what others see and do -----------------------------------------------------------------------------------

    def rows(self, tag: str | None = None) -> Counter[Record]:
        """Every record that the table has, and how often, by a reader that isn't ours."""
        table = self.warehouse.table()
        scan = table.scan() if tag is None else table.scan(snapshot_id=table.refs()[tag].snapshot_id)
        if "kcr_topic" not in table.schema().column_names:
            return Counter()
        rows = scan.filter("kcr_topic IS NOT NULL").to_arrow()
        return Counter(records_of(rows))

    def compact(self) -> None:
        """Put all files of the table together, as maintenance does."""
        table = self.warehouse.table()
        table.overwrite(table.scan().to_arrow())

    def append(self, value: int) -> None:
        """Add a row that no sink has written."""
        table = self.warehouse.table()
        row = {name: [value if name == "value" else None] for name in table.schema().column_names}
        table.append(pa.Table.from_pydict(row, schema=table.schema().as_arrow()))

    def own_rows(self) -> list[int]:
        """The rows that no sink has written."""
        found = self.warehouse.table().scan(row_filter="kcr_topic IS NULL").to_arrow()
        return sorted(found["value"].to_pylist())


def lake(driver: Driver, root: Path, uri: str | None = None) -> LakeFiles:
    """Return a scripted region over a new table; see `warehouse`."""
    made = warehouse(root, uri)
    owner = SinkOwner(region=driver.name, region_id=driver.region.region_id, group=GROUP, sink="out")
    where = Path(folder_of(made.table().location(), owner).removeprefix("file://"))
    return LakeFiles(driver, where, warehouse=made)
