"""What an Iceberg table shows: the checkpoints in force, each once, whatever its sink, a reset and others do to it.

Everything but Spark is real: PyIceberg, a SQL catalog, parquet files. Rows are counted by a reader that isn't ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.io.pyarrow import ArrowScan

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.protocol.region.commands import FinishRecomputation, PinCheckpoint
from airflow_kcr.protocol.rules import RegionRules, RetentionRules
from airflow_kcr.protocol.scopes import EVERYTHING, parse_scope
from airflow_kcr.protocol.targets import ShiftBy, ToInitial
from airflow_kcr.protocol.values import CheckpointNumber, RegionId, RegionName
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.cleanup import GivenUp
from airflow_kcr.sinks.files.contents import RegionLedger
from airflow_kcr.sinks.files.sink import FileSink
from airflow_kcr.sinks.iceberg.table import NOTE, IcebergTable, TableNote, folder_of
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.iceberg_files import LakeFiles, ParquetRewriter, lake, records_of, warehouse
from tests.support.sink_files import Killed, LocalFolder

if TYPE_CHECKING:
    from pyiceberg.table import CommitTableResponse

STEPS = 30


@pytest.fixture(autouse=True)
def small_shelves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a folder for every three sequences, so that short histories have many."""
    monkeypatch.setattr(layout, "SHELF", 3)


@pytest.fixture
def files(tmp_path: Path) -> LakeFiles:
    return made(tmp_path)


def made(root: Path) -> LakeFiles:
    """A region of two members that runs and keeps three checkpoints, and its table."""
    driver = Driver(rules=RegionRules(groups={GROUP: group_rules()}, retention=RetentionRules(keep=3)))
    for partition in tuple(driver.logs):
        driver.grow(partition, end=100_000)
    driver.up()
    return lake(driver, root / "warehouse")


def both(files: LakeFiles, width: int = 10) -> None:
    for index in range(2):
        files.process_batch(files.driver.member(index), width)


def complete(files: LakeFiles, request_id: str) -> CheckpointNumber:
    files.driver.request_checkpoint(request_id)
    return files.driver.complete()


def reset(files: LakeFiles, sink: FileSink | None = None) -> None:
    """Go back to the beginning."""
    files.driver.reset(ToInitial())
    files.driver.complete()
    (sink or files.sink).reset(files.reset_order())


def other(files: LakeFiles, kill: Callable[[str], None] = lambda step: None) -> FileSink:
    """The sink as another process has it, which does something before each step in its folder."""
    return files.process(LocalFolder(files.root, kill))


def note(files: LakeFiles) -> TableNote:
    found = TableNote.of(files.warehouse.table())
    assert found is not None
    return found


def test_each_checkpoint_is_a_commit_and_a_tag_that_says_what_it_is(files: LakeFiles) -> None:
    both(files)
    first = files.checkpoint("n1")
    seen = files.rows()
    both(files)
    second = files.checkpoint("n2")
    table = files.warehouse.table()
    assert files.rows() == files.records()
    assert files.rows(f"kcr_1_{first}") == seen == files.records(first)
    assert files.rows(f"kcr_1_{second}") == files.rows()
    snapshot = table.snapshot_by_name(f"kcr_1_{second}")
    assert snapshot is not None
    summary = snapshot.summary
    assert summary is not None
    assert summary["kcr.region-id"] == files.owner.region_id
    assert (summary["kcr.timeline"], summary["kcr.sequence"]) == ("1", str(second))
    assert summary["kcr.digest"] == files.manifests()[second].digest
    where = folder_of(table.location(), files.owner)
    written = {f"{where}/{file.path}" for manifest in files.manifests().values() for file in manifest.files}
    assert {task.file.file_path for task in table.scan().plan_files()} == written


def test_a_checkpoint_without_records_has_its_tag(files: LakeFiles) -> None:
    sequence = files.checkpoint("n1")
    assert files.rows(f"kcr_1_{sequence}") == Counter()


