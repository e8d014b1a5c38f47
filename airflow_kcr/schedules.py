"""The instants of a region's boundaries: at a fixed interval, or by a cron expression in a time zone.

Both answer as Airflow's data-interval timetables do, so that the end of a DAG run's data interval is a boundary of a
region with the same schedule. Instants are UTC. Each schedule is a fixed set of instants, and both questions are
answered from it, so `at_or_before(after(x))` is `after(x)`, and nothing lies between `at_or_before(x)` and `after(x)`.

What a cron expression means when the clock changes:

* Expressions that run in every hour (`*` in the hour field) follow the clock as it is: nothing in the hour that is
  skipped, everything twice in the hour that is repeated. So `0 * * * *` and `*/5 * * * *` never leave a hole.
* All others run once. A time in the repeated hour is its second occurrence. A time in the skipped hour is as much later
  as the clock was put forward; what else falls before that moment is left out.

Airflow differs in two cases, both with `*` in the hour field. It adds the distance on the clock to the present moment;
so where days are restricted (`0 * * * 1`), the first run after a change is an hour off, and where a clock is put back
by half an hour (Lord Howe), the runs around it are. Here the local clock decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import TYPE_CHECKING, Final

import pendulum
from croniter import CroniterError, croniter

from airflow_kcr.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

PRESETS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 */3 *",
    "@yearly": "0 0 1 1 *",
}
"""Airflow's names for common expressions."""

_SECOND: Final = timedelta(seconds=1)
_TICK: Final = timedelta.resolution

# No zone has ever moved its clock by more than a day (Samoa left out one day in 2011).
_LONGEST_CHANGE: Final = timedelta(hours=25)

_RANDOM = re.compile(r"(^|[\s,])[rRhH](?![a-zA-Z])")


