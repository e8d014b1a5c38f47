from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kcr.errors import ConfigurationError, SinkAhead, SinkError
from airflow_kcr.protocol.region.archive import Stretch
from airflow_kcr.protocol.region.rows import ResetCause
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.targets import ToCheckpoint, ToInitial
from airflow_kcr.protocol.values import CheckpointNumber, RegionId, RegionName
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.layout import Marker
from tests.support.driver import Driver
from tests.support.scripts import running
from tests.support.sink_files import SCHEMA, Files, LocalFolder


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A region of two members and four partitions that runs, and its sink."""
    return Files(running(), tmp_path / "out")


class TestPublication:
    def test_shows_the_accepted_batches_since_the_checkpoint_before(self, files: Files) -> None:
        first = files.checkpoint("n1", batches=1)
        second = files.checkpoint("n2", batches=1)
        assert sum(files.records(first).values()) == sum(files.records(second).values()) == 40
        assert files.are_whole()
        assert files.manifests()[second].previous == str(files.manifests()[first].checkpoint)

    def test_of_a_checkpoint_before_which_another_was_aborted_has_the_batches_of_both(self, files: Files) -> None:
        files.fill()
        files.driver.request_checkpoint("late")
        files.driver.wait(200)
        files.driver.recover()
        files.sink.reset(files.reset_order())
        files.checkpoint("n1", batches=1)
        assert files.are_whole()

    def test_shows_nothing_of_a_zombie_that_lists_its_files_after_the_checkpoint(self, files: Files) -> None:
        driver = files.driver
        zombie = driver.start_batch(driver.member(0))
        call, old = files.call(zombie), files.sink
        driver.crash(driver.member(0))
        driver.recover()
        files.checkpoint("n1", batches=1)
        before = files.records()
        files.write(zombie, sink=old)
        old.publish(max(files.manifests()))
        assert call.batch == zombie
        assert files.records() == before
        assert files.are_whole()

    def test_said_again_changes_nothing(self, files: Files) -> None:
        sequence = files.checkpoint("n1", batches=1)
        text = files.folder.read(layout.manifest(files.manifests()[sequence].checkpoint))
        files.folder.steps.clear()
        files.sink.publish(sequence)
        assert files.folder.steps == []
        assert files.folder.read(layout.manifest(files.manifests()[sequence].checkpoint)) == text

    def test_by_two_members_writes_the_same_bytes(self, files: Files, tmp_path: Path) -> None:
        files.fill()
        files.driver.request_checkpoint("n1")
        sequence = files.driver.complete()
        files.sink.publish(sequence)
        (where,) = (tmp_path / "out" / layout.MANIFESTS).rglob("*.json")
        first = where.read_bytes()
        where.unlink()
        files.process(LocalFolder(tmp_path / "out")).publish(sequence)
        assert where.read_bytes() == first

    def test_of_a_checkpoint_without_batches_keeps_the_schema_of_the_one_before(self, files: Files) -> None:
        files.checkpoint("n1", batches=1)
        second = files.checkpoint("n2")
        assert files.manifests()[second].files == ()
        assert files.manifests()[second].schemas == (SCHEMA,)

    def test_refuses_an_accepted_batch_whose_list_is_damaged_or_missing_or_another_s(
        self, files: Files, tmp_path: Path
    ) -> None:
        batch, other = (files.process_batch(files.driver.member(index)) for index in range(2))
        listed, another = (
            tmp_path / "out" / layout.batch_list(files.sink.attempt(files.call(b))) for b in (batch, other)
        )
        listed.write_text(listed.read_text()[:-9])
        with pytest.raises(SinkError, match=f"batch {batch} is accepted, and the list of its files .* is damaged: "):
            files.checkpoint("n1")
        sequence = files.driver.region.restore_sequence or CheckpointNumber(0)
        listed.write_text(another.read_text())
        with pytest.raises(SinkError, match=f"is that of batch {other}: the folder was changed; restore it, or reset"):
            files.sink.publish(sequence)
        listed.unlink()
        with pytest.raises(SinkError, match="is missing: "):
            files.sink.publish(sequence)
        assert files.manifests() == {}

    def test_leaves_out_batches_that_ran_before_the_group_had_the_sink(self, tmp_path: Path) -> None:
        driver = running()
        driver.process()
        driver.checkpoint("n0")
        files = Files(driver, tmp_path / "out")
        sequence = files.checkpoint("n1", batches=1)
        files.go_back(ToInitial())
        assert sequence not in files.manifests()

    def test_refuses_a_checkpoint_of_a_region_that_had_the_same_name(self, files: Files, tmp_path: Path) -> None:
        files.checkpoint("n1", batches=1)
        again = Files(running(), tmp_path / "out")
        again.process_batch(again.driver.member(0))
        with pytest.raises(SinkError, match="has another checkpoint 000001"):
            again.checkpoint("n1")


class TestKills:
    def test_in_the_middle_of_a_manifest_leave_one_that_nobody_reads_and_the_next_one_mends(
        self, files: Files, tmp_path: Path
    ) -> None:
        sequence = files.checkpoint("n1", batches=1)
        where = tmp_path / "out" / layout.manifest(files.manifests()[sequence].checkpoint)
        whole = where.read_text()
        for size in (0, 1, len(whole) // 2, len(whole) - 1):
            where.write_text(whole[:size])
            assert files.manifests() == {}
            files.sink.publish(sequence)
            assert where.read_text() == whole


class TestSmallFiles:
    def test_are_put_together_and_the_old_ones_go_when_the_manifest_is_there(self, tmp_path: Path) -> None:
        files = Files(running(), tmp_path / "out", 1_000_000)
        sequence = files.checkpoint("n1", batches=10)
        manifest = files.manifests()[sequence]
        (file,) = manifest.files
        assert file.path.startswith(f"{layout.compacted(manifest.checkpoint)}/small-0-")
        assert len(manifest.batches) == 20
        assert files.folder.walk("data") == {}
        deleted = [at for at, step in enumerate(files.folder.steps) if step.startswith("delete data/")]
        assert files.folder.steps.index(f"rename {layout.manifest(manifest.checkpoint)}") < min(deleted)
        assert files.are_whole()

    def test_that_are_few_stay_as_they_are(self, tmp_path: Path) -> None:
        files = Files(running(), tmp_path / "out", 1_000_000)
        sequence = files.checkpoint("n1", batches=1)
        assert all(f.path.startswith("data/") for f in files.manifests()[sequence].files)


class TestResets:
    def test_to_a_checkpoint_set_the_checkpoints_after_it_aside(self, files: Files) -> None:
        first = files.checkpoint("n1", batches=1)
        second = files.checkpoint("n2", batches=1)
        undone = files.manifests()[second]
        files.driver.reset(ToCheckpoint(sequence=first))
        drained = files.driver.complete()
        files.sink.publish(drained)
        files.follow_reset()
        assert set(files.manifests()) == {first}
        assert files.undone() == {second: undone}
        assert files.timelines().undone == (Stretch(files.driver.region.timeline, second, drained),)
        third = files.checkpoint("n3", batches=1)
        assert files.manifests()[third].previous == str(files.manifests()[first].checkpoint)
        assert files.are_whole()

    def test_of_which_is_known_only_later_what_they_undo_are_looked_at_with_the_first_batch(self, files: Files) -> None:
        files.checkpoint("n1", batches=1)
        files.driver.reset(ToInitial())
        files.driver.complete()
        files.driver.finish_reset()
        assert files.manifests()
        files.fill()
        assert files.manifests() == {}

    def test_that_undo_a_checkpoint_while_it_is_published_set_it_aside_as_well(
        self, files: Files, tmp_path: Path
    ) -> None:
        files.fill()
        files.driver.request_checkpoint("n1")
        sequence = files.driver.complete()

        def overtaken(step: str) -> None:
            if step.startswith("rename manifests/"):
                files.driver.publish()
                files.driver.reset(ToInitial())
                files.driver.complete()

        files.process(LocalFolder(tmp_path / "out", overtaken)).publish(sequence)
        assert files.manifests() == {}
        assert list(files.undone()) == [sequence]

    def test_a_publisher_that_wakes_up_later_brings_no_superseded_checkpoint_back(self, files: Files) -> None:
        sequence = files.checkpoint("n1", batches=1)
        checkpoint = files.manifests()[sequence].checkpoint
        text = files.folder.read(layout.manifest(checkpoint)) or ""
        files.go_back(ToInitial())
        files.folder.replace(layout.manifest(checkpoint), text)
        files.sink.publish(sequence)
        assert files.manifests() == {}

    def test_answer_open_entries_with_what_the_ledger_has_as_done(self, tmp_path: Path) -> None:
        driver = Driver(delivery=Delivery.EXACTLY_ONCE)
        driver.up()
        files = Files(driver, tmp_path / "out")
        files.fill()
        driver.crash(driver.member(0))
        lost = driver.start_batch(driver.member(1))
        files.write(lost)
        driver.crash(driver.member(1))
        driver.wait(60)
        for member in driver.all_members():
            driver.join(member)
        driver.spread()
        partitions = sorted(driver.region.claims)
        answer = files.sink.reset(files.reset_order(*partitions))
        assert answer == dict.fromkeys(partitions, 10)
        assert driver.region.resets[driver.region.epoch].cause is not ResetCause.PERSON

    def test_answer_nothing_in_a_timeline_without_batches(self, files: Files) -> None:
        (partition,) = sorted(files.driver.region.claims)[:1]
        assert files.sink.reset(files.reset_order(partition)) == {partition: None}

    def test_are_refused_where_the_folder_is_ahead_of_the_store(self, files: Files, tmp_path: Path) -> None:
        files.checkpoint("n1", batches=1)
        files.go_back(ToInitial())
        files.checkpoint("n2", batches=1)
        restored = Files(running(), tmp_path / "out")
        with pytest.raises(SinkAhead, match="knows of timeline 2, and the region is in timeline 1") as raised:
            restored.sink.reset(restored.reset_order())
        assert raised.value.timeline == 2


class TestTheFolder:
    def test_is_taken_once_and_found_again(self, files: Files) -> None:
        owner = Marker.of(files.folder.read(layout.OWNER))
        files.sink.check()
        assert owner is not None
        assert Marker.of(files.folder.read(layout.OWNER)) == owner
        assert (owner.owner.region, owner.owner.group, owner.owner.sink) == ("flights", "g", "out")

    def test_that_two_applications_take_at_once_is_no_lost_one(self, files: Files, tmp_path: Path) -> None:
        first = files.process(LocalFolder(tmp_path / "new"))

        class Overtaken(LocalFolder):
            def read(self, path: str) -> str | None:
                found = LocalFolder.read(self, path)
                if path == layout.OWNER and found is None:
                    first.check()
                return found

        second = files.process(Overtaken(tmp_path / "new"))
        second.check()
        marker = Marker.of(first.folder.read(layout.OWNER))
        assert marker is not None
        assert marker.owner == second.owner

    def test_of_another_sink_is_refused(self, files: Files, tmp_path: Path) -> None:
        other = Driver(name=RegionName("others"))
        other.up()
        with pytest.raises(ConfigurationError, match="is the folder of sink out of group g, region flights"):
            Files(other, tmp_path / "out")

    def test_of_an_earlier_region_of_the_name_is_refused(self, files: Files) -> None:
        again = Driver(region_id=RegionId("another"))
        again.up()
        with pytest.raises(
            ConfigurationError, match=r"region flights \(id another\).*is the folder of .*id id of flights"
        ):
            Files(again, files.root)

    @pytest.mark.parametrize("how", ["deleted", "another's"])
    def test_that_is_swapped_under_a_member_is_told_by_the_next_checkpoint(self, files: Files, how: str) -> None:
        files.fill()
        sequence = files.driver.checkpoint("n1")
        owner = Marker.of(files.folder.read(layout.OWNER))
        assert owner is not None
        if how == "deleted":
            files.folder.delete([layout.OWNER])
        else:
            files.folder.replace(
                layout.OWNER, replace(owner, owner=replace(owner.owner, region_id=RegionId("another"))).text()
            )
        with pytest.raises(SinkError, match="has lost its marker"):
            files.sink.publish(sequence)
        files.folder.replace(layout.OWNER, owner.text())
        files.sink.publish(sequence)

    def test_that_was_emptied_is_no_new_one_until_a_person_accepts_it(self, files: Files) -> None:
        for request in ("n1", "n2"):
            files.checkpoint(request, batches=1)
        files.folder.delete(files.folder.names(""))
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=r"has lost its marker.*kcr region output flights --take-over"):
                files.process(files.folder).check()
        assert files.folder.names("") == ()
        files.driver.store.let_go(files.driver.name, files.sink.target.place)
        files.sink = files.process(files.folder)
        files.sink.check()
        files.go_back(ToInitial())
        files.checkpoint("n3", batches=2)
        assert files.are_whole()

    def test_that_was_deleted_under_a_member_is_told_by_the_next_start_whatever_was_written_since(
        self, files: Files
    ) -> None:
        files.checkpoint("n1", batches=1)
        files.folder.delete(files.folder.names(""))
        files.fill()
        with pytest.raises(ConfigurationError, match=r"has lost its marker.*kcr region output flights --take-over"):
            files.process(files.folder).check()

    def test_that_was_restored_from_before_a_checkpoint_is_told_by_the_next_one(
        self, files: Files, tmp_path: Path
    ) -> None:
        first = files.checkpoint("n1", batches=1)
        shutil.copytree(files.root, tmp_path / "kept")
        second = files.checkpoint("n2", batches=1)
        shutil.rmtree(files.root)
        (tmp_path / "kept").rename(files.root)
        files.process(files.folder).check()  # its marker is the right one
        files.fill()
        with pytest.raises(SinkError, match=rf"lacks checkpoint 000001\.0*{second}, which was published.*--force`"):
            files.checkpoint("n3")
        files.driver.reset(ToCheckpoint(sequence=first), forced=True)
        files.follow_reset()
        files.checkpoint("n4", batches=2)
        assert files.are_whole()

    def test_that_holds_something_else_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "photos").mkdir()
        with pytest.raises(ConfigurationError, match="holds 'photos'"):
            Files(Driver(), tmp_path)
