"""Whatever the schedule and the instant: the two questions are answered from one set of instants."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from croniter import croniter
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_kcr.schedules import EPOCH, CronSchedule, Every

if TYPE_CHECKING:
    from airflow_kcr.protocol.rules import Schedule

TICK = timedelta(microseconds=1)

ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",  # half an hour
    "Africa/Casablanca",  # changes around Ramadan
    "America/Sao_Paulo",  # used to change at midnight
    "Pacific/Apia",  # left out a day
]
EXPRESSIONS = [
    "* * * * *",
    "*/5 * * * *",
    "7 * * * *",
    "50 * * * *",
    "0 * * * 1",
    "*/20 * 1,31 * *",
    "30 2 * * *",
    "*/15 2 * * *",
    "15,45 1-3 * * *",
    "0 */2 * * *",
    "0 0 * * *",
    "0 0 1 * *",
    "59 23 31 12 *",
    "@weekly",
]

instants = st.datetimes(
    min_value=datetime(2005, 1, 1),  # noqa: DTZ001 (Hypothesis wants the limits without a zone)
    max_value=datetime(2045, 1, 1),  # noqa: DTZ001
    timezones=st.just(UTC),
)
# Hours around the changes of the clock, where the rules are; a uniform draw would hardly ever hit them.
CHANGES = [
    datetime(2026, 3, 29, 1, tzinfo=UTC),
    datetime(2026, 10, 25, 1, tzinfo=UTC),
    datetime(2026, 3, 8, 7, tzinfo=UTC),
    datetime(2026, 11, 1, 6, tzinfo=UTC),
    datetime(2026, 4, 4, 15, tzinfo=UTC),
    datetime(2026, 10, 3, 15, 30, tzinfo=UTC),
    datetime(2026, 2, 15, 2, tzinfo=UTC),
    datetime(2026, 3, 22, 2, tzinfo=UTC),
    datetime(2018, 11, 4, 3, tzinfo=UTC),
    datetime(2018, 2, 18, 2, tzinfo=UTC),
    datetime(2011, 12, 30, 10, tzinfo=UTC),
]
near_a_change = st.builds(
    lambda change, seconds: change + timedelta(seconds=seconds),
    st.sampled_from(CHANGES),
    st.one_of(st.integers(-14_400, 14_400), st.sampled_from([-7200, -3600, -1800, 0, 1800, 3600, 7200])),
)
questions = st.one_of(instants, near_a_change)
crons = st.builds(CronSchedule, st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES))
everys = st.builds(
    Every,
    st.one_of(
        st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=400)),
        st.sampled_from([timedelta(minutes=5), timedelta(hours=1), timedelta(days=1)]),
    ),
    st.one_of(st.just(EPOCH), instants),
)
schedules: st.SearchStrategy[Schedule] = st.one_of(crons, everys)


@given(schedules, questions)
def test_the_two_answers_enclose_the_instant(schedule: Schedule, instant: datetime) -> None:
    assert schedule.at_or_before(instant) <= instant < schedule.after(instant)


@given(schedules, questions)
def test_nothing_lies_between_the_two_answers(schedule: Schedule, instant: datetime) -> None:
    before, after = schedule.at_or_before(instant), schedule.after(instant)
    assert schedule.after(before) == after
    assert schedule.at_or_before(after - TICK) == before


@given(schedules, questions)
def test_an_answer_is_an_instant_of_the_schedule(schedule: Schedule, instant: datetime) -> None:
    for answer in (schedule.at_or_before(instant), schedule.after(instant)):
        assert answer.tzinfo is UTC
        assert schedule.at_or_before(answer) == answer
        assert schedule.after(answer - TICK) == answer


@given(schedules, questions, questions)
def test_later_questions_have_no_earlier_answers(schedule: Schedule, one: datetime, other: datetime) -> None:
    first, second = sorted((one, other))
    assert schedule.after(first) <= schedule.after(second)
    assert schedule.at_or_before(first) <= schedule.at_or_before(second)


@given(st.sampled_from([e for e in EXPRESSIONS if e.split()[1:2] == ["*"]]), st.sampled_from(ZONES), questions)
@example("45 * * * *", "Australia/Lord_Howe", datetime(2026, 4, 4, 14, 45, tzinfo=UTC))
def test_what_runs_every_hour_runs_whenever_the_clock_says_so(expression: str, zone: str, instant: datetime) -> None:
    schedule = CronSchedule(expression, zone)
    found = schedule.after(instant)
    minute = max(instant, found - timedelta(hours=6)).replace(second=0, microsecond=0) + timedelta(minutes=1)
    while minute <= found:
        wall = minute.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        assert croniter.match(expression, wall) is (minute == found)
        minute += timedelta(minutes=1)
