"""What became of the records of a group, judged by what its delivery promises: output, table and ledger.

Three witnesses: what the pipeline wrote by itself (`plain_engine`, beside any sink), what the declared table holds, and
the ledger with its history. `Promised` is what they have to agree on, whatever was killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import psycopg

from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.region.rows import ResetCause
from airflow_kcr.protocol.rules import Delivery
from tests.support.databases import libpq
from tests.support.member_accounts import Place, Witnesses
from tests.support.plain_engine import Written
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
    seen = Witnesses.of(history, rows)
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
    _require((one for one in seen.causes() if one[2] is None), "written again, and no reset accounts for it")
    causes = Counter(cause for _, _, cause in seen.causes())
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
