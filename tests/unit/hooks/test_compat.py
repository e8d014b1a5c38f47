"""The table of what Airflow's versions add is true of the installed one, whose classes are asked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import airflow_kcr
from airflow_kcr.airflow_features import FEATURES, OLDEST, Feature, missing
from airflow_kcr.hooks import compat
from tests.support.installed_airflow import lacks


@pytest.mark.parametrize("feature", compat.HAS, ids=lambda feature: feature.name)
def test_the_table_says_of_the_installed_airflow_what_its_classes_do(feature: Feature) -> None:
    assert compat.has(feature) != lacks(feature)


def test_the_oldest_supported_airflow_lacks_all_of_the_table_and_the_newest_nothing() -> None:
    assert missing(OLDEST) == FEATURES
    assert missing(max(feature.since for feature in FEATURES)) == ()


def test_nothing_but_this_one_module_asks_which_airflow_it_is() -> None:
    package = Path(airflow_kcr.__file__).parent
    asks = re.compile(
        r"AIRFLOW_V_|airflow\.__version__|hasattr\(sdk|from airflow\.sdk\.(exceptions|plugins_manager|configuration)"
    )
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if asks.search(path.read_text("utf-8"))}
    assert found == {"hooks/compat.py"}
