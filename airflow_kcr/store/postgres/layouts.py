"""Which columns a row of the region becomes, and back; and what resets have undone of batches that were read.

**Rewinds.** Of all resets after a batch two kinds can hold the lowest place of a partition: the next one, and any that
sent it further back than the reset just before it had. All others went to where it was before or beyond, and are passed
over. So resets that a region does by itself, whose places only move on, cost a reader nothing, however many there were;
`seek_offset.rewinds` says which kind an entry is of. It is true as long as that is not known.

A row class whose fields are the columns is laid out by its type hints (`row_layout`); the few whose columns differ say
so themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Sequence as Row
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from psycopg.sql import SQL
from sqlalchemy import text

from airflow_kcr.ports import Replayed, Span
from airflow_kcr.protocol.documents import storable
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.region import timelines
from airflow_kcr.protocol.region.rows import (
    Batch,
    BoundaryKey,
    BoundaryOffset,
    Checkpoint,
    CheckpointRequest,
    Claim,
    InitialOffset,
    Lease,
    Member,
    Outcome,
    PersonReset,
    ResetAttempt,
)
from airflow_kcr.protocol.region.state import InitialKey
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    ClusterId,
    Epoch,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    RequestId,
    TopicId,
)
from airflow_kcr.store.postgres import tables
from airflow_kcr.store.postgres.row_layout import (
    JsonLayout,
    Layout,
    Values,
    member_of,
    of_dataclass,
    partition_columns,
    partition_of,
)
from airflow_kcr.store.postgres.session import Found, Session, composed
from airflow_kcr.store.postgres.tables import PARTITION, TURN

if TYPE_CHECKING:
    from psycopg.sql import Composable
    from sqlalchemy import Table


# Rewinds

# name: rewinds — of an entry `n` that is written: whether it is, or may be, before the one of the reset just before.
REWINDS: Final = SQL("""
    coalesce(n.next_offset < (
        SELECT s.next_offset FROM kcr.seek_offset s
        WHERE s.region_id = :region AND s.group_id = n.group_id AND s.topic = n.topic AND s.partition = n.partition
          AND s.epoch = (SELECT max(r.epoch) FROM kcr.reset r WHERE r.region_id = :region AND r.epoch < n.epoch)
    ), true)
""")

# name: lowest_after — of each partition and epoch the lowest place that a later reset sent it to; only if there is one.
LOWEST: Final = composed(
    SQL("""
    SELECT q.number, q.lowest FROM (
        SELECT n.number, least(
            (SELECT s.next_offset FROM kcr.seek_offset s
             WHERE s.region_id = :region AND s.group_id = n.group_id AND s.topic = n.topic
               AND s.partition = n.partition AND s.next_offset IS NOT NULL AND {turn} > n.epoch
             ORDER BY {turn} LIMIT 1),
            (SELECT min(o.next_offset) FROM (
                SELECT s.next_offset FROM kcr.seek_offset s
                WHERE s.region_id = :region AND s.group_id = n.group_id AND s.topic = n.topic
                  AND s.partition = n.partition AND s.next_offset IS NOT NULL AND {turn} < -n.epoch
                ORDER BY {turn} OFFSET 0) o)
        ) AS lowest
        FROM unnest(CAST(:numbers AS bigint[]), CAST(:groups AS text[]), CAST(:topics AS text[]),
                    CAST(:partitions AS bigint[]), CAST(:epochs AS bigint[]))
            AS n (number, group_id, topic, partition, epoch)
    ) q
    WHERE q.lowest IS NOT NULL
