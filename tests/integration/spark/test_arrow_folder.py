"""A sink's folder as Arrow has it, beside the same folder as Spark has it: each finds what the other has left."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import LocalFileSystem, PyFileSystem, SubTreeFileSystem
from pyspark.sql import SparkSession

from airflow_kcr.errors import SinkError
from airflow_kcr.sinks.files.arrow import ArrowFolder
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.hadoop import HadoopFolder

Folders = tuple[Folder, Folder]


def arrow(root: Path) -> ArrowFolder:
    """Return the folder as PyIceberg reaches it."""
    return ArrowFolder(SubTreeFileSystem(str(root), LocalFileSystem()), f"file://{root}")


def of_delta(root: Path) -> ArrowFolder:
    """Return the folder as delta-rs reaches an object store."""
    above = PyFileSystem(DeltaStorageHandler(f"file://{root.parent}"))
    return ArrowFolder(SubTreeFileSystem(root.name, above), f"file://{root}")


@pytest.fixture(params=["arrow", "arrow of delta-rs", "spark"])
def folders(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Folders:
    """One folder, as its writer has it and as the other one has."""
    root = tmp_path / "folder"
    root.mkdir()
    of_spark = HadoopFolder(spark, f"file://{root}")
    if request.param == "spark":
        return of_spark, arrow(root)
    return (arrow if request.param == "arrow" else of_delta)(root), of_spark


def test_what_one_has_written_the_other_reads_replaces_and_deletes(folders: Folders) -> None:
    writer, other = folders
    assert (writer.read("a/b/one.json"), writer.names("a"), writer.walk("a")) == (None, (), {})
    assert writer.create("a/b/one.json", "ä 1")
    assert not other.create("a/b/one.json", "2")
    writer.put("a/two", "22")
    assert other.read_all(["a/b/one.json", "a/two", "a/three"]) == ["ä 1", "22", None]
    for folder in folders:
        assert folder.names("a") == ("b", "two")
        assert folder.walk("a") == folder.written("") == {"a/b/one.json": 4, "a/two": 2}
    other.replace("a/b/one.json", "something longer")
    assert [folder.read("a/b/one.json") for folder in folders] == ["something longer"] * 2
    writer.replace("a/b/one.json", "short")
    assert [folder.read("a/b/one.json") for folder in folders] == ["short"] * 2
    other.put("a/two", "")
    assert [folder.read("a/two") for folder in folders] == [""] * 2
    other.move("a/two", "c/three")
    assert [folder.names("c") for folder in folders] == [("three",)] * 2
    writer.delete(["a", "c/three", "nothing"])
    assert [(folder.walk("a"), folder.walk("c")) for folder in folders] == [({}, {})] * 2
    # What is written anew under a name that was deleted is whole.
    writer.put("c/three", "anew")
    writer.put("four", "at the root")
    assert (other.read("c/three"), other.read("four")) == ("anew", "at the root")


def test_a_place_that_is_away_is_an_error_of_the_sink(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file")
    folder = arrow(tmp_path)
    for call in (lambda: folder.put("a/b", ""), lambda: folder.names("a"), lambda: folder.move("b", "c")):
        with pytest.raises(SinkError, match=r"can't \w+ file:///.*: \w+$"):
            call()
