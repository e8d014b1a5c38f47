"""What a table's metadata keep of checkpoints that are gone, counted over some and reckoned for a year of them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from airflow_kcr.sinks.files.cleanup import GivenUp
from tests.support.table_files import DeltaFolder, Owned, TableFiles, Warehouse, made, reset, warehouse

ROUNDS, OF_A_ROUND = 4, 10
YEAR = 365 * 1_000
"""Checkpoints, at a thousand a day."""

MOST_OF_A_YEAR = 1_000_000
"""Bytes by which the metadata that each commit writes, or each reader reads, may grow in a year."""

MOST_OF_A_RESET = 300
"""Bytes that a reset may leave; they are rare."""


def kept_short(owned: Owned) -> None:
    """Have a table forget by its own settings what it keeps for days, or for a hundred commits."""
    if isinstance(owned, Warehouse):
        with owned.table().transaction() as change:
            change.set_properties({"write.metadata.previous-versions-max": "3"})
        return
    assert isinstance(owned, DeltaFolder)
    ages = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")
    deltalake.DeltaTable.create(
        owned.root,
        pa.schema([("value", pa.int64())]),
        mode="overwrite",
        configuration=dict.fromkeys(ages, "interval 0 days"),
    )


def maintain(owned: Owned) -> None:
    """Do what its owner has to do from time to time."""
    owned.compact()
    if isinstance(owned, Warehouse):
        owned.table().maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
        return
    assert isinstance(owned, DeltaFolder)
    owned.table().create_checkpoint()
    owned.table().cleanup_metadata()


def size(owned: Owned) -> int:
    """How many bytes each commit writes anew, or each reader of the table reads first."""
    if isinstance(owned, Warehouse):
        return Path(owned.table().metadata_location.removeprefix("file://")).stat().st_size
    assert isinstance(owned, DeltaFolder)
    return max((owned.root / "_delta_log").glob("*.checkpoint.parquet")).stat().st_size


def a_round(files: TableFiles, name: str, checkpoints: int) -> int:
    """Make some checkpoints, clean up, maintain the table, and return how large its metadata are then."""
    for number in range(checkpoints):
        files.fill(width=1)
        files.checkpoint(f"{name}-{number}")
    files.clean(GivenUp.RETIRED)
    maintain(files.owned)
    return size(files.owned)


@pytest.fixture(params=["iceberg", "delta"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> TableFiles:
    """A region that keeps three checkpoints, over a table that keeps nothing for long."""
    owned = (
        warehouse(tmp_path / "warehouse") if request.param == "iceberg" else DeltaFolder(root=tmp_path / "warehouse")
    )
    kept_short(owned)
    return made(owned)


def test_checkpoints_that_are_gone_leave_nothing_in_the_metadata_of_a_table(files: TableFiles) -> None:
    sizes = [a_round(files, f"n{number}", OF_A_ROUND) for number in range(ROUNDS)]
    grown = (sizes[-1] - sizes[1]) / ((ROUNDS - 2) * OF_A_ROUND)
    assert grown * YEAR < MOST_OF_A_YEAR, sizes
    assert files.rows() == files.records() or files.manifests()


def test_a_reset_leaves_little_in_the_metadata_of_a_table(files: TableFiles) -> None:
    sizes = list[int]()
    for number in range(ROUNDS):
        for again in range(3):
            files.fill(width=1)
            files.checkpoint(f"r{number}-{again}")
            reset(files)
            files.driver.finish_reset()
        sizes.append(a_round(files, f"n{number}", 3))
    grown = (sizes[-1] - sizes[1]) / ((ROUNDS - 2) * 3)
    assert grown < MOST_OF_A_RESET, sizes
