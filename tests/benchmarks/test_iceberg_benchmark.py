"""The publication of a checkpoint in an Iceberg table, beside PyIceberg's own commit of as many files."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from airflow_kcr.protocol.values import RegionName
from tests.benchmarks.figures import Report, spread
from tests.support.driver import Driver
from tests.support.table_files import TableFiles, Warehouse, over, put, warehouse

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1_800)]

FILES = 60
ROUNDS = 15
COMMITS = 300


def test_a_publication_takes_as_long_as_a_commit_of_its_files(report: Callable[[str], Report], tmp_path: Path) -> None:
    driver = Driver()
    for partition in tuple(driver.logs):
        driver.grow(partition, end=1_000_000)
    driver.up()
    files = over(driver, warehouse(tmp_path / "ours"))
    bare = over(Driver(name=RegionName("bare")), warehouse(tmp_path / "bare"))
    made, rows = report("iceberg"), []
    ours, theirs = measured(files, bare, "n")
    rows.append(("a new table", spread(ours), spread(theirs)))
    made.at_most("a publication of 60 files beside a bare commit", median(ours) / median(theirs), 1.2)
    for _ in range(COMMITS):
        files.append(1)
        bare.append(1)
    later, theirs_later = measured(files, bare, "m")
    rows.append((f"{COMMITS} commits later", spread(later), spread(theirs_later)))
    made.at_most(f"likewise, {COMMITS} commits later", median(later) / median(theirs_later), 1.2)
    made.table("A commit of 60 files", ("table", "a publication, s", "PyIceberg's add_files, s"), rows)


def measured(files: TableFiles, bare: TableFiles, name: str) -> tuple[list[float], list[float]]:
    """Return the seconds of publications and of bare commits, each after the other."""
    ours, theirs = list[float](), list[float]()
    for number in range(ROUNDS):
        for index in range(2):
            files.process_batch(files.driver.member(index), width=100, files=FILES // 2)
        files.driver.request_checkpoint(f"{name}{number}")
        sequence = files.driver.complete()
        began = time.monotonic()
        files.sink.publish(sequence)
        ours.append(time.monotonic() - began)
        files.driver.publish()
        paths = [f"bare/{name}{number}-{place}.parquet" for place in range(FILES)]
        for path in paths:
            put(bare.root / path, [("t", 0, offset) for offset in range(7)], path)
        began = time.monotonic()
        assert isinstance(bare.owned, Warehouse)
        bare.owned.table().add_files([f"{bare.root.as_uri()}/{path}" for path in paths])
        theirs.append(time.monotonic() - began)
    return ours, theirs
