"""Where a query stands, by texts as Spark 4.2 writes them; tests/integration/spark has queries of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.spark.query_checkpoint import LocalCheckpoint, query_offsets

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1795936019463,"conf":{"spark.sql.shuffle.partitions":"2"}}'
COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


class Checkpoint:
    """A folder that a test fills."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "metadata").write_text('{"id":"2832e1d6-bdd2-4880-b5f2-09dd0467758e"}')

    def write(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)

    def began(self, source: int | str, offsets: str) -> None:
        self.write(f"sources/{source}/0", f"\0v1\n{offsets}")

    def plan(self, number: int, *lines: str, version: str = "v1") -> None:
        self.write(f"offsets/{number}", "\n".join((version, METADATA, *lines)))
        self.write(f"offsets/.{number}.crc", "crc")

    def commit(self, number: int, text: str = COMMIT) -> None:
        self.write(f"commits/{number}", text)

    def offsets(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return where the query stands, and up to where it has started."""
        found = query_offsets(LocalCheckpoint(str(self.folder)))
        return {str(p): o for p, o in found.offsets.items()}, {str(p): o for p, o in found.started.items()}

    def notes(self) -> str:
        return " ".join(query_offsets(LocalCheckpoint(f"file://{self.folder}")).notes)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Batch 1 of a query of one source is committed."""
    found = Checkpoint(tmp_path)
    found.began(0, '{"t":{"0":0,"1":0}}')
    found.plan(0, '{"t":{"0":10,"1":5}}')
    found.commit(0)
    found.plan(1, '{"t":{"0":12,"1":9}}')
    found.commit(1)
    return found


def test_it_stands_at_the_end_of_its_last_committed_batch(checkpoint: Checkpoint) -> None:
    assert checkpoint.offsets() == ({"t-0": 12, "t-1": 9}, {})
    assert checkpoint.notes() == ""


def test_a_batch_that_was_planned_and_not_committed_is_started(checkpoint: Checkpoint) -> None:
    checkpoint.plan(2, '{"t":{"0":20,"1":9,"2":4}}')
    assert checkpoint.offsets() == ({"t-0": 12, "t-1": 9}, {"t-0": 20, "t-2": 4})
    assert "batch 2 was planned and not committed" in checkpoint.notes()


def test_before_the_first_commit_it_stands_where_its_sources_began(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.began(0, '{"t":{"0":3,"1":0}}')
    checkpoint.plan(0, '{"t":{"0":10,"1":5}}')
    assert checkpoint.offsets() == ({"t-0": 3, "t-1": 0}, {"t-0": 10, "t-1": 5})


def test_version_2_names_its_sources_in_any_order(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.plan(7, '1:{"u":{"0":3}}', '0:{"t":{"0":10,"1":5}}', "2:-", version="v2")
    checkpoint.commit(7, 'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{}}')
    assert checkpoint.offsets() == ({"t-0": 10, "t-1": 5, "u-0": 3}, {})


def test_of_two_sources_that_read_one_topic_the_lower_offset_counts(checkpoint: Checkpoint) -> None:
    checkpoint.plan(2, '{"t":{"0":20,"1":9}}', '{"t":{"0":18,"1":9}}')
    checkpoint.commit(2)
    assert checkpoint.offsets() == ({"t-0": 18, "t-1": 9}, {"t-0": 20})
    assert "several sources read t-0" in checkpoint.notes()


def test_sources_that_are_not_kafkas_and_state_are_noted(checkpoint: Checkpoint) -> None:
    checkpoint.plan(2, '{"logOffset":0}', '{"t":{"0":20,"1":9}}', "5")
    checkpoint.commit(2)
    checkpoint.write("state/0/0/1.delta", "")
    assert checkpoint.offsets() == ({"t-0": 20, "t-1": 9}, {})
    assert "source 0, 2 of the query is not Kafka's" in checkpoint.notes()
    assert "keeps state" in checkpoint.notes()


def test_what_is_no_checkpoint_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="give its checkpointLocation"):
        query_offsets(LocalCheckpoint(str(tmp_path / "elsewhere")))
    checkpoint = Checkpoint(tmp_path)
    checkpoint.plan(0, '{"logOffset":0}')
    checkpoint.commit(0)
    with pytest.raises(ConfigurationError, match=r"none of the query's 1 source\(s\) reads Kafka"):
        checkpoint.offsets()


@pytest.mark.parametrize(
    ("path", "text", "why"),
    [
        ("offsets/1", "v3\n{}\n{}", "offsets/1 is of version v3; this reads v1 and v2"),
        ("offsets/1", "", "offsets/1 is missing or damaged"),
        ("offsets/1", "v2\n{}\n{}", "a line of version 2 has no source"),
        ("commits/1", "v9\n{}", "commits/1 is of version v9"),
        ("commits/3", COMMIT, "batch 3 is committed, and offsets/3 is missing"),
    ],
)
def test_a_log_that_can_not_be_read_is_refused(checkpoint: Checkpoint, path: str, text: str, why: str) -> None:
    checkpoint.write(path, text)
    with pytest.raises(ConfigurationError, match=why):
        checkpoint.offsets()
