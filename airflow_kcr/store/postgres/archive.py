"""The archive of one region in Postgres: each question one statement, answered by an index (`sql/archive.sql`).

While a decision's transaction lasts the questions are asked in it, and so are answered as of the same moment. A region
that was only read keeps its archive: each question is then a short transaction of its own, and rows of the past don't
change but for what becomes of a checkpoint (published, committed, undone, retired).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from collections.abc import Sequence as Columns
from datetime import datetime
from typing import Any, Final, TypeVar

from typing_extensions import override

from airflow_kcr.protocol import values
from airflow_kcr.protocol.offsets import OffsetMap, SeekMap
from airflow_kcr.protocol.region.archive import (
    ATTEMPTS,
    ENDS,
    Archive,
    CheckpointPage,
    LogStart,
    Named,
    RegionPage,
    ResetPage,
    Stretch,
    or_last,
)
from airflow_kcr.protocol.region.rows import BoundaryKey, BoundaryOffset, Contribution
from airflow_kcr.protocol.values import GroupPartition
from airflow_kcr.store.postgres import layouts
from airflow_kcr.store.postgres.row_layout import JsonLayout, partition_columns
from airflow_kcr.store.postgres.session import Session
from airflow_kcr.store.postgres.statements import load

K = TypeVar("K")
V = TypeVar("V")

SQL: Final = load("archive", ends=ENDS, following=ATTEMPTS, **layouts.ROWS)

_LAYOUTS: Final[Mapping[object, JsonLayout[Any, Any]]] = {
    layout.row: layout for layout in (layouts.REQUESTS, layouts.PERSON_RESETS, layouts.CHECKPOINTS, layouts.RESETS)
}
"""The classes of rows that questions are answered with."""

PIECE: Final = 1_000
"""Checkpoints that a statement compares with where a timeline opens."""


class PostgresArchive(Archive):
    """The past of one region, as Postgres has it.

    Args:
        session: of the transaction that the region was read in.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    # One row, and what belongs to it

    @override
    def named(self, request_id: values.RequestId) -> Named:
        request, reset = self._session.rows(SQL["named"], request_id=request_id)[0]
        return _only(layouts.REQUESTS, request), _only(layouts.PERSON_RESETS, reset)

    @override
    def offsets(self, sequences: Collection[values.CheckpointNumber]) -> Mapping[values.CheckpointNumber, OffsetMap]:
        wanted = list(sequences)
        if not wanted:
            return {}
        rows: dict[values.CheckpointNumber, list[Columns[Any]]] = {}
        for sequence, *columns in self._session.rows(SQL["offsets"], sequences=wanted):
            rows.setdefault(sequence, []).append(columns)
        found = {sequence: layouts.offset_map(columns) for sequence, columns in rows.items()}
        if len(found) < len(wanted):
            empty = self._session.rows(SQL["complete"], sequences=[s for s in wanted if s not in found])
            found |= {sequence: OffsetMap() for (sequence,) in empty}
        return found

    @override
    def frozen(self, sequence: values.CheckpointNumber) -> frozenset[GroupPartition]:
        return frozenset(GroupPartition(g, t, p) for g, t, p in self._session.rows(SQL["frozen"], sequence=sequence))

    @override
    def read_backs(self, sequence: values.CheckpointNumber) -> OffsetMap:
        return layouts.offset_map(self._session.rows(SQL["read_backs"], sequence=sequence))

    @override
    def contributions(self, sequence: values.CheckpointNumber) -> Mapping[values.MemberId, Contribution]:
        return layouts.contributions_from(self._session.rows(SQL["contributions"], sequence=sequence)[0][0])

    def contribution_of(
        self, sequence: values.CheckpointNumber, member: values.MemberId
    ) -> Mapping[values.MemberId, Contribution]:
        """Return what one member contributed to a checkpoint, under its id; nothing if it has not."""
        given = {"sequence": sequence, "group": member.group, "index": member.index}
        return layouts.contributions_from(self._session.rows(SQL["contribution_of"], **given)[0][0])

    @override
    def seek_map(self, epoch: values.Epoch) -> SeekMap | None:
        found = layouts.seek_maps(list(zip(*self._session.rows(SQL["seek_map"], epoch=epoch), strict=True)))
        return found.get(epoch) or (None if self.reset(epoch) is None else SeekMap({}))

    @override
    def boundary_offsets(self, boundary: datetime) -> Mapping[BoundaryKey, BoundaryOffset]:
        rows = self._session.rows(SQL["boundary_offsets"], boundary=boundary)
        return layouts.BOUNDARY_OFFSETS.read(list(zip(*rows, strict=True)))

    # The current timeline

    @override
    def undone_by(
        self, opening: OffsetMap, covered: values.CheckpointNumber | None, retired: Collection[values.CheckpointNumber]
    ) -> tuple[values.CheckpointNumber, ...]:
        # In pieces, from the newest kept checkpoint to the oldest. Offsets along the current timeline only grow: so
        # what is older than one that stays does as well, but for partitions that this one lacks, and nothing else of
        # it is read.
        gone: list[values.CheckpointNumber] = []
        about = {"covered": covered, "after": covered or 0, "retired": list(retired), "piece": PIECE}
        before: int = values.MAX_NUMBER
        newest, is_last = None, False
        lacking: list[Any] | None = None
        while newest is None and not is_last:
            kept, newest, lacking = self._session.rows(SQL["covered"], before=before, **about, **_opening(opening))[0]
            gone += [sequence for sequence in kept if newest is None or sequence > newest]
            is_last = len(kept) < PIECE
            before = kept[-1] if kept else before
        oldest = newest or covered
        if oldest is not None and lacking:
            open_there = opening.restrict([GroupPartition(g, t, p) for g, t, p in lacking])
            gone += self._beyond(open_there, oldest, retired)
        covered = newest if covered is None else covered
        after = 0 if covered is None else covered
        gone += [sequence for (sequence,) in self._session.rows(SQL["retired_after"], after=after)]
        return tuple(sorted({*gone, *(sequence for sequence in retired if sequence > after)}))

    def _beyond(
        self, opening: OffsetMap, before: int, retired: Collection[values.CheckpointNumber]
    ) -> Iterator[values.CheckpointNumber]:
        """Yield the kept current checkpoints before one that lie beyond where a timeline opens."""
        about = {"after": 0, "retired": list(retired), "piece": PIECE}
        while rows := self._session.rows(SQL["judged"], before=before, **about, **_opening(opening)):
            yield from (sequence for sequence, stays in rows if not stays)
            before = rows[-1][0]

    @override
    def undone(
        self, timelines: Collection[values.Timeline]
    ) -> Mapping[values.Timeline, tuple[values.CheckpointNumber, ...]]:
        found: dict[values.Timeline, list[values.CheckpointNumber]] = {timeline: [] for timeline in timelines}
        for timeline, sequence in self._session.rows(SQL["undone"], timelines=list(timelines)):
            found[timeline].append(sequence)
        return {timeline: tuple(sequences) for timeline, sequences in found.items()}

    @override
    def stretches(self, since: values.Timeline) -> tuple[Stretch, ...]:
        return tuple(Stretch(*row) for row in self._session.rows(SQL["stretches"], since=since))

    # One record

    # Lists

    @override
    def count(self) -> int:
        return int(self._session.rows(SQL["count"])[0][0])

    @override
    def checkpoint_page(self, *, before: values.CheckpointNumber | None, last: int | None) -> CheckpointPage:
        return _checkpoint_page(self._session.rows(SQL["checkpoint_page"], before=or_last(before), last=last)[0])

    @override
    def region_page(self, newest: values.CheckpointNumber | None, last: int) -> RegionPage:
        (found,) = self._session.rows(SQL["region_page"], newest=newest, **reset_bounds(None, last))
        contributed, resets, following, persons, undone, *checkpoints = found
        return RegionPage(
            checkpoints=_checkpoint_page(checkpoints),
            resets=reset_page_from((resets, following, persons, undone)),
            contributions=layouts.contributions_from(contributed),
        )

    @override
    def topics(self, sequence: values.CheckpointNumber) -> Mapping[GroupPartition, values.TopicId]:
        found: dict[GroupPartition, values.TopicId] = {}
        for row in self._session.rows(SQL["topics"], sequence=sequence):
            found.update(_of_topic(row))
        return found

    @override
    def reset_page(self, *, before: values.CheckpointNumber | None, last: int | None) -> ResetPage:
        return reset_page_from(self._session.rows(SQL["reset_page"], **reset_bounds(before, last))[0])

    # Resets and retention

    @override
    def kept(self) -> int:
        return int(self._session.rows(SQL["kept"])[0][0])

    @override
    def nth_complete(self, place: int) -> values.CheckpointNumber | None:
        rows = self._session.rows(SQL["nth_complete"], place=place - 1)
        return rows[0][0] if rows else None

    @override
    def found(self, of: type[V], question: str, **parameters: object) -> tuple[V, ...]:
        return tuple(_LAYOUTS[of].read([row for (row,) in self._session.rows(SQL[question], **parameters)]).values())


