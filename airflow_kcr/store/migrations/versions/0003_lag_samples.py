"""Samples of how far groups are behind: a bounded number of each region, which is no part of what it decides."""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0003"
down_revision: Final = "0002"


def upgrade() -> None:
    op.execute("""
        CREATE TABLE kcr.lag_sample (
            region_id bigint NOT NULL,
            group_id text NOT NULL,
            at timestamp with time zone NOT NULL,
            epoch bigint NOT NULL,
            points bigint NOT NULL,
            body bytea NOT NULL,
            CONSTRAINT lag_sample_pkey PRIMARY KEY (region_id, group_id, at),
            CONSTRAINT lag_sample_region_fkey FOREIGN KEY (region_id) REFERENCES kcr.region (id) ON DELETE CASCADE
        )
    """)
