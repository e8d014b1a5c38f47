"""How a flight is written as a Kafka record: the carrier is the key, compact JSON the value.

The times of the flight are in the value. As the record's own timestamp they would be of no use: to a topic that
keeps a week, records of 2013 are old, and retention takes them at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from airflow_kcr.embedded.flights.data import NOT_AVAILABLE

ZONE: Final = ZoneInfo("America/New_York")
"""Of all three airports."""

_encode: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def key(row: Mapping[str, str]) -> bytes:
    """Return the record's key; the flights of a carrier stay in order, and big carriers make big partitions."""
    return row["carrier"].encode()


def value(row: Mapping[str, str]) -> bytes:
    """Return the record's value: UTF-8 JSON, null where the file has no value.

    `scheduled` and `departed` are ISO 8601 in New York's time; a cancelled flight has no `departed` and no delays.
    `year` to `hour` are of the scheduled departure by the airport's clock, as the weather has them.

    Args:
        row: a flight by the names of the file's columns.
    """
    hour = _hour(row["year"], row["month"], row["day"], row["hour"])
    scheduled = hour + timedelta(minutes=int(row["minute"]))
    delay = _number(row["dep_delay"])
    # By way of UTC: hours after a change to or from summer time are not hours on the clock.
    departed = None if delay is None else datetime.fromtimestamp(scheduled.timestamp() + 60 * delay, ZONE)
    return _encode(
        {
            "carrier": row["carrier"],
            "flight": _number(row["flight"]),
            "tailnum": None if row["tailnum"] == NOT_AVAILABLE else row["tailnum"],
            "origin": row["origin"],
            "dest": row["dest"],
            "year": hour.year,
            "month": hour.month,
            "day": hour.day,
            "hour": hour.hour,
            "scheduled": scheduled.isoformat(),
            "departed": departed and departed.isoformat(),
            "dep_delay": delay,
            "arr_delay": _number(row["arr_delay"]),
            "distance": _number(row["distance"]),
        }
    ).encode()


def _number(text: str) -> int | None:
    return None if text == NOT_AVAILABLE else int(text)


@lru_cache(maxsize=64)
def _hour(year: str, month: str, day: str, hour: str) -> datetime:
    return datetime(int(year), int(month), int(day), int(hour), tzinfo=ZONE)