""").format(turn=SQL(TURN))
)

# name: in_order — for what is left of the transaction, by the one index that has the order asked for: of several that
# fit, a planner that knows nothing of a table may take one that finds the region and then walks through all of it.
IN_ORDER: Final = text("SELECT set_config('enable_sort', 'off', true)")

# name: replays — where each partition was when a reset began, by its position and by the batches that were not accepted
# since the reset before; where it went, at the furthest and at last; and how far it came, by the resets that follow and
# by its claim, as long as it stays in one log: a reset to a recreated topic goes back over nothing. Each is
# looked up by itself (OFFSET 0), or a planner that knows little of the tables joins them whole.
REPLAYS: Final = text("""
    WITH here AS MATERIALIZED (
        SELECT id FROM kcr.region WHERE name = :name
    ), span AS (
        SELECT * FROM unnest(CAST(:since AS bigint[]), CAST(:firsts AS bigint[]), CAST(:lasts AS bigint[]))
            AS u (since, first, last)
    ), went AS (
        SELECT n.first, n.last, s.group_id, s.topic, s.partition,
               bool_or(s.recreated <> '') AS is_anew,
               max(s.current_offset) FILTER (WHERE s.epoch = n.first) AS place,
               min(s.next_offset) AS back, max(s.next_offset) FILTER (WHERE s.epoch = n.last) AS resumed
        FROM span n CROSS JOIN LATERAL (
            SELECT * FROM kcr.seek_offset e
            WHERE e.region_id = (SELECT id FROM here) AND e.epoch BETWEEN n.first AND n.last OFFSET 0
        ) s
        GROUP BY n.first, n.last, s.group_id, s.topic, s.partition
    ), lost AS (
        SELECT n.first, r.group_id, r.topic, r.partition, max(r.to_offset) AS place
        FROM span n CROSS JOIN LATERAL (
            SELECT b.number FROM kcr.batch b
            WHERE b.region_id = (SELECT id FROM here) AND b.epoch >= n.since AND b.epoch < n.first
              AND b.outcome IN ('unknown', 'discarded') OFFSET 0
        ) u CROSS JOIN LATERAL (SELECT * FROM kcr.batch_range q WHERE q.batch_number = u.number OFFSET 0) r
        GROUP BY n.first, r.group_id, r.topic, r.partition
    ), placed AS (
        SELECT w.*, greatest(w.place, l.place) AS left_at, count(*) FILTER (WHERE w.is_anew) OVER (
                   PARTITION BY w.group_id, w.topic, w.partition ORDER BY w.first
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS log
        FROM went w LEFT JOIN lost l USING (first, group_id, topic, partition)
    ), reached AS (
        SELECT p.first, p.back, p.resumed, CASE WHEN NOT p.is_anew THEN p.left_at END AS place,
               greatest(c.started_to, max(p.left_at) OVER (
                   PARTITION BY p.group_id, p.topic, p.partition, p.log ORDER BY p.first
                   ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)) AS later
        FROM placed p LEFT JOIN kcr.claim c
            ON c.region_id = (SELECT id FROM here) AND c.group_id = p.group_id AND c.topic = p.topic
            AND c.partition = p.partition
            AND NOT EXISTS (SELECT FROM kcr.seek_offset s
                            WHERE s.region_id = (SELECT id FROM here) AND s.group_id = p.group_id
                              AND s.topic = p.topic AND s.partition = p.partition AND s.recreated <> ''
                              AND s.epoch > p.last)
    )
    SELECT first, CAST(coalesce(sum(greatest(place - back, 0)), 0) AS bigint),
           CAST(coalesce(sum(greatest(least(place, coalesce(later, resumed)) - resumed, 0))
                         FILTER (WHERE place IS NOT NULL), 0) AS bigint)
    FROM reached GROUP BY first
""")


def bound(spans: Collection[Span]) -> dict[str, object]:
    """Return resets as parameters of `REPLAYS`."""
    return {
        "since": [span.since for span in spans],
        "firsts": [span.first for span in spans],
        "lasts": [span.last for span in spans],
    }


def replays(rows: Sequence[Found], spans: Collection[Span]) -> dict[Epoch, Replayed]:
    """Return what `REPLAYS` has read of resets; see `ports.Transactions.replays`."""
    counted = {first: Replayed(rewound=rewound, replayed=replayed) for first, rewound, replayed in rows}
    return {span.first: counted.get(span.first, Replayed()) for span in spans}


def seen(session: Session, batches: list[Batch]) -> list[Batch]:
    """Return batches as the ledger shows them: with what resets have undone of them.

    Args:
        session: the transaction that has read them.
        batches: as they are stored.
    """
    done = {b.batch: b.accepted_in for b in batches if b.outcome is Outcome.DONE}
    asked: list[tuple[GroupPartition, Epoch]] = list(
        dict.fromkeys((p, done[b.batch]) for b in batches if b.batch in done for p in b.ranges)
    )
    if not asked:
        return batches
    session.rows(IN_ORDER)
    rows = session.rows(
        LOWEST,
        numbers=list(range(len(asked))),
        **partition_columns([partition for partition, _ in asked]),
        epochs=[epoch for _, epoch in asked],
    )
    lowest: dict[Epoch, dict[GroupPartition, Offset]] = {}
    for number, offset in rows:
        partition, epoch = asked[number]
        lowest.setdefault(epoch, {})[partition] = offset
    return [timelines.undone(b, lowest.get(b.accepted_in, {})) for b in batches]


# Layouts

_MEMBER: Final = ("group_id", "member_index")


def _member_key(member: MemberId) -> Values:
    return (member.group, member.index)


def _one(key: object) -> Values:
    return (key,)


MEMBERS: Final[JsonLayout[MemberId, Member]] = of_dataclass(
    tables.member, Member, field="member", key=_MEMBER, key_values=_member_key, read_key=lambda c: member_of(*c)
)
REQUESTS: Final[JsonLayout[RequestId, CheckpointRequest]] = of_dataclass(
    tables.checkpoint_request,
    CheckpointRequest,
    field="request_id",
    key=("request_id",),
    key_values=_one,
    read_key=lambda c: RequestId(c[0]),
)
CHECKPOINTS: Final[JsonLayout[CheckpointNumber, Checkpoint]] = of_dataclass(
    tables.checkpoint,
    Checkpoint,
    field="sequence",
    key=("sequence",),
    key_values=_one,
    read_key=lambda c: CheckpointNumber(c[0]),
)
RESETS: Final[JsonLayout[Epoch, ResetAttempt]] = of_dataclass(
    tables.reset, ResetAttempt, field="epoch", key=("epoch",), key_values=_one, read_key=lambda c: Epoch(c[0])
)
PERSON_RESETS: Final[JsonLayout[RequestId, PersonReset]] = of_dataclass(
    tables.person_reset,
    PersonReset,
    field="request_id",
    key=("request_id",),
    key_values=_one,
    read_key=lambda c: RequestId(c[0]),
)
LEASES: Final[JsonLayout[MemberId, Lease]] = of_dataclass(
    tables.lease, Lease, field=None, key=_MEMBER, key_values=_member_key, read_key=lambda c: member_of(*c)
)

GROUPS: Final[Layout[GroupId, ClusterId]] = Layout(
    tables.consumer_group,
    key=("group_id",),
    values=("cluster_id",),
    split=lambda group, cluster: (group, cluster),
    join=lambda c: (GroupId(c[0]), ClusterId(c[1])),
    key_values=_one,
)

# -- rows by partition, written out: there may be tens of thousands -------------------------------------------------


def _split_claim(key: GroupPartition, value: Claim) -> Values:
    return (
        *key,
        None if value.owner is None else value.owner.index,
        value.incarnation,
        value.epoch,
        None if value.last_owner is None else value.last_owner.index,
        value.topic_id,
        value.leader_epoch,
        value.resume,
        value.position,
        value.started_to,
    )


def join_claim(columns: Row[Any]) -> tuple[GroupPartition, Claim]:
    """Return one partition's claim from its columns."""
    group, topic, partition, owner, incarnation, epoch, last, topic_id, leader_epoch, resume, position, begun = columns
    return partition_of(group, topic, partition), Claim(
        owner=None if owner is None else member_of(group, owner),
        incarnation=incarnation,
        epoch=epoch,
        last_owner=None if last is None else member_of(group, last),
        topic_id=topic_id,
        leader_epoch=leader_epoch,
        resume=resume,
        position=position,
        started_to=begun,
    )


CLAIM_VALUES: Final = (
    "owner_index",
    "incarnation",
    "epoch",
    "last_owner_index",
    "topic_id",
    "leader_epoch",
    "resume_offset",
    "position",
    "started_to",
)
CLAIMS: Final[Layout[GroupPartition, Claim]] = Layout(
    tables.claim, PARTITION, CLAIM_VALUES, _split_claim, join_claim, tuple
)


def _split_initial(key: InitialKey, value: InitialOffset) -> Values:
    bounds = value.bounds
    log = (bounds.start, bounds.end, bounds.topic_id, bounds.leader_epoch)
    return (*key[0], key[1], value.offset, value.source, *log)


def _join_initial(columns: Row[Any]) -> tuple[InitialKey, InitialOffset]:
    group, topic, partition, topic_id, offset, source, start, end, log_topic_id, log_leader_epoch = columns
    bounds = LogBounds(start=start, end=end, topic_id=log_topic_id, leader_epoch=log_leader_epoch)
    key = (partition_of(group, topic, partition), TopicId(topic_id))
    return key, InitialOffset(offset=Offset(offset), source=source, bounds=bounds)


INITIAL: Final[Layout[InitialKey, InitialOffset]] = Layout(
    tables.initial_offset,
    (*PARTITION, "topic_id"),
    ("next_offset", "source", "log_start", "log_end", "log_topic_id", "log_leader_epoch"),
    _split_initial,
    _join_initial,
    lambda key: (*key[0], key[1]),
)


def _split_boundary(key: BoundaryKey, value: BoundaryOffset) -> Values:
    partition, topic_id, boundary = key
    return (*partition, topic_id, boundary, value.offset, storable(value.inexact), value.leader_epoch)


def _join_boundary(columns: Row[Any]) -> tuple[BoundaryKey, BoundaryOffset]:
    group, topic, partition, topic_id, boundary, offset, inexact, leader_epoch = columns
    row = BoundaryOffset(offset=Offset(offset), inexact=inexact, leader_epoch=leader_epoch)
    return (partition_of(group, topic, partition), TopicId(topic_id), boundary), row


BOUNDARY_OFFSETS: Final[Layout[BoundaryKey, BoundaryOffset]] = Layout(
    tables.boundary_offset,
    (*PARTITION, "topic_id", "boundary"),
    ("next_offset", "inexact", "leader_epoch"),
    _split_boundary,
    _join_boundary,
    lambda key: (*key[0], key[1], key[2]),
)

# -- contributions: one row for the member, one for each partition ---------------------------------------------------

ContributionKey: TypeAlias = tuple[CheckpointNumber, MemberId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributor:
    """The row of one member's contribution, without its offsets."""

    incarnation: Incarnation
    contributed_at: datetime


CONTRIBUTORS: Final[JsonLayout[ContributionKey, Contributor]] = of_dataclass(
    tables.contribution,
    Contributor,
    field=None,
    key=("sequence", *_MEMBER),
    key_values=lambda key: (key[0], key[1].group, key[1].index),
    read_key=lambda c: (CheckpointNumber(c[0]), member_of(c[1], c[2])),
)

# -- maps: the offsets of one checkpoint, the seek map of one epoch ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class MapLayout:
    """How a map by partition is kept beneath its number: one row for each partition."""

    table: Table
    number: str
    """The column of the sequence or epoch that the map belongs to."""

    values: tuple[str, ...]
    derived: tuple[tuple[str, Composable], ...] = ()
    """Columns that only the database reads, each with the SQL that makes it of a written row `n`."""


OFFSETS: Final = MapLayout(tables.checkpoint_offset, "sequence", ("next_offset",))
READ_BACKS: Final = MapLayout(tables.read_back, "sequence", ("next_offset",))
FROZEN: Final = MapLayout(tables.checkpoint_partition, "sequence", ())
SEEKS: Final = MapLayout(
    tables.seek_offset,
    "epoch",
    ("next_offset", "source", "current_offset", "clamped_from", "recreated"),
    derived=(("rewinds", REWINDS),),
)
CONTRIBUTED: Final = MapLayout(
    tables.contribution_offset,
    "sequence",
    (
        "member_index",
        "next_offset",
        "committed_offset",
        "log_start",
        "log_end",
        "log_topic_id",
        "log_leader_epoch",
    ),
)

Rows: TypeAlias = Mapping[GroupPartition, Values]
