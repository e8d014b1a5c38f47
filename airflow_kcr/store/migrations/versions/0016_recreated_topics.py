"""Which places of a reset are in the log of a topic that was made anew, so that no two logs' offsets are subtracted."""

from __future__ import annotations

from typing import Final

from alembic import op

from airflow_kcr.store import migrations

revision: Final = "0016"
down_revision: Final = "0015"
branch_labels: Final = None
depends_on: Final = None


def upgrade() -> None:
    # Written with every entry; the default is for existing ones, for which it is unknown.
    op.execute("ALTER TABLE kcr.seek_offset ADD COLUMN IF NOT EXISTS recreated text NOT NULL DEFAULT ''")
    # Nearly empty, as few topics are made anew: whether one was, since a reset, must not be looked for in all entries.
    migrations.build_indexes(
        "seek_offset_recreated ON kcr.seek_offset (region_id, group_id, topic, partition, epoch) WHERE recreated <> ''"
    )
    op.execute("ALTER TABLE kcr.seek_offset ALTER COLUMN recreated DROP DEFAULT")


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
