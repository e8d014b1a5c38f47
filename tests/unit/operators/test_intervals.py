from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.operators.intervals import require_fit
from airflow_kcr.spec import RegionSpec, parse
from tests.support.live_region import SPEC

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def region(checkpoint: str) -> RegionSpec:
    return parse(SPEC + (f"checkpoint: {checkpoint}\n" if checkpoint else ""))


@pytest.mark.parametrize(
    ("checkpoint", "start", "end"),
    [
        ("{every: 5m}", NOON, NOON + 5 * MINUTE),
        ("{cron: '*/5 * * * *'}", NOON, NOON + 5 * MINUTE),
        ("{cron: '0 0 * * *', timezone: Europe/Berlin}", NOON - 13 * 60 * MINUTE, NOON + 11 * 60 * MINUTE),
        ("{cron: '0 9,17 * * *'}", NOON - 3 * 60 * MINUTE, NOON + 5 * 60 * MINUTE),
        ("", NOON, NOON + 7 * MINUTE),
        ("{records: 100}", NOON, NOON + 7 * MINUTE),
    ],
)
def test_an_interval_between_two_neighbouring_boundaries_fits(checkpoint: str, start: datetime, end: datetime) -> None:
    require_fit(region(checkpoint), start, end)


def test_an_interval_across_a_change_of_the_clock_fits() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    start, end = datetime(2026, 3, 29, tzinfo=berlin), datetime(2026, 3, 30, tzinfo=berlin)
    assert end.astimezone(UTC) - start.astimezone(UTC) == timedelta(hours=23)
    require_fit(region("{cron: '0 0 * * *', timezone: Europe/Berlin}"), start, end)


def test_another_phase_is_refused_with_the_boundaries_nearby() -> None:
    with pytest.raises(ConfigurationError) as refused:
        require_fit(region("{every: 5m}"), NOON + 2 * MINUTE, NOON + 7 * MINUTE)
    said = refused.value.message
    assert "2026-01-01T12:02:00Z to 2026-01-01T12:07:00Z" in said
    assert "region flights" in said
    assert "every PT5M" in said or "every 5m" in said
    assert "2026-01-01T12:05:00Z and 2026-01-01T12:10:00Z" in said
    assert "start date that is a boundary" in said


def test_another_zone_is_refused_and_both_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"'0 0 \* \* \*' in Europe/Berlin") as refused:
        require_fit(
            region("{cron: '0 0 * * *', timezone: Europe/Berlin}"),
            datetime(2026, 1, 1, tzinfo=UTC),
            datetime(2026, 1, 2, tzinfo=UTC),
        )
    assert "2026-01-01T23:00:00Z and 2026-01-02T23:00:00Z" in refused.value.message


def test_an_interval_of_several_periods_is_refused_as_its_checkpoint_would_hold_the_last_one_only() -> None:
    with pytest.raises(ConfigurationError, match=r"longer than a period.*before 2026-01-01T13:00:00Z is .*12:55:00Z"):
        require_fit(region("{every: 5m}"), NOON, NOON + 60 * MINUTE)


def test_an_interval_that_is_only_the_end_of_a_period_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="shorter than a period"):
        require_fit(region("{every: 1h}"), NOON + 55 * MINUTE, NOON + 60 * MINUTE)
