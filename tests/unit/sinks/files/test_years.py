"""What a file sink looks at does not grow with its past: neither to publish, nor to reset, nor to read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.rules import RegionRules, RetentionRules
from airflow_kcr.protocol.targets import ToCheckpoint, ToInitial
from airflow_kcr.protocol.values import CheckpointNumber
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.frames import Checkpoints
from airflow_kcr.sinks.files.layout import sealed, unsealed
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.sink_files import Files, Killed, LocalFolder

SHORT, LONG = 6, 30


@dataclass(slots=True)
class CountingFolder(LocalFolder):
    """A folder that counts what is looked at in it."""

    looked_at: list[str] = field(default_factory=list)
    entries: int = 0
    """The most names that one listing had."""

    def read(self, path: str) -> str | None:
        """Return a text."""
        self.looked_at.append(f"read {path}")
        return LocalFolder.read(self, path)

    def read_all(self, paths: Iterable[str]) -> list[str | None]:
        """Return several texts."""
        return [self.read(path) for path in paths]

    def names(self, path: str) -> tuple[str, ...]:
        """Return what is in a folder."""
        found = LocalFolder.names(self, path)
        self.looked_at.append(f"list {path}")
        self.entries = max(self.entries, 0 if path == layout.MANIFESTS else len(found))
        return found

    def walk(self, path: str) -> Mapping[str, int]:
        """Return every file below a folder."""
        self.looked_at.append(f"walk {path}")
        return LocalFolder.walk(self, path)

    @property
    def calls(self) -> int:
        """How often it was looked at or written to."""
        return len(self.looked_at) + len(self.steps)


def grown(root: Path, checkpoints: int) -> tuple[Files, list[CheckpointNumber]]:
    """A sink after some checkpoints, and their sequences."""
    rules = RegionRules(groups={GROUP: group_rules()}, retention=RetentionRules(keep=2 * checkpoints + 10))
    driver = Driver(rules=rules)
    for partition in tuple(driver.logs):
        driver.grow(partition, end=1_000_000)
    driver.up()
    files = Files(driver, root)
    return files, [one_more(files, f"n{number}") for number in range(checkpoints)]


def one_more(files: Files, request_id: str) -> CheckpointNumber:
    files.fill(width=2)
    return files.checkpoint(request_id)


def publication(files: Files, checkpoints: list[CheckpointNumber]) -> CountingFolder:
    files.fill()
    files.driver.request_checkpoint("measured")
    sequence, folder = files.driver.complete(), CountingFolder(files.root)
    files.process(folder).publish(sequence)
    files.driver.publish()
    return folder


def publication_again(files: Files, checkpoints: list[CheckpointNumber]) -> CountingFolder:
    folder = CountingFolder(files.root)
    files.process(folder).publish(checkpoints[-1])
    return folder


def reset(files: Files, checkpoints: list[CheckpointNumber]) -> CountingFolder:
    files.driver.reset(ToInitial())
    files.driver.complete()
    folder = CountingFolder(files.root)
    files.process(folder).reset(files.reset_order())
    files.driver.finish_reset()
    return folder


def publication_after_a_reset(files: Files, checkpoints: list[CheckpointNumber]) -> CountingFolder:
    files.go_back(ToCheckpoint(sequence=checkpoints[0]))
    return publication(files, checkpoints)


def reading_the_newest(files: Files, checkpoints: list[CheckpointNumber]) -> CountingFolder:
    folder = CountingFolder(files.root)
    assert Checkpoints.of(folder).manifest().sequence == checkpoints[-1]
    return folder


def reading_the_first(files: Files, checkpoints: list[CheckpointNumber]) -> CountingFolder:
    folder = CountingFolder(files.root)
    assert Checkpoints.of(folder).manifest(checkpoints[0]).sequence == checkpoints[0]
    return folder


@pytest.mark.parametrize(
    "measured",
    [
        publication,
        publication_again,
        reset,
        publication_after_a_reset,
        reading_the_newest,
        reading_the_first,
    ],
)
def test_as_many_objects_are_looked_at_after_many_checkpoints_as_after_few(
    tmp_path: Path, measured: Callable[[Files, list[CheckpointNumber]], CountingFolder]
) -> None:
    few = measured(*grown(tmp_path / "few", SHORT))
    many = measured(*grown(tmp_path / "many", LONG))
    assert many.calls == few.calls, (few.looked_at + few.steps, many.looked_at + many.steps)
    assert many.entries <= max(few.entries, layout.SHELF)


def test_what_a_far_reset_undoes_is_one_stretch(tmp_path: Path) -> None:
    files, checkpoints = grown(tmp_path / "out", LONG)
    reset(files, checkpoints)
    assert len(files.timelines().undone) == 1
    assert files.manifests() == {}
    assert sorted(files.undone()) == checkpoints
    assert all(files.timelines().superseded_by(sequence) == 2 for sequence in checkpoints)


def test_a_cleaning_that_is_killed_has_deleted_a_part_and_the_next_one_goes_on(tmp_path: Path) -> None:
    files, checkpoints = grown(tmp_path / "out", LONG)
    reset(files, checkpoints)
    one_more(files, "after")

    folder, before = CountingFolder(files.root), len(files.data_files())

    def kill(step: str) -> None:
        if len(folder.steps) > LONG // 2:
            raise Killed(step)

    folder.kill = kill
    with pytest.raises(Killed):
        files.clean(folder=folder)
    assert 0 < len(files.data_files()) < before
    assert files.clean().undone == tuple(checkpoints)
    assert files.data_files() == files.needed()


def test_a_folder_of_an_earlier_layout_is_refused_by_name(tmp_path: Path) -> None:
    files, _ = grown(tmp_path / "out", 1)
    content = unsealed(files.folder.read(layout.OWNER))
    assert content is not None
    del content["layout"]
    files.folder.replace(layout.OWNER, sealed(content))
    for use in (files.sink.check, files.clean, lambda: Checkpoints.of(files.folder)):
        with pytest.raises(ConfigurationError, match="has layout 1, and this version"):
            use()
