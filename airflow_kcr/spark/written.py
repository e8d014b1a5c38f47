"""What every sink's rows have to have, and what is said to a pipeline that writes twice or not at all."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from airflow_kcr.errors import SinkError

COORDINATES: Final = ("topic", "partition", "offset")
"""Columns of a batch, which its pipeline keeps: they name the record that a row was made of."""


def require_coordinates(names: Collection[str], shown: str) -> None:
    """Refuse rows of which nobody knows what records they are made of.

    Args:
        names: their columns.
        shown: their schema, for the message.

    Raises:
        SinkError: a coordinate is missing.
    """
    missing = [name for name in COORDINATES if name not in names]
    if missing:
        raise SinkError(
            f"the rows have no column {', '.join(missing)}; keep topic, partition and offset of the batch, which say "
            f"of which record a row is made (schema: {shown})"
        )


def written_twice(writer: object) -> SinkError:
    """Return the error of a sink that a batch has written to before."""
    return SinkError(f"{writer!r} was written to already; a batch writes once to each sink: union the rows")


def not_written(writer: object) -> SinkError:
    """Return the error of a sink that a batch has not written to."""
    return SinkError(
        f"{writer!r} was not written to; write to each sink in every batch, a DataFrame without rows where there "
        "is nothing: else nobody knows that the records were looked at"
    )
