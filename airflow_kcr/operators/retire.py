"""Forgets the checkpoints that are old enough to go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_kcr.operators.base import RegionOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class KcrRetireOperator(RegionOperator):
    """Forgets the checkpoints that the region's retention gives up, as `kcr checkpoint retire` does.

    A running region does so by itself, a piece with each decision. A task of this kind forgets all that is due, now,
    also of a region that does not run.
    """

    def execute(self, context: Context) -> dict[str, object]:
        """Retire, and return the sequences that are gone."""
        with self.lent(context) as region:
            gone = region.retire()
        self.log.info("Retired %d checkpoint(s) of region %s", len(gone), self.region)
        return {"region": self.region, "retired": list(gone)}
