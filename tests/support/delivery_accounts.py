"""What became of the records of a group, judged by what its delivery promises: output, table and ledger.

Three witnesses: what the pipeline wrote by itself (`plain_engine`, beside any sink), what the declared table holds, and
the ledger with its history. `Promised` is what they have to agree on, whatever was killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise

import psycopg

from airflow_kcr.protocol.invariants.accounting import redeliveries
from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.region.rows import Batch, Outcome, ResetCause
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.values import BatchId
from tests.support.member_accounts import Place
from tests.support.plain_engine import Written
from tests.support.sink_tables import libpq
from tests.support.verifying import verify

_FIRST = 5
"""How many records are named in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """Counts over a whole history; two of them subtracted are what happened in between."""

    lost: int
    """Records that the pipeline has never processed."""

    lost_in_table: int
    """Records that are not in the table."""

    twice: int
    """How often a record was processed once more than once."""

    twice_in_table: int
    """Rows of records that the table has already."""

    replayed: int
    """How many of `twice` a person's reset accounts for."""

    again: int
    """How many of `twice` resets after a failure account for."""

    ledger: int
    """How often the ledger has a record as started once more than once, each for a reset."""

    unwritten: int
    """How many started records were never processed by the batch that had started them: it died before."""

    in_flight: int
    """Batches whose records were processed again after a failure, though their own end was never accepted."""

    def since(self, other: Delivered) -> Delivered:
        """Return what came after another count."""
        return Delivered(**{n: getattr(self, n) - getattr(other, n) for n in Delivered.__slots__})

    @property
    def exact(self) -> bool:
        """Whether the ledger's account of repetitions is the output's, to the record."""
        return self.twice == self.ledger - self.unwritten + self.lost == self.replayed + self.again


NOTHING = Delivered(**dict.fromkeys(Delivered.__slots__, 0))


class Broken(AssertionError):
    """A promise of the delivery was not kept."""


def delivered(
    delivery: Delivery,
    history: History,
    rows: Iterable[Written],
    table: Sequence[Place],
    wanted: AbstractSet[Place],
) -> Delivered:
    """Judge, and count.

    Args:
        delivery: of the group.
        history: events and ledger, read when no process had anything left to do.
        rows: what the pipeline wrote by itself.
        table: the records of the declared table, one entry for each row.
        wanted: the records that there are.

    Raises:
        Broken: a promise was not kept, or a witness contradicts another one.
    """
    _require(map(str, verify(history)), "verify has findings")
    seen = _Witnesses.of(history, rows)
    _require(seen.strange(), "the pipeline has written what the ledger does not know")
    _require(seen.silent(), "the ledger has as done what nobody has written")
    kept = Counter(table)
    lost = {place for place in wanted if not seen.writers.get(place)}
    lost_in_table = {place for place in wanted if not kept[place]}
    _require((p for p, n in kept.items() if n > 1 or p not in wanted), "a row is in the table twice, or of no record")
    if delivery is Delivery.AT_MOST_ONCE:
        # Everything that is missing was in a batch that began and whose end was never accepted.
        _require((p for p in lost | lost_in_table if not seen.has_died_with(p)), "missing, and no batch explains it")
        _require((p for p in lost if len(seen.begun.get(p, ())) != 1 and not seen.replays), "begun again, and lost")
    else:
        _require(lost, "missing")
        _require(lost_in_table, "missing in the table")
    causes = seen.causes()
    again = sum(n for cause, n in causes.items() if cause is not ResetCause.PERSON)
    if delivery is Delivery.AT_MOST_ONCE and again:
        raise Broken(f"at_most_once, and {again} records were processed twice: {dict(causes)}")
    in_flight = seen.in_flight()
    if delivery is Delivery.ALMOST_ONCE:
        _require(seen.repeated_though_done(), "almost_once, and a batch was repeated that was done")
    found = Delivered(
        lost=len(lost),
        lost_in_table=len(lost_in_table),
        twice=sum(len(batches) - 1 for batches in seen.writers.values()),
        twice_in_table=sum(kept.values()) - len(kept),
        replayed=causes[ResetCause.PERSON],
        again=again,
        ledger=seen.ledger,
        unwritten=sum(len(set(seen.begun[p]) - set(seen.writers.get(p, ()))) for p in seen.begun),
        in_flight=len(in_flight),
    )
    if not found.exact:
        raise Broken(f"the output and the ledger's account differ: {found}")
    return found


