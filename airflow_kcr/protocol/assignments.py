"""What Kafka assigned to one member, and what changes from one assignment to the next.

An assignment is numbered: two equal ones at different times stay distinct, because another member may have claimed the
partitions in between. What was added is read again and claimed, what was removed is let go, and only what was retained
may continue as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from airflow_kcr.protocol.values import AssignmentId, GroupPartition

NOTHING: Final[frozenset[GroupPartition]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What Kafka assigned, as one answer."""

    assignment: AssignmentId
    partitions: frozenset[GroupPartition] = NOTHING

    def since(self, before: Assignment | None) -> AssignmentChange:
        """Return what this assignment changes; `before` is None if there was none, as after a revoke."""
        had = NOTHING if before is None else before.partitions
        return AssignmentChange(
            added=self.partitions - had, retained=self.partitions & had, removed=had - self.partitions
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentChange:
    """What changes between two assignments: added and retained are the new one, retained and removed the old."""

    added: frozenset[GroupPartition] = NOTHING
    retained: frozenset[GroupPartition] = NOTHING
    removed: frozenset[GroupPartition] = NOTHING

    def __bool__(self) -> bool:
        """Whether anything changes."""
        return bool(self.added or self.removed)
