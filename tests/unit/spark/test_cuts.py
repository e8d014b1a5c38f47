from __future__ import annotations

from pathlib import Path

import pytest

from airflow_kcr.errors import CheckpointNotUsable, ConfigurationError, UnknownCheckpoint
from airflow_kcr.protocol.targets import ToInitial
from airflow_kcr.protocol.values import Lineage, Sequence
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.layout import CutName
from airflow_kcr.spark.cuts import Cuts
from tests.support.driver import Driver
from tests.support.sink_files import Files, LocalFolder


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A region that runs, and its sink."""
    driver = Driver()
    driver.up()
    return Files(driver, tmp_path / "out")


def cut(files: Files, nonce: str) -> Sequence:
    for index in range(2):
        files.process_batch(files.driver.member(index))
    return files.cut(nonce)


def reset(files: Files) -> None:
    files.driver.reset(ToInitial())
    files.driver.complete()
    files.sink.reset(files.reset_order())
    files.driver.settle_reset()


def test_a_cut_is_found_by_its_sequence_and_the_newest_without(files: Files) -> None:
    first, second = cut(files, "n1"), cut(files, "n2")
    cuts = Cuts.of(files.folder)
    assert cuts.manifest(first) == files.manifests()[first]
    assert cuts.manifest() == files.manifests()[second]


def test_a_half_written_manifest_is_none_yet(files: Files) -> None:
    first, second = cut(files, "n1"), cut(files, "n2")
    where = files.root / layout.manifest(files.manifests()[second].cut)
    where.write_text(where.read_text()[:-5])
    assert Cuts.of(files.folder).manifest().sequence == first
    with pytest.raises(UnknownCheckpoint, match=f"has no cut {second}"):
        Cuts.of(files.folder).manifest(second)


def test_an_unknown_cut_is_told_with_those_that_there_are(files: Files) -> None:
    found = [cut(files, f"n{number}") for number in range(7)]
    with pytest.raises(UnknownCheckpoint, match=f"has no cut 99; published are …, {', '.join(map(str, found[-5:]))}$"):
        Cuts.of(files.folder).manifest(99)


def test_a_superseded_cut_is_told_with_the_lineage_that_replaced_it(files: Files) -> None:
    first = cut(files, "n1")
    reset(files)
    with pytest.raises(CheckpointNotUsable, match=f"cut {first} of sink out .* superseded by lineage 2.*none is pub"):
        Cuts.of(files.folder).manifest(first)
    with pytest.raises(UnknownCheckpoint, match="has no published cut yet"):
        Cuts.of(files.folder).manifest()
    again = cut(files, "n2")
    assert list(Cuts.of(files.folder).published()) == [CutName(Lineage(2), again)]


def test_a_superseded_cut_is_so_even_where_its_manifest_came_back(files: Files) -> None:
    first = cut(files, "n1")
    where = layout.manifest(files.manifests()[first].cut)
    text = files.folder.read(where) or ""
    reset(files)
    files.folder.replace(where, text)
    with pytest.raises(CheckpointNotUsable):
        Cuts.of(files.folder).manifest(first)
    with pytest.raises(UnknownCheckpoint):
        Cuts.of(files.folder).manifest()


def test_a_folder_of_nobody_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is no folder of a file sink"):
        Cuts.of(LocalFolder(tmp_path))
