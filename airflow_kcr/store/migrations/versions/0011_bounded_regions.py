"""Decisions find what is open, and what they ask the past for, by an index; retention says when it has work to do."""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0011"
down_revision: Final = "0010"
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
    f"checkpoint_bounded ON kcr.checkpoint (region_id, bound, sequence) WHERE bound IS NOT NULL AND {_ON_PATH}",
    "checkpoint_undone ON kcr.checkpoint (region_id, undone_by, sequence) WHERE undone_by IS NOT NULL",
    "reset_done ON kcr.reset (region_id, epoch) WHERE state = 'done'",
    "person_reset_active ON kcr.person_reset (region_id) WHERE state IN ('waiting', 'draining', 'begun')",
    "person_reset_order ON kcr.person_reset (region_id, asked_order)",
)


def upgrade() -> None:
    op.execute("ALTER TABLE kcr.region ADD COLUMN retire_at timestamptz")
    # Whatever was kept for want of anybody who asked is forgotten from now on, piece by piece.
    op.execute("UPDATE kcr.region SET retire_at = clock_timestamp()")
    for index in _INDEXES:
        op.execute(f"CREATE INDEX {index}")


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
