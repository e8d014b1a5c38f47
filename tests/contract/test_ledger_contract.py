"""What a reset makes of the ledger: the statements say what memory says, whatever the ranges and the seek maps."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from random import Random

import pytest

from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry, SeekMap, SeekSource
from airflow_kcr.protocol.region.rows import Batch, Outcome, ResetAttempt, ResetCause, ResetState
from airflow_kcr.protocol.region.state import (
    BatchesProven,
    LedgerChange,
    Region,
    put,
)
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    Epoch,
    GroupPartition,
    Incarnation,
    Offset,
    Range,
    Timeline,
)
from airflow_kcr.store.postgres import ledger
from tests.contract.conftest import Drive
from tests.support.driver import Driver

pytestmark = pytest.mark.postgres

FURTHEST = 12


def range_(chance: Random) -> Range:
    from_ = chance.randrange(FURTHEST)
    return Range(Offset(from_), Offset(chance.randrange(from_ + 1, FURTHEST + 1)))


def places(chance: Random, partitions: list[GroupPartition]) -> OffsetMap:
    chosen = chance.sample(partitions, chance.randrange(1, len(partitions) + 1))
    return OffsetMap({p: Offset(chance.randrange(FURTHEST + 2)) for p in chosen})


def reset(chance: Random, region: Region, now: datetime, partitions: list[GroupPartition]) -> Region:
    """Return the region in its next epoch, which sends some partitions to known and others to unknown places."""
    epoch = Epoch(region.epoch + 1)
    known = places(chance, partitions)
    entries = {p: SeekEntry(offset=known.get(p), source=SeekSource.MERGED) for p in partitions if chance.random() < 0.9}
    row = ResetAttempt(
        epoch=epoch,
        sequence=CheckpointNumber(1),
        timeline=Timeline(1),
        cause=ResetCause.CLAIM,
        state=ResetState.SUPERSEDED,
        started_at=now,
    )
    return replace(
        region,
        epoch=epoch,
        resets=put(region.resets, {epoch: row}),
        seek_maps=put(region.seek_maps, {epoch: SeekMap(entries)}),
    )


def answered(chance: Random, region: Region, partitions: list[GroupPartition]) -> Region:
    """Return the region with what was open in its seek map known, and in an older one too."""
    found = {
        p: SeekEntry(offset=o, source=SeekSource.MERGED)
        for p, o in places(chance, partitions).items()
        if p not in region.seek.offsets
    }
    epochs = [row.epoch for row in region.archive.resets()]
    older = chance.choice(epochs)
    maps = {epoch: (region.archive.seek_map(epoch) or SeekMap({})).write(found) for epoch in {region.epoch, older}}
    return replace(region, seek_maps=put(region.seek_maps, maps))


def batches(chance: Random, driver: Driver, turn: int, epoch: int, now: datetime) -> list[LedgerChange]:
    """Return some batches, started and ended at once."""
    found: list[LedgerChange] = []
    partitions = sorted(driver.logs)
    for number in range(chance.randrange(4)):
        ranges = {p: range_(chance) for p in sorted(chance.sample(partitions, chance.randrange(1, 4)))}
        batch = Batch(
            batch=BatchId(f"b-{turn}-{number}"),
            member=driver.member(chance.randrange(2)),
            incarnation=Incarnation(1),
            epoch=Epoch(chance.randrange(max(epoch - 3, 0), epoch + 1)),
            timeline=Timeline(1),
            sequence=CheckpointNumber(1),
            ranges=ranges,
            started_at=now,
            started_after=driver.held.counter,
        )
        outcome = chance.choice([Outcome.DONE, Outcome.DONE, Outcome.DISCARDED, Outcome.UNKNOWN])
        found += [
            batch,
            (fenced := replace(batch, quiesced_after=now)),
            replace(fenced, outcome=outcome, finished_at=now, finished_after=driver.held.counter),
        ]
    return found


@pytest.mark.parametrize(
    ("seed", "piece"),
    [
        (0, ledger.PIECE),
        *(pytest.param(seed, ledger.PIECE, marks=pytest.mark.long) for seed in range(1, 4)),
        pytest.param(4, 1, marks=pytest.mark.long),
        (5, 3),
    ],
)
def test_a_ledger_is_undone_and_proven_as_memory_says(
    drive_twins: Drive, monkeypatch: pytest.MonkeyPatch, seed: int, piece: int
) -> None:
    monkeypatch.setattr(ledger, "PIECE", piece)
    chance, driver = Random(seed), drive_twins(partitions=4)
    partitions = sorted(driver.logs)
    for turn in range(25):

        def rule(region: Region, now: datetime, turn: int = turn) -> Region:
            # The same for both stores, which are asked one after the other.
            again = Random(f"{seed}-{turn}")
            changes = batches(again, driver, turn, region.epoch, now)
            match again.choice(["reset", "answer", "prove"]):
                case "reset":
                    region = reset(again, region, now, partitions)
                case "answer" if region.seek:
                    region = answered(again, region, partitions)
                case _:
                    ran = Epoch(again.randrange(region.epoch + 1))
                    progress = places(again, partitions)
                    changes.append(BatchesProven(epoch=ran, proven_in=region.epoch, progress=progress))
            return replace(region, ledger=tuple(changes))

        driver.change(rule)
        partition, offset = chance.choice(partitions), Offset(chance.randrange(FURTHEST + 1))
        found = driver.store.batches_with(driver.name, partition, offset)
        held = [(b, b.ranges[partition]) for b in driver.batches if partition in b.ranges]
        assert list(found) == [b for b, r in held if r.from_ <= offset < r.to]
        assert driver.store.batches_since(driver.name, CheckpointNumber(0)) == driver.batches
    outcomes = {b.outcome for b in driver.batches}
    assert outcomes == {Outcome.DONE, Outcome.UNDONE, Outcome.DISCARDED, Outcome.UNKNOWN}
    assert any(b.undone_from and b.outcome is Outcome.DONE for b in driver.batches)


def test_the_newest_batches_are_those_of_later_sequences(drive_twins: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "PAGE", 2)
    driver, stamps = drive_twins(partitions=4), (1, 1, 2, 4, 4, 4, 4, 7)

    def rule(region: Region, now: datetime) -> Region:
        changes: list[LedgerChange] = []
        for place, stamp in enumerate(stamps):
            batch = Batch(
                batch=BatchId(f"b-{place}"),
                member=driver.member(0),
                incarnation=Incarnation(1),
                epoch=Epoch(1),
                timeline=Timeline(1),
                sequence=CheckpointNumber(stamp),
                ranges={p: Range(Offset(place), Offset(place + 1)) for p in sorted(driver.logs)[:2]},
                started_at=now,
                started_after=region.counter,
            )
            ended = replace(batch, outcome=Outcome.DONE, finished_at=now, finished_after=region.counter)
            changes += [batch, ended]
        return replace(region, ledger=tuple(changes))

    driver.change(rule)
    for after in range(9):
        found = driver.store.batches_since(driver.name, CheckpointNumber(after))
        assert found == tuple(b for b in driver.batches if b.sequence > after)
        assert len(found) == sum(stamp > after for stamp in stamps)
        for up_to in range(9):
            found = driver.store.batches_since(driver.name, CheckpointNumber(after), CheckpointNumber(up_to))
            assert found == tuple(b for b in driver.batches if after < b.sequence <= up_to)
