"""The ranges of a batch are no longer checked, one by one, against the batch that they are stored with.

A batch and its ranges are stored by one statement, and are deleted with their region; nothing else touches either. The
check took about 6 % of what a start and an end of a batch with a hundred ranges take together.
"""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0005"
down_revision: Final = "0004"
branch_labels: Final = None
depends_on: Final = None


def upgrade() -> None:
    op.execute("ALTER TABLE kcr.batch_range DROP CONSTRAINT batch_range_batch_fkey")


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
