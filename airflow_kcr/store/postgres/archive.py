"""The archive of one region in Postgres: each question one statement, answered by an index.

While a decision's transaction lasts the questions are asked in it, and so are answered as of the same moment. A region
that was only read keeps its archive: each question is then a short transaction of its own, and rows of the past don't
change but for what becomes of a checkpoint (published, committed, undone, retired).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Sequence as Columns
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from psycopg.sql import SQL, Composable, Composed, Literal
from sqlalchemy import TextClause, text

from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry, SeekMap, SeekSource
from airflow_kcr.protocol.region.archive import (
    ATTEMPTS,
    ENDS,
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
from airflow_kcr.store.postgres.layouts import (
    BOUNDARY_OFFSETS,
    CHECKPOINTS,
    CONTRIBUTORS,
    PERSON_RESETS,
    REQUESTS,
    RESETS,
)
from airflow_kcr.store.postgres.row_layout import Layout, arrays_of, name_of, named, partition_columns, partition_of
from airflow_kcr.store.postgres.session import Session, composed
from airflow_kcr.store.postgres.tables import ALIGNED, CURRENT, TURN, USABLE

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Lookup(Generic[K, V]):
    """A statement that reads rows of one table, and how they are laid out."""

    layout: Layout[K, V]
    statement: TextClause


def lookup(layout: Layout[K, V], condition: Composable) -> Lookup[K, V]:
    """Return what reads a table's rows `t` of one region under a condition."""
    read = SQL("SELECT {chosen} FROM {table} t WHERE t.region_id = :region AND {condition}").format(
        chosen=layout.selected("t"), table=name_of(layout.table), condition=condition
    )
    return Lookup(layout, composed(read))


_CURRENT: Final = SQL(CURRENT)
_USABLE: Final = SQL(USABLE)
_ALIGNED: Final = SQL(ALIGNED)

# -- one row -----------------------------------------------------------------------------------------------------------

_REQUEST: Final = lookup(REQUESTS, SQL("t.request_id = :request_id"))
_PERSON_RESET: Final = lookup(PERSON_RESETS, SQL("t.request_id = :request_id"))
_CHECKPOINT: Final = lookup(CHECKPOINTS, SQL("t.sequence = :sequence"))
_RESET: Final = lookup(RESETS, SQL("t.epoch = :epoch"))

# name: named — what a request id names.
_NAMED: Final = composed(
    SQL("""
    SELECT (SELECT {request} FROM kcr.checkpoint_request t
            WHERE t.region_id = :region AND t.request_id = :request_id),
           (SELECT {person_reset} FROM kcr.person_reset t
            WHERE t.region_id = :region AND t.request_id = :request_id)
""").format(request=REQUESTS.selected("t"), person_reset=PERSON_RESETS.selected("t"))
)

# -- what belongs to one row -------------------------------------------------------------------------------------------

# name: retained_offsets — of several checkpoints.
_OFFSETS: Final = text(
    "SELECT sequence, group_id, topic, partition, next_offset FROM kcr.checkpoint_offset "
    "WHERE region_id = :region AND sequence = ANY (CAST(:sequences AS bigint[]))"
)
# name: complete_of — which of several checkpoints have offsets: at a first start the map may be empty.
_COMPLETE: Final = text(
    "SELECT sequence FROM kcr.checkpoint WHERE region_id = :region AND sequence = ANY (CAST(:sequences AS bigint[])) "
    "AND state IN ('complete', 'published')"
)
_FROZEN: Final = text(
    "SELECT group_id, topic, partition FROM kcr.checkpoint_partition WHERE region_id = :region AND sequence = :sequence"
)
_READ_BACKS: Final = text(
    "SELECT group_id, topic, partition, next_offset FROM kcr.read_back WHERE region_id = :region AND "
    "sequence = :sequence"
)
_SEEKS: Final = text(
    "SELECT group_id, topic, partition, next_offset, source, current_offset, clamped_from, recreated "
    "FROM kcr.seek_offset WHERE region_id = :region AND epoch = :epoch"
)
_ALL: Final = SQL("")
_REGION: Final = SQL(":region")
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


def contributions_to(number: Composable, condition: Composable = _ALL, *, region: Composable = _REGION) -> Composed:
    """Return the expression of all contributions to the checkpoint of a number, as JSON."""
    return SQL("""(
        SELECT json_agg(json_build_array({contributor}, (
            SELECT json_agg(json_build_array({offset})) FROM kcr.contribution_offset o
            WHERE o.region_id = k.region_id AND o.sequence = k.sequence AND o.group_id = k.group_id
              AND o.member_index = k.member_index)))
        FROM kcr.contribution k WHERE k.region_id = {region} AND k.sequence = {number}{condition})""").format(
        contributor=CONTRIBUTORS.selected("k"),
        offset=named(_CONTRIBUTED, "o"),
        region=region,
        number=number,
        condition=condition,
    )


