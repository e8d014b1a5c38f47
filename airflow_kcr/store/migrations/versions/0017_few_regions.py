"""Of what grows with time a region has most, however few rows of a young one the server has looked at.

Of eight rows of one region Postgres believes that every eighth row is of another, and goes on to believe it when there
are 20,000. It then finds a region's newest rows by reading all that the region has.
"""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0017"
down_revision: Final = "0016"
branch_labels: Final = None
depends_on: Final = None

_GROWING: Final = (
    "batch",
    "batch_range",
    "boundary_offset",
    "checkpoint",
    "checkpoint_offset",
    "checkpoint_partition",
    "checkpoint_request",
    "contribution",
    "contribution_offset",
    "event",
    "person_reset",
    "read_back",
    "reset",
    "seek_offset",
)


def upgrade() -> None:
    for table in _GROWING:
        # It counts from when the server looks at the table the next time, which it does by itself; of an empty one it
        # would only learn that it is short.
        op.execute(f"ALTER TABLE kcr.{table} ALTER COLUMN region_id SET (n_distinct = 1)")


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
