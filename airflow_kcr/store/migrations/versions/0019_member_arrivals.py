"""A member's row has when it last registered or claimed, so that events need not be searched for it."""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0019"
down_revision: Final = "0018"
branch_labels: Final = None
depends_on: Final = None


def upgrade() -> None:
    # Of members that live through the migration it is not known.
    op.execute("ALTER TABLE kcr.member ADD COLUMN arrived_at timestamptz")


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
