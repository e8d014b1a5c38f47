from __future__ import annotations

from pathlib import Path

import pytest

from airflow_kcr.errors import CheckpointNotUsable, ConfigurationError, UnknownCheckpoint
from airflow_kcr.protocol.targets import ToInitial
from airflow_kcr.protocol.values import Timeline
from airflow_kcr.sinks.checkpoints import CheckpointId
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.frames import Checkpoints
from tests.support.scripts import running
from tests.support.sink_files import Files, LocalFolder


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A region that runs, and its sink."""
    return Files(running(), tmp_path / "out")


def test_a_checkpoint_is_found_by_its_sequence_and_the_newest_without(files: Files) -> None:
    first, second = files.checkpoint("n1", batches=1), files.checkpoint("n2", batches=1)
    checkpoints = Checkpoints.of(files.folder)
    assert checkpoints.manifest(first) == files.manifests()[first]
    assert checkpoints.manifest() == files.manifests()[second]


def test_a_half_written_manifest_is_none_yet(files: Files) -> None:
    first, second = files.checkpoint("n1", batches=1), files.checkpoint("n2", batches=1)
    where = files.root / layout.manifest(files.manifests()[second].checkpoint)
    where.write_text(where.read_text()[:-5])
    assert Checkpoints.of(files.folder).manifest().sequence == first
    with pytest.raises(UnknownCheckpoint, match=f"has no checkpoint {second}"):
        Checkpoints.of(files.folder).manifest(second)


def test_an_unknown_checkpoint_is_told_with_those_that_there_are(files: Files) -> None:
    found = [files.checkpoint(f"n{number}", batches=1) for number in range(7)]
    with pytest.raises(
        UnknownCheckpoint, match=f"has no checkpoint 99; published are …, {', '.join(map(str, found[-5:]))}$"
    ):
        Checkpoints.of(files.folder).manifest(99)


def test_a_superseded_checkpoint_is_told_with_the_timeline_that_replaced_it(files: Files) -> None:
    first = files.checkpoint("n1", batches=1)
    files.go_back(ToInitial())
    with pytest.raises(
        CheckpointNotUsable, match=f"checkpoint {first} of sink out .* superseded by timeline 2.*none is pub"
    ):
        Checkpoints.of(files.folder).manifest(first)
    with pytest.raises(UnknownCheckpoint, match="has no published checkpoint yet"):
        Checkpoints.of(files.folder).manifest()
    again = files.checkpoint("n2", batches=1)
    assert list(Checkpoints.of(files.folder).published()) == [CheckpointId(Timeline(2), again)]


def test_a_superseded_checkpoint_is_so_even_where_its_manifest_came_back(files: Files) -> None:
    first = files.checkpoint("n1", batches=1)
    where = layout.manifest(files.manifests()[first].checkpoint)
    text = files.folder.read(where) or ""
    files.go_back(ToInitial())
    files.folder.replace(where, text)
    with pytest.raises(CheckpointNotUsable):
        Checkpoints.of(files.folder).manifest(first)
    with pytest.raises(UnknownCheckpoint):
        Checkpoints.of(files.folder).manifest()


def test_a_folder_of_nobody_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is no folder of a file sink"):
        Checkpoints.of(LocalFolder(tmp_path))
