"""A region remembers the outsiders that were found in its groups: each is told once, and a region may hold for them."""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0003"
down_revision: Final = "0002"
branch_labels: Final = None
depends_on: Final = None


def upgrade() -> None:
    op.execute("ALTER TABLE kcr.region ADD COLUMN outsiders jsonb")


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
