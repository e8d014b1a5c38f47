"""Old history leaves the store once it is judged; certificates, archive files and what they were looked up by go."""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0024"
down_revision: Final = "0023"
branch_labels: Final = None
depends_on: Final = None


def upgrade() -> None:
    op.execute("DROP TABLE kcr.archived_range, kcr.archived_process, kcr.certificate")
    op.execute("""
        CREATE TABLE kcr.history_start (
            region_id bigint NOT NULL,
            counter bigint NOT NULL,
            ledger bigint NOT NULL,
            open text[] NOT NULL,
            proof bytea NOT NULL,
            CONSTRAINT history_start_pkey PRIMARY KEY (region_id),
            CONSTRAINT history_start_region_fkey FOREIGN KEY (region_id) REFERENCES kcr.region (id) ON DELETE CASCADE
        )
    """)


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
