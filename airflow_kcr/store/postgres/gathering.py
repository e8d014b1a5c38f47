"""Reading several tables with one statement.

What a statement costs is mostly its way to the server and back and the driver's work for it, not its rows. So what
rules ask for together is read together: with the region's own row the tables that nearly every rule asks for, and with
the claims what belongs to the base and to the open cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Columns
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import TextualSelect, text

from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.rows import Claim, Contribution
from airflow_kcr.protocol.values import GroupPartition, Sequence
from airflow_kcr.store.postgres.columns import PARTITION
from airflow_kcr.store.postgres.layouts import (
    CHECKPOINTS,
    CLAIMS,
    CONTRIBUTORS,
    ECHOES,
    FROZEN,
    LEASES,
    MEMBERS,
    OFFSETS,
    PERSON_RESETS,
    REQUESTS,
    ContributionKey,
    MapLayout,
)
from airflow_kcr.store.postgres.lazy import Whole
from airflow_kcr.store.postgres.row_layout import Layout, partition_of
from airflow_kcr.store.postgres.session import Found, Session, positional

K = TypeVar("K")
V = TypeVar("V")

HEAD_COLUMNS: Final = (
    "spec",
    "spec_revision",
    "next_spec",
    "next_spec_revision",
    "state",
    "wanted",
    "epoch",
    "lineage",
    "next_sequence",
    "counter",
    "base",
    "base_epoch",
    "next_bound",
    "held_bound",
    "failures",
    "open_cut",
    "stopping",
    "halt",
    "due_at",
    "initialised",
    "outsiders",
    "spec_checks",
    "unowned",
)
"""The columns of the region's own row, after id and name."""

HEAD: Final = (
    f"clock_timestamp(), r.id, {', '.join(f'r.{c}' for c in HEAD_COLUMNS)}, "
    "EXISTS (SELECT FROM kcr.skip s WHERE s.region_id = r.id)"
)
"""What is read of a region at once: the store's clock, its id, its own row, and whether any record is skipped."""

HEAD_WIDTH: Final = 2 + len(HEAD_COLUMNS) + 1
"""How many columns that is."""

# -- with the region's own row ---------------------------------------------------------------------------------------

BESIDE: Final[tuple[Layout[Any, Any], ...]] = (MEMBERS, LEASES, CHECKPOINTS, REQUESTS, PERSON_RESETS)
"""What nearly every rule asks for, and what comes after it (`due.settle`)."""


def _rows_of(layout: Layout[Any, Any], condition: str = "") -> str:
    """Return what joins a region's row with all rows of a table, gathered in one."""
    name = layout.table.name
    return (
        f"CROSS JOIN LATERAL (SELECT {', '.join(layout.gathered('t'))} "  # noqa: S608 (constants of this package)
        f"FROM kcr.{name} t WHERE t.region_id = r.id{condition}) {name}"
    )


def _head_and(tables: Mapping[Layout[Any, Any], str]) -> TextualSelect:
    """Return the statement that reads `HEAD` and then tables, each with what else has to hold of its rows."""
    chosen = ", ".join((HEAD, *(f"{layout.table.name}.*" for layout in tables)))
    joined = " ".join(_rows_of(layout, condition) for layout, condition in tables.items())
    width = HEAD_WIDTH + sum(layout.width for layout in tables)
    return positional(text(f"SELECT {chosen} FROM kcr.region r {joined} WHERE r.name = :name"), width)  # noqa: S608


# name: region_head — a statement of its own, after the one that waits.
REGION: Final = _head_and(dict.fromkeys(BESIDE, ""))

# name: member_head — what one member sees; no lock before it.
MEMBERS_REGION: Final = _head_and(
    {**dict.fromkeys(BESIDE, ""), CLAIMS: " AND t.group_id = :group AND t.owner_index = :index"}
)


def beside(row: Found, layouts: Iterable[Layout[Any, Any]]) -> Iterator[Whole[Any, Any]]:
    """Yield the tables that were read with a head; they are made into rows when a rule asks for them."""
    begin = HEAD_WIDTH
    for layout in layouts:
        end = begin + layout.width
        yield Whole(partial(_joined, layout, row[begin:end]))
        begin = end


def _joined(layout: Layout[K, V], gathered: Columns[Any]) -> dict[K, V]:
    return dict(map(layout.join, layout.scattered(gathered)))


# -- with the claims -------------------------------------------------------------------------------------------------

_CONTRIBUTED: Final = (
    "topic",
    "partition",
    "next_offset",
    "committed_offset",
    "log_start",
    "log_end",
    "log_topic_id",
    "log_leader_epoch",
)


def _contributions_to(number: str) -> str:
    """Return the expression of all contributions to the cut of a bound number, as JSON."""
    part = ", ".join(f"o.{column}" for column in _CONTRIBUTED)
    return f"""(
        SELECT json_agg(json_build_array({CONTRIBUTORS.selected("c")[0]}, (
            SELECT json_agg(json_build_array({part})) FROM kcr.contribution_offset o
            WHERE o.region_id = c.region_id AND o.sequence = c.sequence AND o.group_id = c.group_id
              AND o.member_index = c.member_index)))
        FROM kcr.contribution c WHERE c.region_id = :region AND c.sequence = :{number})"""  # noqa: S608 (constants of this package)


def _map_of(layout: MapLayout, number: str) -> str:
    """Return one map's rows, gathered, as a table."""
    arrays = ", ".join(f"array_agg({column})" for column in (*PARTITION, *layout.values))
    name = layout.table.name
    return f"(SELECT {arrays} FROM kcr.{name} WHERE region_id = :region AND {layout.number} = :{number}) {name}"  # noqa: S608