def _only(layout: JsonLayout[K, V], row: list[Any] | None) -> V | None:
    return None if row is None else next(iter(layout.read([row]).values()))


def _opening(offsets: OffsetMap) -> dict[str, object]:
    return {**partition_columns(offsets), "offsets": list(offsets.values())}


def _of_topic(columns: Columns[Any]) -> dict[GroupPartition, values.TopicId]:
    group, topic, topic_id, partitions = columns
    return {GroupPartition(group, topic, p): values.TopicId(topic_id) for p in partitions}


# Pages


def reset_bounds(before: values.CheckpointNumber | None, last: int | None) -> dict[str, object]:
    """Return the parameters of a page: `last` rows below a number, and the attempts of resets that belong to them."""
    return {"before": or_last(before), "last": last, "attempts": None if last is None else last * ATTEMPTS + 1}


def _checkpoint_page(columns: Columns[Any]) -> CheckpointPage:
    rows, requests, complete, places, topics, *seen = columns
    held: dict[values.CheckpointNumber, list[Columns[Any]]] = {sequence: [] for sequence in complete}
    for sequence, group, topic, partitions, offsets in places or ():
        held[sequence].extend((group, topic, p, o) for p, o in zip(partitions, offsets, strict=True))
    ids: dict[values.CheckpointNumber, dict[GroupPartition, values.TopicId]] = {sequence: {} for sequence in complete}
    for sequence, *one in topics or ():
        ids[sequence].update(_of_topic(one))
    log_starts: dict[GroupPartition, list[LogStart]] = {}
    for group, topic, partition, last_seen, first_seen, start, topic_id in zip(*(c or () for c in seen), strict=True):
        row = LogStart(last_seen, first_seen, values.Offset(start), values.TopicId(topic_id))
        log_starts.setdefault(GroupPartition(group, topic, partition), []).append(row)
    return CheckpointPage(
        checkpoints=tuple(layouts.CHECKPOINTS.read(rows).values()),
        requests=tuple(layouts.REQUESTS.read(requests).values()),
        offsets={sequence: layouts.offset_map(columns) for sequence, columns in held.items()},
        topics=ids,
        log_starts={partition: tuple(sorted(starts)) for partition, starts in log_starts.items()},
    )


def reset_page_from(columns: Columns[Any]) -> ResetPage:
    """Return the page of resets that `reset_page` has read."""
    resets, following, persons, undone = columns
    return ResetPage(
        resets=tuple(layouts.RESETS.read(resets).values()),
        following=tuple(layouts.RESETS.read(following).values()),
        persons=tuple(layouts.PERSON_RESETS.read(persons).values()),
        undone={timeline: tuple(sequences) for timeline, sequences in undone or ()},
    )
