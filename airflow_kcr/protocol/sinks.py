"""Sinks as the protocol sees them: what becomes of output when a region goes back (docs/explanation/delivery.md)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_kcr.protocol.values import GroupId


class FileFormat(StrEnum):
    """What readers of a file sink find."""

    PARQUET = "parquet"
    """Files, which the manifests of checkpoints name."""

    DELTA = "delta"
    """The same, and a Delta table in which each checkpoint comes and goes as a whole."""


class SinkMode(StrEnum):
    """How a sink adds output to its table."""

    APPEND = "append"
    """Rows are added; a reset to an older place removes those beyond it."""

    UPSERT = "upsert"
    """A row replaces the one that has the same key; what it replaced is gone, so no reset can restore it."""

    @property
    def restorable(self) -> bool:
        """Whether a reset can bring the table back to what it was."""
        return self is SinkMode.APPEND


@dataclass(frozen=True, slots=True, order=True)
class UpsertSink:
    """A sink that no reset can restore, as people know it."""

    group: GroupId
    name: str
    table: str

    def __str__(self) -> str:
        return f"sink {self.name} of group {self.group} (table {self.table})"
