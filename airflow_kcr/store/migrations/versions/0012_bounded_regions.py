"""Decisions find what is open, and what they ask the past for, by an index; retention says when it has work to do."""

from __future__ import annotations

from typing import Final

from alembic import op

from airflow_kcr.store import migrations

revision: Final = "0012"
down_revision: Final = "0011"
branch_labels: Final = None
depends_on: Final = None

_ON_PATH: Final = (
    "undone_by IS NULL AND (state IN ('complete', 'published') OR state = 'retired' AND previous IS NOT NULL)"
)

_INDEXES: Final = (
    "cut_request_waiting ON kcr.cut_request (region_id) WHERE state IN ('queued', 'open')",
    "cut_request_sequence ON kcr.cut_request (region_id, sequence)",
    "cut_request_run ON kcr.cut_request (region_id, (requester ->> 'dag_id'), (requester ->> 'run_id'))",
    "checkpoint_complete ON kcr.checkpoint (region_id, sequence) WHERE state = 'complete'",
    "checkpoint_kept ON kcr.checkpoint (region_id, sequence) WHERE state <> 'retired'",
    "checkpoint_usable ON kcr.checkpoint (region_id, sequence) "
    "WHERE undone_by IS NULL AND state IN ('complete', 'published')",
    f"checkpoint_path ON kcr.checkpoint (region_id, sequence) WHERE {_ON_PATH}",
    f"checkpoint_bounded ON kcr.checkpoint (region_id, bound, sequence) WHERE bound IS NOT NULL AND {_ON_PATH}",
    "checkpoint_undone ON kcr.checkpoint (region_id, undone_by, sequence) WHERE undone_by IS NOT NULL",
    "reset_done ON kcr.reset (region_id, epoch) WHERE state = 'done'",
    "person_reset_active ON kcr.person_reset (region_id) WHERE state IN ('waiting', 'draining', 'begun')",
    "person_reset_order ON kcr.person_reset (region_id, asked_order)",
)

_NEWEST_BOUNDED: Final = """
    UPDATE kcr.region r SET bounded = (
        SELECT c.sequence FROM kcr.checkpoint c
        WHERE c.region_id = r.id AND c.bound IS NOT NULL AND c.undone_by IS NULL
          AND (c.state IN ('complete', 'published') OR c.state = 'retired' AND c.previous IS NOT NULL)
        ORDER BY c.bound DESC, c.sequence DESC LIMIT 1)
"""


def upgrade() -> None:
    # First: the region's row is locked from its change on, and no verb goes on without it.
    migrations.build_indexes(*_INDEXES)
    op.execute("ALTER TABLE kcr.region ADD COLUMN retire_at timestamptz")
    # Whatever was kept only because retirement was never requested is forgotten from now on, piece by piece.
    op.execute("UPDATE kcr.region SET retire_at = clock_timestamp()")
    op.execute("ALTER TABLE kcr.region ADD COLUMN bounded bigint")
    op.execute(_NEWEST_BOUNDED)


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
