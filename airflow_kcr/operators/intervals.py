"""Is a DAG run's data interval one of a region's? Otherwise its checkpoint would hold other records.

A DAG's schedule and a region's are two texts that people write in two places. The intervals of real runs are compared
with the region's instants, which finds a difference in phase, in zone and in length, whatever the kind of timetable.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.hooks import kcr
from airflow_kcr.hooks.compat import partition_date
from airflow_kcr.protocol.values import checked_instant, format_duration, format_instant, instant_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kcr.protocol.region.rows import Checkpoint
    from airflow_kcr.spec import RegionSpec
    from airflow_kcr.spec.model import CheckpointSpec

_TICK: Final = timedelta.resolution


def boundary_of(context: Context, spec: RegionSpec, until: datetime | str | None) -> datetime | None:
    """Return up to where a run's checkpoint goes: an instant that is given, else its data interval's end; None: now.

    Args:
        context: the task's.
        spec: the region's, whose schedule the interval has to fit.
        until: what is given, an instant with a zone.

    Raises:
        ConfigurationError: the interval is of no length, or does not fit the region's schedule; `until` is no instant.
    """
    if until is not None:
        return instant_of("until", until)
    interval = interval_of(context, spec)
    if interval is None:
        return None
    require_fit(spec, *interval)
    return interval[1]


def interval_of(context: Context, spec: RegionSpec) -> tuple[datetime, datetime] | None:
    """Return a run's data interval, or what its partition date begins: a period of the region; None: it has neither.

    Args:
        context: the task's.
        spec: the region's.

    Raises:
        ConfigurationError: the interval is of no length, the region has no schedule that says how long a partition is,
            or this Airflow doesn't tell the partition's date.
    """
    interval = kcr.interval_of(context)
    if interval is not None:
        start, end = (checked_instant(moment) for moment in interval)
        return start, end
    date = partition_date(context)
    if date is None:
        return None
    if spec.checkpoint.schedule is None:
        raise ConfigurationError(
            f"the run is of the partition {format_instant(checked_instant(date))}, and region {spec.region} has no "
            "schedule that says where it ends: write checkpoint.cron or checkpoint.every into the spec"
        )
    return checked_instant(date), spec.checkpoint.schedule.after(checked_instant(date))


def remarks(interval: tuple[datetime, datetime] | None, row: Checkpoint, previous: Checkpoint | None) -> list[str]:
    """Return how a checkpoint's records differ from those of an interval, in sentences; none: they are the same.

    Args:
        interval: of the run; None: it has none, or another boundary was given.
        row: the checkpoint.
        previous: the current one before it; None: there is none.
    """
    found = [f"{partition}: {why}" for partition, why in sorted(row.inexact.items())]
    if interval is None:
        return found
    start, end = (checked_instant(moment) for moment in interval)
    if row.boundary is not None and row.boundary > end:
        found.append(
            f"no checkpoint was made at {format_instant(end)}, the end of the run's interval: the first one "
            "beyond it, of "
            f"{format_instant(row.boundary)}, answers, and holds the records of all intervals up to there"
        )
    if previous is None:
        found.append(f"it is the region's first checkpoint: it holds all records before {format_instant(end)}")
    elif previous.boundary is None:
        found.append(
            f"checkpoint {previous.sequence} before it has no boundary: the interval's records up to there are in "
            "that one"
        )
    elif previous.boundary < start:
        found.append(
            f"no checkpoint was made at {format_instant(start)}, the begin of the run's interval: this one holds "
            "the "
            f"records since {format_instant(previous.boundary)}"
        )
    return found


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
