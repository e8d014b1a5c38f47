from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from airflow.sdk import Asset

from airflow_kcr.airflow_features import CHECKPOINT_KEYS
from airflow_kcr.errors import InvalidIdentifier
from airflow_kcr.hooks import compat
from airflow_kcr.hooks.assets import checkpoint_schedule, create_asset, region_asset, sanitize_uri


def test_a_region_is_one_asset_however_it_is_written() -> None:
    asset = region_asset("flights_eu-1")
    assert (asset.name, asset.uri) == ("kcr://flights_eu-1", "kcr://flights_eu-1")
    assert create_asset(region="flights_eu-1") == asset
    assert create_asset(region="flights", extra={"team": "a"}).extra == {"team": "a"}


@pytest.mark.parametrize(
    "uri",
    [
        "kcr://",
        "kcr:///flights",
        "kcr://Flights!",
        "kcr://flights/1",
        "kcr://flights?x=1",
        "kcr://flights#x",
        "kcr:flights",
    ],
)
def test_what_names_no_region_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match=r"URI format kcr://"):
        sanitize_uri(urlsplit(uri))


def test_airflow_asks_us_about_our_scheme() -> None:
    assert Asset(name="r", uri="kcr://flights/").uri == "kcr://flights"
    with pytest.raises(ValueError, match="must name a region"):
        Asset(name="r", uri="kcr://Flights!")


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidIdentifier):
        region_asset("Flights!")


@pytest.mark.skipif(not compat.has(CHECKPOINT_KEYS), reason="events have no keys of checkpoints")
def test_a_dag_runs_once_for_each_key_of_a_checkpoint() -> None:
    from airflow.sdk import PartitionedAssetTimetable

    schedule = checkpoint_schedule("flights")
    assert isinstance(schedule, PartitionedAssetTimetable)
    assert schedule.asset_condition == region_asset("flights")


def test_without_keys_a_dag_runs_for_the_events_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compat.HAS, CHECKPOINT_KEYS, False)
    assert checkpoint_schedule("flights") == region_asset("flights")
