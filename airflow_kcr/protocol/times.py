"""Durations and instants as text, as the reference promises.

An instant is ISO 8601 with a zone, and nothing else. A duration is ISO 8601 (`PT5M`, `P1DT2H`) or short (`5m`, `1d12h`,
`500ms`), by these rules:

- A duration has a fixed length, so weeks and days (of 24 hours) are the longest units. Months and years are refused:
  `M` before the `T`, and any `Y`.
- It is never negative, and never finer than a microsecond; nothing is rounded.
- ISO 8601 is upper case, each unit at most once and from long to short; only seconds may have a fraction.
- The short form is lower case, whole numbers, from long to short: `w d h m s ms us`. `m` is minutes.
- A number without a unit is refused: seconds for one reader are milliseconds for the next.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from airflow_kcr.errors import ConfigurationError

_ISO: Final = re.compile(
    r"P(?:(?P<w>[0-9]+)W)?(?:(?P<d>[0-9]+)D)?"
    r"(?:T(?=[0-9])(?:(?P<h>[0-9]+)H)?(?:(?P<m>[0-9]+)M)?(?:(?P<s>[0-9]+)(?:[.,](?P<fraction>[0-9]{1,6})0*)?S)?)?"
)
_SHORT: Final = re.compile(
    r"(?:(?P<w>[0-9]+)w)?(?:(?P<d>[0-9]+)d)?(?:(?P<h>[0-9]+)h)?(?:(?P<m>[0-9]+)m)?(?:(?P<s>[0-9]+)s)?"
    r"(?:(?P<ms>[0-9]+)ms)?(?:(?P<us>[0-9]+)us)?"
)
_MICROSECONDS: Final = {
    "w": 7 * 86_400_000_000,
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
_MICROSECOND: Final = timedelta(microseconds=1)
_LONGEST: Final = timedelta.max // _MICROSECOND


def parse_duration(text: str) -> timedelta:
    """Return the duration that `text` says, 0 included.

    Args:
        text: ISO 8601 or short form; surrounding space is not part of either.

    Raises:
        ConfigurationError: it is neither form, negative, of months or years, or longer than Python can hold; the
            message says which, and what is accepted.
    """
    match = (_ISO if text[:1] == "P" else _SHORT).fullmatch(text)
    found = {unit: digits for unit, digits in match.groupdict().items() if digits} if match else {}
    if not found:
        raise ConfigurationError(_why_not(text))
    # Integers throughout: a float of seconds loses microseconds from some 200 days on.
    total = int(found.pop("fraction", "0").ljust(6, "0"))
    # A number of more digits than this is too long in any unit, and Python refuses to read endless ones.
    if any(len(digits) > 30 for digits in found.values()):
        raise ConfigurationError(f"{text[:40]!r}… is longer than any duration may be ({timedelta.max.days} days)")
    total += sum(int(digits) * _MICROSECONDS[unit] for unit, digits in found.items())
    if total > _LONGEST:
        raise ConfigurationError(f"{text!r} is longer than any duration may be ({timedelta.max.days} days)")
    return total * _MICROSECOND


def format_duration(duration: timedelta) -> str:
    """Return `duration` in ISO 8601, the one canonical text: `parse_duration` of it is `duration` again.

    Args:
        duration: >= 0.

    Raises:
        ConfigurationError: it is negative.
    """
    if duration < timedelta(0):
        raise ConfigurationError(f"{duration} is negative; a duration never is")
    hours, seconds = divmod(duration.seconds, 3600)
    minutes, seconds = divmod(seconds, 60)
    fraction = f".{duration.microseconds:06}".rstrip("0") if duration.microseconds else ""
    time = (
        (f"{hours}H" if hours else "")
        + (f"{minutes}M" if minutes else "")
        + (f"{seconds}{fraction}S" if seconds or fraction else "")
    )
    days = f"{duration.days}D" if duration.days else ""
    if not days and not time:
        return "PT0S"
    return f"P{days}T{time}" if time else f"P{days}"


def _why_not(text: str) -> str:
    """Return the sentence for a text that is no duration; the likely slips have one of their own."""
    accepted = "write ISO 8601 (PT5M, P1DT2H) or short (5m, 2h, 500ms, 7d)"
    date = text.partition("T")[0]
    if "-" in text:
        return f"{text!r} has a minus; a duration is never negative: {accepted}"
    if text[:1] == "P" and any(unit in date for unit in "YM"):
        return f"{text!r} has years or months, whose length depends on when they begin; say days: {accepted}"
    if re.fullmatch(r"[0-9]+([.,][0-9]+)?", text):
        return f"{text!r} has no unit: {accepted}"
    return f"{text!r} is not a duration: {accepted}"


EPOCH_START: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The earliest instant that a Kafka timestamp can name."""


def parse_instant(text: str) -> datetime:
    """Return the instant that `text` names, in UTC.

    Raises:
        ConfigurationError: it is not ISO 8601, has no zone, or lies before 1970.
    """
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{text!r} is not a time: write ISO 8601 with a zone, such as 2026-01-01T00:00:00Z"
        ) from None
    return checked_instant(instant)


def format_instant(instant: datetime) -> str:
    """Return the canonical text of `instant`: `parse_instant` of it is the same instant again.

    Raises:
        ConfigurationError: it has no zone, or lies before 1970.
    """
    return checked_instant(instant).isoformat().replace("+00:00", "Z")


def checked_instant(instant: datetime) -> datetime:
    """Return `instant` in UTC if it is one that Kafka can look up.

    Raises:
        ConfigurationError: it has no zone, or lies before 1970 or beyond what a calendar of UTC can say.
    """
    if instant.utcoffset() is None:
        raise ConfigurationError(f"{instant.isoformat()} has no zone; add one, such as Z or +01:00")
    try:
        moment = instant.astimezone(UTC)
    except OverflowError:
        raise ConfigurationError(f"{instant.isoformat()} is out of the calendar") from None
    if moment < EPOCH_START:
        raise ConfigurationError(f"{instant.isoformat()} is before 1970, where Kafka's timestamps begin")
    return moment


def back_from(read_at: datetime, duration: timedelta) -> datetime:
    """Return the instant `duration` before `read_at`, in UTC; not before 1970, where every log has started.

    Args:
        read_at: the store's clock when the log was read; has a zone.
        duration: >= 0.

    Raises:
        ConfigurationError: `read_at` has no zone.
    """
    now = checked_instant(read_at)
    return EPOCH_START if duration > now - EPOCH_START else now - duration
