"""Is a DAG run's data interval one of a region's? Otherwise its checkpoint would hold other records.

A DAG's schedule and a region's are two texts that people write in two places. The intervals of real runs are compared
with the region's instants, which finds a difference in phase, in zone and in length, whatever the kind of timetable.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.values import format_duration, format_instant

if TYPE_CHECKING:
    from airflow_kcr.spec import RegionSpec
    from airflow_kcr.spec.model import CheckpointSpec

_TICK: Final = timedelta.resolution


def require_fit(spec: RegionSpec, start: datetime, end: datetime) -> None:
    """Return if [start, end) lies exactly between two neighbouring boundaries of a region, or it has no schedule.

    Args:
        spec: the region's.
        start: the start of the run's data interval, with a zone.
        end: its end.

    Raises:
        ConfigurationError: it is not; the message names both, and the boundaries nearby.
    """
    schedule = spec.checkpoint.schedule
    if schedule is None:
        return
    last = schedule.at_or_before(end)
    if last != end:
        raise ConfigurationError(
            f"{_interval(start, end)} does not end at a boundary of region {spec.region}, which checkpoints "
            f"{_schedule(spec.checkpoint)}: its boundaries next to it are {format_instant(last)} and "
            f"{format_instant(schedule.after(end))}. {_ADVICE}"
        )
    before = schedule.at_or_before(end - _TICK)
    if before != start:
        compared = "longer" if before > start else "shorter"
        raise ConfigurationError(
            f"{_interval(start, end)} is {compared} than a period of region {spec.region}, which checkpoints "
            f"{_schedule(spec.checkpoint)}: its boundary before {format_instant(end)} is "
            f"{format_instant(before)}, and the "
            f"checkpoint holds the records from there. {_ADVICE}"
        )


_ADVICE: Final = (
    "Give the DAG and the region one schedule, its time zone included: for a cron expression "
    "CronDataIntervalTimetable(…, timezone=…), for an interval DeltaDataIntervalTimetable(…) with a start date that "
    "is a boundary"
)


def _interval(start: datetime, end: datetime) -> str:
    return f"the run's data interval, {format_instant(start)} to {format_instant(end)},"


def _schedule(checkpoint: CheckpointSpec) -> str:
    if checkpoint.every is not None:
        return f"every {format_duration(checkpoint.every)}, counted from 1970-01-01T00:00:00Z (checkpoint.every)"
    return f"at {checkpoint.cron!r} in {checkpoint.timezone} (checkpoint.cron, checkpoint.timezone)"
