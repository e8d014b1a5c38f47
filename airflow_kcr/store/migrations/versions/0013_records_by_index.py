"""What became of a record, and a page of resets, are found by indexes, whatever else there was."""

from __future__ import annotations

from typing import Final

from alembic import op

from airflow_kcr.store import migrations

revision: Final = "0013"
down_revision: Final = "0012"
branch_labels: Final = None
depends_on: Final = None


def upgrade() -> None:
    migrations.build_indexes(
        "batch_range_record ON kcr.batch_range (region_id, group_id, topic, partition, "
        "(POSITION('1'::bit(1) IN (to_offset - from_offset)::bit(64))), to_offset)",
        "event_registered ON kcr.event (region_id, (body -> 'member'), (body -> 'incarnation')) "
        "WHERE kind = 'MemberRegistered'",
        "reset_sequence ON kcr.reset (region_id, sequence)",
        "person_reset_not_begun ON kcr.person_reset (region_id, requested_at) WHERE epoch IS NULL",
    )
    op.execute("DROP INDEX kcr.batch_range_partition")
    op.execute("DROP INDEX kcr.person_reset_order")


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
