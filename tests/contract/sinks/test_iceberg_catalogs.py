"""An Iceberg table by its catalog: what is refused before anything is consumed, what a person decides, many at once.

The catalog is a database of a real Postgres.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField

from airflow_kcr.errors import ConfigurationError, SinkError, SpecError
from airflow_kcr.protocol.targets import ToInitial
from airflow_kcr.protocol.values import UNDECLARED, GroupId, RegionId
from airflow_kcr.sinks.contract import Choice
from airflow_kcr.sinks.kinds import files as files_kind
from airflow_kcr.sinks.kinds import iceberg as iceberg_kind
from airflow_kcr.sinks.kinds.iceberg import DeclaredIceberg
from airflow_kcr.spec import GroupSpec, RegionSpec, SinkKind, SinkSpec, parse
from tests.support.driver import Driver
from tests.support.iceberg_files import NAME, LakeFiles, Warehouse, lake
from tests.support.sink_files import LocalFolder

AWAY = "http://user:secret@127.0.0.1:9"
"""Where nothing listens."""

SPEC = """\
region: flights
kafka: {{bootstrap.servers: 'broker.invalid:9092'}}
groups:
  - group_id: g
    topics: [t]
    pipeline: 'jobs.flights:process'
    delivery: exactly_once
    sinks: {{out: {{{sink}}}}}
"""


@pytest.fixture(autouse=True)
def local_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reach folders without Spark."""

    def folder(spark: object, uri: str) -> LocalFolder:
        return LocalFolder(Path(uri.removeprefix("file://")))

    for module in (files_kind, iceberg_kind):
        monkeypatch.setattr(module, "Folder", folder)


