"""What checkpoints have in tables that people own, kept in their rows: one entry a table, so a few."""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0004"
down_revision: Final = "0003"


def upgrade() -> None:
    op.execute("ALTER TABLE kcr.checkpoint ADD COLUMN tables jsonb NOT NULL DEFAULT '[]'")
