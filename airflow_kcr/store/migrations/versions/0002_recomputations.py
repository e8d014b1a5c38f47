"""Recomputations of a checkpoint, kept in its row: there are none, or a few."""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0002"
down_revision: Final = "0001"


def upgrade() -> None:
    op.execute("ALTER TABLE kcr.checkpoint ADD COLUMN recomputations jsonb NOT NULL DEFAULT '[]'")
