from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from random import Random

import pytest

from airflow_kcr.protocol.offsets import SeekEntry, SeekMap, SeekSource
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.region.timelines import undone
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    Epoch,
    EventNumber,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    Range,
    Timeline,
    TopicName,
)
from tests.support.rewinds import Rewinds


def p(number: int) -> GroupPartition:
    return GroupPartition(GroupId("g"), TopicName("t"), number)


def batch(
    ranges: Mapping[int, tuple[int, int]] | None = None, *, outcome: Outcome | None = Outcome.DONE, epoch: int = 1
) -> Batch:
    """Return a batch of [0, 10) and [0, 20), or of other ranges."""
    wanted = ranges or {0: (0, 10), 1: (0, 20)}
    return Batch(
        batch=BatchId("b"),
        member=MemberId(GroupId("g"), 0),
        incarnation=Incarnation(1),
        epoch=Epoch(epoch),
        timeline=Timeline(1),
        sequence=CheckpointNumber(2),
        ranges={p(n): Range(Offset(a), Offset(b)) for n, (a, b) in wanted.items()},
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        started_after=EventNumber(1),
        outcome=outcome,
    )


def entry(offset: int | None) -> SeekEntry:
    return SeekEntry(offset=None if offset is None else Offset(offset), source=SeekSource.MERGED)


def seek(**offsets: int | None) -> SeekMap:
    return SeekMap({p(int(name[1:])): entry(offset) for name, offset in offsets.items()})


def rewinds(maps: Mapping[int, SeekMap]) -> Rewinds:
    return Rewinds({Epoch(epoch): seek_map for epoch, seek_map in maps.items()})


@pytest.mark.parametrize(
    ("reset", "marks", "outcome"),
    [
        (seek(p0=10, p1=20), {}, Outcome.DONE),
        (seek(p0=99), {}, Outcome.DONE),
        (seek(p7=0), {}, Outcome.DONE),
        (seek(p0=None, p1=None), {}, Outcome.DONE),
        (seek(p0=4), {0: 4}, Outcome.DONE),
        (seek(p0=0, p1=5), {0: 0, 1: 5}, Outcome.DONE),
        (seek(p0=0, p1=0), {0: 0, 1: 0}, Outcome.UNDONE),
    ],
)
def test_a_reset_undoes_what_was_done_at_or_beyond_it(
    reset: SeekMap, marks: Mapping[int, int], outcome: Outcome
) -> None:
    after = rewinds({2: reset}).seen_in(batch())
    assert after.undone_from == {p(n): o for n, o in marks.items()}
    assert after.outcome is outcome


def test_a_reset_before_a_range_undoes_it_from_its_begin() -> None:
    after = rewinds({2: seek(p0=3)}).seen_in(batch({0: (10, 20)}))
    assert (after.undone_from, after.outcome) == ({p(0): 10}, Outcome.UNDONE)


def test_the_lowest_of_all_later_resets_counts() -> None:
    maps = {2: seek(p0=4), 3: seek(p0=7), 4: seek(p0=2), 5: seek(p0=9)}
    assert rewinds(maps).seen_in(batch()).undone_from == {p(0): 2}
    assert rewinds(maps).seen_in(batch(epoch=4)).undone_from == {p(0): 9}
    assert rewinds(maps).seen_in(batch(epoch=5)).undone_from == {}


def test_the_seek_map_of_its_own_epoch_and_of_older_ones_undoes_nothing() -> None:
    row = batch(epoch=3)
    assert rewinds({2: seek(p0=0, p1=0), 3: seek(p0=0, p1=0)}).seen_in(row) is row


def test_what_was_proven_is_undone_only_by_resets_after_the_one_that_proved_it() -> None:
    maps = {2: seek(p0=0, p1=0), 3: seek(p0=10, p1=20)}
    proven = replace(batch(), proven_in=Epoch(3))
    assert rewinds(maps).seen_in(proven) is proven
    assert rewinds({**maps, 4: seek(p1=5)}).seen_in(proven).undone_from == {p(1): 5}


@pytest.mark.parametrize("outcome", [None, Outcome.DISCARDED, Outcome.UNKNOWN])
def test_what_was_not_done_is_not_undone(outcome: Outcome | None) -> None:
    row = batch(outcome=outcome)
    assert rewinds({2: seek(p0=0, p1=0)}).seen_in(row) is row


# -- as if each reset had marked each batch ----------------------------------------------------------------------------


class Marking:
    """The plain way: whenever a place becomes known, whatever is done by then at or beyond it is marked for good."""

    def __init__(self, chance: Random) -> None:
        self.chance, self.epoch, self.restore_point = chance, 1, 1
        self.maps: dict[int, dict[int, int | None]] = {1: dict.fromkeys(range(3), 0)}
        self.batches: list[Batch] = []

    @property
    def known(self) -> list[int]:
        return [n for n, offset in self.maps[self.epoch].items() if offset is not None]

    def begin(self) -> None:
        chosen = self.chance.sample(self.known, self.chance.randint(0, len(self.known)))
        begins = {n: self.chance.randrange(12) for n in chosen}
        if begins:
            ranges = {n: (a, self.chance.randint(a + 1, 13)) for n, a in begins.items()}
            outcome = self.chance.choice([Outcome.DONE, Outcome.DONE, Outcome.UNKNOWN])
            self.batches.append(batch(ranges, epoch=self.epoch, outcome=outcome))

    def reset(self) -> None:
        self.epoch += 1
        places = {n: self.chance.choice([None, self.chance.randrange(13)]) for n in range(3)}
        self.maps[self.epoch] = {n: o for n, o in places.items() if self.chance.random() < 0.9}
        self.restore_point = self.chance.choice([self.restore_point, self.epoch])
        self._mark({n: o for n, o in self.maps[self.epoch].items() if o is not None})

    def answer(self) -> None:
        fresh = {n: self.chance.randrange(13) for n in range(3) if n not in self.known}
        self.maps[self.epoch].update(fresh)
        self.maps[self.restore_point].update(
            {n: o for n, o in fresh.items() if self.maps[self.restore_point].get(n) is None}
        )
        self._mark(fresh)

    def prove(self) -> None:
        ran = self.chance.randrange(self.epoch)
        for n, row in enumerate(self.batches):
            # A reset is done once its map is total.
            if len(self.known) == 3 and row.epoch == ran and row.outcome is Outcome.UNKNOWN:
                self.batches[n] = replace(row, outcome=Outcome.DONE, proven_in=Epoch(self.epoch))

    def _mark(self, places: Mapping[int, int]) -> None:
        for n, row in enumerate(self.batches):
            if row.outcome is Outcome.DONE:
                before = {p(m): Offset(o) for m, o in places.items()}
                lowest = {q: min(before.get(q, r.to), row.undone_from.get(q, r.to)) for q, r in row.ranges.items()}
                self.batches[n] = undone(replace(row, undone_from={}), lowest)


@pytest.mark.parametrize("seed", range(60))
def test_it_comes_to_what_marking_every_batch_at_every_reset_comes_to(seed: int) -> None:
    marking = Marking(Random(seed))
    for _ in range(40):
        marking.chance.choice([marking.begin, marking.begin, marking.reset, marking.answer, marking.prove])()
    found = rewinds({e: SeekMap({p(n): entry(o) for n, o in held.items()}) for e, held in marking.maps.items()})
    stored = [
        replace(b, undone_from={}, outcome=Outcome.DONE if b.outcome is Outcome.UNDONE else b.outcome)
        for b in marking.batches
    ]
    assert [found.seen_in(row) for row in stored] == marking.batches
