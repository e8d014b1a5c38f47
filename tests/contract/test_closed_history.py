"""A history that is closed: in archive files, whole and unchanged, and out of the store."""

from __future__ import annotations

import gzip
import os
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Literal

import pytest

from airflow_kcr.api import archives, ledger
from airflow_kcr.api.archives import ClosedRecords, Closing, WholeHistory
from airflow_kcr.api.verdict import ArchiveFolder, Verdict
from airflow_kcr.errors import ArchiveError, ProtocolError, RefusedError
from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.region.events import MemberRegistered
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.values import GroupPartition, Incarnation, Offset, Range
from tests.contract.conftest import Drive
from tests.contract.test_certificates_contract import certified, step, verified
from tests.support.driver import Driver
from tests.support.plans import keep_unknown, statements, touched

if TYPE_CHECKING:
    from airflow_kcr.ports import Certificate

LATER = timedelta(days=1)


def closed(driver: Driver, root: Path, keep: timedelta = timedelta(0)) -> Closing:
    """Close what is certified, a day later."""
    region, now = driver.store.read(driver.name)
    return archives.close(region, driver.store.chronicle(driver.name), root, now + LATER, keep)


def folder(driver: Driver, root: Path) -> ArchiveFolder:
    first = driver.store.chronicle(driver.name).certificates(limit=1)[0].digest
    return ArchiveFolder(root=root, region=driver.name, first=first)


def whole(driver: Driver, root: Path) -> WholeHistory:
    return WholeHistory(driver.store.chronicle(driver.name), folder(driver, root))


def closed_records(driver: Driver, root: Path) -> ClosedRecords:
    store = driver.store.chronicle(driver.name)
    newest = store.closed()
    assert newest is not None
    return ClosedRecords(store, folder(driver, root), newest)


def plain(batch: Batch) -> Batch:
    """What is reported of a batch; until when its process could write doesn't matter once it can't any more."""
    return replace(batch, quiesced_after=None)


def told(history: History) -> tuple[list[object], list[Batch]]:
    return [*history.events], [plain(batch) for batch in history.batches]


def lived(driver: Driver, seed: int, steps: int = 40) -> list[Certificate]:
    """Let a region go through something, and certify it now and then."""
    chance, made = Random(seed), []
    driver.up()
    for number in range(steps):
        with suppress(RefusedError, ProtocolError):
            step(driver, chance, number)
        if chance.random() < 0.3:
            made.append(certified(driver))
    driver.finish_reset()
    for batch in driver.held.running:
        driver.finish_batch(batch)
    driver.checkpoint("last")
    made += [certified(driver)]
    driver.process()
    driver.checkpoint("after")
    made += [certified(driver)]
    return made


@pytest.mark.parametrize("delivery", list(Delivery))
@pytest.mark.parametrize("seed", range(4))
def test_a_closed_history_is_the_one_that_was_in_the_store(
    drive: Drive, tmp_path: Path, seed: int, delivery: Delivery
) -> None:
    driver = drive(delivery=delivery)
    lived(driver, seed)
    before = driver.store.history(driver.name)
    made = closed(driver, tmp_path)
    assert made.violations == ()
    assert made.upto is not None
    assert len(made.archived) > 1
    assert told(whole(driver, tmp_path).history(driver.store.history(driver.name))) == told(before)
    again = Verdict.of(driver.name, whole(driver, tmp_path), from_start=True)
    assert again.violations == ()
    assert (again.checked_events, again.checked_batches) == (len(before.events), len(before.batches))
    # And the region goes on, and so does its proof, and the next closing.
    driver.process()
    driver.checkpoint("more")
    assert verified(driver).violations == ()
    driver.process()
    driver.checkpoint("and more")
    assert verified(driver).violations == ()
    before = whole(driver, tmp_path).history(driver.store.history(driver.name))
    further = closed(driver, tmp_path)
    assert further.archived
    assert further.upto is not None
    assert further.upto > made.upto
    assert told(whole(driver, tmp_path).history(driver.store.history(driver.name))) == told(before)
    assert Verdict.of(driver.name, whole(driver, tmp_path), from_start=True).violations == ()


