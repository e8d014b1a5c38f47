"""What a table of a person shows: the checkpoints in force, each once, whatever its sink, a reset and others do to it.

One suite for each format. Everything but Spark is real: PyIceberg with a SQL catalog, delta-rs, parquet files. Rows are
counted by a reader that isn't ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.protocol.region.commands import FinishRecomputation, PinCheckpoint
from airflow_kcr.protocol.scopes import EVERYTHING, parse_scope
from airflow_kcr.protocol.targets import ShiftBy
from airflow_kcr.protocol.values import CheckpointNumber, RegionId, RegionName
from airflow_kcr.sinks.delta.places import DeltaPlace
from airflow_kcr.sinks.files.cleanup import GivenUp
from airflow_kcr.sinks.files.contents import RegionLedger
from airflow_kcr.sinks.files.sink import FileSink
from airflow_kcr.sinks.group import GroupSinks
from airflow_kcr.sinks.iceberg.catalogs import NamedTable
from airflow_kcr.sinks.tables import owned as owned_module
from airflow_kcr.sinks.tables.owned import PAUSES, TRIED_FOR, OwnedTable, folder_of
from tests.support.driver import GROUP, Driver
from tests.support.sink_files import Killed, LocalFolder, killing
from tests.support.table_files import (
    COLUMNS,
    MADE,
    Owned,
    ParquetRewriter,
    TableFiles,
    Warehouse,
    at_commits,
    complete,
    made,
    other,
    over,
    records_of,
    reset,
)

STEPS = 30


def published(files: TableFiles) -> int:
    """How many commits have shown a checkpoint or a revision."""
    return sum("kcr.sequence" in told for told in files.owned.commits())


def test_each_checkpoint_is_a_commit_that_says_what_it_is_and_can_be_read(files: TableFiles) -> None:
    first = files.checkpoint("n1", batches=1)
    seen = files.rows()
    second = files.checkpoint("n2", batches=1)
    assert files.rows() == files.records()
    assert files.rows(first) == seen == files.records(first)
    assert files.rows(second) == files.rows()
    told = files.owned.commits()[-1]
    assert told["kcr.region-id"] == files.owner.region_id
    assert (told["kcr.timeline"], told["kcr.sequence"]) == ("1", str(second))
    assert told["kcr.epoch"] == str(files.driver.region.checkpoints[second].epoch)
    assert told["kcr.digest"] == files.manifests()[second].digest
    where = folder_of(files.owned.location(), files.owner)
    assert files.owned.paths() == {
        f"{where}/{f.path}" for manifest in files.manifests().values() for f in manifest.files
    }


def test_the_store_is_told_which_version_of_the_table_has_a_checkpoint(files: TableFiles) -> None:
    first = files.checkpoint("n1", batches=1)
    files.append(1)
    files.fill(width=3)
    second = files.checkpoint("n2")
    told = {s: row.tables for s, row in files.driver.region.checkpoints.items()}
    assert [(one.rows, one.files) for s in (first, second) for one in told[s]] == [(40, 2), (12, 2)]
    assert records_of(files.owned.at(told[first][0])) == records_of(files.owned.rows(first))
    assert other(files).publish(second) == told[second]
    number = files.begin(first, "r1")
    revision = files.revision(first, number)
    [revised] = revision.replace(files.wanted(first, number))
    files.driver.handle(FinishRecomputation(sequence=first, number=number, batches=(), tables=(revised,)))
    assert files.driver.region.checkpoints[first].tables == (revised,)
    assert revised.rows == 80
    assert len(files.owned.at(revised)) == 93
    assert revision.replace(lambda: None) == (revised,)
    files.driver.reset(ShiftBy(by=-13))
    files.driver.complete()
    assert other(files).publish(second) == ()


def test_a_checkpoint_without_records_has_its_commit(files: TableFiles) -> None:
    sequence = files.checkpoint("n1")
    assert files.rows(sequence) == Counter()


@pytest.mark.parametrize("step", range(10))
def test_kills_at_each_step_of_a_publication_are_made_good_by_the_next_publisher(owned: Owned, step: int) -> None:
    files = made(owned)
    files.fill()
    sequence = complete(files, "n1")
    try:
        other(files, killing(step + 1)).publish(sequence)
    except Killed:
        assert max(files.rows().values(), default=1) == 1
    other(files).publish(sequence)
    files.driver.publish()
    assert files.rows() == files.records(sequence)
    assert published(files) == 1


@pytest.mark.parametrize("step", range(12))
def test_kills_at_each_step_of_a_reset_are_made_good_by_the_next_member(owned: Owned, step: int) -> None:
    files = made(owned)
    for request_id in ("n1", "n2"):
        files.fill()
        files.checkpoint(request_id)
    try:
        reset(files, other(files, killing(step + 1)))
    except Killed:
        other(files).reset(files.reset_order())
    assert files.rows() == Counter()
    files.driver.finish_reset()
    files.checkpoint("n3", batches=1)
    assert files.rows() == files.records()


@pytest.mark.parametrize("number", range(3))
def test_a_commit_whose_answer_is_lost_is_made_once(files: TableFiles, number: int) -> None:
    files.fill()
    sequence = complete(files, "n1")
    lost = iter([True])

    def answerless(commit: Callable[[], Any]) -> Any:  # noqa: ANN401 (as `at_commits`)
        answer = commit()
        if next(lost, False):
            raise files.owned.errors[number]("the answer is lost")
        return answer

    with at_commits(files, answerless):
        files.sink.publish(sequence)
    assert files.rows() == files.records(sequence)
    assert published(files) == 1


def test_a_commit_that_did_not_get_there_is_an_error_and_made_by_the_next_try(files: TableFiles) -> None:
    files.fill()
    sequence = complete(files, "n1")

    def away(commit: Callable[[], Any]) -> None:
        raise ConnectionError("password=secret")

    with at_commits(files, away), pytest.raises(SinkError, match=r"table .* could not commit: ConnectionError") as told:
        files.sink.publish(sequence)
    assert "secret" not in str(told.value)
    files.sink.publish(sequence)
    assert files.rows() == files.records(sequence)


@pytest.mark.parametrize("commits", [1, 12])
def test_commits_of_others_in_between_stay_and_keep_nothing_from_being_published(
    files: TableFiles, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    overtaken_by(files, commits, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_nor_do_very_many_of_them(files: TableFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each try reads the log of the table; with a catalog or an object store in between it would be the same for hours.
    overtaken_by(files, 100, monkeypatch)


def overtaken_by(files: TableFiles, commits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have others commit before each of as many tries of a publication, and see that all of it is in the table."""
    files.fill()
    sequence = complete(files, "n1")
    left = iter(range(commits))

    def overtaken(commit: Callable[[], Any]) -> Any:  # noqa: ANN401 (as `at_commits`)
        number = next(left, None)
        if number is not None:
            files.append(number)
        return commit()

    monkeypatch.setattr(owned_module, "TRIED_FOR", 600.0)
    with at_commits(files, overtaken):
        files.sink.publish(sequence)
    assert files.rows() == files.records(sequence)
    files.driver.publish()
    reset(files)
    assert files.rows() == Counter()
    assert files.own_rows() == list(range(commits))


