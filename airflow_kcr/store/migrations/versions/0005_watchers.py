"""What watchers of a region have notified people of: a few rows, which are no part of what a region decides."""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0005"
down_revision: Final = "0004"


def upgrade() -> None:
    op.execute("""
        CREATE TABLE kcr.watcher (
            region_id bigint NOT NULL,
            name text NOT NULL,
            body jsonb NOT NULL,
            CONSTRAINT watcher_pkey PRIMARY KEY (region_id, name),
            CONSTRAINT watcher_region_fkey FOREIGN KEY (region_id) REFERENCES kcr.region (id) ON DELETE CASCADE
        )
    """)
