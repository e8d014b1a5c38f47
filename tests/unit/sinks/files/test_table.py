"""What a table beside the manifests shows: whole checkpoints, those in force, each once.

Its writers, and when they write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.protocol.region.commands import FinishRecomputation
from airflow_kcr.protocol.rules import FileFormat
from airflow_kcr.protocol.scopes import EVERYTHING, parse_scope
from airflow_kcr.protocol.targets import ShiftBy, ToInitial
from airflow_kcr.protocol.values import CheckpointNumber
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.contents import RegionLedger
from airflow_kcr.sinks.files.layout import Marker
from airflow_kcr.sinks.files.sink import FileSink
from tests.support.driver import Driver
from tests.support.record_table import RecordTable, Rows
from tests.support.sink_files import Files, Killed, LocalFolder, RecordRewriter

STEPS = 40


class Tabled:
    """A region, its file sink, and the table beside it."""

    def __init__(self, root: Path, file_size: int = 0) -> None:
        driver = Driver()
        for partition in tuple(driver.logs):
            driver.grow(partition, end=100_000)
        driver.up()
        self.rows = Rows()
        self.files = Files(driver, root, file_size, RecordTable(self.rows, LocalFolder(root)))
        self.driver = driver

    def other(self, kill: Callable[[str], None] = lambda step: None) -> FileSink:
        """The sink as another process has it, which does something before each step."""
        folder = LocalFolder(self.files.root, kill)
        return self.files.process(folder, RecordTable(self.rows, folder, kill))

    def both(self, width: int = 10) -> None:
        for index in range(2):
            self.files.process_batch(self.driver.member(index), width)

    def complete(self, request_id: str) -> CheckpointNumber:
        self.driver.request_checkpoint(request_id)
        return self.driver.complete()

    def reset(self, sink: FileSink | None = None) -> None:
        """Go back to the beginning."""
        self.driver.reset(ToInitial())
        self.driver.complete()
        (sink or self.files.sink).reset(self.files.reset_order())

    def has_everything(self) -> bool:
        """Whether the manifests in force hold each record before the positions once."""
        ends = {p: int(c.position or 0) for p, c in self.driver.region.claims.items()}
        return self.files.records() == self.files.expected(ends)

    def is_in_force(self) -> bool:
        """Whether the table shows what the manifests in force name."""
        checkpoints = {manifest.checkpoint: self.files.records(s) for s, manifest in self.files.manifests().items()}
        return {checkpoint: found for checkpoint, found in self.rows.checkpoints.items() if found} == {
            c: f for c, f in checkpoints.items() if f
        }


def killed_after(step: int) -> Callable[[str], None]:
    """Return what ends a process when it has taken so many steps and one more."""
    left = iter(range(step + 1))

    def kill(name: str) -> None:
        if next(left, None) is None:
            raise Killed(name)

    return kill


@pytest.fixture
def tabled(tmp_path: Path) -> Tabled:
    return Tabled(tmp_path / "out")


def test_a_checkpoint_is_shown_once_its_manifest_is_there_and_once(tabled: Tabled) -> None:
    tabled.both()
    sequence = tabled.complete("n1")
    there: list[bool] = []

    def look(step: str) -> None:
        if step.startswith("show"):
            there.append(bool(tabled.files.manifests()))

    tabled.other(look).publish(sequence)
    tabled.files.sink.publish(sequence)
    assert there
    assert all(there)
    assert tabled.is_in_force()
    assert len(tabled.rows.commits) == 1


@pytest.mark.parametrize("step", range(14))
@pytest.mark.parametrize("file_size", [0, 1_000_000])
def test_kills_at_each_step_of_a_publication_are_made_good_by_the_next_publisher(
    tmp_path: Path, step: int, file_size: int
) -> None:
    tabled = Tabled(tmp_path / "out", file_size)
    for _ in range(10):
        tabled.both()
    sequence = tabled.complete("n1")
    try:
        tabled.other(killed_after(step)).publish(sequence)
    except Killed:
        assert max(tabled.rows.records().values(), default=1) == 1
        assert not tabled.rows.checkpoints or tabled.has_everything()
    tabled.files.sink.publish(sequence)
    tabled.driver.publish()
    assert tabled.is_in_force()
    assert tabled.has_everything()
    assert sum(commit.startswith("show") for commit in tabled.rows.commits) == 1
    tabled.both()
    tabled.files.checkpoint("n2")
    assert tabled.is_in_force()
    assert tabled.has_everything()


@pytest.mark.parametrize("step", range(12))
def test_kills_at_each_step_of_a_reset_are_made_good_by_the_next_member(tmp_path: Path, step: int) -> None:
    tabled = Tabled(tmp_path / "out")
    for request_id in ("n1", "n2"):
        tabled.both()
        tabled.files.checkpoint(request_id)
    try:
        tabled.reset(tabled.other(killed_after(step)))
    except Killed:
        tabled.files.sink.reset(tabled.files.reset_order())
    assert tabled.rows.records() == {}
    assert tabled.is_in_force()
    tabled.driver.finish_reset()
    tabled.both()
    tabled.files.checkpoint("n3")
    assert tabled.is_in_force()


def test_two_publishers_at_once_show_a_checkpoint_once(tabled: Tabled) -> None:
    tabled.both()
    sequence = tabled.complete("n1")
    first = iter([True])

    def overtaken(step: str) -> None:
        if step.startswith("show") and next(first, False):
            tabled.files.sink.publish(sequence)

    tabled.other(overtaken).publish(sequence)
    assert len(tabled.rows.commits) == 1
    assert tabled.is_in_force()


@pytest.mark.parametrize("published", [False, True])
def test_a_publisher_that_wakes_up_after_a_reset_shows_nothing(tabled: Tabled, published: bool) -> None:
    tabled.both()
    sequence = tabled.complete("n1")
    first = iter([True])

    def asleep(step: str) -> None:
        if step.startswith("show") and next(first, False):
            if published:
                tabled.files.sink.publish(sequence)
            tabled.driver.publish()
            tabled.reset()
            tabled.driver.finish_reset()

    tabled.other(asleep).publish(sequence)
    assert tabled.rows.checkpoints == {}
    assert tabled.files.manifests() == {}
    assert sum(commit.startswith("show") for commit in tabled.rows.commits) == int(published)


def test_a_checkpoint_that_others_keep_from_being_shown_is_not_published(tabled: Tabled) -> None:
    tabled.both()
    sequence = tabled.complete("n1")

    def busy(step: str) -> None:
        if step.startswith("show"):
            tabled.rows.transaction = len(tabled.rows.commits) + 1
            tabled.rows.commits.append("somebody else's")

    with pytest.raises(
        SinkError, match=f"checkpoint {sequence} is not in the table yet, others write to it all the time"
    ):
        tabled.other(busy).publish(sequence)
    assert tabled.rows.checkpoints == {}


def test_a_folder_whose_table_is_gone_is_refused_once_it_has_published(tabled: Tabled) -> None:
    tabled.rows.is_made = False
    tabled.other().check()
    tabled.both()
    tabled.files.checkpoint("n1")
    tabled.rows.is_made = False
    with pytest.raises(ConfigurationError, match=r"has published checkpoints, and the table .* is gone; put it back"):
        tabled.other().check()
    assert not tabled.rows.is_made
    tabled.reset()
    tabled.other().check()


def test_a_folder_of_another_format_is_refused(tabled: Tabled) -> None:
    folder = tabled.files.folder
    target = replace(tabled.files.sink.target, format=FileFormat.DELTA)
    ledger = RegionLedger(tabled.driver.store, tabled.driver.name)
    with pytest.raises(ConfigurationError, match="was created with format parquet, and the spec says delta"):
        FileSink(target, folder, ledger, RecordRewriter(folder)).check()
    owner = Marker.of(folder.read(layout.OWNER))
    assert owner is not None
    assert owner.format == "parquet"


@pytest.mark.parametrize("file_size", [0, 1_000_000])
@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_the_table_shows_the_checkpoints_in_force(tmp_path: Path, seed: int, file_size: int) -> None:
    chance, tabled = Random(seed), Tabled(tmp_path / "out", file_size)
    driver, files = tabled.driver, tabled.files

    def kill(step: str) -> None:
        if chance.random() < 0.1:
            raise Killed(step)

    for step in range(STEPS):
        match chance.choice(("batch", "batch", "checkpoint", "checkpoint", "reset", "clean", "recompute")):
            case "batch":
                tabled.both(chance.randrange(1, 30))
            case "checkpoint":
                driver.request_checkpoint(f"n{step}")
                sequence = driver.complete()
                attempt(partial(publish, sequence), tabled, kill)
                driver.publish()
            case "clean":
                files.clean()
            case "recompute":
                for sequence in sorted(files.manifests())[-1:]:
                    attempt(partial(recompute, files, sequence, f"r{step}"), tabled, kill)
            case _:
                scope = EVERYTHING if chance.random() < 0.5 else parse_scope(topics=["t:1,2"])
                driver.reset(ShiftBy(by=-chance.randrange(1, 90)), scope=scope)
                drained = driver.complete()
                attempt(partial(publish, drained), tabled, kill)
                attempt(lambda sink: sink.reset(files.reset_order()), tabled, kill)
                driver.finish_reset()
        assert max(tabled.rows.records().values(), default=1) == 1
        assert tabled.is_in_force()


def recompute(files: Files, sequence: CheckpointNumber, request_id: str, sink: FileSink) -> None:
    number = files.begin(sequence, request_id)
    files.revision(sequence, number, 1, sink).replace(files.wanted(sequence, number))
    files.driver.handle(FinishRecomputation(sequence=sequence, number=number, batches=()))


def publish(sequence: CheckpointNumber, sink: FileSink) -> None:
    sink.publish(sequence)


def attempt(call: Callable[[FileSink], object], tabled: Tabled, kill: Callable[[str], None]) -> None:
    """Have processes do it, each of which may die, until one has."""
    for _ in range(50):
        try:
            call(tabled.other(kill))
        except Killed:
            continue
        return
    call(tabled.files.sink)
