from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.values import EPOCH_START, back_from, checked_instant, format_instant, parse_instant

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("text", ["2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00", "2025-12-31 19:00-05:00"])
def test_an_instant_is_the_same_in_every_zone(text: str) -> None:
    assert parse_instant(text) == NEW_YEAR
    assert parse_instant(text).tzinfo is UTC


@pytest.mark.parametrize("text", ["2026-01-01T00:00:00", "2026-01-01", "2026-01-01 12:30"])
def test_a_local_time_names_no_instant(text: str) -> None:
    with pytest.raises(ConfigurationError, match="has no zone"):
        parse_instant(text)


@pytest.mark.parametrize("text", ["", "now", "2026-13-01T00:00:00Z", "1767225600", "1767225600000"])
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigurationError, match="write ISO 8601 with a zone"):
        parse_instant(text)


def test_before_1970_there_are_no_kafka_timestamps() -> None:
    assert parse_instant("1970-01-01T00:00:00Z") == EPOCH_START
    with pytest.raises(ConfigurationError, match="before 1970"):
        parse_instant("1969-12-31T23:59:59.999Z")


def test_what_utc_cannot_say_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="out of the calendar"):
        checked_instant(datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))))


@pytest.mark.parametrize(
    ("instant", "text"),
    [
        (NEW_YEAR, "2026-01-01T00:00:00Z"),
        (datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), "2026-01-01T00:00:00Z"),
        (datetime(2026, 1, 1, 0, 0, 0, 5000, tzinfo=UTC), "2026-01-01T00:00:00.005000Z"),
    ],
)
def test_the_canonical_text_is_in_utc(instant: datetime, text: str) -> None:
    assert format_instant(instant) == text


def test_counting_back_stops_where_kafkas_time_begins() -> None:
    assert back_from(NEW_YEAR, timedelta(hours=6)) == datetime(2025, 12, 31, 18, tzinfo=UTC)
    assert back_from(NEW_YEAR, timedelta(days=100 * 365)) == EPOCH_START
    assert back_from(NEW_YEAR, timedelta.max) == EPOCH_START


def test_counting_back_needs_a_zone() -> None:
    with pytest.raises(ConfigurationError, match="has no zone"):
        back_from(NEW_YEAR.replace(tzinfo=None), timedelta(0))
