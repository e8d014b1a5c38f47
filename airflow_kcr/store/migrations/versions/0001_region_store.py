"""The region store: regions, their members and claims, the ledger, checkpoints, resets and events."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from alembic import op

revision: Final = "0001"
down_revision: Final = None


def upgrade() -> None:
    op.get_bind().exec_driver_sql(Path(__file__).with_suffix(".sql").read_text())
