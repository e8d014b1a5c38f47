"""Tables of a spec: what is refused before anything is consumed, what a person decides, many at once.

The catalog of Iceberg is a database of a real Postgres, or Iceberg's own REST catalog.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import deltalake
import psycopg
import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError
from psycopg import sql
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField

from airflow_kcr.errors import ConfigurationError, SinkError, SpecError
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.values import UNDECLARED, CheckpointNumber
from airflow_kcr.sinks.contract import Choice
from airflow_kcr.sinks.files.arrow import ArrowFolder
from airflow_kcr.sinks.files.layout import Manifest
from airflow_kcr.sinks.iceberg import catalogs
from airflow_kcr.sinks.kinds import files as files_kind
from airflow_kcr.sinks.kinds import tables as tables_kind
from airflow_kcr.sinks.kinds.tables import DeclaredOwnedTable
from airflow_kcr.spec import SinkKind, parse
from tests.support.driver import Driver
from tests.support.hive_metastore import Metastore
from tests.support.rest_catalog import RestServer
from tests.support.sink_files import Killed, LocalFolder
from tests.support.table_files import (
    HiveWarehouse,
    Owned,
    RestWarehouse,
    TableFiles,
    Warehouse,
    at_commits,
    complete,
    declared,
    delta_folder,
    other,
    over,
    reset,
    served,
    warehouse,
)

NOBODY = 65534
"""A user that owns nothing."""

TOLD = ("kcr.region", "kcr.region-id", "kcr.group", "kcr.sink", "kcr.timeline", "kcr.revision", "kcr.epoch")

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
        return LocalFolder(Path(urlsplit(uri).path))

    for module in (files_kind, tables_kind):
        monkeypatch.setattr(module, "HadoopFolder", folder)


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


@pytest.fixture(params=["sql", "delta", *(pytest.param(name, marks=pytest.mark.long) for name in ("rest", "hive"))])
def where(request: pytest.FixtureRequest) -> str:
    """Which catalog has the table, if it is none of Delta."""
    found: str = request.param
    return found


@pytest.fixture
def kind(where: str) -> SinkKind:
    return SinkKind.DELTA if where == "delta" else SinkKind.ICEBERG


@pytest.fixture
def owned(where: str, database_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Owned:
    """A table of a person."""
    root = tmp_path / "warehouse"
    if where == "delta":
        return delta_folder(root)
    if where == "rest":
        return served(RestWarehouse, root, request.getfixturevalue("rest").uri)
    if where == "hive":
        metastore: Metastore = request.getfixturevalue("metastore")
        return served(HiveWarehouse, metastore.folder, metastore.uri)
    return warehouse(root, database_url.replace("postgresql://", "postgresql+psycopg://"))


@pytest.fixture
def files(owned: Owned) -> TableFiles:
    """A region of two members that runs, and its table."""
    driver = Driver()
    for partition in tuple(driver.logs):
        driver.grow(partition, end=100_000)
    driver.up()
    return over(driver, owned)


def no_spark() -> Any:  # noqa: ANN401 (a session)
    return None


def own(files: TableFiles, kind: SinkKind, **fields: Any) -> DeclaredOwnedTable:  # noqa: ANN401 (of the spec)
    return declared(files.owned, kind, files.owner.region_id, **fields)


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
        ("kind: delta", "table", "is missing; write a folder: /folder, or s3a://bucket/folder"),
        ("kind: delta, table: db.delays", "table", "is no folder: write an absolute path, or a URI"),
        ("kind: delta, table: 's3://key:secret@bucket/t'", "table", "holds a key, and specs are stored and shown"),
        (
            "kind: delta, table: /lake/t, options: {AWS_SECRET_ACCESS_KEY: abc}",
            "options.AWS_SECRET_ACCESS_KEY",
            "is a s",
        ),
        ("kind: delta, table: /lake/t, mode: upsert, key: [a]", "mode", "is not for kind delta; leave it out"),
        ("kind: delta, table: /lake/t, catalog: lake", "catalog", "is not for kind delta; leave it out"),
    ],
)
def test_a_spec_that_can_not_be_is_refused_by_its_field(sink: str, field: str, said: str) -> None:
    with pytest.raises(SpecError, match=rf"groups\[0\]\.sinks\.out\.{field}: line 8: {said}"):
        parse(SPEC.format(sink=sink))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("kind: iceberg, catalog: lake, table: db.t", "kind: iceberg, catalog: lake, table: db.t"),
        ("kind: delta, table: /lake/t", "kind: delta, table: /lake/t/"),
    ],
)
def test_two_sinks_with_one_table_are_refused(first: str, second: str) -> None:
    groups = SPEC + SPEC[SPEC.index("  - group_id") :].replace("group_id: g", "group_id: h")
    with pytest.raises(
        SpecError, match=r"groups\[1\]\.sinks\.out\.table: .*that of groups\[0\]\.sinks\.out\.table too"
    ):
        parse(groups.replace("{{{sink}}}", f"{{{{{first}}}}}", 1).format(sink=second))


def reader(of: Warehouse) -> str:
    """The address of a catalog's database for a user who may read it and write nothing."""
    place, name = urlsplit(of.uri), f"reader_{uuid.uuid4().hex}"
    with psycopg.connect(urlunsplit(place._replace(scheme="postgresql")), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'read'").format(sql.Identifier(name)))
        admin.execute(sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA public TO {}").format(sql.Identifier(name)))
    host = place.netloc.rpartition("@")[2]
    return urlunsplit(place._replace(netloc=f"{name}:read@{host}"))


def buckets(files: TableFiles) -> dict[str, Any]:
    """A table whose partitions files do not tell."""
    assert isinstance(files.owned, Warehouse)
    spec = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=BucketTransform(4), name="part"))
    files.owned.catalog().create_table("db.buckets", Schema(NestedField(1, "value", LongType())), partition_spec=spec)
    return {"table": "db.buckets"}


