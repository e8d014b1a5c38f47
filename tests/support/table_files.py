"""Tables on a disk, as people have them, that a scripted region's batches write into without Spark.

Everything but Spark is real: PyIceberg with a SQL catalog, delta-rs, parquet files.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar
from urllib.parse import urlsplit

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.exceptions import CommitFailedError
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from airflow_kcr.protocol.rules import RegionRules, RetentionRules
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.targets import ToInitial
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    GroupId,
    Range,
    RegionId,
    TopicName,
    TopicPartition,
)
from airflow_kcr.sinks.contract import SinkOwner
from airflow_kcr.sinks.delta.places import DeltaPlace
from airflow_kcr.sinks.delta.table import DeltaTable
from airflow_kcr.sinks.files.contents import RegionLedger
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.layout import FileTarget, Manifest
from airflow_kcr.sinks.files.revisions import FileRevision
from airflow_kcr.sinks.files.sink import FileSink
from airflow_kcr.sinks.files.tables import Table
from airflow_kcr.sinks.group import kind_of
from airflow_kcr.sinks.iceberg.catalogs import NamedTable
from airflow_kcr.sinks.iceberg.table import IcebergTable
from airflow_kcr.sinks.kinds.tables import DeclaredOwnedTable
from airflow_kcr.sinks.tables.labels import label_of
from airflow_kcr.sinks.tables.owned import folder_of
from airflow_kcr.spec import GroupSpec, RegionSpec, SinkKind, SinkSpec
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.sink_files import Files, LocalFolder, Record, RecordRewriter, owner_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table as Metadata

NAME = "db.delays"
SCHEMA = '{"fields":[],"type":"struct"}'
COLUMNS = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in {
                "value": "long",
                "kcr_topic": "string",
                "kcr_partition": "integer",
                "kcr_offset": "long",
                "kcr_batch": "string",
            }.items()
        ],
    }
)
"""The columns of the files that `put` writes, as Spark has them."""

WHO = "sink out of group group"
AWAY = "http://user:secret@127.0.0.1:9"
"""Where nothing listens."""

COORDINATES = ("kcr_topic", "kcr_partition", "kcr_offset")


def records_of(rows: pa.Table) -> list[Record]:
    """Return which records rows are made of."""
    return list(zip(*(rows.column(name).to_pylist() for name in COORDINATES), strict=True))


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


# The tables, without anything of ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Warehouse:
    """An Iceberg catalog with one table."""

    commit_point: ClassVar[tuple[type, str]] = (SqlCatalog, "commit_table")
    """The method by which whatever commits to it does."""

    errors: ClassVar[tuple[type[Exception], ...]] = (
        CommitStateUnknownException,
        CommitFailedException,
        ConnectionError,
    )
    """What a commit may raise of which it is unknown whether it was made."""

    root: Path
    uri: str
    """Of the catalog's database, or of the catalog."""

    name: str = NAME

    @property
    def options(self) -> dict[str, str]:
        """What opens the catalog."""
        return {"type": "sql", "uri": self.uri, "warehouse": self.root.as_uri()}

    def catalog(self) -> Catalog:
        """The catalog, as another process has it."""
        return load_catalog("lake", **self.options)

    def create(self) -> None:
        """Make the table."""
        catalog = self.catalog()
        catalog.create_namespace_if_not_exists("db")
        catalog.create_table(self.name, Schema(NestedField(1, "value", LongType(), required=False)))

    def drop(self) -> None:
        """Delete the table."""
        self.catalog().drop_table(self.name)

    def table(self) -> Metadata:
        """The table as it is now."""
        return self.catalog().load_table(self.name)

    def named(self) -> NamedTable:
        """The table, as a process of a sink has it."""
        return NamedTable(lambda _: WHO, "lake", self.options, self.name)

    def location(self) -> str:
        """Where it is."""
        return self.table().location()

    def here(self, uri: str) -> Path:
        """Where a place of the table is on this machine."""
        return Path(urlsplit(uri).path)

    def version(self) -> object:
        """What changes with each commit of anybody: the place of its metadata."""
        return self.table().metadata_location

    def commits(self) -> list[Mapping[str, str]]:
        """What the sink's commits say of themselves, oldest first: the summaries of its snapshots."""
        found = (s.summary.additional_properties for s in self.table().metadata.snapshots if s.summary is not None)
        return [told for told in found if any(name.startswith("kcr.") for name in told)]

    def rows(self, sequence: int | None = None) -> pa.Table:
        """All rows, now or as they were with the commit that a checkpoint was published by."""
        table = self.table()
        if sequence is None:
            return table.scan().to_arrow()
        tags = [name for name in table.refs() if name.startswith("kcr_") and name.split("_")[2:] == [str(sequence)]]
        return table.scan(snapshot_id=table.refs()[tags[0]].snapshot_id).to_arrow()

    def at(self, version: TableVersion) -> pa.Table:
        """All rows of a snapshot, by its tag."""
        table = self.table()
        assert str(table.refs()[version.tag].snapshot_id) == version.version
        return table.scan(snapshot_id=int(version.version)).to_arrow()

    def paths(self) -> set[str]:
        """The files that it has now."""
        return {task.file.file_path for task in self.table().scan().plan_files()}

    def append(self, rows: Mapping[str, list[Any]]) -> None:
        """Add rows."""
        table = self.table()
        count = len(next(iter(rows.values())))
        whole = {name: rows.get(name, [None] * count) for name in table.schema().column_names}
        table.append(pa.Table.from_pydict(whole, schema=table.schema().as_arrow()))

    def compact(self) -> None:
        """Put all files together."""
        table = self.table()
        table.overwrite(table.scan().to_arrow())

    def restore(self, sequence: int) -> None:
        """Go back."""
        table = self.table()
        table.manage_snapshots().rollback_to_snapshot(table.refs()[f"kcr_1_{sequence}"].snapshot_id).commit()

    def lose(self, column: str) -> None:
        """Drop a column."""
        with self.table().update_schema() as update:
            update.delete_column(column)

    def rename(self, column: str, name: str) -> None:
        """Give a column another name."""
        with self.table().update_schema() as update:
            update.rename_column(column, name)

    def add(self, column: str) -> None:
        """Add a column."""
        with self.table().update_schema() as update:
            update.add_column(column, StringType())

    def opened(self, target: FileTarget, folder: Folder) -> IcebergTable:
        """The table as a process of a sink has it."""
        return IcebergTable(target, self.named(), folder)

    def spec(self) -> dict[str, Any]:
        """The fields of a spec that name it."""
        return {"catalog": "lake", "table": self.name, "options": self.options}