_CONTRIBUTIONS: Final = composed(SQL("SELECT {}").format(contributions_to(SQL(":sequence"))))
_CONTRIBUTION: Final = composed(
    SQL("SELECT {}").format(
        contributions_to(SQL(":sequence"), SQL(" AND k.group_id = :group AND k.member_index = :index"))
    )
)
_BOUNDARY_OFFSETS: Final = lookup(BOUNDARY_OFFSETS, SQL("t.boundary = :boundary"))

# -- the current timeline ----------------------------------------------------------------------------------------------

_NEWEST_ALIGNED: Final = lookup(
    CHECKPOINTS,
    SQL("{aligned} AND t.sequence <= :up_to ORDER BY t.boundary DESC, t.sequence DESC LIMIT 1").format(
        aligned=_ALIGNED
    ),
)
_COVERING: Final = lookup(
    CHECKPOINTS,
    SQL("{aligned} AND t.boundary >= :boundary ORDER BY t.boundary, t.sequence LIMIT 1").format(aligned=_ALIGNED),
)
_NEWEST_USABLE: Final = lookup(
    CHECKPOINTS,
    SQL("{usable} AND t.sequence < :before ORDER BY t.sequence DESC LIMIT 1").format(usable=_USABLE),
)
_OLDEST_USABLE: Final = lookup(CHECKPOINTS, SQL("{usable} ORDER BY t.sequence LIMIT 1").format(usable=_USABLE))
_NEWEST_CURRENT: Final = lookup(
    CHECKPOINTS,
    SQL("{current} AND t.sequence < :before ORDER BY t.sequence DESC LIMIT 1").format(current=_CURRENT),
)
_NEWEST_PUBLISHED: Final = lookup(
    CHECKPOINTS,
    SQL("t.published_at IS NOT NULL AND {current} AND t.sequence < :before ORDER BY t.sequence DESC LIMIT 1").format(
        current=_CURRENT
    ),
)
_PUBLISHED_FROM: Final = lookup(
    CHECKPOINTS,
    SQL("t.published_at IS NOT NULL AND {current} AND t.sequence >= :least ORDER BY t.sequence LIMIT 1").format(
        current=_CURRENT
    ),
)
_PUBLISHED_FROM_BOUNDARY: Final = lookup(
    CHECKPOINTS,
    SQL("""
        t.boundary IS NOT NULL AND t.boundary >= :boundary AND t.published_at IS NOT NULL AND {current}
        AND t.sequence >= :least ORDER BY t.boundary, t.sequence LIMIT 1
    """).format(current=_CURRENT),
)

# Whether a kept checkpoint lies in no partition beyond where a timeline opens.
_STAYS: Final = SQL("""NOT EXISTS (
        SELECT FROM kcr.checkpoint_offset o JOIN opening n
          ON o.group_id = n.group_id AND o.topic = n.topic AND o.partition = n.partition
        WHERE o.region_id = :region AND o.sequence = k.sequence AND o.next_offset > n.next_offset)""")

_OPENING: Final = SQL("""opening AS MATERIALIZED (
        SELECT * FROM unnest(CAST(:groups AS text[]), CAST(:topics AS text[]), CAST(:partitions AS bigint[]),
                             CAST(:offsets AS bigint[])) AS n (group_id, topic, partition, next_offset)
    )""")

_KEPT: Final = SQL("""kept AS MATERIALIZED (
        SELECT t.sequence FROM kcr.checkpoint t
        WHERE t.region_id = :region AND {usable} AND t.sequence > :after AND t.sequence < :before
          AND t.sequence <> ALL (CAST(:retired AS bigint[]))
        ORDER BY t.sequence DESC LIMIT :piece
    )""").format(usable=_USABLE)

# name: covered — of kept current checkpoints, the newest first: the first one that stays, without a look at those
# before it, and where the timeline opens in partitions that this one lacks.
_COVERED: Final = composed(
    SQL("""
    WITH {opening}, {kept}, covered AS MATERIALIZED (
        SELECT k.sequence FROM kept k WHERE (SELECT {stays}) LIMIT 1
    )
    SELECT ARRAY(SELECT k.sequence FROM kept k), (SELECT c.sequence FROM covered c), (
        SELECT json_agg(json_build_array(l.group_id, l.topic, l.partition)) FROM (
            SELECT n.group_id, n.topic, n.partition FROM opening n
            EXCEPT
            SELECT o.group_id, o.topic, o.partition FROM kcr.checkpoint_offset o WHERE o.region_id = :region
              AND o.sequence = coalesce((SELECT c.sequence FROM covered c), CAST(:covered AS bigint))
        ) l)
""").format(opening=_OPENING, kept=_KEPT, stays=_STAYS)
)

# name: beyond — of kept current checkpoints: whether each stays.
_JUDGED: Final = composed(
    SQL("""
    WITH {opening}, {kept} SELECT k.sequence, {stays} FROM kept k
""").format(opening=_OPENING, kept=_KEPT, stays=_STAYS)
)