@dataclass
class Waiting:
    """A clock that moves by the pauses that are made, and the event that ends them."""

    ends_after: float = 3600.0
    now: float = 0.0
    pauses: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now

    def wait(self, pause: float) -> bool:
        self.pauses.append(pause)
        self.now += pause
        return self.is_set()

    def is_set(self) -> bool:
        return self.now > self.ends_after


@pytest.mark.parametrize("ends_after", [3600.0, 5.0])
def test_a_commit_that_others_come_before_is_tried_again_after_longer_and_longer_pauses_and_not_forever(
    files: TableFiles, monkeypatch: pytest.MonkeyPatch, ends_after: float
) -> None:
    files.fill()
    sequence = complete(files, "n1")
    waiting, others = Waiting(ends_after), count()
    monkeypatch.setattr(owned_module, "PAUSES", PAUSES)
    monkeypatch.setattr(owned_module, "time", waiting)
    assert isinstance(files.table, OwnedTable)
    monkeypatch.setattr(files.table, "_ending", waiting)

    def overtaken(commit: Callable[[], Any]) -> Any:  # noqa: ANN401 (as `at_commits`)
        files.append(next(others))
        return commit()

    why = "this process ends" if ends_after < TRIED_FOR else f"others have done so for {TRIED_FOR:.0f} s"
    with at_commits(files, overtaken), pytest.raises(SinkError, match=f"could not be committed to: {why}"):
        files.sink.publish(sequence)
    for number, pause in enumerate(waiting.pauses):
        longest = min(PAUSES[0] * 2**number, PAUSES[1])
        assert longest / 2 <= pause <= longest
    assert min(ends_after, TRIED_FOR) < waiting.now <= min(ends_after, TRIED_FOR) + PAUSES[1]
    assert len(files.own_rows()) == next(others) >= len(waiting.pauses) > 5
    assert files.rows() == Counter()
    if ends_after > TRIED_FOR:
        monkeypatch.setattr(owned_module, "PAUSES", (0.0, 0.0))
        files.sink.publish(sequence)
        assert files.rows() == files.records(sequence)


