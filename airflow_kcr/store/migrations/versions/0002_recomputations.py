"""Recomputations of a checkpoint, kept in its row: there are none, or a few."""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0002"
down_revision: Final = "0001"
branch_labels: Final = None
depends_on: Final = None


def upgrade() -> None:
    op.execute("ALTER TABLE kcr.checkpoint ADD COLUMN recomputations jsonb NOT NULL DEFAULT '[]'")


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
