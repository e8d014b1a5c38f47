"""Forgets the checkpoints that are old enough to go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_kcr.operators.base import RegionOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class KcrRetireOperator(RegionOperator):
    """Forgets the checkpoints that the region's retention gives up, as `kcr checkpoint retire` does.

    Nothing retires by itself. A task of this kind behind the last one of the cut DAG keeps the store small.
    """

    def execute(self, context: Context) -> dict[str, object]:
        """Retire, and return the sequences that are gone."""
        with self.lent(context) as region:
            gone = region.retire()
        self.log.info("Retired %d checkpoint(s) of region %s", len(gone), self.region)
        return {"region": self.region, "retired": list(gone)}
