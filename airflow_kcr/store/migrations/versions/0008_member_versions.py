"""A member's row has the version of the package that it runs."""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0008"
down_revision: Final = "0007"
branch_labels: Final = None
depends_on: Final = None


def upgrade() -> None:
    # Members that live through the migration did not say.
    op.execute("ALTER TABLE kcr.member ADD COLUMN version text NOT NULL DEFAULT ''")
    op.execute("ALTER TABLE kcr.member ALTER COLUMN version DROP DEFAULT")


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