# name: retired_after — on the current timeline, without offsets of their own, and newer than a checkpoint that stays.
_RETIRED: Final = composed(
    SQL("""
    SELECT t.sequence FROM kcr.checkpoint t
    WHERE t.region_id = :region AND {current} AND t.state = 'retired' AND t.sequence > :after
""").format(current=_CURRENT)
)

# name: undone — the checkpoints that each of these timelines took off the one before it.
_UNDONE: Final = text("""
    SELECT undone_by, sequence FROM kcr.checkpoint
    WHERE region_id = :region AND undone_by = ANY (CAST(:timelines AS bigint[])) ORDER BY undone_by, sequence
""")

# name: stretches — gaps and islands: rows of one timeline with no row of another between them.
_STRETCHES: Final = composed(
    SQL("""
    SELECT s.undone_by, min(s.sequence), max(s.sequence) FROM (
        SELECT t.sequence, t.undone_by, row_number() OVER (ORDER BY t.sequence)
               - row_number() OVER (PARTITION BY t.undone_by ORDER BY t.sequence) AS island
        FROM kcr.checkpoint t
        WHERE t.region_id = :region AND ({current} OR t.undone_by IS NOT NULL)
          AND t.sequence >= (SELECT min(u.sequence) FROM kcr.checkpoint u
                             WHERE u.region_id = :region AND u.undone_by >= :since)
    ) s WHERE s.undone_by >= :since GROUP BY s.undone_by, s.island ORDER BY 1, 2
""").format(current=_CURRENT)
)

# -- one record --------------------------------------------------------------------------------------------------------

# The first kept checkpoint that lies beyond an offset of a partition; of a retired one that is not known any more.
_HOLDING: Final = lookup(
    CHECKPOINTS,
    SQL("""
        {current} AND t.sequence >= :since AND (t.state = 'retired' OR EXISTS (
            SELECT FROM kcr.checkpoint_offset o
            WHERE o.region_id = t.region_id AND o.sequence = t.sequence AND o.group_id = :group AND o.topic = :topic
              AND o.partition = :partition AND o.next_offset > :offset))
        ORDER BY t.sequence LIMIT 1
    """).format(current=_CURRENT),
)

# The first entry at or before an offset. It is the very next one, or one that sent the partition further back than the
# entry before it: as in `layouts`, whose index tells the two kinds apart.
_WENT_BACK: Final = lookup(
    RESETS,
    SQL("""
        t.epoch = (SELECT min(e.epoch) FROM (
            (SELECT s.epoch, s.next_offset FROM kcr.seek_offset s
             WHERE s.region_id = :region AND s.group_id = :group AND s.topic = :topic AND s.partition = :partition
               AND s.next_offset IS NOT NULL AND {turn} > :after
             ORDER BY {turn} LIMIT 1)
            UNION ALL
            (SELECT s.epoch, s.next_offset FROM kcr.seek_offset s
             WHERE s.region_id = :region AND s.group_id = :group AND s.topic = :topic AND s.partition = :partition
               AND s.next_offset IS NOT NULL AND {turn} < -CAST(:after AS bigint) AND s.next_offset <= :offset
             ORDER BY {turn} DESC LIMIT 1)
        ) e WHERE e.next_offset <= :offset)
    """).format(turn=SQL(TURN)),
)

# -- lists -------------------------------------------------------------------------------------------------------------

_SEEN: Final = ("group_id", "topic", "partition", "log_start", "log_topic_id", "last_seen", "first_seen")
"""Columns of a `LogStart` and of its partition."""

_CHECKPOINTS: Final = lookup(
    CHECKPOINTS, SQL("t.sequence >= :first AND t.sequence < :before ORDER BY t.sequence DESC LIMIT :last")
)
_RESETS: Final = lookup(RESETS, SQL("t.sequence < :before ORDER BY t.sequence DESC LIMIT :last"))
_RESETS_FROM: Final = lookup(RESETS, SQL("t.sequence >= :sequence ORDER BY t.sequence LIMIT :limit"))
_OF_RUN: Final = lookup(
    REQUESTS, SQL("t.requester ->> 'dag_id' = :dag AND t.requester ->> 'run_id' = :run ORDER BY t.asked_order")
)
_OF_CHECKPOINTS: Final = lookup(
    REQUESTS,
    SQL("t.sequence = ANY (CAST(:sequences AS bigint[])) AND t.requester ? 'dag_id' ORDER BY t.asked_order"),
)

# name: topics — the partitions of one topic id in one row, as all of a topic have the same.
_TOPICS: Final = text(
    "SELECT group_id, topic, log_topic_id, array_agg(partition) FROM kcr.contribution_offset "
    "WHERE region_id = :region AND sequence = :sequence AND log_topic_id IS NOT NULL "
    "GROUP BY group_id, topic, log_topic_id"
)

