"""A region's past spread over hours, in a store whose clock can't be moved: what people look at has gaps in it."""

from __future__ import annotations

import psycopg

_CHECKPOINTS = """
WITH newest AS (SELECT max(sequence) AS number FROM kcr.checkpoint WHERE region_id = %(region)s)
UPDATE kcr.checkpoint SET opened_at = t.at, finished_at = t.at + took, published_at = t.at + 1.4 * took
FROM (SELECT c.region_id, c.sequence, now() - (number - c.sequence + 1) * interval '20 minutes' AS at,
             interval '1 second' * (2 + c.sequence * 7 %% 5) AS took
      FROM kcr.checkpoint c, newest) t
WHERE t.region_id = checkpoint.region_id AND t.sequence = checkpoint.sequence
  AND checkpoint.region_id = %(region)s AND finished_at IS NOT NULL
"""
_EVENTS = """
UPDATE kcr.event SET at = at - ((SELECT max(number) FROM kcr.event WHERE region_id = %(region)s) - number)
                          * interval '100 seconds'
WHERE region_id = %(region)s
"""
_RESETS = """
UPDATE kcr.reset SET started_at = t.at, done_at = t.at + interval '40 seconds'
FROM (SELECT r.epoch, coalesce(max(c.finished_at), now() - interval '5 hours') + interval '5 minutes' AS at
      FROM kcr.reset r LEFT JOIN kcr.checkpoint c ON c.region_id = r.region_id AND c.sequence < r.sequence
      WHERE r.region_id = %(region)s GROUP BY r.epoch) t
WHERE region_id = %(region)s AND t.epoch = reset.epoch
"""
_PERSONS = """
UPDATE kcr.person_reset SET requested_at = r.started_at - interval '1 minute', finished_at = r.done_at
FROM kcr.reset r WHERE r.region_id = person_reset.region_id AND r.epoch = person_reset.epoch
  AND r.region_id = %(region)s
"""


def spread_past(url: str, region: str) -> None:
    """Put 20 minutes between a region's checkpoints, some seconds into each, and its resets between them.

    Args:
        url: of the store.
        region: its name.
    """
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        row = connection.execute("SELECT id FROM kcr.region WHERE name = %(name)s", {"name": region}).fetchone()
        assert row is not None, region
        for statement in (_CHECKPOINTS, _EVENTS, _RESETS, _PERSONS):
            connection.execute(statement.encode(), {"region": row[0]})
