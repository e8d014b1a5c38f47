"""What a reset undid is derived: a seek entry says whether it went further back, a batch in which epoch it was proven.

The way to it: what the batches say themselves is converted in 0010. No program works with the revision in between, so a
partly converted ledger is never read.
"""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0009"
down_revision: Final = "0008"
branch_labels: Final = None
depends_on: Final = None


def upgrade() -> None:
    op.execute("ALTER TABLE kcr.batch ADD COLUMN proven_in bigint")
    # True is always right, and makes a reader look at the entry; 0010 says where it need not.
    op.execute("ALTER TABLE kcr.seek_offset ADD COLUMN rewinds boolean NOT NULL DEFAULT true")


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