# name: checkpoint_page — checkpoints, the runs that they answered, their offsets and topics, and where contributions
# to the oldest and the newest kept ones saw each log begin, and since when. Each of those contributions is looked up by
# itself (OFFSET 0), or a planner that takes the table for short reads all of it for each partition.
_CHECKPOINT_PAGE: Final = SQL("""
    WITH page AS MATERIALIZED (
        SELECT * FROM kcr.checkpoint t WHERE t.region_id = :region AND t.sequence < :before
        ORDER BY t.sequence DESC LIMIT :last
    ), complete AS MATERIALIZED (
        SELECT p.sequence FROM page p WHERE p.state IN ('complete', 'published')
    ), seen AS (
        SELECT o.group_id, o.topic, o.partition, o.log_start, o.log_topic_id,
               max(k.contributed_at) AS last_seen, min(k.contributed_at) AS first_seen
        FROM kcr.contribution_offset o CROSS JOIN LATERAL (
            SELECT c.contributed_at FROM kcr.contribution c
            WHERE c.region_id = o.region_id AND c.sequence = o.sequence AND c.group_id = o.group_id
              AND c.member_index = o.member_index OFFSET 0
        ) k
        WHERE o.region_id = :region AND o.log_start IS NOT NULL AND o.sequence = ANY (
            ARRAY(SELECT t.sequence FROM kcr.checkpoint t
                  WHERE t.region_id = :region AND t.state <> 'retired' AND t.state <> 'aborted'
                  ORDER BY t.sequence LIMIT {ends})
            || ARRAY(SELECT t.sequence FROM kcr.checkpoint t
                     WHERE t.region_id = :region AND t.state <> 'retired' AND t.state <> 'aborted'
                     ORDER BY t.sequence DESC LIMIT {ends}))
        GROUP BY o.group_id, o.topic, o.partition, o.log_start, o.log_topic_id
    )
    SELECT (SELECT json_agg({checkpoint} ORDER BY p.sequence) FROM page p) AS checkpoints,
           (SELECT json_agg({request} ORDER BY t.asked_order) FROM kcr.checkpoint_request t
            WHERE t.region_id = :region AND t.sequence = ANY (ARRAY(SELECT p.sequence FROM page p))
              AND t.requester ? 'dag_id') AS requests,
           ARRAY(SELECT c.sequence FROM complete c) AS complete,
           (SELECT json_agg(json_build_array(g.sequence, g.group_id, g.topic, g.partitions, g.offsets)) FROM (
                SELECT o.sequence, o.group_id, o.topic,
                       array_agg(o.partition) AS partitions, array_agg(o.next_offset) AS offsets
                FROM kcr.checkpoint_offset o
                WHERE o.region_id = :region AND o.sequence = ANY (ARRAY(SELECT c.sequence FROM complete c))
                GROUP BY o.sequence, o.group_id, o.topic) g) AS offsets,
           (SELECT json_agg(json_build_array(g.sequence, g.group_id, g.topic, g.log_topic_id, g.partitions)) FROM (
                SELECT o.sequence, o.group_id, o.topic, o.log_topic_id, array_agg(o.partition) AS partitions
                FROM kcr.contribution_offset o
                WHERE o.region_id = :region AND o.sequence = ANY (ARRAY(SELECT c.sequence FROM complete c))
                  AND o.log_topic_id IS NOT NULL
                GROUP BY o.sequence, o.group_id, o.topic, o.log_topic_id) g) AS topics,
           s.*
    FROM (SELECT {seen} FROM seen t) s
""").format(
    ends=Literal(ENDS),
    checkpoint=CHECKPOINTS.selected("p"),
    request=REQUESTS.selected("t"),
    seen=arrays_of(_SEEN, "t"),
)
_CHECKPOINT_PAGE_WIDTH: Final = 5 + len(_SEEN)
_CHECKPOINTS_SHOWN: Final = composed(_CHECKPOINT_PAGE)


def _reset_page(region: Composable) -> Composed:
    """Return the query of attempts of resets, those right after them, persons' resets, and what timelines undid."""
    return SQL("""
    WITH page AS MATERIALIZED (
        SELECT * FROM kcr.reset t WHERE t.region_id = {region} AND t.sequence < :before
        ORDER BY t.sequence DESC LIMIT :attempts
    ), following AS MATERIALIZED (
        SELECT * FROM kcr.reset t WHERE t.region_id = {region} AND t.sequence >= :before
        ORDER BY t.sequence LIMIT {following}
    )
    SELECT (SELECT json_agg({of_page} ORDER BY p.sequence) FROM page p) AS resets,
           (SELECT json_agg({of_following} ORDER BY f.sequence) FROM following f) AS following,
           (SELECT json_agg({person} ORDER BY t.asked_order) FROM kcr.person_reset t
            WHERE t.region_id = {region} AND t.request_id = ANY (
                ARRAY(SELECT p.person FROM page p)
                || ARRAY(SELECT u.request_id FROM kcr.person_reset u
                         WHERE u.region_id = {region} AND u.epoch IS NULL
                           AND u.requested_at < coalesce((SELECT min(f.started_at) FROM following f), 'infinity')
                         ORDER BY u.requested_at DESC, u.asked_order DESC LIMIT :last))) AS persons,
           (SELECT json_agg(json_build_array(g.undone_by, g.sequences)) FROM (
                SELECT c.undone_by, array_agg(c.sequence ORDER BY c.sequence) AS sequences FROM kcr.checkpoint c
                WHERE c.region_id = {region} AND c.undone_by = ANY (
                    ARRAY(SELECT p.timeline FROM page p WHERE p.restore_point = p.sequence))
                GROUP BY c.undone_by) g) AS undone
""").format(
        region=region,
        following=Literal(ATTEMPTS),
        of_page=RESETS.selected("p"),
        of_following=RESETS.selected("f"),
        person=PERSON_RESETS.selected("t"),
    )


