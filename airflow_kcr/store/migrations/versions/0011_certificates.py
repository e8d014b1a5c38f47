"""Certificates: how far a region's history is proved."""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0011"
down_revision: Final = "0010"
branch_labels: Final = None
depends_on: Final = None


def upgrade() -> None:
    op.execute("""
        CREATE TABLE kcr.certificate (
            region_id bigint NOT NULL,
            number bigint NOT NULL,
            counter bigint NOT NULL,
            ledger bigint NOT NULL,
            body jsonb NOT NULL,
            digest text NOT NULL,
            resume bytea,
            CONSTRAINT certificate_pkey PRIMARY KEY (region_id, number),
            CONSTRAINT certificate_region_fkey FOREIGN KEY (region_id) REFERENCES kcr.region (id) ON DELETE CASCADE
        )
    """)


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
