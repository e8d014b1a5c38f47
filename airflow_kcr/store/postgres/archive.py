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
)
from airflow_kcr.protocol.region.rows import (
    BoundaryKey,
    BoundaryOffset,
    Checkpoint,
    CheckpointRequest,
    Contribution,
    PersonReset,
    ResetAttempt,
)
from airflow_kcr.protocol.values import (
    MAX_NUMBER,
    CheckpointNumber,
    Epoch,
    GroupPartition,
    MemberId,
    Offset,
    RequestId,
    Timeline,
    TopicId,
)
from airflow_kcr.store.postgres import layouts
from airflow_kcr.store.postgres.row_layout import JsonLayout, partition_columns
from airflow_kcr.store.postgres.session import Session
from airflow_kcr.store.postgres.statements import load

K = TypeVar("K")
V = TypeVar("V")

SQL: Final = load(
    "archive",
    request=layouts.REQUESTS.selected("t"),
    person_reset=layouts.PERSON_RESETS.selected("t"),
    checkpoint=layouts.CHECKPOINTS.selected("t"),
    reset=layouts.RESETS.selected("t"),
    seek=layouts.SEEKS.selected("t"),
    boundary_offset=layouts.BOUNDARY_OFFSETS.selected("t"),
    contributions=layouts.CONTRIBUTIONS,
    ends=ENDS,
    following=ATTEMPTS,
)

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
    def request(self, request_id: RequestId) -> CheckpointRequest | None:
        return self._one(layouts.REQUESTS, "request", request_id=request_id)

    @override
    def person_reset(self, request_id: RequestId) -> PersonReset | None:
        return self._one(layouts.PERSON_RESETS, "person_reset", request_id=request_id)

    @override
    def named(self, request_id: RequestId) -> Named:
        request, reset = self._session.rows(SQL["named"], request_id=request_id)[0]
        return Named(_only(layouts.REQUESTS, request), _only(layouts.PERSON_RESETS, reset))

    @override
    def checkpoint(self, sequence: CheckpointNumber) -> Checkpoint | None:
        return self._one(layouts.CHECKPOINTS, "checkpoint", sequence=sequence)

    @override
    def reset(self, epoch: Epoch) -> ResetAttempt | None:
        return self._one(layouts.RESETS, "reset", epoch=epoch)

    @override
    def offsets(self, sequences: Collection[CheckpointNumber]) -> Mapping[CheckpointNumber, OffsetMap]:
        wanted = list(sequences)
        if not wanted:
            return {}
        rows: dict[CheckpointNumber, list[Columns[Any]]] = {}
        for sequence, *columns in self._session.rows(SQL["offsets"], sequences=wanted):
            rows.setdefault(sequence, []).append(columns)
        found = {sequence: layouts.offset_map(columns) for sequence, columns in rows.items()}
        if len(found) < len(wanted):
            empty = self._session.rows(SQL["complete"], sequences=[s for s in wanted if s not in found])
            found |= {sequence: OffsetMap() for (sequence,) in empty}
        return found

    @override
    def frozen(self, sequence: CheckpointNumber) -> frozenset[GroupPartition]:
        return frozenset(GroupPartition(g, t, p) for g, t, p in self._session.rows(SQL["frozen"], sequence=sequence))

    @override
    def read_backs(self, sequence: CheckpointNumber) -> OffsetMap:
        return layouts.offset_map(self._session.rows(SQL["read_backs"], sequence=sequence))

    @override
    def contributions(self, sequence: CheckpointNumber) -> Mapping[MemberId, Contribution]:
        return layouts.contributions_from(self._session.rows(SQL["contributions"], sequence=sequence)[0][0])

    def contribution_of(self, sequence: CheckpointNumber, member: MemberId) -> Mapping[MemberId, Contribution]:
        """Return what one member contributed to a checkpoint, under its id; nothing if it has not."""
        given = {"sequence": sequence, "group": member.group, "index": member.index}
        return layouts.contributions_from(self._session.rows(SQL["contribution_of"], **given)[0][0])

    @override
    def seek_map(self, epoch: Epoch) -> SeekMap | None:
        found = layouts.seek_maps(list(zip(*self._session.rows(SQL["seek_map"], epoch=epoch), strict=True)))
        return found.get(epoch) or (None if self.reset(epoch) is None else SeekMap({}))

    @override
    def boundary_offsets(self, boundary: datetime) -> Mapping[BoundaryKey, BoundaryOffset]:
        rows = self._session.rows(SQL["boundary_offsets"], boundary=boundary)
        return layouts.BOUNDARY_OFFSETS.read(list(zip(*rows, strict=True)))

    # The current timeline

    @override
    def newest_aligned(self, up_to: CheckpointNumber | None) -> Checkpoint | None:
        return self._one(layouts.CHECKPOINTS, "newest_aligned", up_to=_or_last(up_to))

    @override
    def covering(self, boundary: datetime) -> Checkpoint | None:
        return self._one(layouts.CHECKPOINTS, "covering", boundary=boundary)

    @override
    def newest_usable(self, before: CheckpointNumber | None) -> Checkpoint | None:
        return self._one(layouts.CHECKPOINTS, "newest_usable", before=_or_last(before))

    @override
    def oldest_usable(self) -> Checkpoint | None:
        return self._one(layouts.CHECKPOINTS, "oldest_usable")

    @override
    def newest_current(self, before: CheckpointNumber | None) -> Checkpoint | None:
        return self._one(layouts.CHECKPOINTS, "newest_current", before=_or_last(before))

    @override
    def newest_published(self, before: CheckpointNumber | None) -> Checkpoint | None:
        return self._one(layouts.CHECKPOINTS, "newest_published", before=_or_last(before))

    @override
    def published_from(self, boundary: datetime | None, sequence: CheckpointNumber | None) -> Checkpoint | None:
        if boundary is None:
            return self._one(layouts.CHECKPOINTS, "published_from", least=sequence or 0)
        return self._one(layouts.CHECKPOINTS, "published_from_boundary", boundary=boundary, least=sequence or 0)

    @override
    def undone_by(
        self, opening: OffsetMap, covered: CheckpointNumber | None, retired: Collection[CheckpointNumber]
    ) -> tuple[CheckpointNumber, ...]:
        # In pieces, from the newest kept checkpoint to the oldest. Offsets along the current timeline only grow: so
        # what is older than one that stays does as well, but for partitions that this one lacks, and nothing else of
        # it is read.
        gone: list[CheckpointNumber] = []
        about = {"covered": covered, "after": covered or 0, "retired": list(retired), "piece": PIECE}
        before: int = MAX_NUMBER
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
        self, opening: OffsetMap, before: int, retired: Collection[CheckpointNumber]
    ) -> Iterator[CheckpointNumber]:
        """Yield the kept current checkpoints before one that lie beyond where a timeline opens."""
        about = {"after": 0, "retired": list(retired), "piece": PIECE}
        while rows := self._session.rows(SQL["judged"], before=before, **about, **_opening(opening)):
            yield from (sequence for sequence, stays in rows if not stays)
            before = rows[-1][0]

    @override
    def undone(self, timelines: Collection[Timeline]) -> Mapping[Timeline, tuple[CheckpointNumber, ...]]:
        found: dict[Timeline, list[CheckpointNumber]] = {timeline: [] for timeline in timelines}
        for timeline, sequence in self._session.rows(SQL["undone"], timelines=list(timelines)):
            found[timeline].append(sequence)
        return {timeline: tuple(sequences) for timeline, sequences in found.items()}

    @override
    def stretches(self, since: Timeline) -> tuple[Stretch, ...]:
        return tuple(Stretch(*row) for row in self._session.rows(SQL["stretches"], since=since))

    # One record

    @override
    def holding(self, partition: GroupPartition, offset: Offset, since: CheckpointNumber) -> Checkpoint | None:
        return self._one(layouts.CHECKPOINTS, "holding", since=since, **_place(partition, offset))

    @override
    def went_back(self, partition: GroupPartition, offset: Offset, after: Epoch) -> ResetAttempt | None:
        return self._one(layouts.RESETS, "went_back", after=after, **_place(partition, offset))

    # Lists

    @override
    def checkpoints(
        self, *, first: CheckpointNumber | None = None, before: CheckpointNumber | None = None, last: int | None = None
    ) -> tuple[Checkpoint, ...]:
        return self._rows(layouts.CHECKPOINTS, "checkpoints", first=first or 0, before=_or_last(before), last=last)[
            ::-1
        ]

    @override
    def count(self) -> int:
        return int(self._session.rows(SQL["count"])[0][0])

    @override
    def checkpoint_page(self, *, before: CheckpointNumber | None, last: int | None) -> CheckpointPage:
        return _checkpoint_page(self._session.rows(SQL["checkpoint_page"], before=_or_last(before), last=last)[0])

    @override
    def region_page(self, newest: CheckpointNumber | None, last: int) -> RegionPage:
        (found,) = self._session.rows(SQL["region_page"], newest=newest, **reset_bounds(None, last))
        contributed, resets, following, persons, undone, *checkpoints = found
        return RegionPage(
            checkpoints=_checkpoint_page(checkpoints),
            resets=reset_page_from((resets, following, persons, undone)),
            contributions=layouts.contributions_from(contributed),
        )

    @override
    def topics(self, sequence: CheckpointNumber) -> Mapping[GroupPartition, TopicId]:
        found: dict[GroupPartition, TopicId] = {}
        for row in self._session.rows(SQL["topics"], sequence=sequence):
            found.update(_of_topic(row))
        return found

    @override
    def resets(self, *, before: CheckpointNumber | None = None, last: int | None = None) -> tuple[ResetAttempt, ...]:
        return self._rows(layouts.RESETS, "resets", before=_or_last(before), last=last)[::-1]

    @override
    def resets_from(self, sequence: CheckpointNumber, limit: int) -> tuple[ResetAttempt, ...]:
        return self._rows(layouts.RESETS, "resets_from", sequence=sequence, limit=limit)

    @override
    def reset_page(self, *, before: CheckpointNumber | None, last: int | None) -> ResetPage:
        return reset_page_from(self._session.rows(SQL["reset_page"], **reset_bounds(before, last))[0])

    @override
    def requests_of_run(self, dag_id: str, run_id: str) -> tuple[CheckpointRequest, ...]:
        return self._rows(layouts.REQUESTS, "requests_of_run", dag=dag_id, run=run_id)

    @override
    def requests_for(self, sequences: Collection[CheckpointNumber]) -> tuple[CheckpointRequest, ...]:
        wanted = list(sequences)
        return self._rows(layouts.REQUESTS, "requests_for", sequences=wanted) if wanted else ()

    # Resets and retention

    @override
    def last_done(self, before: Epoch) -> ResetAttempt | None:
        return self._one(layouts.RESETS, "last_done", before=before)

    @override
    def kept(self) -> int:
        return int(self._session.rows(SQL["kept"])[0][0])

    @override
    def oldest_kept(self, limit: int) -> tuple[Checkpoint, ...]:
        return self._rows(layouts.CHECKPOINTS, "oldest_kept", limit=limit)

    @override
    def nth_complete(self, place: int) -> CheckpointNumber | None:
        rows = self._session.rows(SQL["nth_complete"], place=place - 1)
        return rows[0][0] if rows else None

    def _rows(self, layout: JsonLayout[K, V], name: str, **parameters: object) -> tuple[V, ...]:
        return tuple(layout.read([row for (row,) in self._session.rows(SQL[name], **parameters)]).values())

    def _one(self, layout: JsonLayout[K, V], name: str, **parameters: object) -> V | None:
        return next(iter(self._rows(layout, name, **parameters)), None)