@pytest.fixture(autouse=True)
def closed_catalogs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close what a process would close by its end."""
    made, begin = list[SqlCatalog](), SqlCatalog.__init__

    def noted(self: SqlCatalog, name: str, **properties: str) -> None:
        begin(self, name, **properties)
        made.append(self)

    monkeypatch.setattr(SqlCatalog, "__init__", noted)
    yield
    for one in made:
        one.close()


@pytest.fixture
def files(database_url: str, tmp_path: Path) -> LakeFiles:
    """A region of two members that runs, and its table."""
    driver = Driver()
    for partition in tuple(driver.logs):
        driver.grow(partition, end=100_000)
    driver.up()
    return lake(driver, tmp_path / "warehouse", database_url.replace("postgresql://", "postgresql+psycopg://"))


def both(files: LakeFiles) -> None:
    for index in range(2):
        files.process_batch(files.driver.member(index))


def no_spark() -> Any:  # noqa: ANN401 (a session)
    return None


def declared(made: Warehouse, region_id: str, **fields: Any) -> DeclaredIceberg:  # noqa: ANN401 (of the spec)
    """The sink of a spec."""
    options = {"catalog": "lake", "table": NAME, "options": made.options, **fields}
    sink = SinkSpec(name="out", kind=SinkKind.ICEBERG, **options)
    group = GroupSpec(group_id="g", topics=("t",), pipeline="jobs:process", sinks=(sink,))
    region = RegionSpec(region="flights", kafka={"bootstrap.servers": "broker.invalid:9092"}, groups=(group,))
    return DeclaredIceberg(
        region=region,
        group=GroupId("g"),
        spec=sink,
        region_id=RegionId(region_id),
        environ={"URI": made.uri, "AWAY": AWAY},
    )


def own(files: LakeFiles, **fields: Any) -> DeclaredIceberg:  # noqa: ANN401 (of the spec)
    return declared(files.warehouse, files.owner.region_id, **fields)


def rollback(files: LakeFiles, tag: str) -> None:
    table = files.warehouse.table()
    table.manage_snapshots().rollback_to_snapshot(table.refs()[tag].snapshot_id).commit()


@pytest.mark.parametrize(
    ("sink", "field", "said"),
    [
        ("kind: iceberg, table: db.delays", "catalog", "is missing; write the name of a catalog that PyIceberg knows"),
        ("kind: iceberg, catalog: lake", "table", "is missing; write namespace.table"),
        ("kind: iceberg, catalog: lake, table: delays", "table", "is no table's name: write namespace.table"),
        (
            "kind: iceberg, catalog: lake, table: db.t, options: {credential: abc}",
            "options.credential",
            "is a secret, and specs are stored",
        ),
        ("kind: iceberg, catalog: lake, table: db.t, mode: upsert, key: [a]", "mode", "is not for kind iceberg"),
        ("kind: iceberg, catalog: lake, table: db.t, path: /lake", "path", "is not for kind iceberg; leave it out"),
    ],
)
def test_a_spec_that_can_not_be_is_refused_by_its_field(sink: str, field: str, said: str) -> None:
    with pytest.raises(SpecError, match=rf"sinks\.out\.{field}: line 8: {said}"):
        parse(SPEC.format(sink=sink))


def test_what_can_not_be_written_to_is_refused_before_anything_is_consumed(files: LakeFiles) -> None:
    region_id, made = files.owner.region_id, files.warehouse
    with pytest.raises(ConfigurationError, match=r"there is no table db.other of catalog lake; create it"):
        own(files, table="db.other").check()
    with pytest.raises(ConfigurationError, match=r"there is no table other.delays of catalog lake; create it"):
        own(files, table="other.delays").check()
    with pytest.raises(ConfigurationError, match=r"catalog nowhere is not known here; describe it in PyIceberg's"):
        own(files, catalog="nowhere", options={}).check()
    with pytest.raises(ConfigurationError, match="NOWHERE"):
        own(files, options={**made.options, "uri": "${NOWHERE}"}).check()
    with pytest.raises(SinkError, match=r"table db.delays of catalog lake could not be read: \w+Error") as away:
        own(files, options={"type": "rest", "uri": "${AWAY}"}).check()
    assert "secret" not in str(away.value)
    spec = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=BucketTransform(4), name="part"))
    made.catalog().create_table("db.buckets", Schema(NestedField(1, "value", LongType())), partition_spec=spec)
    with pytest.raises(ConfigurationError, match=r"is partitioned by bucket\[4\] of value"):
        own(files, table="db.buckets").check()
    own(files, options={**made.options, "uri": "${URI}"}).check()
    with pytest.raises(ConfigurationError, match=r"is written by sink out of group g, region flights"):
        declared(made, f"not {region_id}").check()
    declared(made, UNDECLARED).check()


def test_without_pyiceberg_the_extra_is_named(files: LakeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(ConfigurationError, match=r"needs PyIceberg: install airflow-kcr\[iceberg\]"):
        own(files).check()


@pytest.mark.parametrize(("choice", "left"), [(Choice.KEEP, 40), (Choice.DELETE, 0)])
def test_rows_of_a_region_that_is_gone_stay_or_go_as_a_person_says(files: LakeFiles, choice: Choice, left: int) -> None:
    both(files)
    files.checkpoint("n1")
    files.append(7)
    later = declared(files.warehouse, "another")
    assert later.output(no_spark).earlier == (f"g/out of region id {files.owner.region_id}",)
    with pytest.raises(ConfigurationError, match="can't be taken over"):
        later.settle(Choice.TAKE_OVER, files.driver.store, no_spark)
    said = later.settle(choice, files.driver.store, no_spark)
    assert ("deleted" in said.note) == (choice is Choice.DELETE)
    later.check()
    assert sum(files.rows().values()) == left
    assert files.own_rows() == [7]
    assert set(files.warehouse.table().refs()) == {"main"}
    assert later.settle(choice, files.driver.store, no_spark).note == "nothing to do"


def test_a_table_that_was_rolled_back_is_accepted_and_gone_on_with(files: LakeFiles) -> None:
    both(files)
    first = files.checkpoint("n1")
    both(files)
    files.checkpoint("n2")
    rollback(files, f"kcr_1_{first}")
    declared_sink = replace(own(files), taken=files.driver.store.taken(files.driver.name))
    said = declared_sink.settle(Choice.TAKE_OVER, files.driver.store, no_spark)
    assert said.note == "the table is the sink's as it is"
    files.driver.reset(ToInitial())
    files.driver.complete()
    files.sink.reset(files.reset_order())
    files.driver.finish_reset()
    assert files.rows() == Counter()
    both(files)
    files.checkpoint("n3")
    assert files.rows() == files.records()


def test_what_a_sink_has_written_is_deleted_and_the_files_that_snapshots_have_stay(files: LakeFiles) -> None:
    files.append(7)
    both(files)
    files.checkpoint("n1")
    both(files)
    before = files.data_files()
    said = own(files).delete(files.driver.store, no_spark)
    assert said.note == "all rows deleted; files stay that earlier snapshots of the table have"
    assert files.rows() == Counter()
    assert files.own_rows() == [7]
    published = {file for file in before if "/000001.0000000002/" in file}
    assert published < before
    assert {file for file in files.data_files() if file.endswith(".parquet")} == published
    again = own(files)
    assert again.delete(files.driver.store, no_spark).note == "nothing deleted: it is not this sink's table"
    again.check()


def test_many_publishers_and_others_at_once_show_a_checkpoint_once(files: LakeFiles) -> None:
    both(files)
    files.driver.request_checkpoint("n1")
    sequence = files.driver.complete()
    begin = threading.Barrier(6)

    def publish(_: int) -> None:
        sink = files.process(LocalFolder(files.root))
        begin.wait(30)
        sink.publish(sequence)

    def append(number: int) -> None:
        begin.wait(30)
        for value in range(5):
            appended(files, 10 * number + value)

    with ThreadPoolExecutor(6) as threads:
        done = [*(threads.submit(publish, n) for n in range(4)), *(threads.submit(append, n) for n in range(2))]
        for one in done:
            one.result(120)
    assert files.rows() == files.records(sequence)
    assert files.own_rows() == [*range(5), *range(10, 15)]


def appended(files: LakeFiles, value: int) -> None:
    """Append a row, as often as it takes: PyIceberg gives up after a few tries."""
    from pyiceberg.exceptions import CommitFailedException

    while True:
        try:
            return files.append(value)
        except CommitFailedException:
            continue
