"""Delivery: what one group promises about each record, and what an automatic reset therefore replays.

The four ways are those of the field's description of consumption semantics. docs/explanation/delivery.md says what each
means, and what follows for a reset.
"""

from __future__ import annotations

from enum import StrEnum


class Delivery(StrEnum):
    """What one group promises about each record."""

    AT_LEAST_ONCE = "at_least_once"
    """Everything since the restore point is processed again after a failure; nothing is lost. The default."""

    ALMOST_ONCE = "almost_once"
    """Only the batch in flight is processed again."""

    AT_MOST_ONCE = "at_most_once"
    """Nothing is processed twice; the start of a batch is the consumption, so the batch in flight may be lost."""

    EXACTLY_ONCE = "exactly_once"
    """Processed exactly once: the sink's own progress, stored with its output, says where to go on."""