def test_a_publication_that_is_said_again_commits_nothing(files: LakeFiles) -> None:
    both(files)
    sequence = files.checkpoint("n1")
    before = files.warehouse.table().metadata_location
    other(files).publish(sequence)
    files.sink.publish(sequence)
    assert files.warehouse.table().metadata_location == before


@pytest.mark.parametrize("step", range(10))
def test_kills_at_each_step_of_a_publication_are_made_good_by_the_next_publisher(tmp_path: Path, step: int) -> None:
    files = made(tmp_path)
    both(files)
    sequence = complete(files, "n1")
    left = iter(range(step + 1))

    def kill(name: str) -> None:
        if next(left, None) is None:
            raise Killed(name)

    try:
        other(files, kill).publish(sequence)
    except Killed:
        assert max(files.rows().values(), default=1) == 1
    other(files).publish(sequence)
    files.driver.publish()
    assert files.rows() == files.records(sequence)
    assert note(files).commits == 1


def test_a_publisher_that_is_killed_right_after_its_commit_has_made_it(
    files: LakeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    both(files)
    sequence = complete(files, "n1")
    commit = SqlCatalog.commit_table

    def killed(self: SqlCatalog, *given: object) -> CommitTableResponse:
        commit(self, *given)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(SqlCatalog, "commit_table", killed)
    with pytest.raises(KeyboardInterrupt):
        files.sink.publish(sequence)
    monkeypatch.undo()
    other(files).publish(sequence)
    assert files.rows() == files.records(sequence)
    assert note(files).commits == 1


@pytest.mark.parametrize("said", [CommitStateUnknownException, CommitFailedException, ConnectionError])
def test_a_commit_whose_answer_is_lost_is_made_once(
    files: LakeFiles, monkeypatch: pytest.MonkeyPatch, said: type[Exception]
) -> None:
    both(files)
    sequence = complete(files, "n1")
    commit, lost = SqlCatalog.commit_table, iter([True])

    def answerless(self: SqlCatalog, *given: object) -> CommitTableResponse:
        answer = commit(self, *given)  # type: ignore[arg-type]
        if next(lost, False):
            raise said("the answer is lost")
        return answer

    monkeypatch.setattr(SqlCatalog, "commit_table", answerless)
    files.sink.publish(sequence)
    assert files.rows() == files.records(sequence)
    assert note(files).commits == 1


def test_a_commit_that_the_catalog_did_not_get_is_an_error_and_made_by_the_next_try(
    files: LakeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    both(files)
    sequence = complete(files, "n1")

    def away(self: SqlCatalog, *given: object) -> CommitTableResponse:
        raise ConnectionError("password=secret")

    monkeypatch.setattr(SqlCatalog, "commit_table", away)
    with pytest.raises(SinkError, match=r"table db.delays of catalog lake could not commit: ConnectionError") as told:
        files.sink.publish(sequence)
    assert "secret" not in str(told.value)
    monkeypatch.undo()
    files.sink.publish(sequence)
    assert files.rows() == files.records(sequence)


@pytest.mark.parametrize("commits", [1, 30])
def test_commits_of_others_in_between_stay_and_keep_nothing_from_being_published(
    files: LakeFiles, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    both(files)
    sequence = complete(files, "n1")
    commit, left = SqlCatalog.commit_table, iter(range(commits))

    def overtaken(self: SqlCatalog, *given: object) -> CommitTableResponse:
        number = next(left, None)
        if number is not None:
            with monkeypatch.context() as plain:
                plain.setattr(SqlCatalog, "commit_table", commit)
                files.append(number)
        return commit(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(SqlCatalog, "commit_table", overtaken)
    files.sink.publish(sequence)
    monkeypatch.undo()
    assert files.rows() == files.records(sequence)
    files.driver.publish()
    reset(files)
    assert files.rows() == Counter()
    assert files.own_rows() == list(range(commits))


@pytest.mark.parametrize("published", [False, True])
def test_a_publisher_that_wakes_up_after_a_reset_shows_nothing(
    files: LakeFiles, monkeypatch: pytest.MonkeyPatch, published: bool
) -> None:
    both(files)
    sequence = complete(files, "n1")
    commit, asleep = SqlCatalog.commit_table, iter([True])

    def frozen(self: SqlCatalog, *given: object) -> CommitTableResponse:
        if next(asleep, False):
            with monkeypatch.context() as plain:
                plain.setattr(SqlCatalog, "commit_table", commit)
                if published:
                    other(files).publish(sequence)
                files.driver.publish()
                reset(files, other(files))
                files.driver.finish_reset()
        return commit(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(SqlCatalog, "commit_table", frozen)
    files.sink.publish(sequence)
    assert files.rows() == Counter()
    assert files.manifests() == {}


def test_a_reset_takes_its_rows_out_of_files_that_others_have_put_together(files: LakeFiles) -> None:
    files.append(7)
    both(files)
    kept = files.checkpoint("n1")
    both(files)
    undone = files.checkpoint("n2")
    files.compact()
    assert len(list(files.warehouse.table().scan().plan_files())) == 1
    files.driver.reset(ShiftBy(by=-5))
    files.driver.complete()
    files.sink.reset(files.reset_order())
    files.driver.finish_reset()
    assert files.rows() == files.records(kept)
    both(files)
    files.checkpoint("n3")
    assert files.rows() == files.records()
    assert max(files.rows().values()) == 1
    assert files.own_rows() == [7]
    assert files.rows(f"kcr_1_{undone}") == files.of_manifest(files.undone()[undone]) + files.records(kept)


def test_a_recomputation_takes_the_place_of_a_checkpoint_s_rows_also_when_they_were_compacted(files: LakeFiles) -> None:
    both(files)
    first = files.checkpoint("n1")
    both(files)
    second = files.checkpoint("n2")
    files.compact()
    for again in ("r1", "r2"):
        number = files.recompute(first, 2, again)
        assert files.rows() == files.records()
        assert files.rows(f"kcr_1_{first}_r{number}") == files.rows()
    assert files.rows(f"kcr_1_{second}") == files.expected(dict.fromkeys(files.driver.logs, 20))


def test_a_table_of_its_own_gets_the_output_of_recomputations_alone(files: LakeFiles, tmp_path: Path) -> None:
    both(files)
    first = files.checkpoint("n1")
    apart = warehouse(tmp_path / "apart")
    elsewhere = replace(files.sink.target, owner=replace(files.owner, region_id=RegionId("id elsewhere")))
    where = Path(folder_of(apart.table().location(), elsewhere.owner).removeprefix("file://"))
    folder = LocalFolder(where)
    target = replace(elsewhere, path=folder.uri)
    table = IcebergTable(target=target, table=apart.named(), folder=folder)
    ledger = RegionLedger(files.driver.store, files.driver.name)
    sink = FileSink(target, folder, ledger, ParquetRewriter(folder), table)
    sink.claim()
    for again, copies in (("r1", 1), ("r2", 2)):
        number = files.begin(first, again)
        revision = sink.revised(ledger.contents(first, GROUP), number)
        for place, batch in enumerate(ledger.contents(first, GROUP).batches):
            files.rewrite(revision, batch, f"{number}-{place}", copies)
        revision.replace(files.wanted(first, number))
        files.driver.handle(FinishRecomputation(sequence=first, number=number, batches=()))
        rows = apart.table().scan().to_arrow()
        assert set(Counter(records_of(rows)).values()) == {copies}
        assert len(rows) == copies * 40
    assert files.rows() == files.records()


def test_a_table_of_another_sink_is_refused(files: LakeFiles) -> None:
    theirs = Driver(name=RegionName("other"))
    theirs.up()
    late = LakeFiles.__new__(LakeFiles)
    late.driver, late.root, late.file_size, late.warehouse = theirs, files.root.with_name("theirs"), 0, files.warehouse
    late.folder = LocalFolder(late.root)
    with pytest.raises(ConfigurationError, match=r"is written by sink out of group .*; name another table"):
        late.process(late.folder).check()


def test_a_table_that_was_made_anew_under_the_name_is_noticed(files: LakeFiles) -> None:
    both(files)
    files.checkpoint("n1")
    files.warehouse.catalog().drop_table("db.delays")
    both(files)
    sequence = complete(files, "n2")
    with pytest.raises(SinkError, match=r"there is no table db\.delays of catalog lake; create it"):
        files.sink.publish(sequence)
    files.warehouse.create()
    with pytest.raises(SinkError, match="it was dropped and made anew"):
        files.sink.publish(sequence)
    with pytest.raises(ConfigurationError, match=r"has published checkpoints, and the table .* is gone"):
        other(files).check()


def test_a_table_that_was_rolled_back_is_noticed(files: LakeFiles) -> None:
    both(files)
    first = files.checkpoint("n1")
    both(files)
    files.checkpoint("n2")
    table = files.warehouse.table()
    table.manage_snapshots().rollback_to_snapshot(table.refs()[f"kcr_1_{first}"].snapshot_id).commit()
    both(files)
    sequence = complete(files, "n3")
    with pytest.raises(SinkError, match="was rolled back to before checkpoint"):
        files.sink.publish(sequence)
    assert files.rows() == files.records(first)


def test_a_column_of_ours_that_was_dropped_is_noticed(files: LakeFiles) -> None:
    both(files)
    files.checkpoint("n1")
    with files.warehouse.table().update_schema() as update:
        update.delete_column("kcr_batch")
    both(files)
    sequence = complete(files, "n2")
    with pytest.raises(SinkError, match="has lost its column kcr_batch"):
        files.sink.publish(sequence)


def test_a_column_of_ours_that_was_renamed_is_given_its_name_again(files: LakeFiles) -> None:
    both(files)
    files.checkpoint("n1")
    for before, after in (("kcr_batch", "writer"), ("writer", "kcr_batch")):
        with files.warehouse.table().update_schema() as update:
            update.rename_column(before, after)
        if after == "writer":
            with pytest.raises(
                SinkError, match=r"lost its column kcr_batch.*if it was renamed, give it its name again"
            ):
                files.sink.check()
    both(files)
    files.checkpoint("n2")
    assert files.rows() == files.records()


def test_snapshots_that_were_expired_keep_nothing_from_going_on(files: LakeFiles) -> None:
    both(files)
    files.checkpoint("n1")
    files.append(1)
    files.append(2)
    table = files.warehouse.table()
    heads = {ref.snapshot_id for ref in table.refs().values()}
    for snapshot in table.snapshots():
        if snapshot.snapshot_id not in heads:
            table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    both(files)
    files.checkpoint("n2")
    assert files.rows() == files.records()


def test_a_cleanup_drops_tags_and_leaves_every_file_that_a_snapshot_has(files: LakeFiles) -> None:
    both(files)
    pinned = files.checkpoint("n1")
    files.driver.handle(PinCheckpoint(sequence=pinned, label="month"))
    for request_id in ("n2", "n3", "n4", "n5"):
        both(files)
        files.checkpoint(request_id)
    before = files.data_files()
    files.clean(GivenUp.RETIRED)
    kept = {f"kcr_1_{s}" for s, row in files.driver.region.checkpoints.items() if row.state == "published"}
    tags = {name for name in files.warehouse.table().refs() if name.startswith("kcr_")}
    assert tags == kept | {f"kcr_1_{pinned}"}
    assert files.data_files() == before
    known = RegionLedger(files.driver.store, files.driver.name).checkpoints()
    both(files)
    newest = files.checkpoint("n6")
    files.table.forget(known)
    assert f"kcr_1_{newest}" in files.warehouse.table().refs()

    files.driver.reset(ShiftBy(by=-10))
    files.driver.complete()
    files.sink.reset(files.reset_order())
    assert files.rows() == files.expected(dict.fromkeys(files.driver.logs, 50))


class History:
    """What happens to a region and its table, one thing after the other."""

    def __init__(self, files: LakeFiles, chance: Random) -> None:
        self.files, self.chance, self.driver = files, chance, files.driver
        self.steps = self.others = 0

    def kill(self, step: str) -> None:
        if self.chance.random() < 0.1:
            raise Killed(step)

    def batch(self) -> None:
        both(self.files, self.chance.randrange(1, 30))

    def checkpoint(self) -> None:
        sequence = complete(self.files, f"n{self.steps}")
        attempt(partial(publish, sequence), self.files, self.kill)
        self.driver.publish()

    def clean(self) -> None:
        self.files.clean()

    def recompute(self) -> None:
        if self.files.manifests():
            attempt(
                partial(recompute, self.files, max(self.files.manifests()), f"r{self.steps}"), self.files, self.kill
            )

    def somebody_else(self) -> None:
        self.files.append(self.others)
        self.others += 1
        if self.chance.random() < 0.5:
            self.files.compact()

    def reset(self) -> None:
        scope = EVERYTHING if self.chance.random() < 0.5 else parse_scope(topics=["t:1,2"])
        self.driver.reset(ShiftBy(by=-self.chance.randrange(1, 90)), scope=scope)
        drained = self.driver.complete()
        attempt(partial(publish, drained), self.files, self.kill)
        attempt(lambda sink: sink.reset(self.files.reset_order()), self.files, self.kill)
        self.driver.finish_reset()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_the_table_has_the_records_in_force_once(tmp_path: Path, seed: int) -> None:
    history = History(made(tmp_path), Random(seed))
    usual = history.batch, history.checkpoint
    seldom = history.reset, history.clean, history.recompute, history.somebody_else
    for history.steps in range(STEPS):
        history.chance.choice((*usual, *usual, *seldom))()
        assert history.files.rows() == history.files.records()
        assert max(history.files.rows().values(), default=1) == 1
    assert history.files.own_rows() == list(range(history.others))


def recompute(files: LakeFiles, sequence: CheckpointNumber, request_id: str, sink: FileSink) -> None:
    number = files.begin(sequence, request_id)
    files.revision(sequence, number, 1, sink).replace(files.wanted(sequence, number))
    files.driver.handle(FinishRecomputation(sequence=sequence, number=number, batches=()))


def publish(sequence: CheckpointNumber, sink: FileSink) -> None:
    sink.publish(sequence)


def attempt(call: Callable[[FileSink], object], files: LakeFiles, kill: Callable[[str], None]) -> None:
    """Have processes do it, each of which may die, until one has."""
    for _ in range(50):
        try:
            call(other(files, kill))
        except Killed:
            continue
        return
    call(other(files))


def test_the_note_of_a_table_is_one_document(files: LakeFiles) -> None:
    both(files)
    files.checkpoint("n1")
    table = files.warehouse.table()
    assert table.properties[NOTE] == note(files).text()
    assert note(files).snapshot == table.metadata.current_snapshot_id


def test_a_reset_reads_no_file_that_was_there_before_the_sink_or_that_has_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_before = warehouse(tmp_path / "warehouse")
    for value in range(3):
        made_before.table().append(pa.table({"value": [value]}))
    files = made(tmp_path)
    for _ in range(150):  # more than PyIceberg looks for by a file's bounds
        both(files, 1)
    files.checkpoint("n1")
    files.append(3)
    monkeypatch.setattr(ArrowScan, "to_table", None)
    reset(files)
    monkeypatch.undo()
    assert files.rows() == Counter()
    assert files.own_rows() == [0, 1, 2, 3]


def test_a_file_without_bounds_is_read_for_its_rows(files: LakeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.append(7)
    both(files)
    files.checkpoint("n1")
    with files.warehouse.table().transaction() as change:
        change.set_properties({"write.metadata.metrics.column.kcr_batch": "none"})
    files.compact()
    reset(files)
    assert files.rows() == Counter()
    assert files.own_rows() == [7]
