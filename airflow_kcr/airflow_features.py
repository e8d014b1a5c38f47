"""What Airflow's minor versions add of what regions use, and what takes its place before.

One table for `kcr doctor`, which imports no Airflow, and for the refusals of DAGs. Whether the installed Airflow has a
feature is asked of its classes, by `hooks.compat`; nothing else asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

OLDEST: Final = (3, 1, 8)
"""The oldest supported version."""


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that an older supported Airflow lacks."""

    name: str
    since: tuple[int, int]
    instead: str
    """What an older one has instead, or what to do there."""

    @property
    def missing(self) -> str:
        """A clause that says which version has it, and what there is without it."""
        return f"{self.name} need Airflow {dotted(self.since)}: {self.instead}"


CHECKPOINT_KEYS: Final = Feature(
    "partition keys of checkpoints",
    (3, 3),
    "a DAG with schedule=checkpoint_schedule(REGION) runs for the newest checkpoint, which its event's extra names",
)
PARTITION_DATES: Final = Feature(
    "runs of partitions (CronPartitionTimetable)",
    (3, 3),
    "no task learns the date of its partition before; use CronDataIntervalTimetable",
)
CONSOLE: Final = Feature(
    "the console's pages",
    (3, 2),
    "Browse, Regions shows regions without actions; use the DAG of the reset, or `kcr`",
)
FEATURES: Final = (CHECKPOINT_KEYS, PARTITION_DATES, CONSOLE)


def missing(version: tuple[int, ...]) -> tuple[Feature, ...]:
    """Return what a version of Airflow lacks.

    Args:
        version: its numbers, at least major and minor.
    """
    return tuple(one for one in FEATURES if version[:2] < one.since)


def dotted(version: tuple[int, ...]) -> str:
    """Return a version as people write it."""
    return ".".join(map(str, version))
