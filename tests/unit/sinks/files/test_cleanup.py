from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from airflow_kcr.errors import CheckpointNotUsable, ConfigurationError
from airflow_kcr.protocol.region.commands import PinCheckpoint, RetireCheckpoints
from airflow_kcr.protocol.region.rows import Checkpoint, CheckpointState
from airflow_kcr.protocol.rules import RegionRules, RetentionRules
from airflow_kcr.protocol.scopes import parse_scope
from airflow_kcr.protocol.targets import ShiftBy, ToCheckpoint, ToInitial
from airflow_kcr.protocol.values import CheckpointNumber, RegionName, Timeline
from airflow_kcr.sinks.checkpoints import CheckpointId
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.cleanup import Cleaner, GivenUp
from airflow_kcr.sinks.files.contents import RegionLedger
from airflow_kcr.sinks.files.frames import Checkpoints
from airflow_kcr.sinks.files.layout import Timelines
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.scripts import running
from tests.support.sink_files import Files, Killed, LocalFolder, killing

LARGE = 1_000_000


def keeping(number: int) -> Driver:
    """A running region that keeps N checkpoints."""
    driver = Driver(rules=RegionRules(groups={GROUP: group_rules()}, retention=RetentionRules(keep=number)))
    driver.up()
    return driver


@pytest.fixture(params=[0, LARGE], ids=["as they are", "put together"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    """A region of two members and four partitions that runs and keeps two checkpoints, and its sink."""
    size: int = request.param
    return Files(keeping(2), tmp_path / "out", size)


def checkpoint(files: Files, request_id: str) -> CheckpointNumber:
    return files.checkpoint(request_id, batches=9)


class TestUndone:
    def test_checkpoints_keep_their_files_until_a_newer_one_has_what_is_left_of_them(self, files: Files) -> None:
        first, second = checkpoint(files, "n1"), checkpoint(files, "n2")
        files.go_back(ShiftBy(by=-37), scope=parse_scope(topics=["t:0"]))
        before = files.data_files()
        assert files.clean().undone == ()
        assert {f.path for manifest in files.undone().values() for f in manifest.files} <= before
        third = checkpoint(files, "n3")
        assert files.are_whole()
        cleaned = files.clean()
        assert cleaned.undone == (second,)
        assert files.data_files() == files.needed()
        assert set(files.manifests()) == {first, third}
        assert files.are_whole()

    def test_checkpoints_are_still_told_apart_from_unknown_ones(self, files: Files) -> None:
        first = checkpoint(files, "n1")
        files.go_back(ToInitial())
        checkpoint(files, "n2")
        files.clean()
        with pytest.raises(CheckpointNotUsable, match=f"checkpoint {first} .* was superseded by timeline 2"):
            Checkpoints.of(files.folder).manifest(first)

    def test_checkpoints_of_a_region_that_nobody_works_for_are_noted_first(self, files: Files) -> None:
        checkpoint(files, "n1")
        files.driver.reset(ToInitial())
        files.driver.complete()
        files.driver.finish_reset()
        assert files.manifests()
        files.clean()
        assert files.manifests() == {}

    def test_checkpoints_that_are_pinned_keep_their_files(self, files: Files) -> None:
        first = checkpoint(files, "n1")
        files.driver.handle(PinCheckpoint(sequence=first, label="kept", reason="to compare"))
        held = files.needed()
        files.go_back(ToInitial())
        checkpoint(files, "n2")
        assert files.clean().undone == ()
        assert held <= files.data_files()
        files.driver.handle(PinCheckpoint(sequence=first, label="", reason=""))
        assert files.clean().undone == (first,)
        assert files.data_files() == files.needed()

    def test_batches_that_never_counted_leave_nothing_behind(self, files: Files) -> None:
        driver = files.driver
        lost, other = driver.start_batch(driver.member(0)), driver.start_batch(driver.member(1))
        files.write(lost)
        files.write(other)
        driver.crash(driver.member(0))
        driver.recover()
        checkpoint(files, "n1")
        files.fill()
        running = files.driver.start_batch(driver.member(0))
        files.write(running)
        files.clean()
        kept = {path.split("/")[3].rpartition("-")[0] for path in files.data_files() - files.needed()}
        assert not kept & {lost, other}
        assert running in kept
        driver.finish_batch(running)
        files.checkpoint("n2")
        assert files.are_whole()

    def test_what_a_publisher_is_making_stays(self, files: Files) -> None:
        checkpoint(files, "n1")
        files.fill(9)
        files.driver.request_checkpoint("n2")
        sequence = files.driver.complete()

        def meanwhile(step: str) -> None:
            if step.startswith("rename manifests/"):
                files.clean()

        files.process(LocalFolder(files.root, meanwhile)).publish(sequence)
        assert files.are_whole()

    def test_nothing_goes_before_a_checkpoint_is_published(self, files: Files) -> None:
        files.fill(9)
        before = files.data_files()
        assert files.clean().files == 0
        assert files.data_files() == before

    def test_a_checkpoint_whose_manifest_is_damaged_or_gone_keeps_what_it_may_have(self, files: Files) -> None:
        first = checkpoint(files, "n1")
        held = files.needed()
        checkpoint(files, "n2")
        where = files.root / layout.manifest(CheckpointId(files.driver.region.timeline, first))
        whole = where.read_text()
        for text in (whole[:-9], None):
            where.unlink()
            if text is not None:
                where.write_text(text)
            files.clean()
            assert held <= files.data_files()
        where.write_text(whole)
        files.clean()
        assert files.are_whole()

    def test_a_folder_of_another_region_of_that_name_is_left_alone(self, files: Files) -> None:
        checkpoint(files, "n1")
        files.go_back(ToInitial())
        checkpoint(files, "n2")
        before = files.data_files()
        anew = Files(running(), files.root)
        assert anew.clean(GivenUp.RETIRED).files == 0
        assert files.data_files() == before

    def test_a_folder_of_another_sink_is_refused(self, files: Files, tmp_path: Path) -> None:
        other = Driver(name=RegionName("others"))
        other.up()
        mine = Files(other, tmp_path / "mine")
        with pytest.raises(ConfigurationError, match="is the folder of sink out of group g, region flights"):
            mine.clean(folder=LocalFolder(files.root))

    def test_a_folder_that_nobody_has_taken_is_left_alone(self, files: Files, tmp_path: Path) -> None:
        (tmp_path / "photos" / "data").mkdir(parents=True)
        assert files.clean(folder=LocalFolder(tmp_path / "photos")).files == 0


class TestRetired:
    def test_checkpoints_can_be_read_until_their_output_is_given_up(self, files: Files) -> None:
        checkpoints = [checkpoint(files, f"n{number}") for number in range(4)]
        files.driver.handle(RetireCheckpoints())
        retired = [s for s in checkpoints if files.driver.region.checkpoints[s].state is CheckpointState.RETIRED]
        assert retired == checkpoints[:2]
        files.clean()
        assert files.are_whole()
        cleaned = files.clean(GivenUp.RETIRED)
        assert list(cleaned.retired) == retired
        assert set(files.manifests()) == set(checkpoints[2:])
        assert files.data_files() == files.needed()
        assert sum(files.records(*checkpoints[2:]).values()) == 2 * 9 * 40
        with pytest.raises(
            CheckpointNotUsable, match=f"checkpoint {checkpoints[0]} of sink out .* was retired, and its output del"
        ):
            Checkpoints.of(files.folder).manifest(checkpoints[0])
        assert files.clean(GivenUp.RETIRED).files == 0

    def test_checkpoints_that_a_reset_undoes_later_do_not_hold_up_the_next_one(self, files: Files) -> None:
        checkpoints = [checkpoint(files, f"n{number}") for number in range(4)]
        files.driver.handle(RetireCheckpoints())
        given_up = files.records(*checkpoints[:2])
        files.clean(GivenUp.RETIRED)
        # Into the middle of a checkpoint that was given up, on one partition of four: of the rest nothing comes back.
        files.go_back(ShiftBy(by=-300), scope=parse_scope(topics=["t:0"]))
        checkpoint(files, "again")
        found = files.records()
        assert max(found.values()) == 1
        ends = {p: int(c.position or 0) for p, c in files.driver.region.claims.items()}
        assert files.expected(ends) - found <= given_up
        assert {r for r in files.expected(ends) if r[0] == "t" and r[1] == 0 and r[2] >= 60} <= set(found)
        files.clean(GivenUp.RETIRED)
        assert files.records() == found
        assert files.data_files() == files.needed()

    def test_a_publisher_that_wakes_up_later_brings_no_retired_checkpoint_back(self, files: Files) -> None:
        checkpoints = [checkpoint(files, f"n{number}") for number in range(4)]
        where = layout.manifest(files.manifests()[checkpoints[0]].checkpoint)
        text = files.folder.read(where) or ""
        files.driver.handle(RetireCheckpoints())
        files.clean(GivenUp.RETIRED)
        files.sink.publish(checkpoints[0])
        assert files.folder.read(where) is None
        files.folder.replace(where, text)
        with pytest.raises(CheckpointNotUsable, match="was retired"):
            Checkpoints.of(files.folder).manifest(checkpoints[0])
        files.clean()
        assert files.folder.read(where) is None


def rewound(files: Files) -> None:
    """Leave something of every kind behind: undone checkpoints, a dead batch, retired checkpoints."""
    first = checkpoint(files, "n1")
    checkpoint(files, "n2")
    files.go_back(ToCheckpoint(sequence=first), scope=parse_scope(topics=["t:0,1"]))
    lost = files.driver.start_batch(files.driver.member(0))
    files.write(lost)
    files.driver.crash(files.driver.member(0))
    files.driver.recover()
    files.sink.reset(files.reset_order())
    for number in range(3):
        checkpoint(files, f"m{number}")
    files.driver.handle(RetireCheckpoints())


class TestAtEachStep:
    def run(self, files: Files, at: Callable[[Files], None]) -> None:
        """Do something before each step of a cleaning, then clean up, and see that everything readable is there."""
        rewound(files)
        retired = {s for s, c in files.driver.region.checkpoints.items() if c.state is CheckpointState.RETIRED}
        readable = {s: files.records(s) for s in files.manifests() if s not in retired}
        assert readable
        at(files)
        for sequence, held in readable.items():
            assert files.records(sequence) == held
        files.clean(GivenUp.RETIRED)
        assert {s: files.records(s) for s in files.manifests()} == readable
        assert files.data_files() == files.needed()
        checkpoint(files, "more")
        assert max(files.records().values()) == 1

    @pytest.mark.parametrize("step", range(18))
    def test_a_kill_leaves_every_readable_checkpoint_whole_and_the_next_run_goes_on(
        self, files: Files, step: int
    ) -> None:
        def killed(files: Files) -> None:
            try:
                files.clean(GivenUp.RETIRED, LocalFolder(files.root, killing(step)))
            except Killed:
                for sequence, manifest in files.manifests().items():
                    if (files.root / layout.retired(manifest.checkpoint)).exists():
                        continue
                    assert files.records(sequence)

        self.run(files, killed)

    @pytest.mark.parametrize("step", range(0, 18, 3))
    def test_another_run_in_between_changes_nothing(self, files: Files, step: int) -> None:
        def twice(files: Files) -> None:
            left = iter(range(step))

            def other(name: str) -> None:
                if next(left, None) is None and not done:
                    done.append(name)
                    files.clean(GivenUp.RETIRED)

            done: list[str] = []
            files.clean(GivenUp.RETIRED, LocalFolder(files.root, other))

        self.run(files, twice)

    @pytest.mark.parametrize("step", range(0, 18, 3))
    def test_a_reset_and_a_checkpoint_in_between_lose_nothing(self, files: Files, step: int) -> None:
        rewound(files)
        restore_point = files.driver.region.restore_sequence
        assert restore_point is not None
        done: list[str] = []
        left = iter(range(step))

        def meanwhile(name: str) -> None:
            if next(left, None) is None and not done:
                done.append(name)
                # Back before the newest checkpoint on one partition: what is left of it goes into the next one.
                files.go_back(ShiftBy(by=-50), scope=parse_scope(topics=["t:3"]))
                checkpoint(files, "meanwhile")

        files.clean(GivenUp.UNDONE, LocalFolder(files.root, meanwhile))
        assert files.are_whole()
        checkpoint(files, "more")
        assert files.are_whole()
        files.clean()
        assert files.are_whole()
        assert files.data_files() == files.needed()


class Stale(RegionLedger):
    """The store, asked before a reset that is being noted in the folder while the cleaner looks."""

    def __init__(self, files: Files) -> None:
        super().__init__(files.driver.store, files.driver.name)
        self._known = super().checkpoints()

    def checkpoints(self) -> Mapping[CheckpointId, Checkpoint]:
        return self._known

    def timelines(self, since: Timeline) -> Timelines:
        return Timelines()


def test_what_a_reset_undoes_while_the_cleaner_looks_keeps_its_files(files: Files) -> None:
    _, second = checkpoint(files, "n1"), checkpoint(files, "n2")
    third = checkpoint(files, "n3")
    stale, folder = Stale(files), LocalFolder(files.root)
    files.go_back(ShiftBy(by=-100), scope=parse_scope(topics=["t:0"]))
    assert {second, third} <= set(files.undone())
    Cleaner(files.sink.target, folder, stale).clean(GivenUp.UNDONE)
    checkpoint(files, "n4")
    assert files.are_whole()
