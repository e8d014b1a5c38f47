"""The exactly-once variant: one row for each flight in a table of Postgres, and the result is a plain sum over it.

No ledger says which rows count: all do. That is what `delivery: exactly_once` promises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_kcr.embedded.flights.pipeline import FLIGHT, joined

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_kcr.spark import BatchContext

SINK: Final = "flights"
"""The sink's name in the spec, and the table's."""


def process(batch: DataFrame, context: BatchContext) -> None:
    """Write a batch's flights, with airline and weather, into the sink; records that are no flights are left out.

    Raises:
        SinkError: the rows don't fit the table.
        ToolMissing: the package with the tables is not installed.
    """
    context.sinks[SINK].write(joined(batch).where(f"kind = '{FLIGHT}'").drop("kind"))
