"""A person's reset remembers the consent to going back although a table of mode upsert is not restored."""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0004"
down_revision: Final = "0003"
branch_labels: Final = None
depends_on: Final = None


def upgrade() -> None:
    # Earlier resets were accepted without the question; none has consent.
    op.execute("ALTER TABLE kcr.person_reset ADD COLUMN consent_upsert boolean NOT NULL DEFAULT false")
    op.execute("ALTER TABLE kcr.person_reset ALTER COLUMN consent_upsert DROP DEFAULT")


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
