"""No batch says any more what of it was undone; what was stored is what the resets after it say.

In pieces, each a transaction, any of which may be the last for now: another upgrade continues.
"""

from __future__ import annotations

from typing import Final

from alembic import op
from sqlalchemy import text

from airflow_kcr.store import migrations

revision: Final = "0010"
down_revision: Final = "0009"
branch_labels: Final = None
depends_on: Final = None

PIECE: Final = 5_000
"""Batches that a statement looks at."""

_RESETS: Final = text("SELECT region_id, epoch FROM kcr.reset ORDER BY region_id, epoch")

# name: keep_ahead — of one reset: the entries that are not before those of the reset just before it.
_KEEP_AHEAD: Final = text("""
    UPDATE kcr.seek_offset n SET rewinds = false
    WHERE n.region_id = :region AND n.epoch = :epoch AND n.rewinds AND n.next_offset >= (
        SELECT s.next_offset FROM kcr.seek_offset s
        WHERE s.region_id = :region AND s.group_id = n.group_id AND s.topic = n.topic AND s.partition = n.partition
          AND s.epoch = (SELECT max(r.epoch) FROM kcr.reset r WHERE r.region_id = :region AND r.epoch < :epoch)
    )
""")

_LAST: Final = text("SELECT coalesce(max(number), 0) FROM kcr.batch")

# name: proven — a batch that an attempt went back before, and that has no mark of it, was not done by then: a sink's
# progress has proved it in the reset that was done at last.
_PROVEN: Final = text("""
    UPDATE kcr.batch b SET proven_in = d.epoch
    FROM kcr.batch c CROSS JOIN LATERAL (
        SELECT min(r.epoch) AS epoch FROM kcr.reset r
        WHERE r.region_id = c.region_id AND r.epoch > c.epoch AND r.state = 'done'
    ) d
    WHERE c.number > :after AND c.number <= :upto AND c.outcome = 'done' AND d.epoch > c.epoch + 1
      AND b.number = c.number AND EXISTS (
        SELECT FROM kcr.batch_range r JOIN kcr.seek_offset s ON s.region_id = r.region_id
            AND s.group_id = r.group_id AND s.topic = r.topic AND s.partition = r.partition
        WHERE r.batch_number = c.number AND s.epoch > c.epoch AND s.epoch < d.epoch
          AND greatest(s.next_offset, r.from_offset) < coalesce(r.undone_from, r.to_offset)
    )
""")

_DONE: Final = text("""
    UPDATE kcr.batch SET outcome = 'done' WHERE number > :after AND number <= :upto AND outcome = 'undone'
""")


def upgrade() -> None:
    with op.get_context().autocommit_block():
        connection = op.get_bind()
        for region, epoch in connection.execute(_RESETS).all():
            connection.execute(_KEEP_AHEAD, {"region": region, "epoch": epoch})
        last = connection.execute(_LAST).scalar_one()
        for after in range(0, last, PIECE):
            for statement in (_PROVEN, _DONE):
                connection.execute(statement, {"after": after, "upto": after + PIECE})
    migrations.build_indexes(
        "seek_offset_rewinds ON kcr.seek_offset (region_id, group_id, topic, partition, "
        "(CASE WHEN rewinds THEN -epoch ELSE epoch END)) INCLUDE (next_offset) WHERE next_offset IS NOT NULL"
    )
    op.execute("ALTER TABLE kcr.seek_offset ALTER COLUMN rewinds DROP DEFAULT")
    op.execute("ALTER TABLE kcr.batch_range DROP COLUMN undone_from")


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
