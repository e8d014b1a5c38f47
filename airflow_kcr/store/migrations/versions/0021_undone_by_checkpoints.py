"""What a reset undid is said by the checkpoints alone (`undone_by`), which an index finds.

The list in the reset's own row was read by every decision until the next reset, however far back the reset had gone.
"""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0021"
down_revision: Final = "0020"
branch_labels: Final = None
depends_on: Final = None


def upgrade() -> None:
    op.execute("ALTER TABLE kcr.reset DROP COLUMN IF EXISTS undoes")


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
