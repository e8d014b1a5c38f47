"""What a flight looks like in Kafka."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from airflow_kcr.embedded.flights import data, producer


def flight(**changed: str) -> dict[str, str]:
    return {**next(data.flights(1)), **changed}


def test_the_key_is_the_carrier() -> None:
    assert producer.key(flight(carrier="9E")) == b"9E"


def test_the_value_is_compact_json_with_times_of_new_york() -> None:
    value = producer.value(flight())
    assert b" " not in value
    assert json.loads(value) == {
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "year": 2013,
        "month": 1,
        "day": 1,
        "hour": 5,
        "scheduled": "2013-01-01T05:15:00-05:00",
        "departed": "2013-01-01T05:17:00-05:00",
        "dep_delay": 2,
        "arr_delay": 11,
        "distance": 1400,
    }


def test_a_cancelled_flight_has_a_schedule_and_no_departure() -> None:
    value = json.loads(producer.value(flight(dep_time="NA", dep_delay="NA", arr_delay="NA", tailnum="NA")))
    assert value["scheduled"] == "2013-01-01T05:15:00-05:00"
    assert [value[name] for name in ("departed", "dep_delay", "arr_delay", "tailnum")] == [None] * 4


def test_a_delay_over_midnight_is_the_next_day() -> None:
    value = json.loads(producer.value(flight(month="6", day="30", hour="23", minute="59", dep_delay="2")))
    assert value["departed"] == "2013-07-01T00:01:00-04:00"


def test_a_delay_over_the_change_to_summer_time_skips_the_hour_that_never_was() -> None:
    value = json.loads(producer.value(flight(month="3", day="10", hour="1", minute="50", dep_delay="20")))
    assert value["scheduled"] == "2013-03-10T01:50:00-05:00"
    assert value["departed"] == "2013-03-10T03:10:00-04:00"


def test_every_scheduled_departure_is_within_the_hour_that_the_file_gives_in_utc() -> None:
    for row in list(data.flights())[::2_000]:
        scheduled = datetime.fromisoformat(json.loads(producer.value(row))["scheduled"]).astimezone(UTC)
        assert scheduled.replace(minute=0) == datetime.fromisoformat(row["time_hour"])