def rows_of(url: str, table: str) -> list[Place]:
    """Return the record of each row of a table; none where no batch has made it yet."""
    with psycopg.connect(libpq(url)) as connection:
        if connection.execute("SELECT to_regclass(%s)", [table]).fetchone() == (None,):
            return []
        return connection.execute(f"SELECT kcr_topic, kcr_partition, kcr_offset FROM {table}").fetchall()


def _require(found: Iterable[object], what: str) -> None:
    some = list(found)
    if some:
        raise Broken(f"{what}: {len(some)}, the first are {some[:_FIRST]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Witnesses:
    """Who began a record, who wrote it, and what the ledger says of its repetitions."""

    batches: Mapping[BatchId, Batch]
    order: Mapping[BatchId, int]
    begun: Mapping[Place, tuple[BatchId, ...]]
    writers: Mapping[Place, tuple[BatchId, ...]]
    again: Mapping[Place, Mapping[BatchId, ResetCause | None]]
    ledger: int

    @classmethod
    def of(cls, history: History, rows: Iterable[Written]) -> _Witnesses:
        order = {batch.batch: number for number, batch in enumerate(history.batches)}
        begun: dict[Place, list[BatchId]] = {}
        for batch in history.batches:
            for p, r in batch.ranges.items():
                for offset in range(r.from_, r.to):
                    begun.setdefault((p.topic, p.partition, offset), []).append(batch.batch)
        writers: dict[Place, list[BatchId]] = {}
        for row in rows:
            writers.setdefault((row.topic, row.partition, row.offset), []).append(BatchId(row.batch))
        again: dict[Place, dict[BatchId, ResetCause | None]] = {}
        ledger = 0
        for one in redeliveries(history):
            ledger += one.range.width
            for offset in range(one.range.from_, one.range.to):
                place = (one.partition.topic, one.partition.partition, offset)
                again.setdefault(place, {})[one.batch] = None if one.reset is None else one.reset.cause
        return cls(
            batches={batch.batch: batch for batch in history.batches},
            order=order,
            begun={place: tuple(ids) for place, ids in begun.items()},
            writers={p: tuple(sorted(ids, key=lambda b: order.get(b, -1))) for p, ids in writers.items()},
            again=again,
            ledger=ledger,
        )

    @property
    def replays(self) -> bool:
        """Whether a person has had anything processed again."""
        return any(ResetCause.PERSON in by.values() for by in self.again.values())

    def strange(self) -> list[tuple[Place, BatchId]]:
        """What was written by a batch that had not started it, or twice by one."""
        return [
            (place, batch)
            for place, ids in self.writers.items()
            for batch, n in Counter(ids).items()
            if n > 1 or batch not in self.begun.get(place, ())
        ]

    def silent(self) -> list[tuple[Place, BatchId]]:
        """What a batch that is done has not written."""
        return [
            (place, batch)
            for place, ids in self.begun.items()
            for batch in ids
            if self._was_done(batch) and batch not in self.writers.get(place, ())
        ]

    def has_died_with(self, place: Place) -> bool:
        """Whether the newest batch that began a record has never ended."""
        ids = self.begun.get(place, ())
        return bool(ids) and not self._was_done(ids[-1])

    def causes(self) -> Counter[ResetCause | None]:
        """Why records were written again, by the ledger.

        Raises:
            Broken: the ledger knows of no reset for one.
        """
        found: Counter[ResetCause | None] = Counter()
        for place, _, batch in self._repeated():
            cause = self.again.get(place, {}).get(batch)
            if cause is None:
                raise Broken(f"{place} was written again by {batch}, and no reset accounts for it")
            found[cause] += 1
        return found

    def in_flight(self) -> set[BatchId]:
        """The batches without an accepted end of which something was written again after a failure."""
        return {
            earlier
            for place, earlier, batch in self._repeated()
            if self.again[place][batch] is not ResetCause.PERSON and not self._was_done(earlier)
        }

    def repeated_though_done(self) -> list[tuple[Place, BatchId]]:
        """What was written again after a failure though its batch was done."""
        return [
            (place, earlier)
            for place, earlier, batch in self._repeated()
            if self.again[place][batch] is not ResetCause.PERSON and self._was_done(earlier)
        ]

    def _repeated(self) -> Iterable[tuple[Place, BatchId, BatchId]]:
        """Each time that a record was written again: by whom before, and by whom."""
        for place, ids in self.writers.items():
            for earlier, batch in pairwise(ids):
                yield place, earlier, batch

    def _was_done(self, batch: BatchId) -> bool:
        return self.batches[batch].outcome in {Outcome.DONE, Outcome.UNDONE}