def binary(files: TableFiles) -> dict[str, Any]:
    """A table of Delta that is partitioned by binary values."""
    where = f"{files.owned.location()}/binary"
    deltalake.DeltaTable.create(where, pa.schema([("value", pa.binary())]), partition_by=["value"])
    return {"table": where}


def only(files: TableFiles) -> dict[str, Any]:
    """A table of Delta to which rows may be added alone."""
    where, column = f"{files.owned.location()}/only", pa.schema([("value", pa.int64())])
    deltalake.DeltaTable.create(where, column, configuration={"delta.appendOnly": "true"})
    return {"table": where}


def fields(**given: Any) -> Callable[[TableFiles], dict[str, Any]]:  # noqa: ANN401 (of the spec)
    """These fields of a spec, beside those that name the table."""
    return lambda _: given


UNKNOWN = {"type": "sql", "uri": "${NOWHERE}"}


@pytest.mark.parametrize(
    ("where", "wrong", "field", "said"),
    [
        (
            "sql",
            fields(catalog="nowhere", options={}),
            "catalog",
            "catalog nowhere is not known here; describe it in Py",
        ),
        ("sql", fields(table="db.other"), "table", "there is no table db.other of catalog lake; create it"),
        ("sql", fields(table="other.delays"), "table", "there is no table other.delays of catalog lake; create it"),
        ("sql", buckets, "table", r"table \S+ of catalog lake is partitioned by bucket\[4\] of value"),
        ("sql", fields(options=UNKNOWN), "options.uri", "needs NOWHERE; set them where the process runs"),
        ("delta", fields(table="/nowhere/t"), "table", "there is no Delta table /nowhere/t; create it"),
        ("delta", fields(table="${NOWHERE}"), "table", "needs NOWHERE; set them where the process runs"),
        ("delta", binary, "table", "is partitioned by value, a binary; partition it by a text, number"),
        ("delta", only, "table", "is append-only, so that no reset could take rows out"),
    ],
    indirect=["where"],
)
def test_what_can_not_be_written_to_is_refused_by_its_field_before_anything_is_consumed(
    files: TableFiles, kind: SinkKind, wrong: Callable[[TableFiles], dict[str, Any]], field: str, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"groups\[0\]\.sinks\.out\.{field}\b.*{said}"):
        own(files, kind, **wrong(files)).check()


