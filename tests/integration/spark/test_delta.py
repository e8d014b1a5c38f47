"""File sinks of format `delta`, with Delta itself: what its readers see while processes publish, die or go back.

A commit of Delta is dozens of plans and jobs of Spark; here is the sample, the rest is soak. The order of the steps is
tried in many more ways without Delta, in `tests/unit/sinks/files/test_table.py`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_kcr.errors import CheckpointNotUsable, ConfigurationError, RecomputationRefused, SinkError
from airflow_kcr.protocol.region.commands import RetireCheckpoints
from airflow_kcr.protocol.region.rows import Outcome
from airflow_kcr.protocol.rules import FileFormat
from airflow_kcr.protocol.targets import ToInitial
from airflow_kcr.protocol.values import UNDECLARED, RegionName
from airflow_kcr.sinks import clean_checkpoints, read_checkpoint
from airflow_kcr.sinks.contract import SinkOfBatch, SinkOwner
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.delta import require_delta, table_of
from airflow_kcr.sinks.files.layout import FileTarget, Manifest, Undone
from airflow_kcr.sinks.files.sink import FileSink
from airflow_kcr.sinks.files.tables import Table
from airflow_kcr.spark.session import DELTA
from tests.support.driver import GROUP
from tests.support.lake import READ, Lake, reset_order
from tests.support.live_region import live_region
from tests.support.sink_files import Killed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_kcr.protocol.values import CheckpointNumber

# What Delta does takes the more time the busier the machine is, and the first test has the start of the JVM in it.
pytestmark = pytest.mark.timeout(600)

Record = tuple[str, int, int]

SPEC = """\
region: flights
kafka: {bootstrap.servers: 'broker.invalid:9092'}
groups:
  - group_id: g
    topics: [t]
    members: 2
    pipeline: 'jobs.flights:process'
    sinks: {out: {kind: files, path: '${LAKE}/out', format: delta}}
