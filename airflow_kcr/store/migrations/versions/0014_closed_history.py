"""Where closed history is archived; and room that dropped history leaves is found again before much of it is there."""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0014"
down_revision: Final = "0013"
branch_labels: Final = None
depends_on: Final = None


def upgrade() -> None:
    op.execute("ALTER TABLE kcr.certificate ADD COLUMN archive jsonb")
    # By default a fifth of a table must be dead before it is looked at: of the history of years, most of one.
    for table in ("event", "batch", "batch_range"):
        op.execute(f"ALTER TABLE kcr.{table} SET (autovacuum_vacuum_scale_factor = 0.02)")


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
