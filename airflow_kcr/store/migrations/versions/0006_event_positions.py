"""How far other programs have told of a region's events; no part of what it decides."""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0006"
down_revision: Final = "0005"


def upgrade() -> None:
    op.execute("""
        CREATE TABLE kcr.event_position (
            region_id bigint NOT NULL,
            reader text NOT NULL,
            number bigint NOT NULL,
            CONSTRAINT event_position_pkey PRIMARY KEY (region_id, reader),
            CONSTRAINT event_position_region_fkey FOREIGN KEY (region_id) REFERENCES kcr.region (id) ON DELETE CASCADE
        )
    """)