@pytest.mark.parametrize("where", ["sql", "delta"], indirect=True)
@pytest.mark.parametrize(
    ("name", "column", "said"),
    [
        ("kcr_batch", pa.field("it", pa.int32()), "has column kcr_batch as int, where the sink writes string; rename"),
        ("kcr_offset", pa.field("it", pa.int32()), "has column kcr_offset as int, where the sink writes bigint; rena"),
        (
            "tags",
            pa.field("it", pa.list_(pa.string()), nullable=False),
            "requires column tags, of type array, of",
        ),
    ],
)
def test_a_table_that_takes_no_batch_is_refused_before_anything_is_consumed_and_left_as_it_is(
    files: TableFiles, kind: SinkKind, name: str, column: pa.Field, said: str
) -> None:
    schema = pa.schema([pa.field("value", pa.int64()), column.with_name(name)])
    if isinstance(files.owned, Warehouse):
        files.owned.catalog().create_table("db.misfit", schema)
        given = own(files, kind, table="db.misfit")
    else:
        where = f"{files.owned.location()}/misfit"
        deltalake.DeltaTable.create(where, schema)
        given = own(files, kind, table=where)
    with pytest.raises(ConfigurationError, match=rf"^sink out of group g \(groups\[0\]\.sinks\.out\.table\): .*{said}"):
        given.table(LocalFolder(files.root)).check()
    assert given.place.noted() is None


@pytest.mark.parametrize("where", ["sql"], indirect=True)
def test_a_catalog_that_may_only_be_read_is_refused_before_anything_is_consumed(
    files: TableFiles, kind: SinkKind, owned: Owned
) -> None:
    assert isinstance(owned, Warehouse)
    given = own(files, kind, options={**owned.options, "uri": "${URI}"})
    may_read = replace(given, environ={"URI": reader(owned)})
    may_read.check()
    owned.drop()
    owned.create()
    with pytest.raises(
        ConfigurationError,
        match=r"^sink out of group g \(groups\[0\]\.sinks\.out\.table\): .* may not take its columns in",
    ):
        may_read.table(LocalFolder(files.root)).check()


@pytest.mark.parametrize("where", ["sql"], indirect=True)
def test_a_catalog_that_is_away_is_no_fault_of_the_spec(files: TableFiles, owned: Owned, kind: SinkKind) -> None:
    assert isinstance(owned, Warehouse)
    with pytest.raises(SinkError, match=r"table db.delays of catalog lake could not be read: \w+Error") as away:
        own(files, kind, options={"type": "rest", "uri": "${AWAY}"}).check()
    assert "secret" not in str(away.value)
    own(files, kind, options={**owned.options, "uri": "${URI}"}).check()