@dataclass(frozen=True, slots=True, kw_only=True)
class RestWarehouse(Warehouse):
    """A table of a REST catalog, which has others beside."""

    commit_point: ClassVar[tuple[type, str]] = (RestCatalog, "commit_table")

    @property
    def options(self) -> dict[str, str]:
        """What opens the catalog."""
        return {"type": "rest", "uri": self.uri}


@dataclass(frozen=True, slots=True, kw_only=True)
class HiveWarehouse(Warehouse):
    """A table of a metastore of Hive, which has others beside."""

    commit_point: ClassVar[tuple[type, str]] = (HiveCatalog, "commit_table")

    @property
    def options(self) -> dict[str, str]:
        """What opens the catalog."""
        return {"type": "hive", "uri": self.uri, "warehouse": self.root.as_uri()}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaFolder:
    """A Delta table in a folder."""

    commit_point: ClassVar[tuple[type, str]] = (deltalake.DeltaTable, "create_write_transaction")
    errors: ClassVar[tuple[type[Exception], ...]] = (CommitFailedError, OSError, ConnectionError)

    root: Path

    @property
    def uri(self) -> str:
        """Where it is, as delta-rs has it."""
        return self.root.as_uri()

    @property
    def options(self) -> dict[str, str]:
        """What opens it."""
        return {}

    def create(self) -> None:
        """Make the table."""
        schema = pa.schema([("value", pa.int64())])
        deltalake.DeltaTable.create(self.uri, schema, storage_options=self.options)

    def drop(self) -> None:
        """Delete the table's log."""
        self.place().files.delete_dir_contents("_delta_log")

    def table(self, version: int | None = None) -> deltalake.DeltaTable:
        """The table as it is now, or as it was."""
        return deltalake.DeltaTable(self.uri, version=version, storage_options=self.options)

    def place(self) -> DeltaPlace:
        """The table, as a process of a sink has it."""
        return DeltaPlace(WHO, self.uri, self.options)

    def location(self) -> str:
        """Where it is."""
        return self.uri

    def here(self, uri: str) -> Path:
        """Where a place of the table is on this machine."""
        return Path(urlsplit(uri).path)

    def version(self) -> object:
        """What changes with each commit of anybody: its version."""
        return self.table().version()

    def history(self) -> list[tuple[int, Mapping[str, str]]]:
        """The sink's commits with their versions, oldest first."""
        told = [(one["version"], json.loads(one.get("userMetadata", "{}"))) for one in self.table().history()]
        return [(version, one) for version, one in reversed(told) if any(name.startswith("kcr.") for name in one)]

    def commits(self) -> list[Mapping[str, str]]:
        """What the sink's commits say of themselves, oldest first: the user's metadata."""
        return [told for _, told in self.history()]

    def rows(self, sequence: int | None = None) -> pa.Table:
        """All rows, now or as they were with the commit that a checkpoint was published by."""
        return pa.table(self.table(None if sequence is None else self.version_of(sequence)).scan().read_all())

    def at(self, version: TableVersion) -> pa.Table:
        """All rows of a version."""
        return pa.table(self.table(int(version.version)).scan().read_all())

    def version_of(self, sequence: int) -> int:
        """The version that a checkpoint's commit has made."""
        of = [v for v, told in self.history() if told.get("kcr.sequence") == str(sequence)]
        return of[0]

    def paths(self) -> set[str]:
        """The files that it has now."""
        return {f"{self.uri}/{path}" for path in pa.table(self.table().get_add_actions())["path"].to_pylist()}

    def append(self, rows: Mapping[str, list[Any]]) -> None:
        """Add rows; without the other columns, as who knows nothing of them does."""
        kinds = {field.name: field.type for field in pa.schema(self.table().schema().to_arrow())}
        columns = {name: pa.array(values, kinds[name]) for name, values in rows.items()}
        deltalake.write_deltalake(self.table(), pa.table(columns), mode="append", schema_mode="merge")

    def compact(self) -> None:
        """Put all files together."""
        self.table().optimize.compact()

    def restore(self, sequence: int) -> None:
        """Go back."""
        self.table().restore(self.version_of(sequence))

    def lose(self, column: str) -> None:
        """Drop a column, as who writes the table anew does."""
        self._overwrite(self.rows().drop_columns([column]))

    def rename(self, column: str, name: str) -> None:
        """Give a column another name, as who writes the table anew does."""
        self._overwrite(self.rows().rename_columns({column: name}))

    def add(self, column: str) -> None:
        """Add a column."""
        self.table().alter.add_columns([deltalake.Field(column, deltalake.schema.PrimitiveType("string"))])

    def _overwrite(self, rows: pa.Table) -> None:
        deltalake.write_deltalake(self.table(), rows, mode="overwrite", schema_mode="overwrite")

    def opened(self, target: FileTarget, folder: Folder) -> DeltaTable:
        """The table as a process of a sink has it."""
        return DeltaTable(target, self.place(), folder)

    def spec(self) -> dict[str, Any]:
        """The fields of a spec that name it."""
        return {"table": str(self.root)}


