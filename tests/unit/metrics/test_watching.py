"""The alert rules and the board that the how-to ships: valid, and of metrics that there are."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from airflow_kcr.metrics.declared import MEMBER_METRICS, METRICS
from airflow_kcr.metrics.exporter import Exporter
from tests.support.driver import Driver
from tests.support.live_region import FakeCluster
from tests.support.promql import FOLDER, alerts, board, evaluated, selectors
from tests.unit.metrics.test_exporter import scraped

DECLARED = {m.name: set(m.labels) for m in METRICS} | {m.name: set(m.labels) for m in MEMBER_METRICS}
SHOWN = {target["expr"] for panel in board()["panels"] for target in panel["targets"]}


@pytest.mark.parametrize("expression", sorted({*alerts().values(), *SHOWN}))
def test_every_expression_is_of_declared_metrics_and_their_labels(expression: str) -> None:
    found = selectors(expression)
    assert found
    for selector in found:
        assert {matcher.name for matcher in selector.matchers.matchers} <= DECLARED[selector.name]


def test_an_expression_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="paren"):
        selectors("sum(kcr_region_stalled")


def test_every_panel_has_its_data_source_and_a_place_of_its_own() -> None:
    panels = board()["panels"]
    assert len({panel["id"] for panel in panels}) == len({str(panel["gridPos"]) for panel in panels}) == len(panels)
    assert {target["datasource"]["uid"] for panel in panels for target in panel["targets"]} == {"${datasource}"}
    assert [variable["name"] for variable in board()["templating"]["list"]] == ["datasource", "region"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool here; the parser has read the rules")
def test_promtool_takes_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", FOLDER / "alerts.yaml"], check=True, capture_output=True)


def firing(driver: Driver) -> set[str]:
    """The alerts whose expressions hold now, but for those over a stretch of time."""
    exporter = Exporter(driver.store, FakeCluster().clusters)
    exporter.read()
    text = scraped(exporter)
    now = {name: expression for name, expression in alerts().items() if "(" not in expression.replace("on (", "")}
    return {name for name, expression in now.items() if evaluated(expression, text)}


def test_a_region_that_is_well_has_no_alert_and_one_without_a_member_has(driver: Driver) -> None:
    driver.up()
    assert firing(driver) == set()
    driver.leave(driver.member(1))
    assert "KcrMemberMissing" in firing(driver)


def test_a_stopped_region_lacks_no_member(driver: Driver) -> None:
    assert "KcrMemberMissing" not in firing(driver)