# name: reset_page
_RESET_PAGE: Final = composed(_reset_page(_REGION))

# name: resets_of — the same of a region by its name, nothing else of which is read.
RESETS_OF: Final = composed(
    SQL("SELECT p.* FROM kcr.region r CROSS JOIN LATERAL ({}) p WHERE r.name = :name").format(_reset_page(SQL("r.id")))
)

# name: region_page — both pages, and the contributions to one checkpoint.
_REGION_PAGE: Final = composed(
    SQL("SELECT c.*, r.*, {contributions} FROM ({checkpoints}) c, ({resets}) r").format(
        contributions=contributions_to(SQL("CAST(:newest AS bigint)")),
        checkpoints=_CHECKPOINT_PAGE,
        resets=_reset_page(_REGION),
    )
)
_COUNT: Final = text("SELECT count(*) FROM kcr.checkpoint WHERE region_id = :region")

# name: kept — how many checkpoints have their offsets.
_KEPT_COUNT: Final = text(
    "SELECT count(*) FROM kcr.checkpoint t WHERE t.region_id = :region AND t.state IN ('complete', 'published')"
)
_NTH_COMPLETE: Final = text(
    "SELECT t.sequence FROM kcr.checkpoint t WHERE t.region_id = :region AND t.state <> 'retired' "
    "AND t.state IN ('complete', 'published') ORDER BY t.sequence DESC OFFSET :place LIMIT 1"
)

# -- resets and retention ----------------------------------------------------------------------------------------------

_LAST_DONE: Final = lookup(RESETS, SQL("t.epoch < :before AND t.state = 'done' ORDER BY t.epoch DESC LIMIT 1"))
_OLDEST_KEPT: Final = lookup(
    CHECKPOINTS, SQL("t.state <> 'retired' AND t.pinned_as = '' ORDER BY t.sequence LIMIT :limit")
)

PIECE: Final = 1_000
"""Checkpoints that a statement compares with where a timeline opens."""


def offset_map(rows: Iterable[Columns[Any]]) -> OffsetMap:
    """Return offsets by partition from their four columns."""
    return OffsetMap([(partition_of(g, t, p), Offset(o)) for g, t, p, o in rows])


_SOURCES: Final = {str(source): source for source in SeekSource}


def seek_map(rows: Iterable[Columns[Any]]) -> SeekMap:
    """Return a seek map from its columns."""
    return SeekMap(
        {
            partition_of(g, t, p): SeekEntry(
                offset=offset,
                source=_SOURCES[source],
                current=current,
                clamped_from=clamped_from,
                recreated=TopicId(recreated),
            )
            for g, t, p, offset, source, current, clamped_from, recreated in rows
        }
    )


def contributions_from(found: list[Any] | None) -> dict[MemberId, Contribution]:
    """Return what `contributions_to` has read, by member in order."""
    return dict(sorted(_contribution(whole, rows or []) for whole, rows in found or []))


def contribution(session: Session, sequence: CheckpointNumber, member: MemberId) -> dict[MemberId, Contribution]:
    """Return what one member contributed to a checkpoint, under its id; nothing if it has not."""
    rows = session.rows(_CONTRIBUTION, sequence=sequence, group=member.group, index=member.index)
    return contributions_from(rows[0][0])