@pytest.mark.parametrize("seed", range(3))
def test_closed_records_are_told_as_the_whole_history_tells_them(drive: Drive, tmp_path: Path, seed: int) -> None:
    driver = drive(delivery=Delivery.AT_LEAST_ONCE)
    lived(driver, seed)
    before = driver.store.history(driver.name)
    labels = {
        (e.body.member, e.body.incarnation): e.body.label for e in before.events if isinstance(e.body, MemberRegistered)
    }
    assert len(closed(driver, tmp_path).archived) > 1
    stored = {batch.batch for batch in driver.store.history(driver.name).batches}
    records = closed_records(driver, tmp_path)
    for partition in driver.logs:
        for offset in range(0, 120, 5):
            expected = [plain(b) for b in before.batches if partition in b.ranges and holds(b, partition, offset)]
            found = [plain(b) for b in records.batches_with(partition, Offset(offset)) if b.batch not in stored]
            assert found == [b for b in expected if b.batch not in stored]
    (member, incarnation), label = min(labels.items())
    assert records.registered(member, incarnation) == label


def holds(batch: Batch, partition: GroupPartition, offset: int) -> bool:
    return batch.ranges[partition].from_ <= offset < batch.ranges[partition].to


@pytest.mark.parametrize("subject", ["postgres"], indirect=True)
def test_a_record_is_looked_up_in_the_files_that_may_have_it(
    drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = drive(partitions=1, members=1)
    driver.up()
    closings(driver, tmp_path, 9)
    records = closed_records(driver, tmp_path)
    opened: list[str] = []
    really = gzip.open

    def noted(path: Path, mode: Literal["rb"]) -> gzip.GzipFile:
        opened.append(path.name)
        return really(path, mode)

    monkeypatch.setattr(gzip, "open", noted)
    (batch,) = records.batches_with(driver.partition(0), Offset(35))
    assert (batch.ranges, batch.outcome) == ({driver.partition(0): Range(Offset(30), Offset(40))}, Outcome.DONE)
    assert opened == ["00000004.jsonl.gz"]
    assert records.batches_with(driver.partition(0), Offset(5_000)) == ()
    assert records.registered(driver.member(0), Incarnation(1)) == driver.held.members[driver.member(0)].label
    assert len(opened) == 1


@pytest.mark.parametrize("subject", ["postgres"], indirect=True)
def test_a_closed_record_costs_the_same_however_many_archives_there_are(
    drive: Drive, tmp_path: Path, database_url: str
) -> None:
    keep_unknown(database_url)
    driver = drive(partitions=1, members=1)
    driver.up()

    def cost() -> Counter[str]:
        """Return the rows that each statement of looking the region's oldest records up touches."""
        with touched() as rows:
            (view,) = ledger.record(driver.store, driver.name, "t:0:5", None, closed_records(driver, tmp_path))
        assert len(view.starts) == 1
        return rows

    closings(driver, tmp_path, 5)
    few = cost()
    closings(driver, tmp_path, 40)
    many = cost()
    assert {s: (few[s], rows) for s, rows in many.items() if rows > few[s] + 10} == {}
    assert many.keys() == few.keys()


def closings(driver: Driver, root: Path, number: int) -> None:
    """Certify a step of the region, and close the one before it, N times."""
    for _ in range(number):
        driver.process()
        driver.checkpoint(f"n{driver.held.next_sequence}")
        assert verified(driver).violations == ()
        closed(driver, root)


@pytest.mark.parametrize("subject", ["postgres"], indirect=True)
def test_closing_costs_what_is_closed_now_however_many_archives_there_are(
    drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    keep_unknown(database_url)
    driver = drive(partitions=1, members=1)
    driver.up()
    looked_at: list[Path] = []

    def stat(path: Path, **how: bool) -> os.stat_result:
        looked_at.append(path)
        return os.stat(path, **how)

    def cost() -> tuple[int, int, int]:
        """Return the statements, the rows they touch, and the looks at files of one certificate and its closing."""
        driver.process()
        driver.checkpoint(f"n{driver.held.next_sequence}")
        looked_at.clear()
        with statements() as run, touched() as rows:
            assert verified(driver).violations == ()
            assert len(closed(driver, tmp_path).archived) == 1
        return len(run), rows.total(), len(looked_at)

    closings(driver, tmp_path, 5)
    monkeypatch.setattr(Path, "stat", stat)
    few = cost()
    closings(driver, tmp_path, 20)
    many = cost()
    assert (many[0], many[2]) == (few[0], few[2])
    assert many[1] <= few[1] + 10


@pytest.mark.parametrize("subject", ["postgres"], indirect=True)
def test_what_is_closed_leaves_the_store(drive: Drive, tmp_path: Path) -> None:
    driver = drive()
    driver.up()
    for number in range(5):
        driver.process()
        driver.checkpoint(f"n{number}")
        certified(driver)
    running = driver.start_batch(driver.member(0))
    events, batches = len(driver.store.history(driver.name).events), len(driver.store.history(driver.name).batches)
    made = closed(driver, tmp_path)
    left = driver.store.history(driver.name)
    assert (made.events, made.batches) == (events - len(left.events), batches - len(left.batches))
    assert [event.number for event in left.events] == list(range(made.upto or 0, driver.held.counter + 1))
    # Publishing and resetting ask for those since the newest published checkpoint.
    restore_point = driver.held.restore_point
    assert restore_point is not None
    newest = driver.store.batches_since(driver.name, restore_point)
    assert [b.batch for b in newest] == [running]
    assert closed(driver, tmp_path).archived == []


def test_nothing_is_closed_that_is_not_old_enough(drive: Drive, tmp_path: Path) -> None:
    driver = drive()
    driver.up()
    for number in range(3):
        driver.process()
        driver.checkpoint(f"n{number}")
        certified(driver)
    assert closed(driver, tmp_path, keep=2 * LATER) == Closing(region=driver.name)
    assert [*tmp_path.iterdir()] == []


def test_without_a_folder_to_archive_to_the_history_stays(drive: Drive, tmp_path: Path) -> None:
    driver = drive()
    lived(driver, 1, 10)
    before = driver.store.history(driver.name)
    with pytest.raises(ArchiveError, match=r"no folder .*away to archive to"):
        closed(driver, tmp_path / "away")
    assert driver.store.history(driver.name) == before
    assert not (tmp_path / "away").exists()


@pytest.mark.parametrize("change", ["missing", "longer", "changed", "other"])
def test_an_archive_file_that_is_not_what_it_was_is_named(drive: Drive, tmp_path: Path, change: str) -> None:
    driver = drive()
    lived(driver, 2, 10)
    first, second, *_ = closed(driver, tmp_path).archived
    content = second.read_bytes()
    match change:
        case "missing":
            second.unlink()
        case "longer":
            second.write_bytes(content + b"\0")
        case "changed":
            second.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        case _:
            second.write_bytes(first.read_bytes())
    with pytest.raises(ArchiveError, match=str(second)):
        whole(driver, tmp_path)


def test_a_file_that_is_there_already_is_taken_only_if_it_is_the_same(drive: Drive, tmp_path: Path) -> None:
    driver = drive()
    lived(driver, 2, 10)
    path = folder(driver, tmp_path).path_of(driver.store.chronicle(driver.name).certificates()[0])
    path.parent.mkdir()
    path.write_bytes(b"somebody's")
    before = driver.store.history(driver.name)
    with pytest.raises(ArchiveError, match=f"{path} was changed"):
        closed(driver, tmp_path)
    assert driver.store.history(driver.name) == before
    path.unlink()
    assert closed(driver, tmp_path).archived[0] == path
