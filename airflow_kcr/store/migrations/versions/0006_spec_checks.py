"""A region remembers what members have found of a spec: of one that waits, and why they can't start with one."""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0006"
down_revision: Final = "0005"
branch_labels: Final = None
depends_on: Final = None


def upgrade() -> None:
    op.execute("ALTER TABLE kcr.region ADD COLUMN spec_checks jsonb")


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