def _only(layout: JsonLayout[K, V], row: list[Any] | None) -> V | None:
    return None if row is None else next(iter(layout.read([row]).values()))


def _or_last(number: CheckpointNumber | None) -> int:
    return MAX_NUMBER if number is None else number


def _opening(offsets: OffsetMap) -> dict[str, object]:
    return {**partition_columns(offsets), "offsets": list(offsets.values())}


def _place(partition: GroupPartition, offset: Offset) -> dict[str, object]:
    return {"group": partition.group, "topic": partition.topic, "partition": partition.partition, "offset": offset}


def _of_topic(columns: Columns[Any]) -> dict[GroupPartition, TopicId]:
    group, topic, topic_id, partitions = columns
    return {GroupPartition(group, topic, p): TopicId(topic_id) for p in partitions}


# Pages


def reset_bounds(before: CheckpointNumber | None, last: int | None) -> dict[str, object]:
    """Return the parameters of a page: `last` rows below a number, and the attempts of resets that belong to them."""
    return {"before": _or_last(before), "last": last, "attempts": None if last is None else last * ATTEMPTS + 1}


def _checkpoint_page(columns: Columns[Any]) -> CheckpointPage:
    rows, requests, complete, places, topics, *seen = columns
    held: dict[CheckpointNumber, list[Columns[Any]]] = {sequence: [] for sequence in complete}
    for sequence, group, topic, partitions, offsets in places or ():
        held[sequence].extend((group, topic, p, o) for p, o in zip(partitions, offsets, strict=True))
    ids: dict[CheckpointNumber, dict[GroupPartition, TopicId]] = {sequence: {} for sequence in complete}
    for sequence, *one in topics or ():
        ids[sequence].update(_of_topic(one))
    log_starts: dict[GroupPartition, list[LogStart]] = {}
    for group, topic, partition, last_seen, first_seen, start, topic_id in zip(*(c or () for c in seen), strict=True):
        row = LogStart(last_seen, first_seen, Offset(start), TopicId(topic_id))
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