Owned: TypeAlias = Warehouse | DeltaFolder
"""A table of a person, as it is reached without our code."""


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


W = TypeVar("W", bound=Warehouse)


def served(kind: type[W], root: Path, uri: str) -> W:
    """Return a catalog with a table of its own, which has others beside.

    Args:
        kind: of the catalog.
        root: of its tables; a REST catalog has a folder itself.
        uri: of the catalog.
    """
    made = kind(root=root, uri=uri, name=f"db.delays_{uuid.uuid4().hex}")
    made.create()
    return made


def delta_folder(root: Path) -> DeltaFolder:
    """Return a Delta table in a folder."""
    made = DeltaFolder(root=root)
    if not deltalake.DeltaTable.is_deltatable(str(root)):
        made.create()
    return made


MADE: Mapping[str, Callable[[Path], Owned]] = {"iceberg": warehouse, "delta": delta_folder}
"""What makes a table of each format."""


# A sink over one


@dataclass(slots=True)
class TableFiles(Files):
    """A scripted region whose sink has a person's table."""

    owned: Owned = field(kw_only=True)
    ending: ClassVar[str] = ".parquet"

    @property
    def owner(self) -> SinkOwner:
        """Whose table it is."""
        return owner_of(self.driver)

    def target(self, folder: LocalFolder) -> FileTarget:
        """The sink, as its spec has it."""
        return FileTarget(owner=self.owner, path=folder.uri, name=NAME, file_size=0)

    def process(self, folder: LocalFolder, table: Table | None = None) -> FileSink:
        """The sink as another process has it."""
        self.table = table or self.owned.opened(self.target(folder), folder)
        ledger = RegionLedger(self.driver.store, self.driver.name)
        return FileSink(self.target(folder), folder, ledger, ParquetRewriter(folder), self.table)

    def put(self, path: Path, found: Sequence[Record], batch: BatchId) -> None:
        """Make a file of records of a batch, with what has written it."""
        put(path, found, label_of(self.owner.region_id, batch))

    def put_again(self, folder: Path, found: Sequence[Record], revision: FileRevision) -> None:
        """Make a file of records that are written once more, with what has written them."""
        put(folder / "part-0.parquet", found, label_of(revision.target.owner.region_id, revision.label))

    def records(self, *sequences: CheckpointNumber) -> Counter[Record]:
        """The records of some checkpoints, by default of all that are in force, and how often each is there."""
        manifests = self.manifests()
        return sum((self.of_manifest(manifests[s]) for s in sequences or tuple(manifests)), Counter())

    def of_manifest(self, manifest: Manifest) -> Counter[Record]:
        """The records of a manifest's files."""
        tables = (pq.read_table(self.root / file.path, partitioning=None) for file in manifest.files)
        return Counter(record for table in tables for record in records_of(table))

    # -- what others see and do -----------------------------------------------------------------------------------

    def rows(self, sequence: int | None = None) -> Counter[Record]:
        """Every record that the table has, and how often, by a reader that isn't ours."""
        rows = self.owned.rows(sequence)
        if "kcr_topic" not in rows.column_names:
            return Counter()
        topics = rows["kcr_topic"].to_pylist()
        return Counter(r for r, topic in zip(records_of(rows), topics, strict=True) if topic is not None)

    def compact(self) -> None:
        """Put all files of the table together, as maintenance does."""
        self.owned.compact()

    def append(self, value: int) -> None:
        """Add a row that no sink has written."""
        self.owned.append({"value": [value]})

    def own_rows(self) -> list[int]:
        """The rows that no sink has written."""
        return sorted(row["value"] for row in self.owned.rows().to_pylist() if row.get("kcr_topic") is None)


