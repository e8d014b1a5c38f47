"""`read_checkpoint(run=…)` as a DAG downstream calls it.

A real store says which checkpoint a run has, and Spark reads its files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_kcr.errors import ConfigurationError, InvalidTarget, StoreError, UnknownCheckpoint
from airflow_kcr.protocol.region.rows import Requester
from airflow_kcr.protocol.targets import ToInitial
from airflow_kcr.protocol.values import RegionId
from airflow_kcr.sinks import read_checkpoint
from airflow_kcr.sinks.files.layout import OWNER, Marker
from tests.support.lake import PATIENT, READ, Lake
from tests.support.live_region import live_region
from tests.support.scripts import reset_order

DAG = "flights_checkpoint"
RUN = "scheduled__2026-01-01T00:05:00+00:00"


def asked_by(run_id: str, dag_id: str = DAG) -> Requester:
    """A DAG run, as its task asks for a checkpoint."""
    return Requester(who="airflow", dag_id=dag_id, run_id=run_id)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path, database_url: str) -> Iterator[Lake]:
    """A region in a store on Postgres, with a sink."""
    with live_region(database_url, PATIENT) as driver:
        yield Lake(spark, tmp_path / "out", driver=driver)


def records(rows: DataFrame) -> list[tuple[str, int, int]]:
    return sorted((row[0], row[1], row[2]) for row in rows.select(*READ).collect())


def test_a_run_reads_its_own_checkpoint_whatever_was_published_since(lake: Lake, database_url: str) -> None:
    path = lake.root.as_uri()
    lake.batch(0)
    lake.checkpoint("n1", asked_by("scheduled__2026-01-01T00:00:00+00:00"))
    lake.batch(1)
    mine = lake.checkpoint("n2", asked_by(RUN))
    lake.batch(0)
    first = read_checkpoint(lake.spark, path, run=f"{DAG}/{RUN}", store=database_url)
    assert records(first) == lake.read(mine)
    lake.checkpoint("n3", asked_by("scheduled__2026-01-01T00:10:00+00:00"))
    again = read_checkpoint(lake.spark, path, run=f"{DAG}/{RUN}", store=database_url)
    assert sorted(again.inputFiles()) == sorted(first.inputFiles())
    assert lake.read() != lake.read(mine)


def test_a_run_of_a_later_region_of_the_name_reads_nothing_of_the_earlier_one(lake: Lake, database_url: str) -> None:
    lake.batch(0)
    lake.checkpoint("n1", asked_by(RUN))
    owner = Marker.of(lake.sink.folder.read(OWNER))
    assert owner is not None
    lake.sink.folder.replace(
        OWNER, replace(owner, owner=replace(owner.owner, region_id=RegionId("an earlier one"))).text()
    )
    with pytest.raises(UnknownCheckpoint, match=r"folder of .*\(id an earlier one\).*is another one"):
        read_checkpoint(lake.spark, lake.root.as_uri(), run=f"{DAG}/{RUN}", store=database_url)


def test_the_store_is_the_one_of_the_environment_where_none_is_named(
    lake: Lake, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.batch(0)
    sequence = lake.checkpoint("n1", asked_by(RUN))
    monkeypatch.setenv("KCR_STORE_URL", database_url)
    assert records(read_checkpoint(lake.spark, lake.root.as_uri(), run=f"{DAG}/{RUN}")) == lake.read(sequence)
    monkeypatch.delenv("KCR_STORE_URL")
    with pytest.raises(ConfigurationError, match="KCR_STORE_URL"):
        read_checkpoint(lake.spark, lake.root.as_uri(), run=f"{DAG}/{RUN}")


def test_a_run_whose_checkpoint_a_reset_has_undone_has_none_until_it_asks_again(lake: Lake, database_url: str) -> None:
    path, run = lake.root.as_uri(), f"{DAG}/{RUN}"
    lake.batch(0)
    lake.checkpoint("n1", asked_by(RUN))
    lake.driver.reset(ToInitial())
    lake.driver.complete()
    lake.sink.reset(reset_order(lake.driver))
    lake.driver.finish_reset()
    with pytest.raises(UnknownCheckpoint, match=f"belongs to the run {RUN.replace('+', '.')}"):
        read_checkpoint(lake.spark, path, run=run, store=database_url)
    lake.batch(0)
    lake.batch(1)
    again = lake.checkpoint("n1", asked_by(RUN))
    assert (
        records(read_checkpoint(lake.spark, path, run=run, store=database_url)) == lake.read(again) == lake.everything()
    )


def test_what_names_no_checkpoint_is_told_apart(lake: Lake, database_url: str) -> None:
    path = lake.root.as_uri()
    lake.batch(0)
    sequence = lake.checkpoint("n1", asked_by(RUN))
    with pytest.raises(UnknownCheckpoint, match="belongs to the run another of DAG flights_checkpoint"):
        read_checkpoint(lake.spark, path, run=f"{DAG}/another", store=database_url)
    with pytest.raises(UnknownCheckpoint, match=r"of DAG other$"):
        read_checkpoint(lake.spark, path, run=f"other/{RUN}", store=database_url)
    with pytest.raises(InvalidTarget):
        read_checkpoint(lake.spark, path, run=RUN, store=database_url)
    with pytest.raises(ConfigurationError, match="one of them names the checkpoint"):
        read_checkpoint(lake.spark, path, run=f"{DAG}/{RUN}", sequence=sequence, store=database_url)
    with pytest.raises(StoreError):
        read_checkpoint(lake.spark, path, run=f"{DAG}/{RUN}", store="postgresql://nobody@127.0.0.1:1/none")
