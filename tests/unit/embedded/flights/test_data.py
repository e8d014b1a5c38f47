"""The real data: how many there are, and that nothing of them is left out."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from airflow_kcr.embedded.flights import data
from airflow_kcr.errors import ConfigurationError, ToolMissing


def test_all_flights_are_there_the_cancelled_ones_too_in_the_order_of_their_scheduled_departures() -> None:
    carriers: Counter[str] = Counter()
    cancelled, months = 0, list[int]()
    for row in data.flights():
        carriers[row["carrier"]] += 1
        cancelled += row["dep_time"] == "NA"
        months.append(int(row["month"]))
    assert carriers.total() == data.FLIGHTS == 336_776
    assert len(carriers) == 16
    assert carriers.most_common(1) == [("UA", 58_665)]
    assert cancelled == 8_255
    assert months == sorted(months)
    assert set(months) == set(range(1, 13))


def test_the_first_flights_are_those_of_the_first_day() -> None:
    rows = list(data.flights(800))
    assert len(rows) == 800
    assert {(row["year"], row["month"], row["day"]) for row in rows} == {("2013", "1", "1")}
    assert rows == list(itertools.islice(data.flights(), 800))


def test_no_flights_at_all_can_not_be_asked_for() -> None:
    with pytest.raises(ConfigurationError, match="0 flights are asked for"):
        list(data.flights(0))


def test_every_airport_has_weather() -> None:
    assert {row["origin"] for row in data.rows("weather.csv")} == {"EWR", "JFK", "LGA"}


def test_every_carrier_has_a_name() -> None:
    names = {row["carrier"]: row["name"] for row in data.rows("airlines.csv")}
    assert len(names) == 16
    assert names["UA"] == "United Air Lines Inc."


def test_a_missing_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "PACKAGE", "no_such_package_of_flights")
    with pytest.raises(ToolMissing, match=r"no_such_package_of_flights.*airflow-kcr\[demo\]"):
        data.folder()
