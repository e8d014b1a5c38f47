"""`kcr lag`: the partitions, the kept samples, and one line for each group again and again."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest

from airflow_kcr.cli import lag
from airflow_kcr.protocol.observations import TimeAnswer
from airflow_kcr.protocol.targets import ToEarliest
from airflow_kcr.protocol.values import Offset
from tests.support.driver import Driver
from tests.support.lag_samples import keep_lag
from tests.support.live_region import FakeCluster
from tests.support.scripts import rewind
from tests.unit.cli.conftest import Kcr


def test_the_lag_has_its_time_and_its_verdict(kcr: Kcr, driver: Driver, cluster: FakeCluster) -> None:
    driver.up()
    driver.process()
    came = driver.store.read(driver.name)[1] - timedelta(minutes=3)
    cluster.firsts = {n: TimeAnswer(offset=Offset(10), found=came) for n in range(4)}
    rows = kcr.json("lag", "flights")
    assert {(r["lag"], r["verdict"], r["why"]) for r in rows} == {(990, "ok", "")}
    assert all(180 <= r["lag_seconds"] < 240 for r in rows)
    assert re.search(r"3960 to read, 3 min( \d+ s)? behind; ok", kcr("lag", "flights", "-o", "table").stdout)
    header, first, *_ = kcr("lag", "flights", "-o", "csv").stdout.splitlines()
    names = "group,topic,partition,position,committed,log_start,log_end,lag,lag_seconds,verdict,why,member_id,trouble"
    assert header == names
    assert re.fullmatch(r"g,t,0,10,,0,1000,990,\d+,ok,,g\[0\],", first)


def test_the_history_is_a_row_for_each_sample_and_a_sparkline(kcr: Kcr, driver: Driver, cluster: FakeCluster) -> None:
    driver.up()
    assert kcr.json("lag", "flights", "--history") == []
    for minutes, end in ((3, 0), (2, 10), (1, 20)):
        cluster.ends = {0: end, 1: 0, 2: 0, 3: 0}
        keep_lag(driver, cluster, minutes=minutes)
    found = kcr.json("lag", "flights", "--history")
    assert [(r["group"], r["lag"], r["max_lag"], r["partitions"]) for r in found] == [
        ("g", lag, lag, 4) for lag in (0, 10, 20)
    ]
    assert "▁▅█" in kcr("lag", "flights", "--history", "-o", "table").stdout


def test_the_rate_is_what_was_processed_since_the_sample_before_in_the_same_epoch(
    kcr: Kcr, driver: Driver, cluster: FakeCluster
) -> None:
    driver.up()
    for minutes in (5, 4, 3):
        keep_lag(driver, cluster, minutes=minutes)
        driver.process(width=30)
    keep_lag(driver, cluster, minutes=2)
    rewind(driver, ToEarliest())
    keep_lag(driver, cluster, minutes=1)
    rates = [row["rate"] for row in kcr.json("lag", "flights", "--history")]
    assert rates[0] is None
    assert rates[1:4] == pytest.approx([2.0] * 3, rel=0.1)
    assert rates[4] is None


def test_a_watcher_gets_a_line_for_each_group_until_it_ends(
    kcr: Kcr, driver: Driver, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.up()
    cluster.ends = {0: 7, 1: 0, 2: 0, 3: 0}
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(lag, "sleep", pause)
    lines = kcr("lag", "flights", "--watch", "-o", "json").stdout.splitlines()
    assert [(row["group"], row["lag"], row["verdict"]) for row in map(json.loads, lines)] == [("g", 7, "ok")] * 2
    assert pauses == [lag.PERIOD] * 2
    pauses.clear()
    csv = kcr("lag", "flights", "--watch", "-o", "csv").stdout.splitlines()
    assert csv[0] == ",".join(lag.WATCHED)
    assert len(csv) == 3


def test_what_is_shown_is_one_thing(kcr: Kcr, driver: Driver) -> None:
    assert "exclude each other" in kcr("lag", "flights", "--watch", "--history").stderr


def test_bars_go_from_0_to_the_largest_and_leave_out_what_is_not_known() -> None:
    assert lag.sparkline([0, 1, None, 50, 100]) == "▁▂ ▅█"
    assert lag.sparkline([0, 0]) == "▁▁"
    assert lag.sparkline([]) == ""
