from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.values import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PT5M", timedelta(minutes=5)),
        ("P1DT2H", timedelta(days=1, hours=2)),
        ("P2W", timedelta(weeks=2)),
        ("PT0S", timedelta(0)),
        ("PT36H", timedelta(hours=36)),
        ("PT1.5S", timedelta(seconds=1, milliseconds=500)),
        ("PT0,000001S", timedelta(microseconds=1)),
        ("PT1.50000000S", timedelta(seconds=1, milliseconds=500)),
        ("P1DT2H3M4S", timedelta(days=1, hours=2, minutes=3, seconds=4)),
    ],
)
def test_iso_8601_is_read(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5m", timedelta(minutes=5)),
        ("2h", timedelta(hours=2)),
        ("500ms", timedelta(milliseconds=500)),
        ("7d", timedelta(days=7)),
        ("1w", timedelta(weeks=1)),
        ("10us", timedelta(microseconds=10)),
        ("1d12h", timedelta(days=1, hours=12)),
        ("5m500ms", timedelta(minutes=5, milliseconds=500)),
        ("0s", timedelta(0)),
    ],
)
def test_the_short_form_is_read(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["P1M", "P1Y", "P1Y2M3DT1H"])
def test_years_and_months_are_refused_because_their_length_varies(text: str) -> None:
    with pytest.raises(ConfigurationError, match="years or months"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["-5m", "-PT5M", "PT-5M", "P-1D"])
def test_negative_durations_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="never negative"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["5", "300", "1.5", "0"])
def test_a_number_without_unit_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="no unit"):
        parse_duration(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "P", "PT", "P1DT", "T5M", "pt5m", "5M", "5 m", " 5m", "5m\n", "m", "5x", "1h1d", "1h1h", "PT5S5M"),
        *(
            "1.5h",
            "PT0.5H",
            "PT.5S",
            "PT1.1234567S",
            "\N{ARABIC-INDIC DIGIT FIVE}m",
            "PT\N{ARABIC-INDIC DIGIT FIVE}M",
            "5m PT5M",
            "+5m",
        ),
    ],
)
def test_everything_else_is_refused_with_the_accepted_forms(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is not a duration: write ISO 8601 \(PT5M, P1DT2H\) or short"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["P1000000000D", "9" * 25 + "us", "9" * 31 + "d", "9" * 5000 + "h"])
def test_what_no_duration_can_hold_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="longer than any duration"):
        parse_duration(text)


def test_long_durations_lose_nothing() -> None:
    longest = timedelta.max
    assert parse_duration(format_duration(longest)) == longest


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "PT0S"),
        (timedelta(hours=6), "PT6H"),
        (timedelta(days=7), "P7D"),
        (timedelta(days=1, hours=2), "P1DT2H"),
        (timedelta(minutes=90), "PT1H30M"),
        (timedelta(milliseconds=500), "PT0.5S"),
        (timedelta(seconds=61, microseconds=10), "PT1M1.00001S"),
    ],
)
def test_the_canonical_text_is_iso_8601(duration: timedelta, text: str) -> None:
    assert format_duration(duration) == text


def test_a_negative_duration_has_no_text() -> None:
    with pytest.raises(ConfigurationError, match="negative"):
        format_duration(timedelta(microseconds=-1))