_MAPS: Final = {OFFSETS: "base", ECHOES: "base", FROZEN: "open_cut"}
"""The maps that are read with the claims, and whose."""

_CLAIMS: Final = slice(2, 2 + CLAIMS.width)


def _places() -> dict[MapLayout, slice]:
    """Return which columns of the statement below are a map's."""
    places, begin = dict[MapLayout, slice](), _CLAIMS.stop
    for layout in _MAPS:
        places[layout] = slice(begin, begin + len(PARTITION) + len(layout.values))
        begin = places[layout].stop
    return places


_PLACES: Final = _places()

# name: claims_and_cuts — the claims, whether a batch runs, what belongs to the base, and what to the open cut.
_CLAIMS_AND_CUTS: Final = positional(
    text(f"""
    SELECT EXISTS (SELECT FROM kcr.batch b WHERE b.region_id = :region AND b.outcome IS NULL),
           {_contributions_to("open_cut")}, claim.*, {", ".join(f"{layout.table.name}.*" for layout in _MAPS)}
    FROM (SELECT {", ".join(CLAIMS.gathered("t"))} FROM kcr.claim t WHERE t.region_id = :region) claim,
         {", ".join(_map_of(layout, number) for layout, number in _MAPS.items())}
"""),  # noqa: S608 (constants of this package)
    max(place.stop for place in _PLACES.values()),
)

# name: contributions_to — what each member contributed to one cut.
_CONTRIBUTIONS_TO: Final = positional(text(f"SELECT {_contributions_to('sequence')}"), 1)


# name: all_contributions — the members' rows, and the partitions'; whoever joins them knows how many they are.
_CONTRIBUTORS: Final = positional(
    text(f"SELECT {CONTRIBUTORS.selected('c')[0]} FROM kcr.contribution c WHERE c.region_id = :region"),  # noqa: S608
    CONTRIBUTORS.width,
)
_ALL_CONTRIBUTED: Final = text(
    f"SELECT sequence, group_id, member_index, {', '.join(_CONTRIBUTED)} "  # noqa: S608 (constants of this package)
    "FROM kcr.contribution_offset WHERE region_id = :region"
)


class ClaimsAndCuts:
    """The claims, with what belongs to the base and to the open cut: read at once, when the first of them is needed.

    Args:
        session: the transaction.
        base: the cut that is the region's base, if one is.
        open_cut: the cut that is open, if one is.
    """

    __slots__ = ("_numbers", "_row", "_session")

    def __init__(self, session: Session, base: Sequence | None, open_cut: Sequence | None) -> None:
        self._session = session
        self._numbers = {"base": base, "open_cut": open_cut}
        self._row: Found | None = None

    def claims(self) -> dict[GroupPartition, Claim]:
        """Return every claim."""
        return _joined(CLAIMS, self._read()[_CLAIMS])

    def does_any_batch_run(self) -> bool:
        """Whether a batch has begun and not ended."""
        return bool(self._read()[0])

    def contributions(self, sequence: Sequence) -> dict[ContributionKey, Contribution]:
        """Return what was contributed to one cut."""
        if sequence == self._numbers["open_cut"]:
            return _contributions(self._read()[1])
        return _contributions(self._session.rows(_CONTRIBUTIONS_TO, sequence=sequence)[0][0])

    def all_contributions(self) -> dict[ContributionKey, Contribution]:
        """Return what was contributed to every cut; some of it may be from before a retirement, some from after."""
        rows: dict[tuple[object, ...], list[Columns[Any]]] = {}
        for sequence, group, index, *held in self._session.rows(_ALL_CONTRIBUTED):
            rows.setdefault((sequence, group, index), []).append(held)
        contributors = self._session.rows(_CONTRIBUTORS)
        return dict(_contribution(whole, rows.get(tuple(whole[:3]), [])) for (whole,) in contributors)

    def rows_of(self, layout: MapLayout, number: int) -> Columns[Columns[Any]] | None:
        """Return the rows of a map; None where they were not read, and nothing is read for it."""
        if layout is ECHOES and number == self._numbers["open_cut"]:
            return []  # echoes are the base's
        if self._row is None or layout not in _MAPS or self._numbers[_MAPS[layout]] != number:
            return None
        gathered = self._row[_PLACES[layout]]
        return [] if gathered[0] is None else list(zip(*gathered, strict=True))

    def _read(self) -> Found:
        if self._row is None:
            self._row = self._session.rows(_CLAIMS_AND_CUTS, **self._numbers)[0]
        return self._row


def _contributions(found: list[Any] | None) -> dict[ContributionKey, Contribution]:
    return dict(_contribution(whole, rows or []) for whole, rows in found or [])


def _contribution(whole: list[Any], rows: Iterable[Columns[Any]]) -> tuple[ContributionKey, Contribution]:
    key, by = CONTRIBUTORS.join((whole,))
    parts = [(partition_of(key[1].group, topic, partition), *held) for topic, partition, *held in rows]
    return key, Contribution(
        incarnation=by.incarnation,
        contributed_at=by.contributed_at,
        offsets=OffsetMap([(p, offset) for p, offset, *_ in parts]),
        committed=OffsetMap([(p, committed) for p, _, committed, *_ in parts if committed is not None]),
        bounds={
            p: LogBounds(start=start, end=end, topic_id=topic_id, leader_epoch=leader_epoch)
            for p, _, _, start, end, topic_id, leader_epoch in parts
            if start is not None
        },
    )