def over(driver: Driver, owned: Owned) -> TableFiles:
    """Return a scripted region over a table."""
    return TableFiles(driver, owned.here(folder_of(owned.location(), owner_of(driver))), owned=owned)


def declared(made: Owned, kind: SinkKind, region_id: str, **fields: Any) -> DeclaredOwnedTable:  # noqa: ANN401 (of the spec)
    """The sink of a spec; `${URI}` stands for its place, and `${AWAY}` for one where nothing listens."""
    sink = SinkSpec(name="out", kind=kind, **{**made.spec(), **fields})
    group = GroupSpec(group_id="g", topics=("t",), pipeline="jobs:process", sinks=(sink,))
    region = RegionSpec(region="flights", kafka={"bootstrap.servers": "broker.invalid:9092"}, groups=(group,))
    of_kind = kind_of(kind)
    assert issubclass(of_kind, DeclaredOwnedTable)
    return of_kind(
        region=region,
        group=GroupId("g"),
        spec=sink,
        region_id=RegionId(region_id),
        environ={"URI": made.uri if isinstance(made, Warehouse) else made.location(), "AWAY": AWAY},
    )


# What happens to it


def made(owned: Owned) -> TableFiles:
    """A region of two members that runs and keeps three checkpoints, and its table."""
    driver = Driver(rules=RegionRules(groups={GROUP: group_rules()}, retention=RetentionRules(keep=3)))
    for partition in tuple(driver.logs):
        driver.grow(partition, end=100_000)
    driver.up()
    return over(driver, owned)


def complete(files: TableFiles, request_id: str) -> CheckpointNumber:
    """Make a checkpoint that is to be published."""
    files.driver.request_checkpoint(request_id)
    return files.driver.complete()


def reset(files: TableFiles, sink: FileSink | None = None) -> None:
    """Go back to the beginning."""
    files.driver.reset(ToInitial())
    files.driver.complete()
    (sink or files.sink).reset(files.reset_order())


def other(files: TableFiles, kill: Callable[[str], None] = lambda step: None) -> FileSink:
    """The sink as another process has it, which does something before each step in its folder."""
    return files.process(LocalFolder(files.root, kill))


@contextmanager
def at_commits(files: TableFiles, act: Callable[[Callable[[], Any]], Any]) -> Iterator[None]:
    """Have something done in the place of each commit to the table, but for the commits that it makes itself."""
    where, name = files.owned.commit_point
    commit, is_acting = getattr(where, name), [False]

    def instead(self: object, *given: Any, **named: Any) -> Any:  # noqa: ANN401 (as the libraries have it)
        if is_acting[0]:
            return commit(self, *given, **named)
        is_acting[0] = True
        try:
            return act(partial(commit, self, *given, **named))
        finally:
            is_acting[0] = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, instead)
        yield
