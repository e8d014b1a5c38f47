"""An Iceberg table of a person, maintained by the procedures of Iceberg's own library for Spark.

The library has none for Spark 4.2 yet; `tests.matrix` runs these with the lines of Spark that it has one for.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_kcr.spark.launch import line_of
from tests.support.jar_sets import ICEBERG
from tests.support.rest_catalog import RestServer
from tests.support.table_files import RestWarehouse, TableFiles, made, reset, served

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

LINE = line_of(version("pyspark"))
WEEK = 7 * 86_400

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(LINE not in ICEBERG, reason=f"Iceberg has no library for Spark {LINE}"),
]

Call = Callable[..., "list[Row]"]


@pytest.fixture
def files(rest: RestServer, tmp_path: Path) -> TableFiles:
    """A region that keeps three checkpoints, and its table in a REST catalog."""
    return made(served(RestWarehouse, tmp_path, rest.uri))


@pytest.fixture
def call(spark: SparkSession, rest: RestServer, files: TableFiles) -> Call:
    """What runs a procedure over the table and returns its rows."""
    place = "spark.sql.catalog.lake"
    for name, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": rest.uri}.items():
        spark.conf.set(f"{place}{name}", value)

    def called(procedure: str, *arguments: str) -> list[Row]:
        given = ", ".join((f"table => '{name_of(files)}'", *arguments))
        return spark.sql(f"CALL lake.system.{procedure}({given})").collect()

    return called


def name_of(files: TableFiles) -> str:
    name: str = files.owned.spec()["table"]
    return name


def compacted(call: Call) -> int:
    """Put all files together, and return how many there were."""
    [row] = call("rewrite_data_files", "options => map('rewrite-all', 'true')")
    return int(row["rewritten_data_files_count"])


def test_checkpoints_are_read_published_and_undone_whatever_iceberg_compacts_and_expires(
    files: TableFiles, call: Call
) -> None:
    files.append(-1)
    kept = []
    for request_id in ("n1", "n2", "n3"):
        files.fill()
        kept.append(files.checkpoint(request_id))
    before = {sequence: files.rows(sequence) for sequence in kept}
    assert [sum(rows.values()) for rows in before.values()] == [40, 80, 120]

    assert compacted(call) > len(kept)
    call("rewrite_manifests")
    call("expire_snapshots", "older_than => TIMESTAMP '2999-01-01 00:00:00'", "retain_last => 1")
    assert {sequence: files.rows(sequence) for sequence in kept} == before
    assert files.rows() == files.records()
    assert files.own_rows() == [-1]

    files.checkpoint("n4", batches=1)
    assert files.rows() == files.records()
    compacted(call)
    reset(files)
    files.driver.finish_reset()
    assert files.rows() == files.records() == Counter()
    assert files.own_rows() == [-1]
    assert {sequence: files.rows(sequence) for sequence in kept} == before

    files.checkpoint("n5", batches=1)
    assert files.rows() == files.records()


def test_files_that_are_not_published_yet_are_no_orphans(files: TableFiles, call: Call) -> None:
    files.checkpoint("n1", batches=1)
    files.fill()
    ours = sorted(files.root.rglob("*"))
    orphan = files.owned.here(files.owned.location()) / "data" / "orphan.parquet"
    orphan.parent.mkdir(exist_ok=True)
    orphan.touch()
    then = (orphan.stat().st_mtime - WEEK,) * 2
    for path in (*ours, orphan):
        os.utime(path, then)
    assert [row["orphan_file_location"].endswith("/data/orphan.parquet") for row in call("remove_orphan_files")] == [
        True
    ]
    assert sorted(files.root.rglob("*")) == ours
    files.checkpoint("n2")
    assert files.rows() == files.records()