@pytest.mark.parametrize("where", ["delta"], indirect=True)
def test_a_storage_that_is_away_is_no_fault_of_the_spec(files: TableFiles, kind: SinkKind) -> None:
    storage = {"AWS_ENDPOINT_URL": "${AWAY}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "x", "max_retries": "0"}
    with pytest.raises(SinkError, match=r"table s3a://b/t could not be read: \w+Error") as away:
        own(files, kind, table="s3a://b/t", options={**storage, "AWS_SKIP_SIGNATURE": "true"}).check()
    assert "secret" not in str(away.value)
    own(files, kind, table="${URI}").check()


@contextmanager
def log_read_only(table: Path) -> Iterator[None]:
    """Let this process, also if it is root's, read a table and write to its folder, but not to its log."""
    log, user = table / "_delta_log", os.geteuid()
    for folder in log.parents:
        if not folder.stat().st_mode & stat.S_IXOTH:
            folder.chmod(0o755)
    if not user:
        for path in (table, *table.rglob("*")):
            if log not in (path, *path.parents):
                os.chown(path, NOBODY, NOBODY)
    log.chmod(0o555)
    try:
        if not user:
            os.seteuid(NOBODY)
        yield
    finally:
        os.seteuid(user)
        log.chmod(0o755)


@pytest.mark.parametrize("where", ["delta"], indirect=True)
def test_a_log_that_may_not_be_written_to_is_refused_before_anything_is_consumed_and_told_under_a_member(
    files: TableFiles,
) -> None:
    files.fill()
    sequence = complete(files, "n1")
    before = files.owned.version()
    with log_read_only(Path(files.owned.location().removeprefix("file://"))):
        with pytest.raises(
            ConfigurationError, match=r"sink out of group group: table \S+ may not be written to; grant"
        ):
            files.sink.check()
        with pytest.raises(SinkError, match="may not"):
            files.sink.publish(sequence)
    assert files.owned.version() == before
    files.sink.publish(sequence)
    assert files.rows() == files.records()


def test_a_table_of_another_region_is_refused(files: TableFiles, kind: SinkKind) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"\(groups\[0\]\.sinks\.out\.table\) of region .* is written by sink out of group g, re",
    ):
        declared(files.owned, kind, f"not {files.owner.region_id}").check()
    declared(files.owned, kind, UNDECLARED).check()


def test_a_table_of_another_sink_of_the_region_is_refused(files: TableFiles, kind: SinkKind) -> None:
    one = own(files, kind)
    with pytest.raises(
        ConfigurationError,
        match=r"^sink second of group g \(groups\[0\]\.sinks\.second\.table\) .* is written by sink out",
    ):
        replace(one, spec=replace(one.spec, name="second")).check()


