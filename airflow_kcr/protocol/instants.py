"""Instants as text: ISO 8601 with a zone, and nothing else.

Rules:

- A local time without a zone names no instant, so it is refused here; the command line adds the zone that its user
  meant.
- Kafka's timestamps count from 1970. A look-up below is refused: the broker reads -1 and -2 as "latest" and
  "earliest", so such a "time" would silently mean something else.
- The canonical text is in UTC, with `Z`, and with a fraction only where there is one.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from airflow_kcr.errors import ConfigurationError

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