def test_a_process_that_ends_tries_no_commit_again(files: TableFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.fill()
    sequence = complete(files, "n1")
    monkeypatch.setattr(owned_module, "PAUSES", (3600.0, 3600.0))
    GroupSinks(own={"out": files.sink}).end()

    def overtaken(commit: Callable[[], Any]) -> Any:  # noqa: ANN401 (as `at_commits`)
        files.append(1)
        return commit()

    with at_commits(files, overtaken), pytest.raises(SinkError, match="this process ends"):
        files.sink.publish(sequence)
    assert files.own_rows() == [1]


def test_a_publication_reads_the_table_once(files: TableFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.fill()
    sequence = complete(files, "n1")
    where = NamedTable if isinstance(files.owned, Warehouse) else DeltaPlace
    load, loads = where.load, list[object]()

    def counted(self: object) -> object:
        loads.append(self)
        return load(self)  # type: ignore[arg-type]

    monkeypatch.setattr(where, "load", counted)
    files.sink.publish(sequence)
    assert len(loads) == 1


@pytest.mark.parametrize("is_published", [False, True])
def test_a_publisher_that_wakes_up_after_a_reset_shows_nothing(files: TableFiles, is_published: bool) -> None:
    files.fill()
    sequence = complete(files, "n1")
    asleep = iter([True])

    def frozen(commit: Callable[[], Any]) -> Any:  # noqa: ANN401 (as `at_commits`)
        if next(asleep, False):
            if is_published:
                other(files).publish(sequence)
            files.driver.publish()
            reset(files, other(files))
            files.driver.finish_reset()
        return commit()

    with at_commits(files, frozen):
        files.sink.publish(sequence)
    assert files.rows() == Counter()
    assert files.manifests() == {}


def test_a_reset_takes_its_rows_out_of_files_that_others_have_put_together(files: TableFiles) -> None:
    files.append(7)
    kept = files.checkpoint("n1", batches=1)
    undone = files.checkpoint("n2", batches=1)
    files.compact()
    assert len(files.owned.paths()) == 1
    files.go_back(ShiftBy(by=-5))
    assert files.rows() == files.records(kept)
    files.checkpoint("n3", batches=1)
    assert files.rows() == files.records()
    assert max(files.rows().values()) == 1
    assert files.own_rows() == [7]
    assert files.rows(undone) == files.of_manifest(files.undone()[undone]) + files.records(kept)


def test_a_recomputation_takes_the_place_of_a_checkpoint_s_rows_also_when_they_were_compacted(
    files: TableFiles,
) -> None:
    first = files.checkpoint("n1", batches=1)
    second = files.checkpoint("n2", batches=1)
    files.compact()
    for again in ("r1", "r2"):
        number = files.recompute(first, 2, again)
        assert files.rows() == files.records()
        told = files.owned.commits()[-1]
        assert (told["kcr.sequence"], told["kcr.revision"]) == (str(first), str(number))
    assert files.rows(second) == files.expected(dict.fromkeys(files.driver.logs, 20))


def test_a_table_of_its_own_gets_the_output_of_recomputations_alone(
    files: TableFiles, make: Callable[[Path], Owned], tmp_path: Path
) -> None:
    first = files.checkpoint("n1", batches=1)
    apart = make(tmp_path / "apart")
    elsewhere = replace(files.sink.target, owner=replace(files.owner, region_id=RegionId("id elsewhere")))
    folder = LocalFolder(apart.here(folder_of(apart.location(), elsewhere.owner)))
    target = replace(elsewhere, path=folder.uri)
    ledger = RegionLedger(files.driver.store, files.driver.name)
    sink = FileSink(target, folder, ledger, ParquetRewriter(folder), apart.opened(target, folder))
    sink.claim()
    for again, copies in (("r1", 1), ("r2", 2)):
        number = files.begin(first, again)
        revision = sink.revised(ledger.contents(first, GROUP), number)
        for place, batch in enumerate(ledger.contents(first, GROUP).batches):
            files.rewrite(revision, batch, f"{number}-{place}", copies)
        revision.replace(files.wanted(first, number))
        files.driver.handle(FinishRecomputation(sequence=first, number=number, batches=()))
        rows = apart.rows()
        assert set(Counter(records_of(rows)).values()) == {copies}
        assert len(rows) == copies * 40
    assert files.rows() == files.records()


def test_a_table_of_another_sink_is_refused(files: TableFiles) -> None:
    theirs = Driver(name=RegionName("other"))
    theirs.up()
    with pytest.raises(ConfigurationError, match=r"is written by sink out of group .*; name another table"):
        over(theirs, files.owned)


def test_a_table_that_was_made_anew_is_noticed(files: TableFiles) -> None:
    files.checkpoint("n1", batches=1)
    files.owned.drop()
    files.fill()
    sequence = complete(files, "n2")
    with pytest.raises(SinkError, match=r"there is no (Delta )?table .*; create it"):
        files.sink.publish(sequence)
    files.owned.create()
    with pytest.raises(SinkError, match="it was dropped and made anew"):
        files.sink.publish(sequence)
    with pytest.raises(ConfigurationError, match=r"has published checkpoints, and the table .* is gone"):
        other(files).check()


def test_a_table_that_was_rolled_back_is_noticed_until_it_is_accepted(files: TableFiles) -> None:
    """delta-io/delta #1813: RESTORE takes rows back and leaves the mark that they were written."""
    first = files.checkpoint("n1", batches=1)
    files.checkpoint("n2", batches=1)
    files.owned.restore(first)
    assert files.rows() == files.records(first)
    files.fill()
    sequence = complete(files, "n3")
    for _ in range(2):
        with pytest.raises(SinkError, match=r"was rolled back to before .*--take-over"):
            files.sink.publish(sequence)
        files.append(1)
    assert files.rows() == files.records(first)
    files.owned.opened(files.sink.target, files.folder).accept()
    files.sink.publish(sequence)
    files.driver.publish()
    reset(files)
    files.driver.finish_reset()
    assert files.rows() == Counter()
    files.checkpoint("n4", batches=1)
    assert files.rows() == files.records()


def test_a_column_of_ours_that_was_dropped_is_noticed(files: TableFiles) -> None:
    files.checkpoint("n1", batches=1)
    files.owned.lose("kcr_offset")
    files.fill()
    sequence = complete(files, "n2")
    with pytest.raises(SinkError, match="has lost its column kcr_offset"):
        files.sink.publish(sequence)


def staged(files: TableFiles) -> CheckpointNumber:
    """Have a checkpoint that was published, and return one whose files are written and not published yet."""
    files.checkpoint("n1", batches=1)
    for index in range(2):
        batch = files.driver.start_batch(files.driver.member(index), 10)
        files.write(batch, schema=COLUMNS)
        files.driver.finish_batch(batch)
    return complete(files, "n2")


def values(files: TableFiles) -> Counter[int]:
    """How often the table has each value."""
    return Counter(files.owned.rows()["value"].to_pylist())


def test_a_column_that_is_added_between_writing_and_publishing_keeps_nothing_back(files: TableFiles) -> None:
    sequence = staged(files)
    files.owned.add("more")
    files.sink.publish(sequence)
    assert files.rows() == files.records()
    assert files.owned.rows()["more"].null_count == 80


@pytest.mark.parametrize("how", ["renamed", "dropped", "of another type"])
def test_a_column_that_others_take_away_between_writing_and_publishing_loses_no_value(
    files: TableFiles, how: str
) -> None:
    sequence = staged(files)
    if how == "renamed":
        files.owned.rename("value", "amount")
    else:
        files.owned.lose("value")
    said = "has no column value"
    if how == "of another type":
        files.owned.add("value")
        said = "has column value as string, not bigint"
    before = files.owned.version()
    with pytest.raises(SinkError, match=rf"table .* {said}, since files were written .* reset the region to before"):
        other(files).publish(sequence)
    assert files.owned.version() == before
    if how == "renamed":
        files.owned.rename("amount", "value")
        files.sink.publish(sequence)
        assert values(files) == Counter(dict.fromkeys(range(20), 4))
    elif how == "dropped":
        files.driver.publish()
        reset(files)
        files.driver.finish_reset()
        assert files.rows() == Counter()


def test_a_cleanup_leaves_every_file_that_a_version_of_the_table_has(files: TableFiles) -> None:
    pinned = files.checkpoint("n1", batches=1)
    files.driver.handle(PinCheckpoint(sequence=pinned, label="month"))
    for request_id in ("n2", "n3", "n4", "n5"):
        files.fill()
        files.checkpoint(request_id)
    before = files.data_files()
    files.clean(GivenUp.RETIRED)
    assert files.data_files() == before
    files.driver.reset(ShiftBy(by=-10))
    files.driver.complete()
    files.sink.reset(files.reset_order())
    assert files.rows() == files.expected(dict.fromkeys(files.driver.logs, 40))
    files.driver.finish_reset()
    newest = files.checkpoint("n6", batches=1)
    files.clean()
    assert files.rows() == files.expected(dict.fromkeys(files.driver.logs, 50))
    assert files.rows(newest) == files.rows()


class History:
    """What happens to a region and its table, one thing after the other."""

    def __init__(self, files: TableFiles, chance: Random) -> None:
        self.files, self.chance, self.driver = files, chance, files.driver
        self.steps = self.others = 0

    def kill(self, step: str) -> None:
        if self.chance.random() < 0.1:
            raise Killed(step)

    def batch(self) -> None:
        self.files.fill(width=self.chance.randrange(1, 30))

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


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))])
def test_whatever_happens_the_table_has_the_records_in_force_once(owned: Owned, seed: int) -> None:
    history = History(made(owned), Random(seed))
    usual = history.batch, history.checkpoint
    seldom = history.reset, history.clean, history.recompute, history.somebody_else
    for history.steps in range(STEPS):
        history.chance.choice((*usual, *usual, *seldom))()
        assert history.files.rows() == history.files.records()
        assert max(history.files.rows().values(), default=1) == 1
    assert history.files.own_rows() == list(range(history.others))


