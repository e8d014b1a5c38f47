"""Times as a person writes them, looked up in real logs: on the clock of a zone, around a change of it, and in vain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from airflow_kcr.cli import app
from tests.support.driver import Driver
from tests.support.kafka import Kafka, Record
from tests.support.live_region import SPEC, live_region

SPRING = datetime(2025, 3, 30, 1, tzinfo=UTC)
"""When the clocks of Zurich went from two to three."""


@pytest.fixture
def driver(kafka: Kafka, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """A log with a record each half an hour, from one hour before the change to one hour after it."""
    monkeypatch.setenv("KCR_STORE_URL", database_url)
    topic = kafka.topic(1, {"retention.ms": "-1"})
    moments = [SPRING + timedelta(minutes=30 * n) for n in range(-2, 3)]
    kafka.produce(topic, [Record(value=b"x", partition=0, timestamp=moment) for moment in moments])
    spec = SPEC.replace("broker.invalid:9092", kafka.bootstrap_servers).replace("topics: [t]", f"topics: [{topic}]")
    with live_region(database_url, spec, partitions=1) as driver:
        driver.up()
        yield driver


def planned(*arguments: str) -> tuple[int, str]:
    """Return the status of a plan, and the offset it goes to or what was said."""
    called = CliRunner().invoke(app, ["reset", "plan", "flights", *arguments, "-o", "json"])
    if called.exit_code:
        return called.exit_code, " ".join(called.stderr.split())
    [line] = json.loads(called.stdout)["entries"]
    return 0, str(line["target"])


def test_a_time_is_the_first_record_at_or_after_it_on_the_clock_that_is_meant(driver: Driver) -> None:
    zurich = ("--timezone", "Europe/Zurich")
    assert planned("--to-datetime", "2025-03-30T00:30:00Z") == (0, "1")
    assert planned("--to-datetime", "2025-03-30T01:30", *zurich) == (0, "1"), "an hour ahead in winter"
    assert planned("--to-datetime", "2025-03-30T01:59:59", *zurich) == (0, "2")
    assert planned("--to-datetime", "2025-03-30T03:00", *zurich) == (0, "2"), "the same moment a second later"
    assert planned("--to-datetime", "2025-03-30T03:30", *zurich) == (0, "3"), "two hours ahead in summer"
    assert planned("--to-datetime", "2025-03-30T03:30+02:00") == (0, "3")
    assert planned("--to-datetime", "2025-03-30T07:00", "--timezone", "Asia/Kolkata") == (0, "3")
    status, said = planned("--to-datetime", "2025-03-30T02:30", *zurich)
    assert status == 2
    assert "is not on the clocks, which were set forward then, in Europe/Zurich" in said
    status, said = planned("--to-datetime", "2025-10-26T02:30", *zurich)
    assert status == 2
    assert "2025-10-26T02:30:00+02:00 or 2025-10-26T02:30:00+01:00" in said
    assert planned("--to-datetime", "2025-10-26T02:30:00+02:00") == (0, "5"), "no record is that young: the end"


def test_a_duration_that_finds_nothing_goes_to_the_end_and_one_before_everything_to_the_begin(driver: Driver) -> None:
    assert planned("--by-duration", "1h") == (0, "5")
    assert planned("--by-duration", "P36500D") == (0, "0")
    assert planned("--by-duration", "P3650000D") == (0, "0"), "before the first year of the calendar"