def test_without_its_library_the_extra_is_named(
    files: TableFiles, kind: SinkKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog" if kind is SinkKind.ICEBERG else "deltalake", None)
    with pytest.raises(ConfigurationError, match=rf"which needs \S+: install airflow-kcr\[{kind}\]"):
        own(files, kind).check()


@pytest.mark.parametrize(("choice", "left"), [(Choice.KEEP, 40), (Choice.DELETE, 0)])
def test_rows_of_a_region_that_is_gone_stay_or_go_as_a_person_says(
    files: TableFiles, kind: SinkKind, choice: Choice, left: int
) -> None:
    files.checkpoint("n1", batches=1)
    files.append(7)
    later = declared(files.owned, kind, "another")
    assert later.output(no_spark).earlier == (f"g/out of region id {files.owner.region_id}",)
    with pytest.raises(ConfigurationError, match="can't be taken over"):
        later.settle(Choice.TAKE_OVER, files.driver.store, no_spark)
    said = later.settle(choice, files.driver.store, no_spark)
    assert ("deleted" in said.note) == (choice is Choice.DELETE)
    later.check()
    assert sum(files.rows().values()) == left
    assert files.own_rows() == [7]
    if isinstance(files.owned, Warehouse):
        assert set(files.owned.table().refs()) == {"main"}
    assert later.settle(choice, files.driver.store, no_spark).note == "nothing to do"


def test_a_table_that_was_rolled_back_is_accepted_and_gone_on_with(files: TableFiles, kind: SinkKind) -> None:
    first = files.checkpoint("n1", batches=1)
    files.checkpoint("n2", batches=1)
    files.owned.restore(first)
    declared_sink = replace(own(files, kind), taken=files.driver.store.taken(files.driver.name))
    said = declared_sink.settle(Choice.TAKE_OVER, files.driver.store, no_spark)
    assert said.note == "the table is the sink's as it is"
    reset(files)
    files.driver.finish_reset()
    assert files.rows() == Counter()
    files.checkpoint("n3", batches=1)
    assert files.rows() == files.records()


def test_a_table_that_was_made_anew_is_accepted_and_gone_on_with(files: TableFiles, kind: SinkKind) -> None:
    files.checkpoint("n1", batches=1)
    files.owned.drop()
    files.owned.create()
    declared_sink = replace(own(files, kind), taken=files.driver.store.taken(files.driver.name))
    declared_sink.settle(Choice.TAKE_OVER, files.driver.store, no_spark)
    reset(files)
    files.driver.finish_reset()
    files.checkpoint("n2", batches=1)
    assert files.rows() == files.records()


def test_what_a_sink_has_written_is_deleted_and_the_files_that_versions_have_stay(
    files: TableFiles, kind: SinkKind
) -> None:
    files.append(7)
    files.checkpoint("n1", batches=1)
    files.fill()
    before = files.data_files()
    said = own(files, kind).delete(files.driver.store, no_spark)
    assert said.note == "all rows deleted; files stay that earlier versions of the table have"
    assert files.rows() == Counter()
    assert files.own_rows() == [7]
    published = {file for file in before if "/000001.0000000002/" in file}
    assert published < before
    assert {file for file in files.data_files() if file.endswith(".parquet")} == published
    again = own(files, kind)
    assert again.delete(files.driver.store, no_spark).note == "nothing deleted: it is not this sink's table"
    again.check()


def parted(files: TableFiles, sequence: CheckpointNumber) -> tuple[Manifest, Mapping[str, str], TableVersion]:
    """Return what shows a checkpoint, without what each has for itself: manifest, commit and version."""
    [version] = files.driver.region.checkpoints[sequence].tables
    manifest = replace(files.manifests()[sequence], sequence=0, previous=None, digest="", boundary=None)
    told = {name: value for name, value in files.owned.commits()[-1].items() if name in TOLD}
    return manifest, told, replace(version, version="", tag="")


def test_an_empty_checkpoint_is_the_same_whoever_shows_it(files: TableFiles, kind: SinkKind) -> None:
    files.fill()
    files.driver.publish(files.sink.publish(complete(files, "n1")))
    shown = []
    for name, sink in (("n2", own(files, kind).at_rest(files.driver.store)), ("n3", files.sink)):
        sequence = complete(files, name)
        files.driver.publish(sink.publish(sequence))
        assert files.owned.commits()[-1]["kcr.sequence"] == str(sequence)
        shown.append(parted(files, sequence))
        commits = files.owned.commits()
        again = [one.publish(sequence) for one in (other(files), own(files, kind).at_rest(files.driver.store))]
        assert again == [files.driver.region.checkpoints[sequence].tables] * 2
        assert files.owned.commits() == commits
    assert shown[0] == shown[1]
    files.fill()
    files.driver.publish(files.sink.publish(complete(files, "n4")))
    assert files.rows() == files.records()


@pytest.mark.parametrize("phase", ["before the manifest", "before the commit", "before the store hears of it"])
@pytest.mark.parametrize("by", ["member", "at rest"])
def test_who_ends_while_it_shows_an_empty_checkpoint_is_followed_by_another(
    files: TableFiles, kind: SinkKind, phase: str, by: str
) -> None:
    files.fill()
    files.driver.publish(files.sink.publish(complete(files, "n1")))
    sequence = complete(files, "n2")

    def killed(*_: object) -> None:
        raise Killed(phase)

    sink = own(files, kind).at_rest(files.driver.store)
    if phase == "before the store hears of it":
        sink.publish(sequence)
    elif phase == "before the commit":
        with at_commits(files, killed), pytest.raises((Killed, SinkError)):
            sink.publish(sequence)
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ArrowFolder, "move", killed)
            with pytest.raises(Killed):
                sink.publish(sequence)
    assert (sequence in files.manifests()) is (phase != "before the manifest")
    follower = other(files) if by == "member" else own(files, kind).at_rest(files.driver.store)
    files.driver.publish(follower.publish(sequence))
    assert [told.get("kcr.sequence") for told in files.owned.commits()].count(str(sequence)) == 1
    assert files.rows() == files.records()


