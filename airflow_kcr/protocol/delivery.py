"""What one group promises about each record, and sinks as the protocol sees them (docs/explanation/delivery.md).

The four ways are those of the field's description of consumption semantics. docs/explanation/delivery.md says what each
means, and what follows for a reset.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_kcr.protocol.values import GroupId


class Delivery(StrEnum):
    """What one group promises about each record."""

    AT_LEAST_ONCE = "at_least_once"
    """Everything since the restore point is processed again after a failure; nothing is lost. The default."""

    ALMOST_ONCE = "almost_once"
    """Only the batch in flight is processed again."""

    AT_MOST_ONCE = "at_most_once"
    """Nothing is processed twice; the start of a batch is the consumption, so the batch in flight may be lost."""

    EXACTLY_ONCE = "exactly_once"
    """Processed exactly once: the sink's own progress, stored with its output, says where to continue."""


# Sinks as the protocol sees them: what becomes of output when a region goes back (docs/explanation/delivery.md).


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
