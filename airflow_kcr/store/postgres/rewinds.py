"""What resets have undone of batches, for those that were read: see `protocol.region.rewinds`, which says why.

Of all resets after a batch two kinds can hold the lowest place of a partition: the next one, and any that sent it
further back than the reset just before it had. All others went to where it was before or beyond, and are passed over.
So resets that a region does by itself, whose places only move on, cost a reader nothing, however many there were;
`seek_offset.rewinds` says which kind an entry is of. It is true as long as that is not known.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from psycopg.sql import SQL
from sqlalchemy import text

from airflow_kcr.ports import Replayed, Span
from airflow_kcr.protocol.region import timelines
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.values import Epoch, GroupPartition, Offset
from airflow_kcr.store.postgres.row_layout import partition_columns
from airflow_kcr.store.postgres.session import Found, Session, composed
from airflow_kcr.store.postgres.tables import TURN

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
