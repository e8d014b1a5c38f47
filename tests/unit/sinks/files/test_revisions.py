"""A checkpoint's files that take the place of others, as its records were processed once more.

Of what was published each record is there once; of a revision so many times as the test says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kcr.errors import (
    CheckpointNotUsable,
    ConfigurationError,
    RecomputationRefused,
    SinkError,
    UnknownCheckpoint,
)
from airflow_kcr.protocol.region.commands import (
    FailRecomputation,
    FinishRecomputation,
    PinCheckpoint,
    RetireCheckpoints,
)
from airflow_kcr.protocol.rules import RegionRules, RetentionRules
from airflow_kcr.protocol.scopes import parse_scope
from airflow_kcr.protocol.targets import ShiftBy, ToInitial
from airflow_kcr.protocol.values import CheckpointNumber, EventNumber, RegionId
from airflow_kcr.sinks.checkpoints import CheckpointId
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.cleanup import GivenUp
from airflow_kcr.sinks.files.columns import Columns
from airflow_kcr.sinks.files.contents import RegionLedger
from airflow_kcr.sinks.files.frames import Checkpoints
from airflow_kcr.sinks.files.layout import Manifest
from airflow_kcr.sinks.files.revisions import FileRevision
from airflow_kcr.sinks.files.sink import FileSink
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.record_table import RecordTable, Rows
from tests.support.sink_files import SCHEMA, Files, Killed, LocalFolder, Record, RecordRewriter, killing, records_in

LARGE = 1_000_000


@pytest.fixture(params=[0, LARGE], ids=["as they are", "put together"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    """A region of two members and four partitions that runs and keeps three checkpoints, and its sink with a table."""
    rules = RegionRules(groups={GROUP: group_rules()}, retention=RetentionRules(keep=3))
    driver = Driver(rules=rules)
    for partition in tuple(driver.logs):
        driver.grow(partition, end=100_000)
    driver.up()
    size: int = request.param
    root = tmp_path / "out"
    return Files(driver, root, size, RecordTable(Rows(), LocalFolder(root)))


def checkpoint(files: Files, request_id: str, batches: int = 9) -> CheckpointNumber:
    return files.checkpoint(request_id, batches)


def read(files: Files, sequence: CheckpointNumber) -> Counter[Record]:
    """The records of a checkpoint, as readers have them."""
    manifest = Checkpoints.of(files.folder).manifest(sequence)
    return Counter(record for file in manifest.files for record in records_in(files.folder, file.path))


def shown(files: Files, sequence: CheckpointNumber) -> Counter[Record]:
    """The records of a checkpoint in the table."""
    assert isinstance(files.table, RecordTable)
    there = files.table.rows.checkpoints
    return next((found for known, found in there.items() if known.sequence == sequence), Counter())


def times(records: Counter[Record], copies: int) -> Counter[Record]:
    return Counter({record: count * copies for record, count in records.items() if copies})


def name_of(files: Files, sequence: CheckpointNumber) -> CheckpointId:
    return files.manifests()[sequence].checkpoint


def process(files: Files, sequence: CheckpointNumber, number: EventNumber, kill: Callable[[str], None]) -> FileRevision:
    """What a recomputation holds back, in a process that does something before each step of its replacement."""
    folder = LocalFolder(files.root)
    assert isinstance(files.table, RecordTable)
    table = RecordTable(files.table.rows, folder)
    revision = files.revision(sequence, number, sink=files.process(folder, table))
    folder.kill = table.kill = kill
    return revision


def at(step: str, do: Callable[[], object]) -> Callable[[str], None]:
    """Does something once, before the first step whose name begins so."""
    left = [do]

    def act(name: str) -> None:
        if name.startswith(step) and left:
            left.pop()()

    return act


class TestReaders:
    def test_see_what_was_published_until_it_is_replaced_and_then_the_revision(self, files: Files) -> None:
        first, second = checkpoint(files, "n1"), checkpoint(files, "n2")
        old, other = read(files, first), read(files, second)
        number = files.begin(first)
        revision = files.revision(first, number)
        assert read(files, first) == shown(files, first) == old
        before = Checkpoints.of(files.folder).manifest(first)
        revision.replace(files.wanted(first, number))
        assert read(files, first) == shown(files, first) == times(old, 2)
        assert read(files, second) == shown(files, second) == other
        manifest = Checkpoints.of(files.folder).manifest(first)
        assert replace(manifest, files=before.files, revision=0, labels=()) == before
        assert manifest.revision == number
        # Who has started to read what was published finds it still.
        assert Counter(r for f in before.files for r in records_in(files.folder, f.path)) == old

    def test_of_the_newest_checkpoint_see_its_revision(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        number = files.recompute(sequence)
        assert Checkpoints.of(files.folder).manifest().revision == number

    def test_see_the_later_of_two_revisions(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        old = read(files, sequence)
        for copies in (2, 3, 1):
            files.recompute(sequence, copies, f"again {copies}")
            assert read(files, sequence) == shown(files, sequence) == times(old, copies)

    def test_see_nothing_of_a_revision_without_rows_and_the_columns_as_before(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        files.recompute(sequence, copies=0)
        assert read(files, sequence) == shown(files, sequence) == Counter()
        number = files.begin(sequence, "without batches")
        contents = RegionLedger(files.driver.store, files.driver.name).contents(sequence, GROUP)
        files.sink.revised(contents, number).replace(files.wanted(sequence, number))
        assert files.manifests()[sequence].files == ()
        assert files.manifests()[sequence].schemas == (SCHEMA,)
        after = files.checkpoint("n2")
        assert files.manifests()[after].schemas == (SCHEMA,)

    def test_of_a_checkpoint_without_batches_see_the_columns_of_the_revision_before(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        number = files.begin(sequence)
        contents = RegionLedger(files.driver.store, files.driver.name).contents(sequence, GROUP)
        revision = files.sink.revised(contents, number)
        revision.list_files(files.call(files.driver.batches[0].batch), schema("integer"))
        revision.replace(files.wanted(sequence, number))
        after = files.checkpoint("n2")
        assert files.manifests()[after].schemas == (schema("integer"),)

    def test_go_by_the_revision_before_while_one_is_half_written(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        old = read(files, sequence)
        files.recompute(sequence, 2, "first")
        second = files.recompute(sequence, 3, "second")
        where = files.root / layout.revision(name_of(files, sequence), second)
        whole = where.read_text()
        where.write_text(whole[:-9])
        assert read(files, sequence) == times(old, 2)
        where.write_text(whole)
        assert read(files, sequence) == times(old, 3)


def elsewhere(files: Files, root: Path) -> FileSink:
    """A sink in a folder of its own, which gets the output of recomputations alone."""
    owner = replace(files.sink.owner, region_id=RegionId(f"{files.sink.owner.region_id} elsewhere"))
    target = replace(files.sink.target, owner=owner, path=str(root))
    folder, ledger = LocalFolder(root), RegionLedger(files.driver.store, files.driver.name)
    return FileSink(target, folder, ledger, RecordRewriter(folder), RecordTable(Rows(), folder))


def rebuild(files: Files, sink: FileSink, sequence: CheckpointNumber, copies: int) -> None:
    sink.claim()
    number = files.begin(sequence, f"after {len(files.driver.events)} events")
    files.revision(sequence, number, copies, sink).replace(files.wanted(sequence, number))
    files.driver.handle(FinishRecomputation(sequence=sequence, number=number, batches=()))


def there(root: Path, sequence: CheckpointNumber | None = None) -> Counter[Record]:
    """The records of a checkpoint elsewhere, as readers have them; those of the newest one."""
    folder = LocalFolder(root)
    return Counter(r for file in Checkpoints.of(folder).manifest(sequence).files for r in records_in(folder, file.path))


class TestElsewhere:
    def test_each_checkpoint_is_there_at_once_and_again_is_replaced(self, files: Files, tmp_path: Path) -> None:
        first, second = checkpoint(files, "n1"), checkpoint(files, "n2")
        one, other, root = read(files, first), read(files, second), tmp_path / "tried"
        sink = elsewhere(files, root)
        rebuild(files, sink, second, 1)
        assert there(root) == other
        with pytest.raises(UnknownCheckpoint):
            there(root, first)
        rebuild(files, sink, first, 1)
        rebuild(files, elsewhere(files, root), second, 3)
        assert there(root, first) == one
        assert there(root) == times(other, 3)
        assert isinstance(sink._table, RecordTable)
        assert {c.sequence for c in sink._table.rows.checkpoints} == {first, second}
        # The region has noticed nothing.
        assert read(files, first) == shown(files, first) == one
        assert files.driver.store.taken(files.driver.name) == {files.sink.target.place}

    @pytest.mark.parametrize("step", range(9))
    def test_one_that_is_killed_is_not_there_or_whole(self, files: Files, tmp_path: Path, step: int) -> None:
        sequence, root = checkpoint(files, "n1"), tmp_path / "tried"
        sink = elsewhere(files, root)
        sink.claim()
        number = files.begin(sequence)
        revision = files.revision(sequence, number, 1, sink)
        assert isinstance(sink.folder, LocalFolder)
        sink.folder.kill = killing(step)
        try:
            revision.replace(files.wanted(sequence, number))
            assert there(root) == read(files, sequence)
        except Killed:
            with suppress(UnknownCheckpoint):
                assert there(root) == read(files, sequence)
        files.driver.handle(FailRecomputation(sequence=sequence, number=number, why="killed"))
        rebuild(files, elsewhere(files, root), sequence, 2)
        assert there(root) == times(read(files, sequence), 2)

    def test_a_folder_of_a_region_is_refused_and_stays_as_it_is(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        before = read(files, sequence)
        with pytest.raises(ConfigurationError, match="is the folder of sink out of group g"):
            elsewhere(files, files.root).claim()
        with pytest.raises(SinkError, match="has lost its marker"):
            files.revision(sequence, files.begin(sequence), sink=elsewhere(files, files.root))
        assert read(files, sequence) == before

    def test_members_may_not_write_to_such_a_folder(self, files: Files, tmp_path: Path) -> None:
        sequence, root = checkpoint(files, "n1"), tmp_path / "tried"
        rebuild(files, elsewhere(files, root), sequence, 1)
        live = FileSink(
            replace(files.sink.target, path=str(root)),
            LocalFolder(root),
            RegionLedger(files.driver.store, files.driver.name),
            RecordRewriter(LocalFolder(root)),
        )
        with pytest.raises(ConfigurationError, match="elsewhere"):
            live.check()

    def test_a_sink_that_came_later_gets_what_was_before_it(self, files: Files, tmp_path: Path) -> None:
        sequence, root = checkpoint(files, "n1"), tmp_path / "late"
        folder, ledger = LocalFolder(root), RegionLedger(files.driver.store, files.driver.name)
        late = FileSink(replace(files.sink.target, path=str(root)), folder, ledger, RecordRewriter(folder))
        late.check()
        number = files.begin(sequence)
        files.revision(sequence, number, 1, late).replace(files.wanted(sequence, number))
        assert there(root) == read(files, sequence)


def test_a_manifest_that_is_gone_is_not_brought_back(files: Files) -> None:
    """Else a checkpoint whose output was given up meanwhile would be there again."""
    sequence = checkpoint(files, "n1")
    number = files.begin(sequence)
    name = name_of(files, sequence)
    gone = at(f"rename {layout.revision(name, number)}", lambda: files.folder.delete([layout.manifest(name)]))
    revision = process(files, sequence, number, gone)
    revision.replace(files.wanted(sequence, number))
    assert files.folder.read(layout.manifest(name)) is None


@pytest.mark.parametrize("lost", [0, 1], ids=["the same number", "an earlier one"])
def test_a_number_of_a_lost_recomputation_is_refused_and_the_next_attempt_goes_on(files: Files, lost: int) -> None:
    """A store that was restored gives it away a second time: its output would be that of the lost one."""
    sequence = checkpoint(files, "n1")
    old = read(files, sequence)
    number = files.recompute(sequence, 2)
    with pytest.raises(SinkError, match="of before the store was restored; recompute it again"):
        files.revision(sequence, EventNumber(number - lost), 3)
    assert read(files, sequence) == shown(files, sequence) == times(old, 2)
    files.recompute(sequence, 3, "after the restore")
    assert read(files, sequence) == shown(files, sequence) == times(old, 3)


class TestSmallFiles:
    def test_are_put_together_in_the_revision_s_folder(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        number = files.recompute(sequence)
        place = layout.revised(name_of(files, sequence), number)
        held = files.manifests()[sequence].files
        assert all(file.path.startswith(f"{place}/") for file in held)
        assert len(held) == (1 if files.file_size else 18)
        assert {path for path in files.data_files() if path.startswith("revisions/")} == files.needed()

    def test_that_can_not_be_deleted_are_left_for_a_cleanup(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        number, late = files.begin(sequence), EventNumber(99_999)

        def away() -> None:
            raise SinkError("the folder is away")

        process(files, sequence, late, at("delete", away)).drop()
        process(files, sequence, late, at("write", away)).drop()
        process(files, sequence, number, at("delete", away)).replace(files.wanted(sequence, number))
        assert files.manifests()[sequence].revision == number
        # What its marker is lost with can be taken over as it is.
        assert {name for name in files.folder.names("") if not name.startswith("_")} <= layout.FOLDERS


class TestRefusals:
    def test_what_is_not_wanted_leaves_everything_as_it_was(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        old = read(files, sequence)
        late, number = files.begin(sequence), files.begin(sequence)
        revision = files.revision(sequence, late)
        with pytest.raises(RecomputationRefused):
            revision.replace(files.wanted(sequence, late))
        assert read(files, sequence) == shown(files, sequence) == old
        revision.drop()
        assert not files.folder.walk(layout.revised(name_of(files, sequence), late))
        files.revision(sequence, number, 3).replace(files.wanted(sequence, number))
        assert read(files, sequence) == times(old, 3)

    def test_a_column_of_another_type_is_refused_and_nothing_counts(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        columns = Columns(files.folder)
        columns.note(schema("integer"))
        number = files.begin(sequence)
        contents = RegionLedger(files.driver.store, files.driver.name).contents(sequence, GROUP)
        revision = files.sink.revised(contents, number)
        batch = files.driver.batches[0].batch
        with pytest.raises(SinkError, match=r"column size is string, and .* has it as integer"):
            revision.list_files(files.call(batch), schema("string"))
        revision.list_files(files.call(batch), schema("integer"))
        with pytest.raises(SinkError, match=r"column size is long, and .* has it as integer"):
            columns.note(schema("long"))
        revision.list_files(files.call(batch), schema("integer", "own"))
        with pytest.raises(SinkError, match=r"column own is string, and .* has it as integer"):
            Columns(files.folder).note(schema("string", "own"))
        columns.note(schema("long", "more"))
        with pytest.raises(SinkError, match=r"column more is string, and .* has it as long"):
            revision.list_files(files.call(batch), schema("string", "more"))

    def test_of_a_checkpoint_that_the_folder_lacks_come_before_anything_is_written(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        contents = RegionLedger(files.driver.store, files.driver.name).contents(sequence, GROUP)
        number = files.begin(sequence)
        with pytest.raises(SinkError, match="has another checkpoint 000001"):
            files.sink.revised(replace(contents, batches=contents.batches[1:]), number)
        files.folder.delete([layout.manifest(contents.id)])
        with pytest.raises(SinkError, match=r"lacks checkpoint 000001.*files in it were deleted"):
            files.sink.revised(contents, number)
        files.folder.delete([layout.OWNER])
        with pytest.raises(SinkError, match="has lost its marker"):
            files.sink.revised(contents, number)

    def test_a_table_that_others_write_to_all_the_time_stays_as_it_is(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        old = read(files, sequence)
        number = files.begin(sequence)
        assert isinstance(files.table, RecordTable)
        rows = files.table.rows

        def busy(step: str) -> None:
            if step.startswith("replace"):
                rows.transaction = len(rows.commits) + 1
                rows.commits.append("somebody else's")

        revision = process(files, sequence, number, busy)
        with pytest.raises(SinkError, match="the table is as it was, others write to it all the time"):
            revision.replace(files.wanted(sequence, number))
        assert read(files, sequence) == shown(files, sequence) == old

    def test_say_when_it_is_unknown_what_readers_see(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        number = files.begin(sequence)

        def away() -> None:
            raise SinkError("the folder is away")

        where = layout.revision(name_of(files, sequence), number)
        revision = process(files, sequence, number, at(f"rename {where}", away))
        with pytest.raises(SinkError, match="it is unknown whether readers see it: the folder is away"):
            revision.replace(files.wanted(sequence, number))
        revision.replace(files.wanted(sequence, number))
        assert files.manifests()[sequence].revision == number


def schema(kind: str, name: str = "size") -> str:
    column = f'{{"metadata":{{}},"name":"{name}","nullable":true,"type":"{kind}"}}'
    return f'{{"fields":[{column}],"type":"struct"}}'


class TestKills:
    @pytest.mark.parametrize("step", range(9))
    def test_leave_the_old_or_the_new_and_the_next_attempt_makes_it_good(self, files: Files, step: int) -> None:
        sequence = checkpoint(files, "n1")
        old = read(files, sequence)
        dead = files.begin(sequence)
        revision = process(files, sequence, dead, killing(step))
        try:
            revision.replace(files.wanted(sequence, dead))
        except Killed:
            assert read(files, sequence) in (old, times(old, 2))
            assert shown(files, sequence) in (old, times(old, 2))
        files.recompute(sequence, 3)
        assert read(files, sequence) == shown(files, sequence) == times(old, 3)
        checkpoint(files, "n2", batches=1)
        files.clean()
        assert files.data_files() == files.needed()

    def test_said_again_it_changes_nothing(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        number = files.begin(sequence)
        revision = files.revision(sequence, number)
        revision.replace(files.wanted(sequence, number))
        assert isinstance(files.table, RecordTable)
        manifest, commits = files.manifests()[sequence], list(files.table.rows.commits)
        revision.replace(files.wanted(sequence, number))
        revision.drop()
        assert files.manifests()[sequence] == manifest
        assert files.table.rows.commits == commits
        assert read(files, sequence)


def asleep(files: Files, sequence: CheckpointNumber, step: Callable[[EventNumber], str]) -> None:
    """Have a process sleep before a step of its replacement, and another one recompute the checkpoint meanwhile."""
    request_id = f"after {len(files.driver.events)} events"
    late = files.begin(sequence, request_id)
    zombie = process(files, sequence, late, at(step(late), lambda: files.recompute(sequence, 5, request_id)))
    zombie.replace(files.wanted(sequence, late))


class TestZombies:
    def test_that_were_allowed_to_replace_win_against_no_later_recomputation(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        old = read(files, sequence)
        with pytest.raises(RecomputationRefused):
            asleep(files, sequence, lambda number: "replace")
        assert read(files, sequence) == shown(files, sequence) == times(old, 5)
        name = name_of(files, sequence)
        with pytest.raises(SinkError, match="readers have a later recomputation of it"):
            asleep(files, sequence, lambda number: f"write {layout.revision(name, number)}")
        assert read(files, sequence) == shown(files, sequence) == times(old, 5)
        with pytest.raises(SinkError, match="readers have a later recomputation of it"):
            asleep(files, sequence, lambda number: f"rename {layout.revision(name, number)}")
        assert read(files, sequence) == shown(files, sequence) == times(old, 5)

    def test_whose_files_were_cleaned_away_are_not_shown(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        old = read(files, sequence)
        late = files.begin(sequence)

        def meanwhile() -> None:
            files.driver.handle(FailRecomputation(sequence=sequence, number=late, why="lost"))
            files.clean()

        zombie = process(files, sequence, late, at("replace", meanwhile))
        with pytest.raises(SinkError):
            zombie.replace(lambda: None)
        assert read(files, sequence) == old
        assert not files.folder.walk(layout.revised(name_of(files, sequence), late))

    def test_bring_back_nothing_of_a_checkpoint_that_a_reset_has_undone(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        number = files.begin(sequence)
        wanted = files.wanted(sequence, number)
        answered = at("answered", lambda: files.go_back(ToInitial()))

        def ask() -> None:
            wanted()
            answered("answered")

        with pytest.raises(CheckpointNotUsable):
            files.revision(sequence, number).replace(ask)
        assert shown(files, sequence) == Counter()
        assert files.manifests() == {}

    def test_of_a_publication_do_not_undo_a_revision(self, files: Files) -> None:
        checkpoint(files, "n1")
        files.fill()
        files.driver.request_checkpoint("n2")
        sequence = files.driver.complete()
        old: Counter[Record] = Counter(
            (p.topic, p.partition, o)
            for b in RegionLedger(files.driver.store, files.driver.name).contents(sequence, GROUP).batches
            for p, r in b.ranges.items()
            for o in range(r.from_, r.to)
        )

        def meanwhile() -> None:
            files.sink.publish(sequence)
            files.driver.publish()
            files.recompute(sequence)
            files.clean()

        folder = LocalFolder(files.root)
        assert isinstance(files.table, RecordTable)
        table = RecordTable(files.table.rows, folder, at("show", meanwhile))
        files.process(folder, table).publish(sequence)
        assert read(files, sequence) == shown(files, sequence) == times(old, 2)
        files.sink.publish(sequence)
        assert read(files, sequence) == shown(files, sequence) == times(old, 2)


class TestLaterCheckpoints:
    def test_are_published_after_a_revision_as_ever(self, files: Files) -> None:
        first = checkpoint(files, "n1")
        old = read(files, first)
        files.recompute(first)
        files.clean()
        second = checkpoint(files, "n2")
        assert files.manifests()[second].previous == str(name_of(files, first))
        assert read(files, first) == times(old, 2)
        assert max(read(files, second).values()) == 1

    def test_are_published_beside_a_revision(self, files: Files) -> None:
        first = checkpoint(files, "n1")
        old = read(files, first)
        number = files.begin(first)
        made: list[CheckpointNumber] = []
        revision = process(files, first, number, at("replace", lambda: made.append(checkpoint(files, "n2"))))
        revision.replace(files.wanted(first, number))
        assert read(files, first) == shown(files, first) == times(old, 2)
        assert read(files, made[0]) == shown(files, made[0]) == files.records(made[0])


class TestResets:
    def test_undo_a_revision_with_its_checkpoint(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        files.recompute(sequence)
        files.go_back(ToInitial())
        with pytest.raises(CheckpointNotUsable, match="was superseded"):
            read(files, sequence)
        assert shown(files, sequence) == Counter()
        again = checkpoint(files, "n2")
        assert max(read(files, again).values()) == 1
        cleaned = files.clean()
        assert cleaned.undone == (sequence,)
        assert files.data_files() == files.needed()
        assert not files.folder.walk(layout.REVISIONS)

    def test_that_leave_a_part_of_a_checkpoint_leave_that_of_its_revision(self, files: Files) -> None:
        checkpoint(files, "n1")
        second = checkpoint(files, "n2")
        old = read(files, second)
        files.recompute(second)
        files.clean()
        files.go_back(ShiftBy(by=-37), parse_scope(topics=["t:0"]))
        third = checkpoint(files, "n3")
        found, ends = read(files, third), max(offset for t, p, offset in old if p == 0) + 1
        kept = Counter({r: n for r, n in times(old, 2).items() if r[1] != 0 or r[2] < ends - 37})
        assert {r: found[r] for r in kept} == kept
        assert {found[r] for r in found if r not in kept} == {1}
        assert shown(files, third) == found
        assert files.clean().undone == (second,)
        assert read(files, third) == found
        assert files.data_files() == files.needed()

    def test_end_what_runs_and_its_files_go_with_those_of_the_checkpoint(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        files.revision(sequence, files.begin(sequence))
        files.go_back(ToInitial())
        checkpoint(files, "n2")
        files.clean()
        assert files.data_files() == files.needed()
        assert not files.folder.walk(layout.REVISIONS)

    def test_of_a_pinned_checkpoint_keep_the_files_of_its_revision(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        files.driver.handle(PinCheckpoint(sequence=sequence, label="kept", reason="to compare"))
        number = files.recompute(sequence)
        held = files.needed()
        where = layout.revision(name_of(files, sequence), number)
        files.go_back(ToInitial())
        checkpoint(files, "n2")
        files.clean()
        assert held <= files.data_files()
        assert files.folder.read(where) is not None


class TestCleaning:
    def test_deletes_what_a_revision_has_replaced_and_nothing_of_the_one_in_force(self, files: Files) -> None:
        first, second = checkpoint(files, "n1"), checkpoint(files, "n2")
        old = read(files, first)
        for request_id in ("once", "twice"):
            files.recompute(first, 3, request_id)
        superfluous = files.data_files() - files.needed()
        assert superfluous
        cleaned = files.clean()
        assert cleaned.files == len(superfluous)
        assert files.data_files() == files.needed()
        assert read(files, first) == times(old, 3)
        assert max(read(files, second).values()) == 1
        assert files.clean().files == 0

    def test_leaves_what_a_running_recomputation_holds_back(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        checkpoint(files, "n2")
        old = read(files, sequence)
        files.recompute(sequence, 3, "before")
        number = files.begin(sequence)
        revision = files.revision(sequence, number)
        files.clean()
        revision.replace(files.wanted(sequence, number))
        assert read(files, sequence) == times(old, 2)

    def test_leaves_what_a_recomputation_holds_back_that_began_since_it_looked(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        files.recompute(sequence, 3, "before")
        held: list[FileRevision] = []

        def meanwhile() -> None:
            held.append(files.revision(sequence, files.begin(sequence, "since")))

        files.clean(folder=LocalFolder(files.root, at("delete", meanwhile)))
        held[0].replace(lambda: None)
        assert max(read(files, sequence).values()) == 2

    def test_deletes_what_a_dead_recomputation_has_left(self, files: Files) -> None:
        sequence = checkpoint(files, "n1")
        number = files.begin(sequence)
        files.revision(sequence, number)
        files.driver.handle(FailRecomputation(sequence=sequence, number=number, why="lost"))
        assert files.clean().files == 18
        assert files.data_files() == files.needed()

    def test_gives_a_revision_up_with_its_retired_checkpoint(self, files: Files) -> None:
        checkpoints = [checkpoint(files, f"n{number}") for number in range(3)]
        files.recompute(checkpoints[0])
        checkpoints += [checkpoint(files, f"m{number}") for number in range(2)]
        files.driver.handle(RetireCheckpoints())
        files.clean()
        assert read(files, checkpoints[0])
        assert files.clean(GivenUp.RETIRED).retired == tuple(checkpoints[:2])
        assert files.data_files() == files.needed()
        assert not files.folder.walk(layout.REVISIONS)
        with pytest.raises(CheckpointNotUsable, match="was retired"):
            read(files, checkpoints[0])
        assert files.clean(GivenUp.RETIRED).files == 0

    def test_takes_a_late_revision_of_a_retired_checkpoint_away(self, files: Files) -> None:
        checkpoints = [checkpoint(files, f"n{number}") for number in range(3)]
        number = files.recompute(checkpoints[0])
        where = layout.revision(name_of(files, checkpoints[0]), number)
        text = files.folder.read(where) or ""
        assert Manifest.of(text) is not None
        checkpoints += [checkpoint(files, f"m{number}") for number in range(2)]
        files.driver.handle(RetireCheckpoints())
        files.clean(GivenUp.RETIRED)
        files.folder.replace(where, text)
        # An object store has no folders that could be empty.
        (files.root / layout.MANIFESTS / layout.shelf(checkpoints[0])).rmdir()
        with pytest.raises(CheckpointNotUsable, match="was retired"):
            read(files, checkpoints[0])
        files.clean()
        assert files.folder.read(where) is None
