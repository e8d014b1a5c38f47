"""Cleaning the folders of file sinks: through Hadoop's file systems, by the API and by the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_kcr.errors import CheckpointNotUsable, ConfigurationError
from airflow_kcr.protocol.region.commands import RetireCheckpoints
from airflow_kcr.protocol.region.rows import Requester
from airflow_kcr.sinks import clean_checkpoints, read_checkpoint
from tests.support.lake import Lake
from tests.support.live_region import live_region

SPEC = """\
region: flights
kafka: {bootstrap.servers: 'broker.invalid:9092'}
groups:
  - group_id: g
    topics: [t]
    members: 2
    pipeline: 'jobs.flights:process'
    sinks: {out: {kind: files, path: '${LAKE}/out'}}
timeouts: {lease: 240s}
retention: {keep: 2}
"""


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path, database_url: str) -> Iterator[Lake]:
    """A region that keeps two checkpoints, in a store on Postgres, with a sink."""
    with live_region(database_url, SPEC) as driver:
        yield Lake(spark, tmp_path / "out", driver=driver)


def data(lake: Lake) -> set[str]:
    """Every file of records, with what Hadoop keeps beside it."""
    folders = (lake.root / name for name in ("data", "compacted"))
    return {str(p.relative_to(lake.root)) for folder in folders for p in folder.rglob("*") if p.is_file()}


@pytest.mark.long
def test_what_is_undone_and_what_is_retired_goes_and_what_can_be_read_stays(
    lake: Lake, database_url: str, tmp_path: Path
) -> None:
    path, environ = lake.root.as_uri(), {"LAKE": tmp_path.as_uri()}
    lake.batch(0)
    first = lake.checkpoint("n1", Requester(dag_id="d", run_id="r1"))
    lake.batch(0)
    lake.batch(1)
    undone = lake.checkpoint("n2")
    lake.reset(by=-7)
    lake.batch(0)
    third = lake.checkpoint("n3")
    held = {sequence: lake.read(sequence) for sequence in (first, third)}
    kept = {name for s in held for name in read_checkpoint(lake.spark, path, sequence=s).inputFiles()}

    (cleaned,) = clean_checkpoints(lake.spark, "flights", store=database_url, environ=environ)
    assert (cleaned.sink, cleaned.undone, cleaned.retired) == ("sink out of group g", (undone,), ())
    assert cleaned.files > 0
    assert cleaned.bytes > 0
    assert {sequence: lake.read(sequence) for sequence in held} == held
    assert {name for name in data(lake) if name.endswith(".parquet")} == {n.partition("/out/")[2] for n in kept}
    assert clean_checkpoints(lake.spark, "flights", store=database_url, environ=environ)[0].files == 0

    lake.batch(0)
    fourth = lake.checkpoint("n4")
    lake.driver.handle(RetireCheckpoints())
    assert lake.read(first) == held[first]
    assert read_checkpoint(lake.spark, path, run="d/r1", store=database_url).count() == len(held[first])
    (cleaned,) = clean_checkpoints(lake.spark, "flights", "retired", store=database_url, environ=environ)
    assert (cleaned.undone, cleaned.retired) == ((), (first,))
    for named in ({"sequence": first}, {"run": "d/r1", "store": database_url}):
        with pytest.raises(CheckpointNotUsable, match=f"checkpoint {first} of sink out .* was retired, and its output"):
            read_checkpoint(lake.spark, path, **named)
    assert lake.read(third) == held[third]
    assert lake.read() == lake.read(fourth)


def test_what_is_neither_is_refused(lake: Lake, database_url: str) -> None:
    with pytest.raises(ConfigurationError, match="'everything' can't be cleaned: say undone or retired"):
        clean_checkpoints(lake.spark, "flights", "everything", store=database_url)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_command_does_so_in_a_process_of_its_own(lake: Lake, database_url: str, tmp_path: Path) -> None:
    first, *_ = (lake.checkpoint(f"n{number}") for number in range(4) if lake.batch(0))
    lake.driver.handle(RetireCheckpoints())
    ran = subprocess.run(
        [sys.executable, "-m", "airflow_kcr", "checkpoint", "clean", "flights", "--retired", "-o", "json"],
        env={**os.environ, "LAKE": tmp_path.as_uri(), "KCR_STORE_URL": database_url},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert ran.returncode == 0, ran.stderr
    (sink,) = json.loads(ran.stdout)["sinks"]
    assert (sink["sink"], sink["undone"], sink["retired"][0]) == ("sink out of group g", [], first)
    assert sink["files"] > 0
    with pytest.raises(CheckpointNotUsable, match=f"checkpoint {first} of sink out .* was retired, and its output"):
        lake.read(first)
