from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.schedules import CronSchedule, Every

if TYPE_CHECKING:
    from airflow_kcr.protocol.rules import Schedule

BERLIN = "Europe/Berlin"
# The clock in Berlin goes from 02:00 to 03:00 at the first, and from 03:00 back to 02:00 at the second.
FORWARD = datetime(2026, 3, 29, 1, tzinfo=UTC)
BACK = datetime(2026, 10, 25, 1, tzinfo=UTC)

TICK = timedelta(microseconds=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def between(schedule: Schedule, start: datetime, end: datetime) -> list[str]:
    """The instants in [start, end), as the clock in Berlin shows them."""
    found = []
    instant = schedule.after(start - TICK)
    while instant < end:
        found.append(instant.astimezone(ZoneInfo(BERLIN)).strftime("%d %H:%M %Z"))
        instant = schedule.after(instant)
    return found


class TestEvery:
    def test_is_aligned_to_the_epoch_in_utc(self) -> None:
        every = Every(timedelta(minutes=5))
        assert every.after(utc("2026-01-01T10:02")) == utc("2026-01-01T10:05")
        assert every.at_or_before(utc("2026-01-01T10:02")) == utc("2026-01-01T10:00")
        assert Every(timedelta(days=1)).after(utc("2026-01-01T10:02")) == utc("2026-01-02T00:00")

    def test_an_instant_of_the_schedule_is_at_or_before_itself_but_not_after(self) -> None:
        every = Every(timedelta(minutes=5))
        instant = utc("2026-01-01T10:05")
        assert every.at_or_before(instant) == instant
        assert every.after(instant) == utc("2026-01-01T10:10")

    def test_can_be_counted_from_an_anchor(self) -> None:
        every = Every(timedelta(hours=1), anchor=utc("2026-06-01T00:07"))
        assert every.after(utc("2026-01-01T10:00")) == utc("2026-01-01T10:07")
        assert every.at_or_before(utc("2026-12-01T10:00")) == utc("2026-12-01T09:07")

    def test_needs_not_divide_a_day(self) -> None:
        every = Every(timedelta(minutes=7))
        assert every.after(every.at_or_before(FORWARD)) - every.at_or_before(FORWARD) == timedelta(minutes=7)

    def test_takes_no_notice_of_the_clock(self) -> None:
        assert between(Every(timedelta(hours=1)), FORWARD - timedelta(hours=1), FORWARD + timedelta(hours=1)) == [
            "29 01:00 CET",
            "29 03:00 CEST",
        ]

    def test_answers_in_utc_whatever_the_question_was_in(self) -> None:
        answer = Every(timedelta(hours=1)).after(datetime(2026, 1, 1, 10, 30, tzinfo=ZoneInfo(BERLIN)))
        assert answer == utc("2026-01-01T10:00")
        assert answer.tzinfo is UTC

    @pytest.mark.parametrize("interval", [timedelta(0), timedelta(seconds=-1)], ids=["zero", "negative"])
    def test_refuses_an_interval_that_never_moves_on(self, interval: timedelta) -> None:
        with pytest.raises(ConfigurationError, match="longer than 0"):
            Every(interval)

    def test_refuses_an_anchor_and_a_question_without_a_zone(self) -> None:
        naive = datetime(2026, 1, 1)  # noqa: DTZ001
        with pytest.raises(ConfigurationError, match="no time zone"):
            Every(timedelta(hours=1), anchor=naive)
        with pytest.raises(ConfigurationError, match="no time zone"):
            Every(timedelta(hours=1)).after(naive)


class TestCron:
    def test_is_read_in_its_zone_and_answers_in_utc(self) -> None:
        answer = CronSchedule("0 6 * * *", BERLIN).after(utc("2026-01-10T00:00"))
        assert answer == utc("2026-01-10T05:00")
        assert answer.tzinfo is UTC

    def test_an_instant_of_the_schedule_is_at_or_before_itself_but_not_after(self) -> None:
        cron = CronSchedule("0 * * * *")
        instant = utc("2026-01-10T05:00")
        assert cron.at_or_before(instant) == instant
        assert cron.after(instant) == utc("2026-01-10T06:00")
        assert cron.at_or_before(instant - TICK) == utc("2026-01-10T04:00")
        assert cron.after(instant - TICK) == instant

    def test_knows_airflows_names(self) -> None:
        assert CronSchedule("@quarterly").after(utc("2026-01-10T05:00")) == utc("2026-04-01T00:00")

    def test_takes_seconds_as_the_sixth_field(self) -> None:
        assert CronSchedule("* * * * * 30").after(utc("2026-01-10T05:00")) == utc("2026-01-10T05:00:30")

    def test_looks_across_years(self) -> None:
        cron = CronSchedule("0 0 29 2 *", BERLIN)
        assert cron.after(utc("2026-01-01T00:00")) == utc("2028-02-28T23:00")
        assert cron.at_or_before(utc("2026-01-01T00:00")) == utc("2024-02-28T23:00")

    @pytest.mark.parametrize(
        ("expression", "reason"),
        [
            ("", "not a cron expression"),
            ("5 minutes", "not a cron expression"),
            ("60 * * * *", "not a cron expression"),
            ("0 0 31 2 *", "not a cron expression"),
            ("@once", "not a cron expression"),
            ("R * * * *", "random"),
            ("0 H(2-4) * * *", "random"),
            ("0 0 1 1 * 0 2030", "year"),
        ],
    )
    def test_refuses_what_is_no_endless_schedule(self, expression: str, reason: str) -> None:
        with pytest.raises(ConfigurationError, match=reason):
            CronSchedule(expression)

    @pytest.mark.parametrize("zone", ["", "Berlin", "Europe/Atlantis", "../etc/passwd", "CEST+1", "Europe"])
    def test_refuses_an_unknown_zone(self, zone: str) -> None:
        with pytest.raises(ConfigurationError, match="not a time zone"):
            CronSchedule("0 0 * * *", zone)

    def test_days_and_months_with_an_r_are_not_random(self) -> None:
        assert CronSchedule("0 0 * mar,apr fri,thu").after(utc("2026-01-01T00:00")) == utc("2026-03-05T00:00")

    def test_equal_ones_are_equal(self) -> None:
        assert CronSchedule("0 0 * * *", BERLIN) == CronSchedule("0 0 * * *", BERLIN)
        assert CronSchedule("0 0 * * *", BERLIN) != CronSchedule("0 0 * * *")
        assert repr(CronSchedule("0 0 * * *")) == "CronSchedule(expression='0 0 * * *', timezone='UTC')"


class TestCronWhenTheClockChanges:
    def test_a_daily_time_that_is_skipped_comes_as_much_later(self) -> None:
        days = between(CronSchedule("30 2 * * *", BERLIN), utc("2026-03-28T00:00"), utc("2026-03-31T00:00"))
        assert days == ["28 02:30 CET", "29 03:30 CEST", "30 02:30 CEST"]

    def test_a_daily_time_that_is_repeated_is_the_second_one(self) -> None:
        days = between(CronSchedule("30 2 * * *", BERLIN), utc("2026-10-24T00:00"), utc("2026-10-27T00:00"))
        assert days == ["24 02:30 CEST", "25 02:30 CET", "26 02:30 CET"]

    @pytest.mark.parametrize("minute", range(0, 60, 15))
    def test_whoever_asks_in_the_first_of_two_equal_hours_gets_the_second(self, minute: int) -> None:
        cron = CronSchedule("30 2 * * *", BERLIN)
        asked = BACK - timedelta(hours=1) + timedelta(minutes=minute)
        assert cron.after(asked) == BACK + timedelta(minutes=30)
        assert cron.at_or_before(asked) == utc("2026-10-24T00:30")

    def test_hourly_has_no_hole_and_no_double_in_spring(self) -> None:
        hours = between(CronSchedule("0 * * * *", BERLIN), FORWARD - timedelta(hours=2), FORWARD + timedelta(hours=2))
        assert hours == ["29 00:00 CET", "29 01:00 CET", "29 03:00 CEST", "29 04:00 CEST"]

    def test_hourly_has_no_hole_and_no_double_in_autumn(self) -> None:
        hours = between(CronSchedule("0 * * * *", BERLIN), BACK - timedelta(hours=2), BACK + timedelta(hours=2))
        assert hours == ["25 01:00 CEST", "25 02:00 CEST", "25 02:00 CET", "25 03:00 CET"]

    @pytest.mark.parametrize("change", [FORWARD, BACK], ids=["forward", "back"])
    def test_every_five_minutes_stays_every_five_minutes(self, change: datetime) -> None:
        cron = CronSchedule("*/5 * * * *", BERLIN)
        instants = [change - timedelta(hours=2)]
        while instants[-1] < change + timedelta(hours=2):
            instants.append(cron.after(instants[-1]))
        assert {later - earlier for earlier, later in pairwise(instants)} == {timedelta(minutes=5)}

    def test_several_skipped_times_leave_only_the_first(self) -> None:
        # As in Airflow: it goes on from where the first one ended up.
        times = between(CronSchedule("*/15 2 * * *", BERLIN), FORWARD, FORWARD + timedelta(hours=23, minutes=15))
        assert times == ["29 03:00 CEST", "30 02:00 CEST"]

    def test_skipped_times_do_not_double_those_of_the_next_hour(self) -> None:
        times = between(CronSchedule("15,45 2-3 * * *", BERLIN), FORWARD, FORWARD + timedelta(hours=2))
        assert times == ["29 03:15 CEST", "29 03:45 CEST"]

    def test_every_two_hours_keeps_to_the_clock(self) -> None:
        times = between(CronSchedule("0 */2 * * *", BERLIN), BACK - timedelta(hours=3), BACK + timedelta(hours=3))
        assert times == ["25 00:00 CEST", "25 02:00 CET", "25 04:00 CET"]

    def test_each_hour_of_some_days_begins_at_midnight_after_a_change_too(self) -> None:
        cron = CronSchedule("0 * * * 1", BERLIN)
        assert cron.after(utc("2026-03-23T22:30")) == utc("2026-03-29T22:00")
        assert cron.after(utc("2026-10-19T21:30")) == utc("2026-10-25T23:00")
        assert cron.at_or_before(utc("2026-03-29T21:59")) == utc("2026-03-23T22:00")
        assert cron.at_or_before(utc("2026-10-25T22:59")) == utc("2026-10-19T21:00")

    def test_the_moment_of_the_change_itself_can_be_scheduled(self) -> None:
        assert CronSchedule("0 * * * *", BERLIN).at_or_before(FORWARD) == FORWARD
        assert CronSchedule("0 * * * *", BERLIN).after(FORWARD - TICK) == FORWARD
        assert CronSchedule("0 3 * * *", BERLIN).at_or_before(FORWARD) == FORWARD

    def test_half_an_hour_is_a_change_too(self) -> None:
        # Lord Howe Island goes back by half an hour: 01:45 comes twice, half an hour apart.
        cron = CronSchedule("45 * * * *", "Australia/Lord_Howe")
        first = utc("2026-04-04T14:45")
        assert cron.after(first) == first + timedelta(minutes=30)
        assert cron.at_or_before(first + timedelta(minutes=29)) == first
        assert cron.after(first + timedelta(minutes=30)) == first + timedelta(minutes=90)

    def test_a_day_that_a_zone_left_out_has_no_hours(self) -> None:
        # Samoa went from the end of 29 December 2011 to the start of the 31st.
        cron = CronSchedule("0 * * * *", "Pacific/Apia")
        change = utc("2011-12-30T10:00")
        assert cron.after(change - TICK) == change
        assert cron.at_or_before(change - TICK) == change - timedelta(hours=1)
        daily = CronSchedule("0 0 * * *", "Pacific/Apia")
        assert daily.after(change - TICK) == change
        assert daily.after(change) == change + timedelta(days=1)
