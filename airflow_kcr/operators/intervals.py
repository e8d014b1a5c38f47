"""Whether a DAG run's data interval is one of a region's: otherwise its cut would hold other records.

Pure: a DAG's schedule and a region's are two texts that people write in two places. The intervals of real runs are
compared with the region's instants, which finds a difference in phase, in zone and in length, whatever the kind of
timetable.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.durations import format_duration
from airflow_kcr.protocol.instants import format_instant

if TYPE_CHECKING:
    from airflow_kcr.spec import RegionSpec
    from airflow_kcr.spec.model import CutSpec

_TICK = timedelta.resolution


def require_fit(spec: RegionSpec, start: datetime, end: datetime) -> None:
    """Return if [start, end) is exactly what lies between two neighbouring bounds of a region, or it has no schedule.

    Args:
        spec: the region's.
        start: the begin of the run's data interval, with a zone.
        end: its end.

    Raises:
        ConfigurationError: it is not; the message names both, and the bounds nearby.
    """
    schedule = spec.cut.schedule
    if schedule is None:
        return
    last = schedule.at_or_before(end)
    if last != end:
        raise ConfigurationError(
            f"{_interval(start, end)} does not end at a bound of region {spec.region}, which cuts "
            f"{_schedule(spec.cut)}: its bounds next to it are {format_instant(last)} and "
            f"{format_instant(schedule.after(end))}. {_ADVICE}"
        )
    before = schedule.at_or_before(end - _TICK)
    if before != start:
        compared = "longer" if before > start else "shorter"
        raise ConfigurationError(
            f"{_interval(start, end)} is {compared} than a period of region {spec.region}, which cuts "
            f"{_schedule(spec.cut)}: its bound before {format_instant(end)} is {format_instant(before)}, and the "
            f"cut holds the records from there. {_ADVICE}"
        )


_ADVICE = (
    "Give the DAG and the region one schedule, its time zone included: for a cron expression "
    "CronDataIntervalTimetable(…, timezone=…), for an interval DeltaDataIntervalTimetable(…) with a start date that "
    "is a bound"
)


def _interval(start: datetime, end: datetime) -> str:
    return f"the run's data interval, {format_instant(start)} to {format_instant(end)},"


def _schedule(cut: CutSpec) -> str:
    if cut.every is not None:
        return f"every {format_duration(cut.every)}, counted from 1970-01-01T00:00:00Z (cut.every)"
    return f"at {cut.cron!r} in {cut.timezone} (cut.cron, cut.timezone)"