def test_only_what_is_the_sinks_own_and_in_force_is_shown_without_members(files: TableFiles, kind: SinkKind) -> None:
    files.fill()
    files.driver.publish(files.sink.publish(complete(files, "n1")))
    second = complete(files, "n2")
    with pytest.raises(ConfigurationError, match="is written by"):
        declared(files.owned, kind, "another").at_rest(files.driver.store)
    sink, before = own(files, kind).at_rest(files.driver.store), files.driver.store.read(files.driver.name)
    files.driver.publish()
    reset(files)
    assert sink.publish(second) == ()
    assert files.rows() == Counter()
    with pytest.MonkeyPatch.context() as restored:
        restored.setattr(files.driver.store, "read", lambda name: before)
        with pytest.raises(SinkError, match="knows of a later timeline"):
            own(files, kind).at_rest(files.driver.store)


def test_a_table_that_no_member_has_taken_is_not_written_to(owned: Owned, kind: SinkKind, files: TableFiles) -> None:
    files.fill()
    sequence = complete(files, "n1")
    own(files, kind).place.leave(is_emptied=False)
    before = owned.version()
    with pytest.raises(SinkError, match="is not the one that this sink has written to"):
        own(files, kind).at_rest(files.driver.store).publish(sequence)
    assert owned.version() == before


def test_many_publishers_and_others_at_once_show_a_checkpoint_once(files: TableFiles) -> None:
    files.fill()
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


def appended(files: TableFiles, value: int) -> None:
    """Append a row, as often as it takes: PyIceberg gives up after a few tries."""
    while True:
        try:
            return files.append(value)
        except (CommitFailedException, CommitFailedError):
            continue


@pytest.mark.parametrize("where", [pytest.param("rest", marks=pytest.mark.long)], indirect=True)
def test_a_catalog_that_says_nothing_is_away_and_what_it_did_all_the_same_is_found(
    files: TableFiles, rest: RestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogs, "ANSWERS_WITHIN", 1.0)
    files.fill()
    files.driver.request_checkpoint("n1")
    sequence = files.driver.complete()
    sink = files.process(LocalFolder(files.root))
    sink.check()

    def frozen(commit: Callable[[], Any]) -> Any:  # noqa: ANN401 (as `at_commits`)
        rest.process.send_signal(signal.SIGSTOP)
        return commit()

    try:
        with at_commits(files, frozen), pytest.raises(SinkError, match=r"table .* could not be read: ReadTimeout"):
            sink.publish(sequence)
        with pytest.raises(SinkError, match=r"could not be read: ReadTimeout"):
            sink.publish(sequence)
    finally:
        rest.process.send_signal(signal.SIGCONT)
    # The request is in the catalog's hands, and may be carried out at any time now.
    files.driver.publish(sink.publish(sequence))
    assert files.rows() == files.records(sequence)
    assert [told["kcr.sequence"] for told in files.owned.commits() if "kcr.sequence" in told] == [str(sequence)]
    [version] = files.driver.region.checkpoints[sequence].tables
    assert len(files.owned.at(version)) == version.rows == sum(files.rows().values())


@pytest.mark.parametrize("where", ["sql"], indirect=True)
def test_a_catalog_that_is_away_while_a_checkpoint_is_published_has_it_once_when_it_is_back(
    files: TableFiles, database_url: str
) -> None:
    files.fill()
    files.driver.request_checkpoint("n1")
    sequence = files.driver.complete()
    sink = files.process(LocalFolder(files.root))
    sink.check()
    place = urlsplit(database_url.replace("postgresql+psycopg://", "postgresql://"))
    name = place.path.removeprefix("/")
    with psycopg.connect(urlunsplit(place._replace(path="/postgres")), autocommit=True) as admin:

        def away(commit: Callable[[], Any]) -> Any:  # noqa: ANN401 (as `at_commits`)
            admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(name)))
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            return commit()

        try:
            with at_commits(files, away), pytest.raises(SinkError, match=r"could not be read: OperationalError"):
                sink.publish(sequence)
            for _ in range(3):
                with pytest.raises(SinkError, match=r"table .* could not be read: OperationalError"):
                    sink.publish(sequence)
        finally:
            admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(sql.Identifier(name)))
    files.driver.publish(sink.publish(sequence))
    assert files.rows() == files.records(sequence)
    assert [told["kcr.sequence"] for told in files.owned.commits() if "kcr.sequence" in told] == [str(sequence)]
