"""A region remembers which partitions the brokers have that no member owns, and since when."""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0007"
down_revision: Final = "0006"
branch_labels: Final = None
depends_on: Final = None


def upgrade() -> None:
    op.execute("ALTER TABLE kcr.region ADD COLUMN unowned jsonb")


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
