"""When a region recorded its newest event: members notice by it a restored store that has got as far again."""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0022"
down_revision: Final = "0021"
branch_labels: Final = None
depends_on: Final = None


def upgrade() -> None:
    op.execute("ALTER TABLE kcr.region ADD COLUMN IF NOT EXISTS recorded_at timestamptz")
    op.execute(
        "UPDATE kcr.region r SET recorded_at = "
        "(SELECT e.at FROM kcr.event e WHERE e.region_id = r.id AND e.number = r.counter)"
    )


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