timeouts: {lease: 240s}
retention: {keep: 2}
"""


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """A region whose sink has a Delta table."""
    return Lake(spark, tmp_path / "out", format=FileFormat.DELTA)


class Stepping(Table):
    """The table as one process has it, which does something before or after its writes."""

    def __init__(self, lake: Lake, before: Callable[[str], None], after: Callable[[str], None]) -> None:
        self._inner: Table = table_of(lake.spark, lake.target(lake.root.as_uri()))
        self._before, self._after = before, after

    def is_there(self) -> bool:
        return self._inner.is_there()

    def check(self) -> None:
        self._inner.check()

    def fit(self, schema: str) -> None:
        self._inner.fit(schema)

    def seen(self) -> int:
        return self._inner.seen()

    def show(self, manifest: Manifest, seen: int) -> bool:
        self._before("show")
        shown = self._inner.show(manifest, seen)
        self._after("show")
        return shown

    def replace(self, manifest: Manifest, seen: int) -> bool:
        self._before("replace")
        replaced = self._inner.replace(manifest, seen)
        self._after("replace")
        return replaced

    def hide(self, undone: Collection[Undone]) -> None:
        self._before("hide")
        self._inner.hide(undone)
        self._after("hide")


def nothing(step: str) -> None:
    """Goes on."""


def other(lake: Lake, before: Callable[[str], None] = nothing, after: Callable[[str], None] = nothing) -> FileSink:
    """The sink as another process has it."""
    return lake.opened(lake.root.as_uri(), Stepping(lake, before, after))


def at(step: str, do: Callable[[], object]) -> Callable[[str], None]:
    """Does something once, at a step."""
    left = [do]

    def act(name: str) -> None:
        if name == step and left:
            left.pop()()

    return act


def die() -> None:
    raise Killed("here")


def table(lake: Lake, version: int | None = None) -> DataFrame:
    """The table, as any reader sees it."""
    reader = lake.spark.read.format("delta")
    reader = reader if version is None else reader.option("versionAsOf", version)
    return reader.load(f"{lake.root.as_uri()}/{layout.TABLE}")


def shown(lake: Lake, version: int | None = None) -> dict[int, list[Record]]:
    """The records in the table, by the sequence of the checkpoint that they came with."""
    found: dict[int, list[Record]] = {}
    for row in table(lake, version).select("kcr_sequence", *READ).collect():
        found.setdefault(row[0], []).append((row[1], row[2], row[3]))
    return {sequence: sorted(found[sequence]) for sequence in sorted(found)}


def every(lake: Lake) -> list[Record]:
    """The records in the table."""
    return sorted(record for records in shown(lake).values() for record in records)


def history(lake: Lake) -> list[dict[str, Any]]:
    """What was noted of each version that has to do with checkpoints, oldest first."""
    rows = lake.spark.sql(f"DESCRIBE HISTORY delta.`{lake.root.as_uri()}/{layout.TABLE}`").collect()
    notes = [json.loads(row["userMetadata"]) for row in sorted(rows, key=lambda row: int(row["version"]))]
    return [note for note in notes if "attempt" in note]


def complete(lake: Lake, request_id: str) -> CheckpointNumber:
    lake.driver.request_checkpoint(request_id)
    return lake.driver.complete()


def go_back(lake: Lake) -> None:
    """Go back to the beginning."""
    lake.driver.reset(ToInitial())
    lake.driver.complete()
    lake.sink.reset(reset_order(lake.driver))
    lake.driver.finish_reset()


@pytest.mark.long
def test_the_table_has_whole_checkpoints_and_read_checkpoint_gives_each_of_them(lake: Lake) -> None:
    lake.batch(0)
    lake.batch(1)
    assert shown(lake) == {}
    first = lake.checkpoint("n1")
    lake.batch(0, size="offset * 2")
    second = lake.checkpoint("n2")
    third = lake.checkpoint("n3")
    assert shown(lake) == {first: lake.read(first), second: lake.read(second)}
    assert lake.read(third) == []
    assert every(lake) == lake.everything()
    rows = table(lake)
    assert rows.columns == ["kcr_timeline", "kcr_sequence", *READ, "value", "size"]
    assert rows.where("kcr_timeline = 1 AND value = CAST(kcr_offset AS STRING)").count() == rows.count()
    assert rows.where(f"kcr_sequence = {first} AND size IS NULL").count() == 40
    assert rows.where("size = kcr_offset * 2").count() == len(lake.read(second))
    told = [(n["region"], n["group"], n["sink"], n["timeline"], n["sequence"]) for n in history(lake)]
    assert told == [("flights", "g", "out", 1, sequence) for sequence in (first, second, third)]
    one, again = (read_checkpoint(lake.spark, lake.root.as_uri(), sequence=first) for _ in range(2))
    assert sorted(one.inputFiles()) == sorted(again.inputFiles())


@pytest.mark.soak
@pytest.mark.parametrize("there", [False, True])
def test_a_publisher_that_dies_before_or_after_its_commit_is_made_good_by_the_next(lake: Lake, there: bool) -> None:
    lake.batch(0)
    sequence = complete(lake, "n1")
    dying = other(lake, after=at("show", die)) if there else other(lake, before=at("show", die))
    with pytest.raises(Killed):
        dying.publish(sequence)
    assert shown(lake) == ({sequence: lake.everything()} if there else {})
    other(lake).publish(sequence)
    lake.driver.publish()
    assert shown(lake) == {sequence: lake.everything()} == {sequence: lake.read(sequence)}
    assert len(history(lake)) == 1


@pytest.mark.soak
def test_two_publishers_at_once_show_a_checkpoint_once(lake: Lake) -> None:
    lake.batch(0)
    sequence = complete(lake, "n1")
    both_there = threading.Barrier(2, timeout=60)
    sinks = [other(lake, before=at("show", both_there.wait)) for _ in range(2)]
    failures: list[SinkError] = []

    def publish(sink: FileSink) -> None:
        try:
            sink.publish(sequence)
        except SinkError as error:
            failures.append(error)

    threads = [threading.Thread(target=publish, args=[sink]) for sink in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    lake.driver.publish()
    assert shown(lake) == {sequence: lake.read(sequence)} == {sequence: lake.everything()}
    assert len(history(lake)) == 1


@pytest.mark.soak
def test_a_reset_takes_what_it_undoes_out_and_what_is_left_of_it_comes_with_the_next_checkpoint(lake: Lake) -> None:
    lake.batch(0)
    first = lake.checkpoint("n1")
    lake.batch(0)
    lake.batch(1)
    second = lake.checkpoint("n2")
    before = shown(lake)
    version = table_of(lake.spark, lake.target(lake.root.as_uri())).seen()
    lake.reset(by=-7)
    assert any(b.undone_from and b.outcome is Outcome.DONE for b in lake.driver.batches)
    assert shown(lake) == {first: lake.read(first)}
    note = history(lake)[-1]
    assert [one for one in note["superseded"] if one["first"] <= second <= one["last"]] != []
    with pytest.raises(CheckpointNotUsable, match="was superseded by timeline 2"):
        lake.read(second)
    lake.batch(0)
    third = lake.checkpoint("n3")
    assert shown(lake) == {first: lake.read(first), third: lake.read(third)}
    assert every(lake) == lake.everything()
    assert {row[0] for row in table(lake).where(f"kcr_sequence = {third}").select("kcr_timeline").collect()} == {2}
    # What was there stays readable by its version.
    assert shown(lake, version) == before


@pytest.mark.long
@pytest.mark.parametrize("published", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_publisher_that_wakes_up_after_a_reset_shows_nothing(lake: Lake, published: bool) -> None:
    lake.batch(0)
    sequence = complete(lake, "n1")

    def meanwhile() -> None:
        if published:
            lake.sink.publish(sequence)
        lake.driver.publish()
        go_back(lake)

    other(lake, before=at("show", meanwhile)).publish(sequence)
    assert shown(lake) == {}
    assert ["superseded" in note for note in history(lake)] == [False, True][not published :]
    lake.batch(0)
    lake.batch(1)
    again = lake.checkpoint("n2")
    assert shown(lake) == {again: lake.everything()}


@pytest.mark.long
def test_a_recomputation_exchanges_a_checkpoint_s_rows_in_one_version(lake: Lake) -> None:
    lake.batch(0)
    first = lake.checkpoint("n1")
    lake.batch(0)
    lake.checkpoint("n2")
    number = lake.begin(first)
    revision = lake.revision(first, number, "topic", "partition", "offset", "'new' AS value", "1 AS size")
    version = table_of(lake.spark, lake.target(lake.root.as_uri())).seen()
    before = shown(lake)
    revision.replace(lake.wanted(first, number))
    assert shown(lake) == before
    assert lake.read(first) == before[first]
    for at_version, new in ((version, 0), (version + 1, len(before[first]))):
        assert table(lake, at_version).where("value = 'new' AND size = 1").count() == new
    assert table(lake).where("value = 'new'").select("kcr_sequence").distinct().collect() == [(first,)]
    assert [note.get("revision") for note in history(lake)] == [None, None, number]


@pytest.mark.soak
def test_a_recomputation_without_rows_and_a_later_one_replace_what_is_there(lake: Lake) -> None:
    lake.batch(0)
    sequence = lake.checkpoint("n1")
    before = shown(lake)
    lake.recompute(sequence, "explode(array_repeat(topic, 0)) AS topic", "partition", "offset")
    assert shown(lake) == {}
    assert lake.read(sequence) == []
    lake.recompute(sequence)
    assert shown(lake) == before
    assert lake.read(sequence) == before[sequence]
    assert table(lake).where("again").count() == len(before[sequence])


@pytest.mark.soak
def test_a_recomputation_that_dies_or_is_overtaken_is_made_good_by_the_next(lake: Lake) -> None:
    lake.batch(0)
    sequence = lake.checkpoint("n1")

    def numbers() -> set[int | None]:
        rows = table(lake)
        return {row[0] for row in rows.select("number").distinct().collect()} if "number" in rows.columns else {None}

    for there, dying in (
        (False, other(lake, before=at("replace", die))),
        (True, other(lake, after=at("replace", die))),
    ):
        number = lake.begin(sequence)
        revision = lake.revision(sequence, number, "*", "1 AS number", sink=dying)
        with pytest.raises(Killed):
            revision.replace(lake.wanted(sequence, number))
        assert numbers() == ({1} if there else {None})
    late = lake.begin(sequence)

    def meanwhile() -> None:
        lake.recompute(sequence, "*", "2 AS number")

    zombie = lake.revision(sequence, late, "*", "3 AS number", sink=other(lake, before=at("replace", meanwhile)))
    with pytest.raises(RecomputationRefused):
        zombie.replace(lake.wanted(sequence, late))
    assert numbers() == {2}
    assert shown(lake) == {sequence: lake.read(sequence)} == {sequence: lake.everything()}


@pytest.mark.soak
def test_a_recomputation_and_the_next_checkpoint_or_a_reset_do_not_undo_each_other(lake: Lake) -> None:
    lake.batch(0)
    sequence = lake.checkpoint("n1")
    lake.batch(0)
    number = lake.begin(sequence)
    revision = lake.revision(sequence, number, sink=other(lake, before=at("replace", lambda: lake.checkpoint("n2"))))
    revision.replace(lake.wanted(sequence, number))
    assert table(lake).where("again").count() == len(lake.read(sequence))
    assert every(lake) == lake.everything()
    later = lake.begin(sequence)
    undone = lake.revision(sequence, later, sink=other(lake, before=at("replace", lambda: go_back(lake))))
    with pytest.raises(CheckpointNotUsable):
        undone.replace(lake.wanted(sequence, later))
    assert shown(lake) == {}
    lake.batch(0)
    third = lake.checkpoint("n3")
    assert shown(lake) == {third: lake.everything()}


@pytest.mark.soak
def test_a_reset_and_others_who_write_to_the_table_do_not_stop_each_other(lake: Lake) -> None:
    lake.batch(0)
    lake.checkpoint("n1")

    def compact() -> None:
        lake.spark.sql(f"OPTIMIZE delta.`{lake.root.as_uri()}/{layout.TABLE}`").collect()

    lake.batch(0)
    sequence = complete(lake, "n2")
    other(lake, before=at("show", compact)).publish(sequence)
    lake.driver.publish()
    assert every(lake) == lake.everything()
    lake.driver.reset(ToInitial())
    lake.driver.complete()
    other(lake, before=at("hide", compact)).reset(reset_order(lake.driver))
    assert shown(lake) == {}


@pytest.mark.soak
def test_rows_that_do_not_fit_fail_their_batch_and_no_publication(lake: Lake) -> None:
    lake.batch(0, size="offset")
    call = lake.call(lake.driver.start_batch(lake.driver.member(1)))
    wrong = {
        "size": ("CAST(offset AS STRING) AS size", "column size is string"),
        "name": ("1 AS `a b`", "a b"),
        "type": ("INTERVAL '1' DAY AS period", "INTERVAL"),
        "feature": ("CAST('2026-01-01' AS TIMESTAMP_NTZ) AS at", "timestampNtz"),
        "ours": ("1 AS KCR_Sequence", "column KCR_Sequence is the table's own"),
    }
    for sql, told in wrong.values():
        with pytest.raises(SinkError, match=f"(?is){told}"):
            SinkOfBatch(lake.sink, call).write(lake.rows(call).selectExpr("*", sql))
    writer = SinkOfBatch(lake.sink, call)
    writer.write(lake.rows(call))
    writer.finish()
    lake.driver.finish_batch(call.batch)
    sequence = lake.checkpoint("n1")
    assert shown(lake) == {sequence: lake.everything()}


@pytest.mark.soak
def test_cleaning_deletes_the_files_of_undone_and_retired_checkpoints_and_leaves_the_table(
    spark: SparkSession, tmp_path: Path, database_url: str
) -> None:
    environ = {"LAKE": tmp_path.as_uri()}
    with live_region(database_url, SPEC) as driver:
        lake = Lake(spark, tmp_path / "out", driver=driver, format=FileFormat.DELTA)
        lake.batch(0)
        first = lake.checkpoint("n1")
        lake.batch(0)
        undone = lake.checkpoint("n2")
        lake.reset(by=-7)
        for request_id in ("n3", "n4"):
            lake.batch(0)
            lake.checkpoint(request_id)
        before = shown(lake)
        (cleaned,) = clean_checkpoints(spark, "flights", store=database_url, environ=environ)
        assert (cleaned.undone, cleaned.retired) == ((undone,), ())
        driver.handle(RetireCheckpoints())
        (cleaned,) = clean_checkpoints(spark, "flights", "retired", store=database_url, environ=environ)
        assert cleaned.retired == (first,)
        assert shown(lake) == before
        assert first in before
        with pytest.raises(CheckpointNotUsable, match="was retired"):
            lake.read(first)
        # What a reset undoes goes from the table, whether its files are there or not.
        go_back(lake)
        assert shown(lake) == {}


def test_a_store_that_keeps_no_writers_apart_is_refused_by_name(spark: SparkSession) -> None:
    target = FileTarget(
        owner=SinkOwner(region=RegionName("flights"), region_id=UNDECLARED, group=GROUP, sink="out"),
        path="s3a://bucket/out",
        format=FileFormat.DELTA,
    )
    with pytest.raises(ConfigurationError, match=r"on s3a, where .* set spark\.delta\.logStore\.s3a\.impl"):
        require_delta(spark, target)


@pytest.mark.soak
def test_a_folder_whose_table_is_gone_is_refused(lake: Lake) -> None:
    lake.batch(0)
    lake.checkpoint("n1")
    shutil.rmtree(lake.root / layout.TABLE)
    with pytest.raises(ConfigurationError, match=f"the table {layout.TABLE} beside them is gone"):
        lake.opened(lake.root.as_uri()).check()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("has_jars", "missing"), [(False, "is not on the class path of"), (True, "is not configured in")]
)
def test_a_spark_without_delta_or_its_extension_is_refused_with_what_to_add(
    delta_jars: tuple[Path, ...], has_jars: bool, missing: str
) -> None:
    # In a session of its own: this one has it.
    ran = subprocess.run(
        [sys.executable, "-m", "tests.integration.spark.without_delta_driver", *(delta_jars if has_jars else ())],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        cwd=Path(__file__).parents[3],
    )
    assert ran.returncode == 0, ran.stderr
    assert f"has format delta, and Delta {missing}" in ran.stdout
    assert f"--packages {DELTA}" in ran.stdout
    assert "--conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension" in ran.stdout