def recompute(files: TableFiles, sequence: CheckpointNumber, request_id: str, sink: FileSink) -> None:
    number = files.begin(sequence, request_id)
    files.revision(sequence, number, 1, sink).replace(files.wanted(sequence, number))
    files.driver.handle(FinishRecomputation(sequence=sequence, number=number, batches=()))


def publish(sequence: CheckpointNumber, sink: FileSink) -> None:
    sink.publish(sequence)


def attempt(call: Callable[[FileSink], object], files: TableFiles, kill: Callable[[str], None]) -> None:
    """Have processes do it, each of which may die, until one has."""
    for _ in range(50):
        try:
            call(other(files, kill))
        except Killed:
            continue
        return
    call(other(files))


def test_a_reset_takes_out_by_metadata_alone_what_has_nothing_else(
    make: Callable[[Path], Owned], tmp_path: Path
) -> None:
    owned = make(tmp_path / "warehouse")
    for value in range(3):
        owned.append({"value": [value]})
    files = made(owned)
    for _ in range(150):  # more than PyIceberg looks for by a file's bounds
        files.fill(width=1)
    files.checkpoint("n1")
    files.append(3)
    before = owned.paths()
    reset(files)
    assert owned.paths() < before
    assert files.rows() == Counter()
    assert files.own_rows() == [0, 1, 2, 3]