def _contribution(whole: list[Any], rows: Iterable[Columns[Any]]) -> tuple[MemberId, Contribution]:
    (_, member), by = CONTRIBUTORS.join((whole,))
    parts = [(partition_of(member.group, topic, partition), *held) for topic, partition, *held in rows]
    return member, Contribution(
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


def _opening(offsets: OffsetMap) -> dict[str, object]:
    return {**partition_columns(offsets), "offsets": list(offsets.values())}


def _place(partition: GroupPartition, offset: Offset) -> dict[str, object]:
    return {"group": partition.group, "topic": partition.topic, "partition": partition.partition, "offset": offset}


def _joined(layout: Layout[K, V], gathered: list[Any] | None) -> Iterator[V]:
    """Yield the rows of a table that were read as one JSON array."""
    return (layout.join((row,))[1] for row in gathered or ())


def _of_topic(columns: Columns[Any]) -> dict[GroupPartition, TopicId]:
    group, topic, topic_id, partitions = columns
    return {partition_of(group, topic, p): TopicId(topic_id) for p in partitions}


def _log_starts(seen: list[Any]) -> dict[GroupPartition, tuple[LogStart, ...]]:
    """Return the starts of logs from the columns `_SEEN`, each read as one array."""
    found: dict[GroupPartition, list[LogStart]] = {}
    for group, topic, partition, start, topic_id, newest, oldest in zip(*(c or () for c in seen), strict=True):
        row = LogStart(newest, oldest, Offset(start), TopicId(topic_id))
        found.setdefault(partition_of(group, topic, partition), []).append(row)
    return {partition: tuple(sorted(rows)) for partition, rows in found.items()}


def page_bounds(before: CheckpointNumber | None, last: int | None) -> dict[str, object]:
    """Return the parameters of a page: `last` rows below a number, and the attempts of resets that belong to them."""
    return {
        "before": MAX_NUMBER if before is None else before,
        "last": last,
        "attempts": None if last is None else last * ATTEMPTS + 1,
    }


def _checkpoint_page_from(columns: Columns[Any]) -> CheckpointPage:
    rows, requests, complete, places, topics, *seen = columns
    held: dict[CheckpointNumber, list[Columns[Any]]] = {sequence: [] for sequence in complete}
    for sequence, group, topic, partitions, offsets in places or ():
        held[sequence].extend((group, topic, p, o) for p, o in zip(partitions, offsets, strict=True))
    ids: dict[CheckpointNumber, dict[GroupPartition, TopicId]] = {sequence: {} for sequence in complete}
    for sequence, *one in topics or ():
        ids[sequence].update(_of_topic(one))
    return CheckpointPage(
        checkpoints=tuple(_joined(CHECKPOINTS, rows)),
        requests=tuple(_joined(REQUESTS, requests)),
        offsets={sequence: offset_map(columns) for sequence, columns in held.items()},
        topics=ids,
        log_starts=_log_starts(seen),
    )


def reset_page_from(columns: Columns[Any]) -> ResetPage:
    """Return the page of resets that `RESETS_OF` has read."""
    resets, following, persons, undone = columns
    return ResetPage(
        resets=tuple(_joined(RESETS, resets)),
        following=tuple(_joined(RESETS, following)),
        persons=tuple(_joined(PERSON_RESETS, persons)),
        undone={timeline: tuple(sequences) for timeline, sequences in undone or ()},
    )


class PostgresArchive:
    """Implements `protocol.region.archive.Archive`; see there for what each answers.

    Args:
        session: of the transaction that the region was read in.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    # -- one row ---------------------------------------------------------------------------------------------------

    def request(self, request_id: RequestId) -> CheckpointRequest | None:
        """See `Archive.request`."""
        return self._one(_REQUEST, request_id=request_id)

    def person_reset(self, request_id: RequestId) -> PersonReset | None:
        """See `Archive.person_reset`."""
        return self._one(_PERSON_RESET, request_id=request_id)

    def named(self, request_id: RequestId) -> Named:
        """See `Archive.named`; in one statement."""
        request, reset = self._session.rows(_NAMED, request_id=request_id)[0]
        return Named(
            None if request is None else REQUESTS.join((request,))[1],
            None if reset is None else PERSON_RESETS.join((reset,))[1],
        )

    def checkpoint(self, sequence: CheckpointNumber) -> Checkpoint | None:
        """See `Archive.checkpoint`."""
        return self._one(_CHECKPOINT, sequence=sequence)

    def reset(self, epoch: Epoch) -> ResetAttempt | None:
        """See `Archive.reset`."""
        return self._one(_RESET, epoch=epoch)

    # -- what belongs to one row -----------------------------------------------------------------------------------

    def offsets(self, sequences: Collection[CheckpointNumber]) -> Mapping[CheckpointNumber, OffsetMap]:
        """See `Archive.offsets`."""
        wanted = list(sequences)
        if not wanted:
            return {}
        rows: dict[CheckpointNumber, list[Columns[Any]]] = {}
        for sequence, *columns in self._session.rows(_OFFSETS, sequences=wanted):
            rows.setdefault(sequence, []).append(columns)
        found = {sequence: offset_map(columns) for sequence, columns in rows.items()}
        if len(found) < len(wanted):
            empty = self._session.rows(_COMPLETE, sequences=[s for s in wanted if s not in found])
            found |= {sequence: OffsetMap() for (sequence,) in empty}
        return found

    def frozen(self, sequence: CheckpointNumber) -> frozenset[GroupPartition]:
        """See `Archive.frozen`."""
        return frozenset(partition_of(g, t, p) for g, t, p in self._session.rows(_FROZEN, sequence=sequence))

    def read_backs(self, sequence: CheckpointNumber) -> OffsetMap:
        """See `Archive.read_backs`."""
        return offset_map(self._session.rows(_READ_BACKS, sequence=sequence))

    def contributions(self, sequence: CheckpointNumber) -> Mapping[MemberId, Contribution]:
        """See `Archive.contributions`."""
        return contributions_from(self._session.rows(_CONTRIBUTIONS, sequence=sequence)[0][0])

    def seek_map(self, epoch: Epoch) -> SeekMap | None:
        """See `Archive.seek_map`."""
        rows = self._session.rows(_SEEKS, epoch=epoch)
        return seek_map(rows) if rows or self.reset(epoch) is not None else None

    def boundary_offsets(self, boundary: datetime) -> Mapping[BoundaryKey, BoundaryOffset]:
        """See `Archive.boundary_offsets`."""
        return dict(self._rows(_BOUNDARY_OFFSETS, boundary=boundary))

    # -- the current timeline ---------------------------------------------------------------------------------------

    def newest_aligned(self, up_to: CheckpointNumber | None) -> Checkpoint | None:
        """See `Archive.newest_aligned`."""
        return self._one(_NEWEST_ALIGNED, up_to=MAX_NUMBER if up_to is None else up_to)

    def covering(self, boundary: datetime) -> Checkpoint | None:
        """See `Archive.covering`."""
        return self._one(_COVERING, boundary=boundary)

    def newest_usable(self, before: CheckpointNumber | None) -> Checkpoint | None:
        """See `Archive.newest_usable`."""
        return self._one(_NEWEST_USABLE, before=MAX_NUMBER if before is None else before)

    def oldest_usable(self) -> Checkpoint | None:
        """See `Archive.oldest_usable`."""
        return self._one(_OLDEST_USABLE)

    def newest_current(self, before: CheckpointNumber | None) -> Checkpoint | None:
        """See `Archive.newest_current`."""
        return self._one(_NEWEST_CURRENT, before=MAX_NUMBER if before is None else before)

    def newest_published(self, before: CheckpointNumber | None) -> Checkpoint | None:
        """See `Archive.newest_published`."""
        return self._one(_NEWEST_PUBLISHED, before=MAX_NUMBER if before is None else before)

    def published_from(self, boundary: datetime | None, sequence: CheckpointNumber | None) -> Checkpoint | None:
        """See `Archive.published_from`."""
        least = 0 if sequence is None else sequence
        if boundary is None:
            return self._one(_PUBLISHED_FROM, least=least)
        return self._one(_PUBLISHED_FROM_BOUNDARY, boundary=boundary, least=least)

    def undone_by(
        self, opening: OffsetMap, covered: CheckpointNumber | None, retired: Collection[CheckpointNumber]
    ) -> tuple[CheckpointNumber, ...]:
        """See `Archive.undone_by`; in pieces, from the newest kept checkpoint to the oldest.

        Offsets along the current timeline only grow. So what is older than one that stays does as well, but for
        partitions that this one lacks, and nothing else of it is read.
        """
        gone: list[CheckpointNumber] = []
        about = {"covered": covered, "after": covered or 0, "retired": list(retired), "piece": PIECE}
        before: int = MAX_NUMBER
        newest, is_last = None, False
        lacking: list[Any] | None = None
        while newest is None and not is_last:
            kept, newest, lacking = self._session.rows(_COVERED, before=before, **about, **_opening(opening))[0]
            gone += [sequence for sequence in kept if newest is None or sequence > newest]
            is_last = len(kept) < PIECE
            before = kept[-1] if kept else before
        oldest = newest or covered
        if oldest is not None and lacking:
            open_there = opening.restrict([partition_of(g, t, p) for g, t, p in lacking])
            gone += self._beyond(open_there, oldest, retired)
        covered = newest if covered is None else covered
        after = 0 if covered is None else covered
        gone += [sequence for (sequence,) in self._session.rows(_RETIRED, after=after)]
        return tuple(sorted({*gone, *(sequence for sequence in retired if sequence > after)}))

    def _beyond(
        self, opening: OffsetMap, before: int, retired: Collection[CheckpointNumber]
    ) -> Iterator[CheckpointNumber]:
        """Yield the kept current checkpoints before one that lie beyond where a timeline opens."""
        about = {"after": 0, "retired": list(retired), "piece": PIECE}
        while rows := self._session.rows(_JUDGED, before=before, **about, **_opening(opening)):
            yield from (sequence for sequence, stays in rows if not stays)
            before = rows[-1][0]

    def undone(self, timelines: Collection[Timeline]) -> Mapping[Timeline, tuple[CheckpointNumber, ...]]:
        """See `Archive.undone`."""
        found: dict[Timeline, list[CheckpointNumber]] = {timeline: [] for timeline in timelines}
        for timeline, sequence in self._session.rows(_UNDONE, timelines=list(timelines)):
            found[timeline].append(sequence)
        return {timeline: tuple(sequences) for timeline, sequences in found.items()}

    def stretches(self, since: Timeline) -> tuple[Stretch, ...]:
        """See `Archive.stretches`."""
        return tuple(Stretch(*row) for row in self._session.rows(_STRETCHES, since=since))

    # -- one record ------------------------------------------------------------------------------------------------

    def holding(self, partition: GroupPartition, offset: Offset, since: CheckpointNumber) -> Checkpoint | None:
        """See `Archive.holding`."""
        return self._one(_HOLDING, since=since, **_place(partition, offset))

    def went_back(self, partition: GroupPartition, offset: Offset, after: Epoch) -> ResetAttempt | None:
        """See `Archive.went_back`."""
        return self._one(_WENT_BACK, after=after, **_place(partition, offset))

    # -- lists -----------------------------------------------------------------------------------------------------

    def checkpoints(
        self, *, first: CheckpointNumber | None = None, before: CheckpointNumber | None = None, last: int | None = None
    ) -> tuple[Checkpoint, ...]:
        """See `Archive.checkpoints`."""
        found = self._rows(_CHECKPOINTS, first=first or 0, before=MAX_NUMBER if before is None else before, last=last)
        return tuple(row for _, row in reversed(found))

    def count(self) -> int:
        """See `Archive.count`."""
        return int(self._session.rows(_COUNT)[0][0])

    def checkpoint_page(self, *, before: CheckpointNumber | None, last: int | None) -> CheckpointPage:
        """See `Archive.checkpoint_page`; in one statement."""
        return _checkpoint_page_from(self._session.rows(_CHECKPOINTS_SHOWN, **page_bounds(before, last))[0])

    def region_page(self, newest: CheckpointNumber | None, last: int) -> RegionPage:
        """See `Archive.region_page`; in one statement."""
        *columns, contributed = self._session.rows(_REGION_PAGE, newest=newest, **page_bounds(None, last))[0]
        return RegionPage(
            checkpoints=_checkpoint_page_from(columns[:_CHECKPOINT_PAGE_WIDTH]),
            resets=reset_page_from(columns[_CHECKPOINT_PAGE_WIDTH:]),
            contributions=contributions_from(contributed),
        )

    def topics(self, sequence: CheckpointNumber) -> Mapping[GroupPartition, TopicId]:
        """See `Archive.topics`."""
        found: dict[GroupPartition, TopicId] = {}
        for row in self._session.rows(_TOPICS, sequence=sequence):
            found.update(_of_topic(row))
        return found

    def resets(self, *, before: CheckpointNumber | None = None, last: int | None = None) -> tuple[ResetAttempt, ...]:
        """See `Archive.resets`."""
        found = self._rows(_RESETS, before=MAX_NUMBER if before is None else before, last=last)
        return tuple(row for _, row in reversed(found))

    def resets_from(self, sequence: CheckpointNumber, limit: int) -> tuple[ResetAttempt, ...]:
        """See `Archive.resets_from`."""
        return tuple(row for _, row in self._rows(_RESETS_FROM, sequence=sequence, limit=limit))

    def reset_page(self, *, before: CheckpointNumber | None, last: int | None) -> ResetPage:
        """See `Archive.reset_page`; in one statement."""
        return reset_page_from(self._session.rows(_RESET_PAGE, **page_bounds(before, last))[0])

    def requests_of_run(self, dag_id: str, run_id: str) -> tuple[CheckpointRequest, ...]:
        """See `Archive.requests_of_run`."""
        return tuple(row for _, row in self._rows(_OF_RUN, dag=dag_id, run=run_id))

    def requests_for(self, sequences: Collection[CheckpointNumber]) -> tuple[CheckpointRequest, ...]:
        """See `Archive.requests_for`."""
        wanted = list(sequences)
        return tuple(row for _, row in self._rows(_OF_CHECKPOINTS, sequences=wanted)) if wanted else ()

    # -- resets and retention ----------------------------------------------------------------------------------------

    def last_done(self, before: Epoch) -> ResetAttempt | None:
        """See `Archive.last_done`."""
        return self._one(_LAST_DONE, before=before)

    def kept(self) -> int:
        """See `Archive.kept`."""
        return int(self._session.rows(_KEPT_COUNT)[0][0])

    def oldest_kept(self, limit: int) -> tuple[Checkpoint, ...]:
        """See `Archive.oldest_kept`."""
        return tuple(row for _, row in self._rows(_OLDEST_KEPT, limit=limit))

    def nth_complete(self, place: int) -> CheckpointNumber | None:
        """See `Archive.nth_complete`."""
        rows = self._session.rows(_NTH_COMPLETE, place=place - 1)
        return rows[0][0] if rows else None

    def _rows(self, asked: Lookup[K, V], **parameters: object) -> list[tuple[K, V]]:
        return list(map(asked.layout.join, self._session.rows(asked.statement, **parameters)))

    def _one(self, asked: Lookup[K, V], **parameters: object) -> V | None:
        found = self._rows(asked, **parameters)
        return found[0][1] if found else None
