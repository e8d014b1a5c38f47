from __future__ import annotations

import json
from functools import partialmethod
from typing import TYPE_CHECKING

from airflow_kcr.api import Region
from airflow_kcr.protocol.region.commands import KillRegion
from tests.support.databases import execute
from tests.support.driver import START, Driver
from tests.support.live_region import FakeCluster
from tests.support.stores import only_reading
from tests.unit.cli.conftest import Kcr

if TYPE_CHECKING:
    import pytest


def test_a_broker_out_of_reach_ends_with_status_4(kcr: Kcr, driver: Driver, cluster: FakeCluster) -> None:
    cluster.is_away = True
    assert "broker.invalid:9092" in kcr.refused("lag", "flights", status=4)


def test_events_are_shown_in_their_order(kcr: Kcr, driver: Driver) -> None:
    driver.up()
    found = kcr.json("events", "flights", "--after", 0)
    assert [event["number"] for event in found] == list(range(1, len(found) + 1))
    assert found[0]["kind"] == "RegionCreated"
    assert list(found[0]) == ["number", "at", "epoch", "timeline", "kind", "body"]
    assert kcr.json("events", "flights", "--last", 3) == found[-3:]
    assert kcr.json("events", "flights", "--last", 0) == []
    assert kcr.json("events", "flights", "--after", found[-2]["number"]) == found[-1:]


def test_more_events_than_a_page_are_shown(kcr: Kcr, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Region, "events", partialmethod(Region.events, limit=5))
    for _ in range(4):
        driver.handle(START)
        driver.handle(KillRegion())
    assert len(kcr.json("events", "flights", "--after", 0)) == driver.region.counter > 15


def test_an_event_is_one_line_of_a_table(kcr: Kcr, driver: Driver) -> None:
    driver.up()
    lines = kcr("events", "flights", "-o", "table").stdout.splitlines()
    assert lines[0].split() == ["number", "at", "epoch", "timeline", "kind", "what"]
    assert len(lines) == driver.region.counter + 1
    assert "before=stopped after=starting" in "\n".join(lines)


def test_a_consistent_history_is_verified(kcr: Kcr, driver: Driver) -> None:
    driver.up()
    driver.process()
    driver.checkpoint("n")
    found = kcr.json("verify", "flights")
    assert (found["checked_events"], found["checked_batches"]) == (driver.region.counter, len(driver.batches))
    assert (found["after"], found["violations"], found["progress"]) == (0, [], "progressing")
    assert "consistent" in kcr("verify", "flights", "-o", "table").stdout


def test_a_region_that_makes_no_progress_is_told_beside_the_verdict_and_by_the_list(
    kcr: Kcr, driver: Driver, database_url: str
) -> None:
    driver.up()
    execute(database_url, "UPDATE kcr.lease SET valid_until = valid_until - interval '1 day'")
    called = kcr("verify", "flights", "-o", "json")
    assert called.exit_code == 0, "a stall contradicts no invariant"
    assert json.loads(called.stdout)["progress"].startswith("stalled: members since ")
    assert "stalled: members since " in kcr("verify", "flights", "-o", "table").stdout
    assert [row["progress"] for row in kcr.json("region", "list")] == ["stalled"]


def test_who_may_only_read_may_verify(kcr: Kcr, driver: Driver, database_url: str) -> None:
    driver.up()
    with only_reading(database_url) as reader:
        called = kcr("verify", "flights", "--store", reader.render_as_string(False), "-o", "json")
    assert called.exit_code == 0


def test_a_contradiction_is_reported_and_ends_with_status_1(kcr: Kcr, driver: Driver, database_url: str) -> None:
    driver.up()
    driver.process()
    driver.checkpoint("n")
    execute(database_url, "UPDATE kcr.batch_range SET to_offset = 9 WHERE partition = 0")
    called = kcr("verify", "flights", "-o", "json")
    assert called.exit_code == 1
    [violation, *_] = json.loads(called.stdout)["violations"]
    assert set(violation) == {"invariant", "detail", "events"}
    assert violation["invariant"] == "R1a"
    table = kcr("verify", "flights", "-o", "table")
    assert table.exit_code == 1
    assert "R1a" in table.stdout