@dataclass(frozen=True, slots=True)
class Every:
    """Every `interval`, counted from `anchor`.

    Without an anchor the instants are aligned to 1970-01-01T00:00Z, so `5m` is at :00, :05, … and `1d` at midnight UTC;
    so are the intervals of Airflow's `DeltaDataIntervalTimetable` without catch-up. With catch-up Airflow counts from
    the DAG's start date: give that as the anchor, or an aligned start date to the DAG.

    Args:
        interval: above zero; lengths of time, not of calendar days.
        anchor: any of the instants, with zone.

    Raises:
        ConfigurationError: the interval isn't above zero, or the anchor has no zone.
    """

    interval: timedelta
    anchor: datetime = EPOCH

    def __post_init__(self) -> None:
        if self.interval <= timedelta(0):
            raise ConfigurationError(f"a schedule's interval must be longer than 0, not {self.interval}")
        _utc(self.anchor)

    def after(self, instant: datetime) -> datetime:
        """Return the first scheduled instant strictly after `instant`, in UTC."""
        return self.at_or_before(instant) + self.interval

    def at_or_before(self, instant: datetime) -> datetime:
        """Return the last scheduled instant at or before `instant`, in UTC."""
        utc = _utc(instant)
        return utc - (utc - _utc(self.anchor)) % self.interval


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """At the times of a cron expression on the clock of a time zone; the module's text says what a change of it does.

    Args:
        expression: five fields, or six with the seconds last, or one of `PRESETS`; croniter's syntax, as in Airflow.
        timezone: an IANA name.

    Raises:
        ConfigurationError: croniter can't read the expression, it never comes true, it has a random part (the same
            question must have the same answer), or the zone is unknown.
    """

    expression: str
    timezone: str = "UTC"
    _zone: pendulum.Timezone = field(init=False, repr=False, compare=False)
    _every_hour: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_zone", zone_named(self.timezone))
        object.__setattr__(self, "_every_hour", self._parsed().expanded[1] == ["*"])

    def after(self, instant: datetime) -> datetime:
        """Return the first scheduled instant strictly after `instant`, in UTC."""
        utc = _utc(instant)
        if self._every_hour:
            return self._after_by_the_clock(utc)
        return next(known for known in self._from_before(utc) if known > utc)

    def at_or_before(self, instant: datetime) -> datetime:
        """Return the last scheduled instant at or before `instant`, in UTC."""
        utc = _utc(instant)
        if self._every_hour:
            return self._before_by_the_clock(utc)
        *_, last = takewhile(lambda known: known <= utc, self._from_before(utc))
        return last

    def _parsed(self) -> croniter:
        cron = PRESETS.get(self.expression, self.expression)
        if _RANDOM.search(cron):
            raise ConfigurationError(
                f"{self.expression!r} has a random part (R or H): a boundary must be the same whenever it is asked for"
            )
        try:
            parsed = croniter(cron, datetime(2000, 1, 1))  # noqa: DTZ001 (a naive wall clock, as everywhere below)
            if len(parsed.expanded) > 6:
                raise ConfigurationError(f"{self.expression!r} has a field for the year: schedules don't end")
            parsed.get_next(datetime)
        except (CroniterError, AttributeError) as error:  # croniter's own for what isn't text it knows
            raise ConfigurationError(f"{self.expression!r} is not a cron expression: {error}") from error
        return parsed

    # ------------------------------------------------------------ expressions that run in every hour

    def _after_by_the_clock(self, utc: datetime) -> datetime:
        while True:
            offset = self._offset(utc)
            found = (self._next(_wall(utc, offset)) - offset).replace(tzinfo=UTC)
            change = self._first_change(utc, found)
            if change is None:
                return found
            if self._matches(_wall(change, self._offset(change))):
                return change
            utc = change  # from here on by the clock as it is then

    def _before_by_the_clock(self, utc: datetime) -> datetime:
        while True:
            offset = self._offset(utc)
            found = (self._at_or_before(_wall(utc, offset)) - offset).replace(tzinfo=UTC)
            change = self._last_change(found, utc)
            if change is None:
                return found
            utc = change - _TICK

    def _first_change(self, after: datetime, until: datetime) -> datetime | None:
        """The first instant in (after, until] from which the clock differs from what it is at `after`."""
        offset = self._offset(after)
        low = after
        while low < until:
            high = min(low + timedelta(days=1), until)
            if self._offset(high) != offset:
                return self._bisect(low, high)
            low = high
        return None

    def _last_change(self, after: datetime, until: datetime) -> datetime | None:
        """The last instant in (after, until] at which the clock became what it is at `until`."""
        offset = self._offset(until)
        high = until
        while high > after:
            low = max(high - timedelta(days=1), after)
            if self._offset(low) != offset:
                return self._bisect(low, high)
            high = low
        return None

    def _bisect(self, low: datetime, high: datetime) -> datetime:
        """The instant in (low, high] at which the clock changes, to the second: it never changes within one."""
        offset = self._offset(low)
        first, last = int((low - EPOCH) // _SECOND), -int((EPOCH - high) // _SECOND)
        while last - first > 1:
            middle = (first + last) // 2
            if self._offset(EPOCH + middle * _SECOND) == offset:
                first = middle
            else:
                last = middle
        return EPOCH + last * _SECOND

    def _matches(self, wall: datetime) -> bool:
        return self._at_or_before(wall) == wall

    # ------------------------------------------------------------------------- all other expressions

    def _from_before(self, utc: datetime) -> Iterator[datetime]:
        """The scheduled instants in order, from one at or before `utc` that no change of the clock has moved."""
        wall = self._at_or_before(_wall(utc, self._offset(utc)))
        while self._is_moved(wall) or self._localised(wall) > utc:
            wall = self._at_or_before(wall - _SECOND)
        while True:
            known = self._localised(wall)
            yield known
            # From where the clock then is, not from `wall`: what lies between was left out by the change.
            wall = self._next(_wall(known, self._offset(known)))

    def _localised(self, wall: datetime) -> datetime:
        """The instant of a time on the clock: its second occurrence, or later by as much as the clock skipped."""
        return self._zone.convert(wall.replace(fold=1)).astimezone(UTC)

    def _is_moved(self, wall: datetime) -> bool:
        """Whether this time was skipped, or lies where skipped ones end up, so that it may be left out."""
        if self._is_skipped(wall):
            return True
        moved_by = self._both_offsets(wall)[1] - self._both_offsets(wall - _LONGEST_CHANGE)[0]
        return moved_by > timedelta(0) and self._is_skipped(wall - moved_by)

    def _is_skipped(self, wall: datetime) -> bool:
        before, since = self._both_offsets(wall)
        return since > before

    def _both_offsets(self, wall: datetime) -> tuple[timedelta, timedelta]:
        """The offsets by the clock before a change and since, where `wall` is near one; else twice the same."""
        offsets = [wall.replace(tzinfo=self._zone, fold=fold).utcoffset() or timedelta(0) for fold in (0, 1)]
        return offsets[0], offsets[1]

    # ------------------------------------------------------------------------------- the naive clock

    def _offset(self, instant: datetime) -> timedelta:
        return instant.astimezone(self._zone).utcoffset() or timedelta(0)

    def _next(self, wall: datetime) -> datetime:
        """The first match strictly after `wall`. Matches are whole seconds, so its fraction decides nothing."""
        cron = croniter(PRESETS.get(self.expression, self.expression), wall.replace(microsecond=0))
        return cron.get_next(datetime)

    def _at_or_before(self, wall: datetime) -> datetime:
        """The last match at or before `wall`."""
        cron = croniter(PRESETS.get(self.expression, self.expression), wall.replace(microsecond=0) + _SECOND)
        return cron.get_prev(datetime)


def zone_named(name: str) -> pendulum.Timezone:
    """Return a time zone by its IANA name.

    Raises:
        ConfigurationError: there is none of that name.
    """
    try:
        return pendulum.Timezone(name)
    except (ValueError, OSError) as error:  # what is no name at all, or that of a folder of zones
        raise ConfigurationError(f"{name!r} is not a time zone: use an IANA name, such as Europe/Berlin") from error


def _wall(instant: datetime, offset: timedelta) -> datetime:
    return (instant + offset).replace(tzinfo=None)


def _utc(instant: datetime) -> datetime:
    if instant.utcoffset() is None:
        raise ConfigurationError(f"{instant.isoformat()} has no time zone")
    return instant.astimezone(UTC)
