"""A region's past, made in the database: what it has behind it after years of checkpoints."""

from __future__ import annotations

import psycopg

from tests.support.long_ledger import Statistics
from tests.support.plans import keep_unknown

_HERE = "c.region_id = (SELECT id FROM kcr.region WHERE name = %(region)s)"

_CHECKPOINTS = """
    INSERT INTO kcr.checkpoint (region_id, sequence, timeline, epoch, state, purpose, request_id, participants,
        opened_at, boundary,
                                previous, inexact, committed, finished_at, published_at, abort_reason, undone_by,
                                pinned_as, pin_reason, digest)
    SELECT r.id, n, 1, 1, 'retired', 'request', 'run-' || n, '{}', t.at, t.at, n - 1, '{}', 'yes', t.at, t.at, '',
           CASE WHEN mod(n, 50) = 0 THEN 2 END, '', '', md5(CAST(n AS text))
    FROM kcr.region r, generate_series(1, %(checkpoints)s) n,
         LATERAL (SELECT timestamptz '2016-01-01 00:00+00' + n * interval '1 minute' AS at) t
    WHERE r.name = %(region)s
"""

_REQUESTS = f"""
    INSERT INTO kcr.checkpoint_request (region_id, request_id, purpose, state, requested_at, asked_order, boundary,
        allow_inexact,
                                 requester, sequence, answered_at, refusal)
    SELECT region_id, request_id, 'request', 'answered', opened_at, sequence, boundary, false,
           jsonb_build_object('dag_id', 'flights', 'run_id', request_id), sequence, published_at, ''
    FROM kcr.checkpoint c WHERE state = 'retired' AND {_HERE}
"""

_BOUNDS = f"""
    INSERT INTO kcr.boundary_offset (region_id, boundary, group_id, topic, partition, topic_id, next_offset, inexact,
                                  leader_epoch)
    SELECT region_id, boundary, 'g', 't', 0, 'id-1', sequence, '', 0
    FROM kcr.checkpoint c WHERE state = 'retired' AND {_HERE}
"""

_RESETS = """
    INSERT INTO kcr.reset (region_id, epoch, sequence, timeline, cause, state, started_at, attempt, must_publish,
                           detail, done_at)
    SELECT r.id, n, n * 10, 1, 'lease_lost', 'done', now(), 1, '[]', '', now()
    FROM kcr.region r, generate_series(1, %(checkpoints)s / 10) n WHERE r.name = %(region)s
"""

_SEEKS = f"""
    INSERT INTO kcr.seek_offset (region_id, epoch, group_id, topic, partition, next_offset, source, current_offset,
                                 rewinds, recreated)
    SELECT region_id, epoch, 'g', 't', 0, epoch, 'merged', epoch, false, '' FROM kcr.reset c
    WHERE epoch <= %(checkpoints)s / 10 AND {_HERE}
"""

_EVENTS = """
    INSERT INTO kcr.event (region_id, number, at, epoch, timeline, kind, body)
    SELECT r.id, n, now(), 1, 1, 'CheckpointRequestAnswered', jsonb_build_object('request_id', 'run-' || n,
        'sequence', n)
    FROM kcr.region r, generate_series(2, %(checkpoints)s) n WHERE r.name = %(region)s
"""

_ALIGNED = """
    UPDATE kcr.region SET aligned = (
        SELECT max(c.sequence) FROM kcr.checkpoint c
        WHERE c.region_id = id AND c.boundary IS NOT NULL AND c.undone_by IS NULL AND c.previous IS NOT NULL)
    WHERE name = %(region)s
"""

# Of a past that is kept: its offsets, and where its contributions saw the logs begin, which move by one each minute.
_KEPT = (
    f"UPDATE kcr.checkpoint c SET state = 'published', undone_by = NULL WHERE state = 'retired' AND {_HERE}",
    f"""
    INSERT INTO kcr.checkpoint_offset (region_id, sequence, group_id, topic, partition, next_offset)
    SELECT c.region_id, c.sequence, g.group_id, 't', n, c.sequence
    FROM kcr.checkpoint c JOIN kcr.consumer_group g USING (region_id), generate_series(0, %(partitions)s - 1) n
    WHERE c.sequence <= %(checkpoints)s AND {_HERE}
    """,
    f"""
    INSERT INTO kcr.contribution (region_id, sequence, group_id, member_index, incarnation, contributed_at)
    SELECT c.region_id, c.sequence, g.group_id, 0, 1, c.opened_at
    FROM kcr.checkpoint c JOIN kcr.consumer_group g USING (region_id)
    WHERE c.sequence <= %(checkpoints)s AND {_HERE}
    """,
    f"""
    INSERT INTO kcr.contribution_offset (region_id, sequence, group_id, topic, partition, member_index, next_offset,
                                         log_start, log_end, log_topic_id)
    SELECT c.region_id, c.sequence, g.group_id, 't', n, 0, c.sequence, c.sequence - 1, c.sequence, 'id-1'
    FROM kcr.checkpoint c JOIN kcr.consumer_group g USING (region_id), generate_series(0, %(partitions)s - 1) n
    WHERE c.sequence <= %(checkpoints)s AND {_HERE}
    """,
)

SPARE = 10
"""Numbers between the past and what comes."""


def number_beyond(url: str, checkpoints: int, *, region: str = "flights") -> None:
    """Have a region, which was declared and never started, number as if so many checkpoints were behind it."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            b"UPDATE kcr.region SET next_sequence = %(next)s, counter = %(next)s, epoch = %(epoch)s, timeline = 2 "
            b"WHERE name = %(region)s",
            {"next": checkpoints + SPARE, "epoch": checkpoints // 10 + 1, "region": region},
        )


def live_through(
    url: str, checkpoints: int, *, region: str = "flights", statistics: Statistics = Statistics.FRESH
) -> None:
    """Give a region a past, before its own numbers: checkpoints each minute, long retired.

    Each has the request of a DAG run and the place of its boundary; each fiftieth was undone; after each ten there was
    a reset.

    Args:
        url: the database.
        checkpoints: how many checkpoints; the region's numbers were moved beyond them (`number_beyond`).
        region: its name.
        statistics: what the planner knows of it; `few`: what the region had before.
    """
    keep_unknown(url)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        if statistics is Statistics.FEW:
            connection.execute(b"ANALYZE")
        for statement in (_CHECKPOINTS, _REQUESTS, _BOUNDS, _RESETS, _SEEKS, _EVENTS):
            connection.execute(statement.encode(), {"checkpoints": checkpoints, "region": region})
        connection.execute(_ALIGNED.encode(), {"region": region})
        if statistics is Statistics.FRESH:
            connection.execute(b"ANALYZE")


def keep(url: str, checkpoints: int, partitions: int, *, region: str = "flights") -> None:
    """Have a region keep the past that it was given (`live_through`), with offsets and contributions.

    Args:
        url: the database.
        checkpoints: how many it has.
        partitions: of the one topic that its one group reads.
        region: its name.
    """
    about = {"checkpoints": checkpoints, "partitions": partitions, "region": region}
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        for statement in _KEPT:
            connection.execute(statement.encode(), about)
        connection.execute(b"ANALYZE")
